package stack

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protowire"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer"
)

const parcelsText = `deployment: test
defaults: { commit: { interval: 1h }, flood: { share: off } }
pipelines:
  - { name: parcels, topics: [parcels], table: shop.parcels }
`

const (
	parcelV1 = `syntax = "proto3"; package shop; message Parcel { string id = 1; }`
	parcelV2 = `syntax = "proto3"; package shop; message Parcel { string id = 1; int64 grams = 2; }`
)

// parcels produces n records of a schema to a partition, numbered from first on.
func (w *world) parcels(cl *kgo.Client, partition int32, schemaID uint32, first, n int) {
	w.t.Helper()
	var list []*kgo.Record
	for i := first; i < first+n; i++ {
		b := append(binary.BigEndian.AppendUint32([]byte{0}, schemaID), 0)
		b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), fmt.Sprintf("%d/%d", partition, i))
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(i))
		list = append(list, &kgo.Record{Topic: "parcels", Partition: partition, Value: b, Key: []byte("k"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}})
	}
	require.NoError(w.t, cl.ProduceSync(w.t.Context(), list...).FirstErr())
}

// read reads the parcels at a token, "" for the newest, and returns its rows as id → "offset lsn" and the token.
func (w *world) read(token string) (rows map[string]string, tok string, err error) {
	return w.readAt("shop.parcels", "id", token)
}

// readAt reads a table at a token, "" for the newest, and returns its rows as key → "offset lsn" and the token. A key
// that comes twice is an error.
func (w *world) readAt(table, key, token string) (rows map[string]string, tok string, err error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	req := &readstatev1.ScanRequest{Table: table}
	if token != "" {
		req.At = &readstatev1.At{Position: &readstatev1.At_Token{Token: token}}
	}
	stream, err := readstatev1.NewReadStateServiceClient(w.dial(discovery.Readstate)).Scan(ctx, req)
	if err != nil {
		return nil, "", wire.FromStatus(err)
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, "", wire.FromStatus(err)
	}
	rows = map[string]string{}
	err = arrowx.EachBatch(&arrowx.Chunks{Next: func() ([]byte, error) {
		m, err := stream.Recv()
		if err != nil {
			return nil, wire.FromStatus(err)
		}
		return m.GetChunk().GetData(), nil
	}}, func(rec arrow.RecordBatch) error {
		column := func(name string) arrow.Array { return rec.Column(rec.Schema().FieldIndices(name)[0]) }
		for i := range int(rec.NumRows()) {
			id := column(key).ValueStr(i)
			if _, twice := rows[id]; twice {
				return fmt.Errorf("%s is there twice", id)
			}
			rows[id] = column("_kafka").(*array.Struct).Field(2).ValueStr(i) + " " + column("_lsn").ValueStr(i)
		}
		return nil
	})
	return rows, first.GetBegin().GetToken(), err
}

func (w *world) replay(dry bool) (*committerv1.ReplayQuarantineResponse, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	r, err := committerv1.NewAdminServiceClient(w.dial(discovery.Committer)).ReplayQuarantine(ctx,
		&committerv1.ReplayQuarantineRequest{Table: "shop.parcels", DryRun: dry})
	return r, wire.FromStatus(err)
}

// quarantined are the records of the quarantine table, id of the row → LSN.
func (w *world) quarantined(f committer.QuarantineFilter) map[string]int64 {
	w.t.Helper()
	out := map[string]int64{}
	err := committer.ShowQuarantine(w.t.Context(), w.settings, "shop.parcels", f, 0, func(r committer.QuarantinedRecord) error {
		out[fmt.Sprintf("%d/%d", r.Partition, r.Offset)] = *r.LSN
		return nil
	})
	require.NoError(w.t, err)
	return out
}

// Issue 4 point 9: repaired rows land once, with their offsets and LSNs, and no token changes its answer (G1, G3, G5).
func TestQuarantinedRecordsAreReplayedOnceAndNoTokenChangesItsAnswer(t *testing.T) {
	w := newWorld(t, parcelsText)
	cl := w.client()
	require.NoError(t, w.kafka.EnsureTopic("parcels", 2))
	v1 := w.register("parcels-value", parcelV1)
	v2 := v1 + 1 // not yet registered
	w.start()
	for p := range int32(2) { // ids are offsets, so that a row says where it belongs
		w.parcels(cl, p, v1, 0, 5)
		w.parcels(cl, p, v2, 5, 20)
		w.parcels(cl, p, v1, 25, 5)
	}
	w.eventually(func() error {
		if seen, end := w.visible("shop.parcels", "parcels"); seen != end || seen != 60 {
			return fmt.Errorf("%d of %d are visible", seen, end)
		}
		return nil
	})
	w.replicated("shop.parcels")
	rowsThen, hot, err := w.read("")
	require.NoError(t, err)
	require.Len(t, rowsThen, 20)
	w.settle("shop.parcels", "parcels")
	w.replicated("shop.parcels")
	bad := w.quarantined(committer.QuarantineFilter{})
	require.Len(t, bad, 40)
	count, err := committer.CountQuarantine(t.Context(), w.settings, "shop.parcels", committer.QuarantineFilter{})
	require.NoError(t, err)
	require.Len(t, count.Counts, 2)
	require.Equal(t, "schema_unknown", count.Counts[0].Reason)
	require.EqualValues(t, v2, *count.Counts[0].SchemaID)
	_, cold, err := w.read("")
	require.NoError(t, err)

	r, err := w.replay(false)
	require.NoError(t, err)
	require.Zero(t, r.GetReplayed(), "the cause is not mended")
	require.EqualValues(t, 40, r.GetRefusals()[0].GetCount())
	require.Contains(t, r.GetRefusals()[0].GetFirst(), "offset 5")
	require.Equal(t, v2, w.register("parcels-value", parcelV2))
	w.restart(discovery.Ingest) // which believes the registry's no for a while
	w.ready()
	r, err = w.replay(true)
	require.NoError(t, err)
	require.EqualValues(t, 40, r.GetReplayed(), "%v", r.GetRefusals())
	for p := range int32(2) { // hot rows on top, and a token that has them
		w.parcels(cl, p, v1, 30, 3)
	}
	w.eventually(func() error {
		if seen, end := w.visible("shop.parcels", "parcels"); seen != end || seen != 66 {
			return fmt.Errorf("%d of %d are visible", seen, end)
		}
		return nil
	})
	w.replicated("shop.parcels")
	rowsBefore, before, err := w.read("")
	require.NoError(t, err)
	require.Len(t, rowsBefore, 26)

	r, err = w.replay(false)
	require.NoError(t, err)
	require.EqualValues(t, 40, r.GetReplayed())
	require.True(t, r.GetMarked())
	require.Len(t, r.GetSnapshots(), 2)
	require.Empty(t, r.GetRefusals())
	w.eventually(func() error { // the replica hears of it
		rows, _, err := w.read("")
		if err == nil && len(rows) != 66 {
			err = fmt.Errorf("%d rows", len(rows))
		}
		return err
	})
	for _, settled := range []bool{false, true} {
		if settled {
			w.settle("shop.parcels", "parcels")
			w.replicated("shop.parcels")
		}
		for token, want := range map[string]map[string]string{hot: rowsThen, cold: rowsThen, before: rowsBefore} {
			got, _, err := w.read(token)
			require.NoError(t, err)
			require.Equal(t, want, got, "settled %v", settled)
		}
		rows, _, err := w.read("")
		require.NoError(t, err)
		require.Len(t, rows, 66)
		for id, lsn := range bad {
			_, offset, _ := strings.Cut(id, "/")
			require.Equal(t, fmt.Sprint(offset, " ", lsn), rows[id], "offset and LSN of %s", id)
		}
	}
	require.Equal(t, committer.Proven, w.auditOf("shop.parcels", true).Verdict)
	require.Empty(t, w.quarantined(committer.QuarantineFilter{Waiting: true}))
	require.Equal(t, bad, w.quarantined(committer.QuarantineFilter{}), "the records stay")
	r, err = w.replay(false)
	require.NoError(t, err)
	require.Zero(t, r.GetSelected())
	w.restart(discovery.Committer)
	w.restart(discovery.Readstate)
	w.ready()
	rows, _, err := w.read("")
	require.NoError(t, err)
	require.Len(t, rows, 66)
}

// A committer that dies while it replays, again and again: every record is a row once, and the audit is proven (G1).
func TestAReplayThatIsKilledAgainAndAgainLandsEveryRecordOnce(t *testing.T) {
	const records = 4500
	w := newWorld(t, parcelsText)
	cl := w.client()
	require.NoError(t, w.kafka.EnsureTopic("parcels", 2))
	v1 := w.register("parcels-value", parcelV1)
	w.start()
	for p := range int32(2) {
		w.parcels(cl, p, v1, 0, 1)
		w.parcels(cl, p, v1+1, 1, records)
	}
	w.settle("shop.parcels", "parcels")
	require.Equal(t, v1+1, w.register("parcels-value", parcelV2))
	w.restart(discovery.Ingest) // and with it what it believes of the registry
	w.ready()
	w.abrupt = true
	for kill := range 4 {
		done := make(chan error, 1)
		go func() {
			_, err := w.replay(false)
			done <- err
		}()
		w.pause(time.Duration(20+kill*200) * time.Millisecond)
		w.stop(discovery.Committer)
		err := <-done
		t.Logf("kill %d: %v", kill, err)
		w.start(discovery.Committer)
		w.ready(discovery.Committer)
	}
	w.abrupt = false
	w.eventually(func() error {
		r, err := w.replay(false)
		if err == nil && (r.GetReplayed() != r.GetSelected() || !r.GetMarked()) {
			err = fmt.Errorf("%d of %d, marked %v: %v", r.GetReplayed(), r.GetSelected(), r.GetMarked(), r.GetRefusals())
		}
		return err
	})
	report := w.auditOf("shop.parcels", true)
	require.Equal(t, committer.Proven, report.Verdict, report.String())
	require.EqualValues(t, 2*records, report.Replayed)
	w.ready()
	w.eventually(func() error {
		rows, _, err := w.read("")
		if err == nil && len(rows) != 2*(records+1) {
			err = fmt.Errorf("%d rows", len(rows))
		}
		return err
	})
	rows, _, err := w.read("")
	require.NoError(t, err)
	bad := w.quarantined(committer.QuarantineFilter{})
	require.Len(t, bad, 2*records)
	for id := range maps.Keys(bad) {
		if rows[id] == "" { // require.Contains would compare each with each
			require.Fail(t, "a record is no row", id)
		}
	}
}
