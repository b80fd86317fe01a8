package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/devpeers/orders"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/fault"
	suite "github.com/icestream/icestream/internal/stack"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer"
)

func (w *world) dial(r discovery.Role) *grpc.ClientConn {
	w.t.Helper()
	conn, err := boot.Dial(w.at[r], w.settings.Limits.MaxMessage())
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// union reads hot and cold rows of a table at one position and hands them on with the vector of the read.
func union(ctx context.Context, conn grpc.ClientConnInterface, table string, at func(map[int32]int64) error, fn func(arrow.RecordBatch) error) error {
	stream, err := readstatev1.NewReadStateServiceClient(conn).Scan(ctx, &readstatev1.ScanRequest{Table: table})
	if err != nil {
		return wire.FromStatus(err)
	}
	first, err := stream.Recv()
	if err != nil {
		return wire.FromStatus(err)
	}
	vector := map[int32]int64{}
	for _, o := range first.GetBegin().GetVector().GetOffsets() {
		vector[o.GetPartition().GetNumber()] = o.GetNext()
	}
	if at != nil {
		if err := at(vector); err != nil {
			return err
		}
	}
	return arrowx.EachBatch(&arrowx.Chunks{Next: func() ([]byte, error) {
		m, err := stream.Recv()
		if err != nil {
			return nil, wire.FromStatus(err)
		}
		return m.GetChunk().GetData(), nil
	}}, fn)
}

// checkUnion compares a union read with the ledger (G1, G4).
func checkUnion(ctx context.Context, conn grpc.ClientConnInterface, table string, ledger *orders.Ledger) (orders.Report, error) {
	var check *orders.Check
	err := union(ctx, conn, table, func(vector map[int32]int64) error {
		check = ledger.NewCheck(orders.OutcomeRow, vector)
		return ledger.WaitFor(ctx, vector)
	}, func(rec arrow.RecordBatch) error { return check.AddRows(rec) })
	if err != nil {
		return orders.Report{}, err
	}
	return check.Finish(), nil
}

// transient errors of a read are answers while services come and go; a wrong row is not.
func transient(err error) bool {
	r := fault.ReasonOf(err)
	return r.Retryable() || r == fault.UnknownTable || r == fault.SnapshotGone || r == fault.SchemaChanged || r == fault.WrongDoor ||
		errors.Is(err, context.DeadlineExceeded)
}

// readAlong reads the union again and again until ctx ends and returns how many reads were exact.
func readAlong(ctx context.Context, conn grpc.ClientConnInterface, table string, ledger *orders.Ledger) (int, error) {
	exact := 0
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, 20*time.Second)
		report, err := checkUnion(call, conn, table, ledger)
		cancel()
		switch {
		case ctx.Err() != nil: // the end of ctx is the order to stop, whatever the read says
			return exact, nil //nolint:nilerr // see above
		case err != nil && !transient(err):
			return exact, fmt.Errorf("reading the union of %s after %d exact reads: %w", table, exact, err)
		case err == nil && !report.OK():
			return exact, fmt.Errorf("a read of %s differs from what was produced, after %d exact reads: %s", table, exact, report)
		case err == nil:
			exact++
		}
		select {
		case <-ctx.Done():
		case <-time.After(150 * time.Millisecond):
		}
	}
	return exact, nil
}

// describe asks the buffer for the positions of a table.
func (w *world) describe(table string) (*readstatev1.DescribeTableResponse, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	conn, err := boot.Dial(w.at[discovery.Buffer], w.settings.Limits.MaxMessage())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	desc, err := readstatev1.NewReadStateServiceClient(conn).DescribeTable(ctx, &readstatev1.DescribeTableRequest{Table: table})
	return desc, wire.FromStatus(err)
}

// now reports whether p is a partition of the topic as it is now: a topic that
// was created again is another one under the same name.
func (w *world) now(p *typesv1.Partition, topic string) bool {
	if p.GetTopic() != topic {
		return false
	}
	info := w.kafka.Cluster().TopicInfo(topic)
	return info == nil || bytes.Equal(p.GetTopicId(), info.TopicID[:])
}

// committed returns the committed position of every partition of a topic in a table.
func (w *world) committed(table, topic string) (map[int32]int64, error) {
	desc, err := w.describe(table)
	if err != nil {
		return nil, err
	}
	out := map[int32]int64{}
	for _, p := range desc.GetPartitions() {
		if w.now(p.GetPartition(), topic) {
			out[p.GetPartition().GetNumber()] = p.GetCommitted()
		}
	}
	return out, nil
}

// visible returns how many offsets of a topic readers see, and how many the topic has; (-1, 0) without an answer.
func (w *world) visible(table, topic string) (seen, end int64) {
	desc, err := w.describe(table)
	if err != nil { // not there yet
		return -1, 0
	}
	for _, p := range desc.GetPartitions() {
		if w.now(p.GetPartition(), topic) {
			seen += p.GetVisible()
		}
	}
	for _, n := range w.kafka.EndOffsets(topic) {
		end += n
	}
	return seen, end
}

// replicated waits until readstate knows the table and shows what the buffer shows
// now: a replica is a moment behind, and more with rows of 32 MiB.
func (w *world) replicated(table string) {
	w.t.Helper()
	desc, err := w.describe(table)
	require.NoError(w.t, err)
	vector := &readstatev1.OffsetVector{}
	for _, p := range desc.GetPartitions() {
		vector.Offsets = append(vector.Offsets, &typesv1.PartitionOffset{Partition: p.GetPartition(), Next: p.GetVisible()})
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	replica := readstatev1.NewReadStateServiceClient(w.dial(discovery.Readstate))
	w.eventually(func() error { // a replica asks once a second which tables there are
		_, err := replica.DescribeTable(ctx, &readstatev1.DescribeTableRequest{Table: table})
		return wire.FromStatus(err)
	})
	_, err = replica.WaitFor(ctx, &readstatev1.WaitForRequest{Table: table, Vector: vector})
	require.NoError(w.t, wire.FromStatus(err))
}

// settle has a table committed until it holds a topic up to its end.
func (w *world) settle(table, topic string) {
	w.t.Helper()
	admin := committerv1.NewAdminServiceClient(w.dial(discovery.Committer))
	w.eventually(func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), patience)
		defer cancel()
		_, cerr := admin.CommitNow(ctx, &committerv1.CommitNowRequest{Table: table})
		have, err := w.committed(table, topic)
		if err != nil {
			return errors.Join(err, cerr)
		}
		for n, end := range w.kafka.EndOffsets(topic) {
			if have[int32(n)] != end {
				return errors.Join(fmt.Errorf("%s[%d] is committed to %d of %d", topic, n, have[int32(n)], end), cerr)
			}
		}
		return nil
	})
}

// verify compares the files of the table, its quarantine and a union read with the ledger, and audits the table.
func (w *world) verify(table string, ledger *orders.Ledger) {
	w.t.Helper()
	require.NoError(w.t, ledger.Err())
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	name := strings.Split(table, ".")
	rows := ledger.NewCheck(orders.OutcomeRow, nil)
	require.NoError(w.t, w.catalog.Scan(ctx, name, rows.AddRows))
	report := rows.Finish()
	require.True(w.t, report.OK(), "files of %s: %s", table, report)
	if ledger.Count(orders.OutcomeQuarantine) > 0 {
		bad := ledger.NewCheck(orders.OutcomeQuarantine, nil)
		require.NoError(w.t, w.catalog.Scan(ctx, []string{name[0], name[1] + "__quarantine"}, bad.AddQuarantined))
		report = bad.Finish()
		require.True(w.t, report.OK(), "quarantine of %s: %s", table, report)
	}
	if w.nodes[discovery.Readstate] != nil {
		conn := w.dial(discovery.Readstate)
		w.eventually(func() error {
			report, err := checkUnion(ctx, conn, table, ledger)
			if err == nil && !report.OK() {
				require.Fail(w.t, "the union is wrong", "%s", report)
			}
			return err
		})
	}
	w.audit(table)
	if !w.otherLog {
		w.against(table)
	}
}

// against compares a table with the log that it came from, as far as the log still has it.
func (w *world) against(table string) {
	w.t.Helper()
	log, err := suite.OpenKafkaLog(w.settings)
	require.NoError(w.t, err)
	defer log.Close()
	report, err := committer.Audit(w.t.Context(), w.settings, table, committer.AuditOptions{Kafka: log, Log: w.log})
	require.NoError(w.t, err)
	require.Equal(w.t, committer.Proven, report.Verdict, "%s", report)
}

// audit proves G1 from the table alone.
func (w *world) audit(table string) {
	w.t.Helper()
	report := w.auditOf(table, true)
	require.Equal(w.t, committer.Proven, report.Verdict, "%s", report)
}

func (w *world) auditOf(table string, deep bool) committer.Report {
	w.t.Helper()
	report, err := committer.Audit(w.t.Context(), w.settings, table, committer.AuditOptions{Deep: deep, Log: w.log})
	require.NoError(w.t, err)
	return report
}

// readHot reads the hot rows of a table by the tickets of a read.
func readHot(ctx context.Context, conn grpc.ClientConnInterface, table string, fn func(arrow.RecordBatch) error) error {
	api := readstatev1.NewReadStateServiceClient(conn)
	begin, err := api.BeginRead(ctx, &readstatev1.BeginReadRequest{Table: table})
	if err != nil {
		return wire.FromStatus(err)
	}
	for _, ticket := range begin.GetHot().GetTickets() {
		stream, err := api.ReadHot(ctx, &readstatev1.ReadHotRequest{Ticket: ticket})
		if err != nil {
			return wire.FromStatus(err)
		}
		err = arrowx.EachBatch(&arrowx.Chunks{Next: func() ([]byte, error) {
			m, err := stream.Recv()
			return m.GetChunk().GetData(), err
		}}, fn)
		if err != nil {
			return err
		}
	}
	_, err = api.EndRead(ctx, &readstatev1.EndReadRequest{ReadId: begin.GetReadId()})
	return wire.FromStatus(err)
}

// tailRows tails a table from its start until so many rows have come.
func tailRows(ctx context.Context, conn grpc.ClientConnInterface, table string, rows int, fn func(arrow.RecordBatch) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := readstatev1.NewReadStateServiceClient(conn).Tail(ctx, &readstatev1.TailRequest{Table: table, FromStart: true})
	if err != nil {
		return wire.FromStatus(err)
	}
	for rows > 0 {
		m, err := stream.Recv()
		if err != nil {
			return wire.FromStatus(err)
		}
		if m.GetRows() == nil {
			continue
		}
		rows -= int(m.GetRows().GetRows())
		if err := arrowx.EachBatch(bytes.NewReader(m.GetRows().GetData()), fn); err != nil {
			return err
		}
	}
	return nil
}

// dataDir is where the data files of a table are, in the local file system.
func (w *world) dataDir(namespace, name string) string {
	w.t.Helper()
	cat, err := rest.NewCatalog(w.t.Context(), "check", "http://"+local(w.ports.catalog))
	require.NoError(w.t, err)
	tbl, err := cat.LoadTable(w.t.Context(), []string{namespace, name})
	require.NoError(w.t, err)
	return strings.TrimPrefix(tbl.Location(), "file://") + "/data"
}

// specOf returns the partition spec of a table in words, and how many data files it has, by the Iceberg library.
func (w *world) specOf(namespace, name string) (spec string, files int) {
	w.t.Helper()
	cat, err := rest.NewCatalog(w.t.Context(), "check", "http://"+local(w.ports.catalog))
	require.NoError(w.t, err)
	tbl, err := cat.LoadTable(w.t.Context(), []string{namespace, name})
	require.NoError(w.t, err)
	tasks, err := tbl.Scan().PlanFiles(w.t.Context())
	require.NoError(w.t, err)
	s := tbl.Spec()
	return s.String(), len(tasks)
}
