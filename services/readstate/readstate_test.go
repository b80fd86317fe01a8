package readstate

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	sqlcat "github.com/apache/iceberg-go/catalog/sql"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	_ "modernc.org/sqlite"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

const name = "db.orders"

var part = ident.Partition{Pipeline: "orders", Topic: "t", TopicID: ident.UUID{1}}

// log is a scripted buffer with one table: it lists it, follows with an image and
// then events, and remembers pins.
type log struct {
	bufferv1.UnimplementedTableLogServiceServer
	readstatev1.UnimplementedReadStateServiceServer

	mu      sync.Mutex
	image   event.Image
	events  []event.Event
	changed chan struct{}
	pins    chan *bufferv1.Pins
}

func newLog(img event.Image) *log {
	return &log{image: img, changed: make(chan struct{}), pins: make(chan *bufferv1.Pins, 1000)}
}

func (l *log) emit(ev event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ev.Seq = l.image.Seq + event.Seq(len(l.events)) + 1
	l.events = append(l.events, ev)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *log) ListTables(context.Context, *readstatev1.ListTablesRequest) (*readstatev1.ListTablesResponse, error) {
	return &readstatev1.ListTablesResponse{Tables: []*readstatev1.TableSummary{{Table: name}}}, nil
}

func (l *log) ReportPins(_ context.Context, req *bufferv1.ReportPinsRequest) (*bufferv1.ReportPinsResponse, error) {
	l.pins <- req.GetPins()
	return &bufferv1.ReportPinsResponse{}, nil
}

func (l *log) Follow(_ *bufferv1.FollowRequest, out grpc.ServerStreamingServer[bufferv1.FollowResponse]) error {
	send := func(seq event.Seq, m *bufferv1.FollowResponse) error {
		m.Seq = uint64(seq)
		return out.SendMsg(&wire.FollowFrame{Seq: seq, Msg: m})
	}
	l.mu.Lock()
	img := l.image
	l.mu.Unlock()
	err := send(img.Seq, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_ImageBegin{ImageBegin: &bufferv1.ImageBegin{
		Boot: img.Boot[:], Commit: wire.CommitToProto(&img.Commit), Schemas: wire.SchemasToProto(img.Schemas), Hot: int64(len(img.Hot)),
	}}})
	for _, a := range img.Hot {
		err = errors.Join(err, out.SendMsg(&wire.FollowFrame{Entry: a}))
	}
	err = errors.Join(err, send(0, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_ImageEnd{ImageEnd: &bufferv1.ImageEnd{}}}))
	for next := 0; err == nil; next++ {
		var ev event.Event
		if ev, err = l.wait(out.Context(), next); err != nil {
			return err
		}
		switch {
		case ev.Append != nil:
			err = out.SendMsg(&wire.FollowFrame{Seq: ev.Seq, Entry: ev.Append})
		case ev.Commit != nil:
			err = send(ev.Seq, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Commit{Commit: wire.CommitToProto(ev.Commit)}})
		}
	}
	return err
}

func (l *log) wait(ctx context.Context, n int) (event.Event, error) {
	for {
		l.mu.Lock()
		changed := l.changed
		if n < len(l.events) {
			defer l.mu.Unlock()
			return l.events[n], nil
		}
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return event.Event{}, context.Cause(ctx)
		}
	}
}

// serve puts the buffer on a listener until the returned function is called.
func (l *log) serve(lis net.Listener) (stop func()) {
	srv := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}))
	bufferv1.RegisterTableLogServiceServer(srv, l)
	readstatev1.RegisterReadStateServiceServer(srv, l)
	go func() { _ = srv.Serve(lis) }()
	return srv.Stop
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	return lis
}

// lake is a real Iceberg table that the test writes as the committer does.
type lake struct {
	t      *testing.T
	cat    *sqlcat.Catalog
	tbl    *table.Table
	schema *schema.Schema
	commit event.Commit
	next   int64
	lsn    ident.LSN
	hot    []*event.Append
}

func newLake(t *testing.T) *lake {
	t.Helper()
	icefile.Register()
	dir := t.TempDir()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "cat.db"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	l := &lake{t: t}
	l.cat, err = sqlcat.NewCatalog("test", db, sqlcat.SQLite, iceberg.Properties{"warehouse": "file://" + dir + "/wh"})
	require.NoError(t, err)
	require.NoError(t, l.cat.CreateNamespace(t.Context(), table.Identifier{"db"}, nil))
	s := &schema.Schema{Columns: append([]*schema.Node{{Name: "id", Type: schema.Of(schema.Long)}}, schema.MetadataColumns(true, true)...)}
	s.AssignIDs()
	ice, err := table.ArrowSchemaToIceberg(s.Arrow(), false, nil)
	require.NoError(t, err)
	tbl, err := l.cat.CreateTable(t.Context(), table.Identifier{"db", "orders"}, ice)
	require.NoError(t, err)
	withIDs, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false) // the catalog gives ids of its own
	require.NoError(t, err)
	l.schema, err = schema.FromArrow(withIDs)
	require.NoError(t, err)
	l.commit = event.Commit{
		Table: ident.UUID{9}, LogEpoch: 1, WriterEpoch: 1, Positions: ident.Positions{part: {}},
		LSN: ident.LSNState{Next: 1, Start: 1, Reserved: 1 << 40},
	}
	l.lsn = 1
	l.land(0)
	return l
}

// produce makes n rows, as an entry of the log.
func (l *lake) produce(n int64) *event.Append {
	a := &event.Append{LSN: l.lsn, Header: event.Header{
		Partition: part, Range: ident.Range{First: l.next, Next: l.next + n}, Rows: n, Fingerprint: l.schema.Fingerprint(),
	}}
	shape := arrowx.RowSchema(l.schema)
	b := array.NewRecordBuilder(memory.DefaultAllocator, shape)
	defer b.Release()
	for o := a.Range.First; o < a.Range.Next; o++ {
		for i := range shape.Fields() {
			switch fb := b.Field(i).(type) {
			case *array.Int64Builder:
				fb.Append(o)
			case *array.TimestampBuilder:
				fb.Append(arrow.Timestamp(o))
			default:
				fb.AppendNull()
			}
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var err error
	a.RowBatch, err = arrowx.EncodeBytes(rec)
	require.NoError(l.t, err)
	l.next += n
	l.lsn += ident.LSN(n)
	l.hot = append(l.hot, a)
	return a
}

// land commits the rows below an offset.
func (l *lake) land(below int64) event.Commit {
	var recs []arrow.RecordBatch
	from := l.commit.Positions[part].Next
	for _, a := range l.hot {
		within := ident.Range{First: max(a.Range.First, from), Next: min(a.Range.Next, below)}
		if within.Empty() {
			continue
		}
		rec, err := arrowx.Materialise(l.schema, a, within)
		require.NoError(l.t, err)
		recs = append(recs, rec)
	}
	ctx := l.t.Context()
	tbl, err := l.cat.LoadTable(ctx, table.Identifier{"db", "orders"})
	require.NoError(l.t, err)
	rd, err := array.NewRecordReader(l.schema.Arrow(), recs)
	require.NoError(l.t, err)
	defer rd.Release()
	_, err = tbl.Append(ctx, rd, iceberg.Properties{"icestream.commit-id": fmt.Sprint("c", below)})
	require.NoError(l.t, err)
	l.tbl, err = l.cat.LoadTable(ctx, table.Identifier{"db", "orders"})
	require.NoError(l.t, err)
	head := l.tbl.CurrentSnapshot()
	c := l.commit
	c.SnapshotID, c.SequenceNumber, c.MetadataLocation = head.SnapshotID, head.SequenceNumber, l.tbl.MetadataLocation()
	c.Positions = ident.Positions{part: {Next: below}}
	l.commit = c
	return c
}

func (l *lake) imageOf(boot byte, hot []*event.Append) event.Image {
	b, err := json.Marshal(l.schema)
	require.NoError(l.t, err)
	return event.Image{
		Boot: ident.UUID{boot}, Seq: 1, Commit: l.commit, Hot: hot,
		Schemas: []event.Schema{{Fingerprint: l.schema.Fingerprint(), TableSchemaID: 0, Columns: b}},
	}
}

// stand is a running readstate with a client.
type stand struct {
	t       *testing.T
	client  readstatev1.ReadStateServiceClient
	admin   adminv1.AdminServiceClient
	metrics *obs.Metrics
	health  *obs.Health
}

func start(t *testing.T, buffer string) *stand {
	t.Helper()
	settings := config.Default()
	settings.Services.Readstate.Listen = "127.0.0.1:0"
	st := &stand{t: t, metrics: obs.NewMetrics(nil)}
	st.health = obs.NewHealth(st.metrics)
	s, err := New(t.Context(), Config{Settings: settings, Instance: "r1", Poll: 20 * time.Millisecond, PinEvery: 20 * time.Millisecond, Drain: 5 * time.Second},
		Deps{Resolver: discovery.Static{discovery.Buffer: buffer}, Metrics: st.metrics, Health: st.health})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conn, err := rpc.Dial(s.Addr(), rpc.Options{Codec: wire.Codec{}, FromStatus: wire.FromStatus})
	require.NoError(t, err)
	st.client, st.admin = readstatev1.NewReadStateServiceClient(conn), adminv1.NewAdminServiceClient(conn)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		_ = conn.Close()
	})
	return st
}

// ready waits until the health says so.
func (st *stand) ready() {
	st.t.Helper()
	changed, stop := st.health.Watch()
	defer stop()
	deadline := time.After(20 * time.Second)
	for !st.health.Report("readstate").Ready || len(st.health.Report("readstate").Components) < 2 {
		select {
		case <-changed:
		case <-deadline:
			require.FailNow(st.t, "not ready", "%+v", st.health.Report("readstate"))
		}
	}
}

// visible waits until offsets below next can be read, and returns the token.
func (st *stand) visible(next int64) string {
	st.t.Helper()
	ctx, cancel := context.WithTimeout(st.t.Context(), 20*time.Second)
	defer cancel()
	resp, err := st.client.WaitFor(ctx, &readstatev1.WaitForRequest{
		Table: name, Vector: &readstatev1.OffsetVector{Offsets: wire.VectorToProto(ident.Vector{part: next})},
	})
	require.NoError(st.t, err)
	return resp.GetToken()
}

func (st *stand) scan(req *readstatev1.ScanRequest) ([]int64, error) {
	req.Table = name
	s, err := st.client.Scan(st.t.Context(), req)
	require.NoError(st.t, err)
	var all []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			out := ids(st.t, all)
			slices.Sort(out)
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, m.GetChunk().GetData()...)
	}
}

func ids(t *testing.T, stream []byte) []int64 {
	t.Helper()
	rd, err := ipc.NewReader(bytes.NewReader(stream))
	require.NoError(t, err)
	defer rd.Release()
	var out []int64
	for rd.Next() {
		rec := rd.RecordBatch()
		col, ok := rec.Column(rec.Schema().FieldIndices("id")[0]).(*array.Int64)
		require.True(t, ok)
		out = append(out, col.Int64Values()...)
	}
	require.NoError(t, rd.Err())
	return out
}

func upTo(n int64) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(i)
	}
	return out
}

// G3, G4 through the whole service: hot rows over the wire, cold rows from real
// Parquet files, one token across the hand-over.
func TestOneTokenOneAnswerFromHotToCold(t *testing.T) {
	l := newLake(t)
	lis := listen(t, "127.0.0.1:0")
	buffer := newLog(l.imageOf(1, []*event.Append{l.produce(10)}))
	t.Cleanup(buffer.serve(lis))
	st := start(t, lis.Addr().String())
	st.ready()

	got, err := st.scan(&readstatev1.ScanRequest{})
	require.NoError(t, err)
	require.Equal(t, upTo(10), got)
	a := l.produce(5)
	buffer.emit(event.Event{Append: a})
	tok := st.visible(15)
	for _, below := range []int64{7, 15, 22} {
		for l.next < below {
			buffer.emit(event.Event{Append: l.produce(7)})
		}
		c := l.land(below)
		buffer.emit(event.Event{Commit: &c})
		buffer.emit(event.Event{Append: l.produce(3)})
		st.visible(l.next)
		now, err := st.scan(&readstatev1.ScanRequest{Columns: []string{"id"}})
		require.NoError(t, err)
		require.Equal(t, upTo(l.next), now, "committed below %d", below)
		then, err := st.scan(&readstatev1.ScanRequest{At: &readstatev1.At{Position: &readstatev1.At_Token{Token: tok}}})
		require.NoError(t, err)
		require.Equal(t, upTo(15), then, "committed below %d", below)
	}
	sent, ok := st.metrics.Value("icestream_readstate_sent_rows_total", "cold")
	require.True(t, ok)
	require.Positive(t, sent)
}

// Design section 6: a tail comes from the files of the lake where rows are cold,
// and goes on over a restart of the buffer.
func TestTailReadsTheLakeAndSurvivesTheBuffer(t *testing.T) {
	l := newLake(t)
	l.produce(10)
	l.land(6)
	lis := listen(t, "127.0.0.1:0")
	buffer := newLog(l.imageOf(1, l.hot))
	stop := buffer.serve(lis)
	st := start(t, lis.Addr().String())
	st.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tail, err := st.client.Tail(ctx, &readstatev1.TailRequest{Table: name, FromStart: true, Columns: []string{"id"}})
	require.NoError(t, err)
	var got []int64
	until := func(n int) {
		for len(got) < n {
			m, err := tail.Recv()
			require.NoError(t, err)
			if m.GetRows() != nil {
				got = append(got, ids(t, m.GetRows().GetData())...)
			}
		}
	}
	until(10)
	stop()

	// While the buffer is away the last position is still answered.
	rows, err := st.scan(&readstatev1.ScanRequest{})
	require.NoError(t, err)
	require.Equal(t, upTo(10), rows)

	again := newLog(l.imageOf(2, nil)) // its hot rows are not sent again yet
	t.Cleanup(again.serve(listen(t, lis.Addr().String())))
	again.emit(event.Event{Append: l.hot[0]})
	again.emit(event.Event{Append: l.produce(4)})
	until(14)
	require.Equal(t, upTo(14), got)
}

// G11: a service that starts before its peers goes on by itself.
func TestStartsWithoutABufferAndSaysSo(t *testing.T) {
	l := newLake(t)
	lis := listen(t, "127.0.0.1:0")
	address := lis.Addr().String()
	require.NoError(t, lis.Close())
	st := start(t, address)
	changed, stop := st.health.Watch()
	defer stop()
	for r := st.health.Report("readstate"); len(r.Components) == 0 || !strings.Contains(r.Components[0].Reason, "waiting for a buffer"); r = st.health.Report("readstate") {
		<-changed
	}
	_, err := st.client.BeginRead(t.Context(), &readstatev1.BeginReadRequest{Table: name})
	require.ErrorIs(t, err, fault.Of(fault.UnknownTable))

	buffer := newLog(l.imageOf(1, []*event.Append{l.produce(3)}))
	t.Cleanup(buffer.serve(listen(t, address)))
	st.ready()
	rows, err := st.scan(&readstatev1.ScanRequest{})
	require.NoError(t, err)
	require.Equal(t, upTo(3), rows)
	status, err := st.admin.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	require.NoError(t, err)
	require.True(t, status.GetReady())
	require.Contains(t, status.GetFacts()[name], "3 hot rows")
}

// G6: what a reader needs is told upstream, and taken back when it is done.
func TestPinnedSnapshotIsReportedUntilTheReadEnds(t *testing.T) {
	l := newLake(t)
	lis := listen(t, "127.0.0.1:0")
	buffer := newLog(l.imageOf(1, nil))
	t.Cleanup(buffer.serve(lis))
	st := start(t, lis.Addr().String())
	st.ready()
	resp, err := st.client.BeginRead(t.Context(), &readstatev1.BeginReadRequest{Table: name})
	require.NoError(t, err)
	for p := range buffer.pins {
		if p.GetOldestSnapshotId() == l.commit.SnapshotID && p.GetOldestSequenceNumber() == l.commit.SequenceNumber {
			break
		}
	}
	_, err = st.client.EndRead(t.Context(), &readstatev1.EndReadRequest{ReadId: resp.GetReadId()})
	require.NoError(t, err)
	for p := range buffer.pins {
		if p.GetOldestSnapshotId() == 0 {
			break
		}
	}
}

func TestMetricsFollowTheRules(t *testing.T) {
	require.NoError(t, obs.Check([]obs.Group{{Title: "readstate", Defs: Defs()}}))
}
