package ingest

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	ingestv1 "github.com/icestream/icestream/gen/go/icestream/ingest/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

// rows are the rows of the log, which has one partition, by offset: as JSON of the mapped columns that are not null.
func (w *world) rows() map[int64]string {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[int64]string{}
	for _, e := range w.entries {
		if e.Rows == 0 {
			continue
		}
		target := w.known[e.Fingerprint]
		rec, err := arrowx.Decode(arrowx.RowSchema(target), e.RowBatch)
		require.NoError(w.t, err)
		for i, o := range arrowx.Offsets(rec) {
			row := map[string]any{}
			for c, n := range target.Mapped() {
				if a := rec.Column(c); !a.IsNull(i) {
					row[n.Name] = a.GetOneForMarshal(i)
				}
			}
			text, err := json.Marshal(row)
			require.NoError(w.t, err)
			out[o] = string(text)
		}
	}
	return out
}

// send produces records with keys and headers.
func (w *world) send(records ...*kgo.Record) {
	w.t.Helper()
	for _, r := range records {
		r.Topic = "orders"
	}
	require.NoError(w.t, w.producer.ProduceSync(w.t.Context(), records...).FirstErr())
}

func prefix(id int, payload string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(id)), payload...)
}

const (
	avroOrder1 = `{"type":"record","name":"shop.Order","fields":[{"name":"id","type":"string"},{"name":"units","type":"int"}]}`
	avroOrder2 = `{"type":"record","name":"shop.Order","fields":[{"name":"order_id","type":"string","aliases":["id"]},{"name":"units","type":"long"},{"name":"note","type":["null","string"]}]}`
	avroKey    = `{"type":"record","name":"shop.Key","fields":[{"name":"shop","type":"int"}]}`
	jsonOrder  = `{"type":"object","properties":{"id":{"type":"string"},"units":{"type":"integer"}}}`
)

func (w *world) register(id int, kind, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.schemas[id] = text
	if w.kinds == nil {
		w.kinds = map[int]string{}
	}
	w.kinds[id] = kind
}

func TestAvroRecordsBecomeRows(t *testing.T) { // S1, S2, S5, G8
	w := newWorld(t, ordersTopic+", format: avro", topic(1))
	w.register(1, "AVRO", avroOrder1)
	w.register(2, "", avroOrder2) // registries leave the default kind out
	w.register(3, "AVRO", `{"type":"record"`)
	w.send(
		&kgo.Record{Value: prefix(1, "\x02a\x06")},
		&kgo.Record{Value: prefix(2, "\x02b\x08\x02\x04no")},
		&kgo.Record{Value: prefix(1, "\x02c\x0a")}, // the older writer goes on
		&kgo.Record{Value: prefix(1, "\x02d")},
		&kgo.Record{Value: prefix(9, "\x02e\x06")},
		&kgo.Record{Value: prefix(3, "\x02e\x06")},
		&kgo.Record{Value: []byte("\x02f\x06"), Headers: []kgo.RecordHeader{{Key: "__value_schema_id", Value: []byte{0, 0, 0, 0, 1}}}},
	)
	w.start()
	w.appended(0, 7)
	require.Equal(t, map[int64]string{
		0: `{"id":"a","units":3}`, 1: `{"id":"b","note":"no","units":4}`, 2: `{"id":"c","units":5}`, 6: `{"id":"f","units":3}`,
	}, w.rows(), "the renamed field keeps its column, the wider one its place")
	got := w.outcome(0)
	require.Equal(t, "bad truncated", got[3])
	require.Equal(t, "bad schema_unknown", got[4])
	require.Equal(t, "bad schema_invalid", got[5])
}

func TestAWrongFormatStopsThePartitionInsteadOfFillingTheQuarantine(t *testing.T) { // G10, issue 4 point 9
	w := newWorld(t, ordersTopic+", format: avro", topic(1))
	w.produce(0, orders(1, 0, 3)...)
	w.start()
	w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
	require.Contains(t, w.progress[0].Reason, "its schemas are protobuf, the pipeline's format is avro")
	require.Empty(t, w.outcome(0))
}

func TestColumnsThatCannotBeReadAreNamedAtTheStart(t *testing.T) {
	w := newWorld(t, ordersTopic+`, format: json, columns: "id bigint"`, topic(1))
	_, err := New(t.Context(), Config{Settings: w.cfg}, Deps{})
	require.ErrorContains(t, err, `pipelines[0].columns: reading the columns "id bigint": column id: "bigint" is not a type`)
}

func TestUnframedValuesAndKeysHaveTheirConfiguredSchemas(t *testing.T) {
	w := newWorld(t, ordersTopic+", format: avro, schema: {framing: none, id: 5}, key: decode, key_schema: {framing: none, id: 6}", topic(1))
	w.register(5, "AVRO", avroOrder1)
	w.register(6, "AVRO", avroKey)
	w.send(&kgo.Record{Key: []byte("\x04"), Value: []byte("\x02a\x06")}, &kgo.Record{Value: []byte("\x02b\x08")})
	w.start()
	w.appended(0, 2)
	require.Equal(t, map[int64]string{0: `{"_key":{"shop":2},"id":"a","units":3}`, 1: `{"id":"b","units":4}`}, w.rows())
}

func TestJSONRecordsOfASchemaBecomeRows(t *testing.T) {
	w := newWorld(t, ordersTopic+", format: json_schema", topic(1))
	w.register(1, "JSON", jsonOrder)
	w.register(2, "AVRO", avroOrder1)
	w.send(
		&kgo.Record{Value: prefix(1, `{"units":3,"id":"a"}`)},
		&kgo.Record{Value: prefix(1, `{"units":3.5}`)},
		&kgo.Record{Value: prefix(2, "\x02b\x06")},
	)
	w.start()
	w.appended(0, 3)
	require.Equal(t, map[int64]string{0: `{"id":"a","units":3}`}, w.rows())
	require.Equal(t, "bad out_of_range", w.outcome(0)[1])
	require.Equal(t, "bad schema_invalid", w.outcome(0)[2])
}

func TestJSONWithoutASchema(t *testing.T) {
	for pipeline, want := range map[string]string{
		"format: json": `{"value":"{\"id\": 7}"}`,
		`format: json, columns: "id long, gone string"`: `{"id":7}`,
	} {
		w := newWorld(t, ordersTopic+", "+pipeline, topic(1))
		w.send(&kgo.Record{Value: []byte(` {"id": 7} `)}, &kgo.Record{Value: []byte(`{"id": 7`)})
		w.start()
		w.appended(0, 2)
		require.Equal(t, map[int64]string{0: want}, w.rows())
		require.Equal(t, "bad truncated", w.outcome(0)[1])
	}
}

func TestStringsAreTextOrQuarantined(t *testing.T) {
	w := newWorld(t, ordersTopic+", format: string", topic(1))
	w.send(&kgo.Record{Value: []byte("grüße")}, &kgo.Record{Value: []byte{0xff}}, &kgo.Record{Value: []byte{}})
	w.start()
	w.appended(0, 3)
	require.Equal(t, map[int64]string{0: `{"value":"grüße"}`, 2: `{"value":""}`}, w.rows())
	require.Equal(t, "bad invalid_utf8", w.outcome(0)[1])
}

func TestKeysAreAColumn(t *testing.T) { // issue 4 points 1 and 10
	value := func(id string) []byte { return framed(1, id, 1, "") }
	for _, c := range []struct {
		key  string
		send []*kgo.Record
		rows map[int64]string
		bad  map[int64]string
	}{
		{
			"key: raw",
			[]*kgo.Record{{Key: []byte{0xff}, Value: value("a")}, {Value: value("b")}, {Key: []byte("t")}, {Key: []byte{}, Value: value("c")}},
			map[int64]string{0: `{"_key":"/w==","id":"a","units":1}`, 1: `{"id":"b","units":1}`, 2: `{"_key":"dA=="}`, 3: `{"_key":"","id":"c","units":1}`},
			nil,
		},
		{
			"key: string",
			[]*kgo.Record{{Key: []byte("t")}, {Key: []byte("k"), Value: value("a")}, {Key: []byte{0xff}, Value: value("b")}, {Key: []byte("k"), Value: value("x")[:7]}, {Key: []byte("l"), Value: value("c")}},
			map[int64]string{0: `{"_key":"t"}`, 1: `{"_key":"k","id":"a","units":1}`, 4: `{"_key":"l","id":"c","units":1}`},
			map[int64]string{2: "bad key_invalid_utf8", 3: "bad truncated"},
		},
		{
			"key: decode",
			[]*kgo.Record{{Key: framed(1, "key", 7, ""), Value: value("a")}, {Key: framed(1, "dead", 7, "")}, {Value: value("b")}, {Key: []byte("k"), Value: value("x")}, {Key: framed(99, "k", 7, ""), Value: value("x")}, {}},
			map[int64]string{0: `{"_key":{"id":"key","units":7},"id":"a","units":1}`, 1: `{"_key":{"id":"dead","units":7}}`, 2: `{"id":"b","units":1}`, 5: `{}`},
			map[int64]string{3: "bad key_frame_missing", 4: "bad key_schema_unknown"},
		},
		{
			"key: decode, key_format: avro",
			[]*kgo.Record{
				{Key: prefix(5, "\x04"), Value: value("a")},
				{Key: prefix(6, "\x04hi"), Value: value("b")},
				{Key: prefix(5, "\x06")},
				{Key: []byte("\x08"), Value: value("c"), Headers: []kgo.RecordHeader{{Key: "__key_schema_id", Value: []byte{0, 0, 0, 0, 5}}}},
			},
			map[int64]string{0: `{"_key":{"shop":2},"id":"a","units":1}`, 2: `{"_key":{"note":null,"shop":3}}`, 3: `{"_key":{"note":null,"shop":4},"id":"c","units":1}`},
			map[int64]string{1: "bad key_truncated"},
		},
		{
			"key: decode, key_format: json",
			[]*kgo.Record{{Key: []byte(`{"a":1}`), Value: value("a")}, {Key: []byte(`x`), Value: value("b")}},
			map[int64]string{0: `{"_key":"{\"a\":1}","id":"a","units":1}`},
			map[int64]string{1: "bad key_invalid_json"},
		},
	} {
		t.Run(c.key, func(t *testing.T) {
			w := newWorld(t, ordersTopic+", tombstones: row, "+c.key, topic(1))
			w.register(5, "AVRO", avroKey)
			w.register(6, "AVRO", `{"type":"record","name":"shop.Key","fields":[{"name":"shop","type":"int"},{"name":"note","type":"string"}]}`)
			w.send(c.send...)
			w.start()
			w.appended(0, int64(len(c.send)))
			require.Equal(t, c.rows, w.rows())
			got := w.outcome(0)
			for o, bad := range c.bad {
				require.Equal(t, bad, got[o])
			}
		})
	}
}

func TestKeyColumnNeverTakesAnothersPlace(t *testing.T) { // issue 4 point 10
	w := newWorld(t, ordersTopic+", key: string, format: json_schema", topic(1))
	w.register(1, "JSON", `{"type":"object","properties":{"_key":{"type":"integer"},"_lsn":{"type":"string"}}}`)
	w.send(&kgo.Record{Key: []byte("k"), Value: prefix(1, `{"_key":1,"_lsn":"x"}`)})
	w.start()
	w.appended(0, 1)
	require.Equal(t, map[int64]string{0: `{"_key":1,"_key_kafka":"k","_lsn_2":"x"}`}, w.rows())
}

// G5: what an entry holds must not depend on where reading began, with keys and tombstones of several schemas too.
func TestCrashedLogIsRefilledWithKeys(t *testing.T) {
	w := newWorld(t, ordersTopic+", tombstones: row, key: decode, key_format: avro", topic(1))
	w.register(5, "AVRO", avroKey)
	w.register(6, "AVRO", `{"type":"record","name":"shop.Key","fields":[{"name":"shop","type":"long"},{"name":"extra","type":"int"}]}`)
	w.start()
	keys := [][]byte{prefix(5, "\x02"), prefix(5, "\x04"), nil, prefix(6, "\x06\x02"), prefix(5, "\x08"), nil}
	at := 0
	for n := range 8 {
		var records []*kgo.Record
		for i := range 5 + n {
			r := &kgo.Record{Key: keys[(n+i)%len(keys)], Value: framed(1+(n+i)/3%2, fmt.Sprint(at+i), 1, "")}
			if (n+i)%3 == 0 {
				r.Value = nil
			}
			records = append(records, r)
		}
		w.send(records...)
		at += len(records)
		w.appended(0, int64(at))
	}
	before := w.rows()
	w.restartLog()
	w.send(&kgo.Record{Key: keys[0], Value: framed(1, "last", 1, "")})
	w.appended(0, int64(at+1))
	after := w.rows()
	for o := range before {
		require.Equal(t, before[o], after[o], "offset %d", o)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(t, w.outstanding)
	require.Positive(t, w.refilled)
}

// What a record holds beyond its schema is kept with the row, on the first reading, on a second and in a replay.
func TestRecordsWithUnknownFieldsAreKeptRaw(t *testing.T) { // G5, design section 5
	const settings = ordersTopic + ", tombstones: row, key: string, unknown_fields: keep"
	w := newWorld(t, settings, topic(1))
	i := w.start()
	extra := framed(1, "b", 2, "more") // field 3 is not in schema 1
	raw := base64.StdEncoding.EncodeToString(extra[6:])
	values := [][]byte{framed(1, "a", 1, ""), extra, nil, framed(2, "c", 3, "note"), append(slices.Clone(extra), 0xff), framed(1, "d", 4, "")}
	records := make([]*kgo.Record, len(values))
	for n, v := range values {
		records[n] = &kgo.Record{Key: []byte("k"), Value: v}
	}
	w.send(records...)
	w.appended(0, 6)
	want := map[int64]string{
		0: `{"_key":"k","id":"a","units":1}`,
		1: `{"_key":"k","_raw":"` + raw + `","id":"b","units":2}`,
		2: `{"_key":"k"}`,
		3: `{"_key":"k","id":"c","note":"note","units":3}`,
		5: `{"_key":"k","id":"d","units":4}`,
	}
	require.Equal(t, want, w.rows())
	require.Equal(t, "bad truncated", w.outcome(0)[4])
	w.restartLog()
	w.send(&kgo.Record{Key: []byte("k"), Value: extra})
	w.appended(0, 7)
	again := w.rows()
	require.Equal(t, want[1], again[6])
	delete(again, 6)
	require.Equal(t, want, again)
	w.mu.Lock()
	require.Positive(t, w.refilled)
	w.mu.Unlock()

	resp, err := ingestv1.NewDecodeServiceClient(i.dial(t)).Decode(t.Context(), &ingestv1.DecodeRequest{
		Pipeline: "p", Table: "shop.orders", Partition: wire.PartitionToProto(ident.Partition{Pipeline: "p", Topic: "orders"}),
		Records: []*ingestv1.RawRecord{{Offset: 1, Key: []byte("k"), Value: extra}, {Offset: 5, Key: []byte("k"), Value: values[5]}},
	})
	require.NoError(t, err)
	require.Empty(t, resp.GetRefusals())
	require.Len(t, resp.GetBatches(), 1)
	s := &schema.Schema{}
	require.NoError(t, json.Unmarshal(resp.GetBatches()[0].GetSchema().GetColumns(), s))
	rec, err := arrowx.Decode(arrowx.RowSchema(s), resp.GetBatches()[0].GetRows())
	require.NoError(t, err)
	kept := rec.Column(rec.Schema().FieldIndices("_raw")[0]).(*array.Binary)
	require.Equal(t, extra[6:], kept.Value(0))
	require.True(t, kept.IsNull(1))
}

func TestMetadataColumnsAreAsThePipelineSays(t *testing.T) { // issue 4 point 10
	for metadata, want := range map[string][]string{
		"[lsn, kafka]": {"_lsn", "_kafka"}, "[lsn]": {"_lsn"}, "[kafka]": {"_kafka"}, "[]": nil,
	} {
		w := newWorld(t, ordersTopic+", format: raw, metadata: "+metadata, topic(1))
		w.mu.Lock()
		w.table = &schema.Schema{Columns: schema.MetadataColumns(slices.Contains(want, "_lsn"), slices.Contains(want, "_kafka"))}
		w.table.AssignIDs()
		w.mu.Unlock()
		w.send(&kgo.Record{Key: []byte("k"), Value: []byte("v")})
		w.start()
		w.appended(0, 1)
		w.mu.Lock()
		require.Equal(t, slices.Contains(want, "_lsn"), w.settings.GetMetadataLsn())
		require.Equal(t, slices.Contains(want, "_kafka"), w.settings.GetMetadataKafka())
		e := w.entries[0]
		rec, err := arrowx.Materialise(w.known[e.Fingerprint], e, e.Range)
		w.mu.Unlock()
		require.NoError(t, err)
		names := []string{"value"}
		names = append(names, want...)
		for i, f := range rec.Schema().Fields() {
			require.Equal(t, names[i], f.Name)
		}
		if i := slices.Index(names, "_kafka"); i >= 0 {
			require.Contains(t, rec.Column(i).(*array.Struct).ValueStr(0), `"topic":"orders"`)
		}
	}
}
