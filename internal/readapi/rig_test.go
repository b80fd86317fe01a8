package readapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

const tableName = "db.t"

var tableID = ident.UUID{7}

func partition(n int32) ident.Partition {
	return ident.Partition{Pipeline: "p", Topic: "t", TopicID: ident.UUID{1}, Number: n}
}

// rig is a table log with its lake, both in memory, behind a server on a real
// connection. It is the naive model that answers are compared with.
type rig struct {
	t      *testing.T
	live   *readapi.Live
	server *readapi.Server
	client readstatev1.ReadStateServiceClient
	cold   *lake
	schema *schema.Schema
	seq    event.Seq
	lsn    ident.LSN
	next   ident.Vector
	hot    []*event.Append
	commit event.Commit
}

type rigOptions struct {
	noCold  bool
	noKafka bool
	server  readapi.Options
}

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	r := &rig{
		t: t, live: readapi.NewLive("waiting for the committer"), next: ident.Vector{}, lsn: 100,
		schema: tableSchema(!o.noKafka),
	}
	r.commit = event.Commit{
		Table: tableID, SnapshotID: 1000, SequenceNumber: 1, MetadataLocation: "m1", LogEpoch: 1, WriterEpoch: 1,
		Positions: ident.Positions{partition(0): {}, partition(1): {}}, LSN: ident.LSNState{Start: 100, Next: 100, Reserved: 1 << 40},
	}
	r.cold = &lake{snapshots: []snapshot{{id: 1000, seq: 1}}}
	opt := o.server
	opt.Tables = tables{r.live}
	if !o.noCold {
		opt.Cold = r.cold
	}
	r.server = readapi.New(opt)
	r.client = dial(t, r.server)
	return r
}

// open delivers the image of the table.
func (r *rig) open() *rig {
	r.live.Load(event.Image{Boot: ident.UUID{1}, Seq: r.seq, Commit: r.commit, Schemas: []event.Schema{r.eventSchema(r.schema, 1)}, Hot: slices.Clone(r.hot)})
	return r
}

func (r *rig) eventSchema(s *schema.Schema, id int32) event.Schema {
	b, err := json.Marshal(s)
	require.NoError(r.t, err)
	return event.Schema{Fingerprint: s.Fingerprint(), TableSchemaID: id, Columns: b}
}

func tableSchema(kafka bool) *schema.Schema {
	s := &schema.Schema{Columns: []*schema.Node{
		{Name: "id", Type: schema.Of(schema.Int)},
		{Name: "name", Type: schema.Of(schema.String)},
	}}
	s.Columns = append(s.Columns, schema.MetadataColumns(true, kafka)...)
	s.AssignIDs()
	return s
}

// evolve widens id to long and adds a column.
func (r *rig) evolve() {
	s := r.schema.Clone()
	s.Columns[0].Type = schema.Of(schema.Long)
	s.Columns = slices.Insert(s.Columns, 2, &schema.Node{Name: "extra", Type: schema.Of(schema.String)})
	s.AssignIDs()
	r.schema = s
	r.seq++
	es := r.eventSchema(s, 2)
	r.live.Apply(event.Event{Seq: r.seq, Schema: &es})
}

// produce appends n rows to a partition; every fifth offset is skipped.
func (r *rig) produce(part int32, n int64) {
	p := partition(part)
	a := &event.Append{LSN: r.lsn, Header: event.Header{
		Partition: p, Range: ident.Range{First: r.next[p], Next: r.next[p] + n}, Fingerprint: r.schema.Fingerprint(), MaxTime: 1_700_000_000_000 + r.next[p],
	}}
	shape := arrowx.RowSchema(r.schema)
	b := array.NewRecordBuilder(memory.DefaultAllocator, shape)
	defer b.Release()
	for o := a.Range.First; o < a.Range.Next; o++ {
		if o%5 == 4 {
			a.Skips = append(a.Skips, event.Skip{Range: ident.Range{First: o, Next: o + 1}, Reason: event.SkipFiltered})
			continue
		}
		a.Rows++
		for i, f := range shape.Fields() {
			appendValue(b.Field(i), f.Name, part, o)
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	if a.Rows > 0 {
		var err error
		a.RowBatch, err = arrowx.EncodeBytes(rec)
		require.NoError(r.t, err)
	}
	r.next[p] = a.Range.Next
	r.lsn += ident.LSN(n)
	r.hot = append(r.hot, a)
	r.seq++
	r.live.Apply(event.Event{Seq: r.seq, Append: a})
}

func appendValue(b array.Builder, name string, part int32, o int64) {
	switch fb := b.(type) {
	case *array.Int32Builder:
		if name == "id" {
			fb.Append(part*1000 + int32(o))
		} else {
			fb.AppendNull()
		}
	case *array.Int64Builder:
		if name == "id" {
			fb.Append(int64(part)*1000 + o)
		} else {
			fb.Append(o)
		}
	case *array.StringBuilder:
		fb.Append(fmt.Sprintf("%s-%d-%d", name, part, o))
	case *array.TimestampBuilder:
		fb.Append(arrow.Timestamp(o))
	default:
		b.AppendNull()
	}
}

// land commits everything below upto, which may lie inside entries, and returns
// the snapshot id.
func (r *rig) land(upto ident.Vector) int64 {
	c := r.commit
	c.SnapshotID++
	c.SequenceNumber++
	c.MetadataLocation = fmt.Sprintf("m%d", c.SequenceNumber)
	c.Positions = c.Positions.Clone()
	snap := snapshot{id: c.SnapshotID, seq: c.SequenceNumber, time: time.Unix(c.SequenceNumber*100, 0)}
	for p, next := range upto {
		from := c.Positions[p].Next
		for _, a := range r.hot {
			within := ident.Range{First: max(a.Range.First, from), Next: min(a.Range.Next, next)}
			if a.Partition == p && !within.Empty() {
				snap.added = append(snap.added, piece{a, within, r.schemaOf(a)})
			}
		}
		c.Positions[p] = ident.Position{Next: next}
	}
	c.LSN.Next = r.lsn
	r.cold.add(snap)
	r.commit = c
	r.seq++
	r.live.Apply(event.Event{Seq: r.seq, Commit: &c})
	return c.SnapshotID
}

// advance puts rows up to next, made like those of a, into the lake alone and
// returns the commit that says so.
func (r *rig) advance(next int64, a *event.Append) event.Commit {
	other := *r
	other.live = readapi.NewLive("") // a log that nobody follows
	other.live.Load(event.Image{Commit: r.commit, Schemas: []event.Schema{r.eventSchema(r.schema, 1)}})
	other.produce(a.Partition.Number, next-r.next[a.Partition])
	other.landAll()
	return other.commit
}

func (r *rig) schemaOf(a *event.Append) *schema.Schema {
	es, ok := r.live.Schema(a.Fingerprint)
	require.True(r.t, ok)
	s := &schema.Schema{}
	require.NoError(r.t, json.Unmarshal(es.Columns, s))
	return s
}

// landAll commits everything that was produced.
func (r *rig) landAll() int64 {
	return r.land(r.produced())
}

// want lists the rows below the offsets as the readers below print them.
func (r *rig) want(below ident.Vector) []string {
	var out []string
	for p, next := range below {
		for o := range next {
			if o%5 != 4 {
				out = append(out, fmt.Sprintf("%d/%d", p.Number, o))
			}
		}
	}
	slices.Sort(out)
	return out
}

func (r *rig) produced() ident.Vector {
	return maps.Clone(r.next)
}

type tables struct{ live *readapi.Live }

func (tables) Names() []string { return []string{tableName} }
func (t tables) Table(name string) (readapi.Source, error) {
	if name != tableName {
		return nil, fault.New(fault.UnknownTable, "there is no table %q", name)
	}
	return t.live, nil
}

func dial(t *testing.T, s *readapi.Server) readstatev1.ReadStateServiceClient {
	t.Helper()
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}))
	readstatev1.RegisterReadStateServiceServer(srv, s)
	go func() { _ = srv.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		s.Close()
		srv.Stop()
	})
	return readstatev1.NewReadStateServiceClient(conn)
}

// keys prints the rows of an Arrow IPC stream as partition/offset, from the
// column name, which every test asks for.
func keys(t *testing.T, stream []byte) []string {
	t.Helper()
	rd, err := ipc.NewReader(bytes.NewReader(stream))
	require.NoError(t, err)
	defer rd.Release()
	var out []string
	for rd.Next() {
		rec := rd.RecordBatch()
		col, ok := rec.Column(rec.Schema().FieldIndices("name")[0]).(*array.String)
		require.True(t, ok)
		for i := range int(rec.NumRows()) {
			out = append(out, strings.ReplaceAll(strings.TrimPrefix(col.Value(i), "name-"), "-", "/"))
		}
	}
	require.NoError(t, rd.Err())
	return out
}

func (r *rig) readHot(ticket string) ([]byte, error) {
	s, err := r.client.ReadHot(r.t.Context(), &readstatev1.ReadHotRequest{Ticket: ticket})
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, wire.FromStatus(err)
		}
		all = append(all, m.GetChunk().GetData()...)
	}
}

// scan returns the rows of a scan, sorted, and its first message.
func (r *rig) scan(req *readstatev1.ScanRequest) ([]string, *readstatev1.BeginReadResponse, error) {
	req.Table = tableName
	s, err := r.client.Scan(r.t.Context(), req)
	if err != nil {
		return nil, nil, wire.FromStatus(err)
	}
	var all []byte
	var begin *readstatev1.BeginReadResponse
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			out := keys(r.t, all)
			slices.Sort(out)
			return out, begin, nil
		}
		if err != nil {
			return nil, begin, wire.FromStatus(err)
		}
		if m.GetBegin() != nil {
			begin = m.GetBegin()
		}
		all = append(all, m.GetChunk().GetData()...)
	}
}

// union reads a position by its parts, as a reader of its own would: the
// snapshot from the lake, the hot rows by tickets.
func (r *rig) union(req *readstatev1.BeginReadRequest) ([]string, *readstatev1.BeginReadResponse, error) {
	req.Table = tableName
	resp, err := r.client.BeginRead(r.t.Context(), req)
	if err != nil {
		return nil, nil, wire.FromStatus(err)
	}
	scan := readapi.ColdScan{Snapshot: resp.GetCold().GetSnapshotId(), Target: r.schema}
	out := r.coldKeys(scan)
	if rest := resp.GetCold().GetRest(); rest != nil {
		vector, err := wire.VectorFromProto(resp.GetVector().GetOffsets())
		require.NoError(r.t, err)
		out = append(out, r.coldKeys(readapi.ColdScan{Snapshot: rest.GetSnapshotId(), Since: scan.Snapshot, Target: r.schema, Below: vector})...)
	}
	for _, ticket := range resp.GetHot().GetTickets() {
		b, err := r.readHot(ticket)
		if err != nil {
			return nil, resp, err
		}
		out = append(out, keys(r.t, b)...)
	}
	slices.Sort(out)
	return out, resp, nil
}

func (r *rig) coldKeys(s readapi.ColdScan) []string {
	var out []string
	for rec, err := range r.cold.Scan(r.t.Context(), s) {
		require.NoError(r.t, err)
		b, err := arrowx.StreamBytes(rec.Schema(), rec)
		require.NoError(r.t, err)
		out = append(out, keys(r.t, b)...)
		rec.Release()
	}
	return out
}

func token(s string) *readstatev1.At {
	return &readstatev1.At{Position: &readstatev1.At_Token{Token: s}}
}

func offsets(v ident.Vector) *readstatev1.OffsetVector {
	return &readstatev1.OffsetVector{Offsets: wire.VectorToProto(v)}
}
