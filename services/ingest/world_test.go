package ingest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

// world is everything around one ingest: a broker, a registry, a committer and a table log, the last two as simple as
// the protocol allows. It checks every append at its door.
type world struct {
	committerv1.UnimplementedTableServiceServer

	t        testing.TB
	kafka    *kfake.Cluster
	producer *kgo.Client
	registry *httptest.Server
	cfg      *config.Config
	addr     string
	log      *slog.Logger // of the ingests; nil for none

	mu          sync.Mutex
	schemas     map[int]string             // of the registry
	kinds       map[int]string             // of those that are not Protobuf
	settings    *committerv1.TableSettings // of the table, as asked for last
	latest      int                        // schema of the newest version; 0 for 1
	registryErr int                        // status it answers with instead, 0 for none
	requests    int
	refuse      bool     // refuse every candidate
	forgot      bool     // the committer has not opened the table since its start
	replaced    []string // what was recorded, with the position of the log then
	recordErr   error
	openErr     error
	table       *schema.Schema
	numbers     schema.NumberMap
	decisions   []schema.Decision
	proposed    int                       // schemas, in all
	asked       int                       // proposals, refused ones included
	known       map[string]*schema.Schema // published schemas by fingerprint
	committed   ident.Positions
	next        ident.Vector
	entries     []*event.Append
	outstanding []*event.Append // journaled before a restart, rows gone
	refilled    int
	broken      []string
	streams     map[chan *bufferv1.AppendResponse]context.CancelFunc
	progress    map[int32]event.Progress
	refuseNext  bufferv1.AppendOutcome
	away        bool // the table log takes no streams
	mute        bool // streams are not told of new schemas
	silent      bool // entries are not answered, nor kept
	knocks      int  // streams that were turned away
	looks       int  // for offsets without records, of hideFrom
}

// tableLog is the table log's door into the world.
type tableLog struct {
	bufferv1.UnimplementedTableLogServiceServer

	w *world
}

// Append implements the service.
func (l tableLog) Append(st grpc.BidiStreamingServer[bufferv1.AppendRequest, bufferv1.AppendResponse]) error {
	return l.w.append(st)
}

const registryProto = `syntax = "proto3";
package shop;
message Order { string id = 1; int64 units = 2; %s }
message Other { string name = 1; }`

func newWorld(t testing.TB, pipeline string, topics ...kfake.Opt) *world {
	t.Helper()
	w := &world{
		t: t, schemas: map[int]string{1: fmt.Sprintf(registryProto, ""), 2: fmt.Sprintf(registryProto, "string note = 3;")},
		table:   &schema.Schema{Columns: schema.MetadataColumns(true, true)},
		numbers: schema.NumberMap{}, known: map[string]*schema.Schema{}, committed: ident.Positions{}, next: ident.Vector{},
		streams: map[chan *bufferv1.AppendResponse]context.CancelFunc{}, progress: map[int32]event.Progress{},
	}
	w.table.AssignIDs()
	var err error
	w.kafka, err = kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "99000000"})}, topics...)...)
	require.NoError(t, err)
	t.Cleanup(w.kafka.Close)
	w.producer = w.dialProducer()
	w.registry = httptest.NewServer(http.HandlerFunc(w.serveRegistry))
	t.Cleanup(w.registry.Close)
	srv, err := rpc.Listen(t.Context(), "127.0.0.1:0", rpc.Options{Service: "world", Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus})
	require.NoError(t, err)
	committerv1.RegisterTableServiceServer(srv.Registrar(), w)
	bufferv1.RegisterTableLogServiceServer(srv.Registrar(), tableLog{w: w})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // ends after the services
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	w.addr = srv.Address()
	w.cfg = w.config(pipeline)
	return w
}

func (w *world) config(pipeline string) *config.Config {
	w.t.Helper()
	text := fmt.Sprintf(`
deployment: test
node: {data_dir: %q, metrics: ""}
services: {ingest: {listen: "127.0.0.1:0"}}
limits: {ingest.bytes: 64MiB, record.max: 1MiB}
kafka: {bootstrap.servers: %q}
registry: {url: %q}
pipelines:
  - {name: p, table: shop.orders, %s}
`, w.t.TempDir(), strings.Join(w.kafka.ListenAddrs(), ","), w.registry.URL, pipeline)
	path := filepath.Join(w.t.TempDir(), "icestream.yaml")
	require.NoError(w.t, os.WriteFile(path, []byte(text), 0o600))
	c, _, err := config.Load(path, nil, nil)
	require.NoError(w.t, err)
	return c
}

// instance is one running ingest.
type instance struct {
	s       *Service
	metrics *obs.Metrics
	health  *obs.Health
	cancel  context.CancelFunc
	done    chan error
}

func (w *world) start() *instance {
	w.t.Helper()
	i := &instance{metrics: obs.NewMetrics(nil), done: make(chan error, 1)}
	i.health = obs.NewHealth(i.metrics)
	s, err := New(w.t.Context(), Config{Settings: w.cfg, Instance: "i", Drain: 5 * time.Second, Refresh: 100 * time.Millisecond}, Deps{
		Log: w.log, Metrics: i.metrics, Health: i.health, Resolver: discovery.Static{discovery.Buffer: w.addr, discovery.Committer: w.addr},
	})
	require.NoError(w.t, err)
	i.s = s
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	i.cancel = cancel
	go func() { i.done <- s.Run(ctx) }()
	w.t.Cleanup(func() { i.stop(w.t) })
	return i
}

func (i *instance) stop(t testing.TB) {
	t.Helper()
	if i.cancel == nil {
		return
	}
	i.cancel()
	i.cancel = nil
	require.NoError(t, <-i.done)
}

func (w *world) serveRegistry(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests++
	if w.registryErr != 0 {
		rw.WriteHeader(w.registryErr)
		return
	}
	if version, ok := strings.CutPrefix(r.URL.Path, "/subjects/orders-value/versions"); ok {
		w.serveVersions(rw, strings.TrimPrefix(version, "/"))
		return
	}
	id, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/schemas/ids/"))
	text, ok := w.schemas[id]
	rw.Header().Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	if !ok {
		rw.WriteHeader(http.StatusNotFound)
		_, _ = rw.Write([]byte(`{"error_code":40403,"message":"Schema not found"}`))
		return
	}
	answer := map[string]any{"schema": text, "schemaType": "PROTOBUF"}
	if kind, other := w.kinds[id]; other {
		answer["schemaType"] = kind
	}
	_ = json.NewEncoder(rw).Encode(answer)
}

// serveVersions answers for a subject whose versions have the number of their schema.
func (w *world) serveVersions(rw http.ResponseWriter, version string) {
	all := slices.Sorted(maps.Keys(w.schemas))
	n, err := strconv.Atoi(version)
	switch {
	case version == "":
		_ = json.NewEncoder(rw).Encode(all)
	case version == "latest" && w.latest > 0:
		_, _ = fmt.Fprintf(rw, `{"id":%d}`, w.latest)
	case version == "latest", err == nil && slices.Contains(all, n):
		_, _ = fmt.Fprintf(rw, `{"id":%d,"version":%d,"subject":"orders-value"}`, max(n, 1), max(n, 1))
	default:
		rw.WriteHeader(http.StatusNotFound)
		_, _ = rw.Write([]byte(`{"error_code":40402,"message":"Version not found"}`))
	}
}

func (w *world) OpenTable(_ context.Context, r *committerv1.OpenTableRequest) (*committerv1.OpenTableResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.openErr != nil {
		return nil, w.openErr
	}
	w.forgot, w.settings = false, r.GetSettings()
	for _, ps := range r.GetPartitions() {
		p, err := wire.PartitionFromProto(ps.GetPartition())
		if err != nil {
			return nil, err
		}
		if _, ok := w.committed[p]; !ok {
			w.committed[p] = ident.Position{Start: ps.GetStart(), Next: ps.GetStart(), LeaderEpoch: -1}
			w.next[p] = ps.GetStart()
		}
	}
	return &committerv1.OpenTableResponse{
		TableUuid: make([]byte, 16), Positions: wire.PositionsToProto(w.committed), Schema: w.publish(w.table),
	}, nil
}

func (w *world) RecordReplaced(_ context.Context, r *committerv1.RecordReplacedRequest) (*committerv1.RecordReplacedResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.recordErr != nil {
		return nil, w.recordErr
	}
	p, err := wire.PartitionFromProto(r.GetPartition())
	if err != nil {
		return nil, err
	}
	w.replaced = append(w.replaced, fmt.Sprintf("%s %d to %d, read up to %d", p, r.GetRange().GetFirst(), r.GetRange().GetNext(), w.next[p]))
	return &committerv1.RecordReplacedResponse{}, nil
}

func (w *world) publish(s *schema.Schema) *typesv1.TableSchema {
	columns, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	fp := s.Fingerprint()
	ts := &typesv1.TableSchema{Fingerprint: fp, Columns: columns}
	if w.known[fp] == nil {
		w.known[fp] = s
		if w.mute {
			return ts
		}
		w.broadcast(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Schema{Schema: ts}})
	}
	return ts
}

func (w *world) ProposeSchema(_ context.Context, r *committerv1.ProposeSchemaRequest) (*committerv1.ProposeSchemaResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.forgot {
		return nil, fault.New(fault.UnknownTable, "table %s is not open here", r.GetTable())
	}
	w.asked++
	if w.refuse {
		return &committerv1.ProposeSchemaResponse{Refusals: []*committerv1.SchemaRefusal{{Path: "units", TableType: "string", SourceType: "long", Why: "text is never a number"}}}, nil
	}
	candidate := &schema.Schema{}
	if err := json.Unmarshal(r.GetCandidate(), candidate); err != nil {
		return nil, err
	}
	w.proposed++
	target := schema.Evolve(w.table, candidate, w.numbers, schema.Options{Decisions: w.decisions, Rename: r.GetFollowRenames()})
	if target.Refused() {
		resp := &committerv1.ProposeSchemaResponse{Quarantine: schema.Quarantined(w.decisions, r.GetSourceSchema())}
		for _, f := range target.Refusals {
			resp.Refusals = append(resp.Refusals, &committerv1.SchemaRefusal{
				Path: f.Path, Field: f.Field, TableType: f.TableType, SourceType: f.CandidateType, Why: f.Why,
			})
		}
		return resp, nil
	}
	if r.GetDryRun() {
		columns, err := json.Marshal(target.Schema)
		return &committerv1.ProposeSchemaResponse{Schema: &typesv1.TableSchema{Fingerprint: target.Schema.Fingerprint(), Columns: columns}}, err
	}
	w.table, w.numbers = target.Schema, target.Numbers
	resp := &committerv1.ProposeSchemaResponse{Schema: w.publish(target.Schema)}
	if len(target.Schema.Ignored) > 0 { // the answer says what to leave out, the published schema does not
		var err error
		if resp.Schema.Columns, err = json.Marshal(target.Schema); err != nil {
			return nil, err
		}
		w.table.Ignored = nil
	}
	return resp, nil
}

func (w *world) broadcast(m *bufferv1.AppendResponse) {
	for ch := range w.streams {
		ch <- m
	}
}

// append plays the table log of design section 2.
func (w *world) append(st grpc.BidiStreamingServer[bufferv1.AppendRequest, bufferv1.AppendResponse]) error {
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	hello := &wire.AppendFrame{}
	if err := st.RecvMsg(hello); err != nil {
		return err
	}
	out := make(chan *bufferv1.AppendResponse, 10_000)
	w.mu.Lock()
	if w.away {
		defer w.mu.Unlock()
		w.knocks++
		return fault.New(fault.Unavailable, "the table log is away")
	}
	welcome := &bufferv1.AppendWelcome{
		TableUuid: make([]byte, 16), Boot: make([]byte, 16), Credit: 8 << 20, AppendedNext: wire.VectorToProto(w.next), Committed: wire.PositionsToProto(w.committed),
	}
	for _, p := range w.next.Partitions() {
		welcome.AppendedLeaderEpochs = append(welcome.AppendedLeaderEpochs, w.epochBefore(p))
	}
	for _, fp := range slices.Sorted(maps.Keys(w.known)) {
		welcome.Schemas = append(welcome.Schemas, w.publish(w.known[fp]))
	}
	for _, e := range w.outstanding {
		welcome.Outstanding = append(welcome.Outstanding, &bufferv1.OutstandingEntry{Partition: wire.PartitionToProto(e.Partition), Range: wire.RangeToProto(e.Range), Revision: e.Revision})
	}
	w.streams[out] = cancel
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.streams, out)
	}()
	out <- &bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Welcome{Welcome: welcome}}
	go func() {
		for {
			f := &wire.AppendFrame{}
			if st.RecvMsg(f) != nil {
				cancel()
				return
			}
			w.take(f, out)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-out:
			if err := st.Send(m); err != nil {
				return err
			}
		}
	}
}

func (w *world) take(f *wire.AppendFrame, out chan *bufferv1.AppendResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Entry == nil {
		for _, pr := range f.Msg.GetProgress().GetPartitions() {
			if p, err := wire.ProgressFromProto(pr); err == nil {
				w.progress[p.Partition.Number] = p
			}
		}
		return
	}
	if w.silent {
		return
	}
	e := f.Entry
	outcome := w.decide(e)
	epoch := w.epochBefore(e.Partition)
	out <- &bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Result{Result: &bufferv1.AppendResult{
		Partition: wire.PartitionToProto(e.Partition), Range: wire.RangeToProto(e.Range), Outcome: outcome, AppendedNext: w.next[e.Partition], AppendedLeaderEpoch: &epoch,
	}}}
	out <- &bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Credit{Credit: &bufferv1.Credit{Bytes: e.Bytes()}}}
}

// epochBefore is the leader epoch of the record before the next offset of p.
func (w *world) epochBefore(p ident.Partition) int32 {
	for _, e := range slices.Backward(w.entries) {
		if e.Partition == p && e.Range.Next == w.next[p] {
			return e.LeaderEpoch
		}
	}
	if pos := w.committed[p]; pos.Next == w.next[p] && pos.Next > pos.Start {
		return pos.LeaderEpoch
	}
	return -1
}

func (w *world) decide(e *event.Append) bufferv1.AppendOutcome {
	next, known := w.next[e.Partition]
	if o := w.refuseNext; o != 0 {
		w.refuseNext = 0
		return o
	}
	switch {
	case !known:
		return bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_PARTITION
	case e.Range.Next <= next:
		return bufferv1.AppendOutcome_APPEND_OUTCOME_DUPLICATE
	case e.Range.First != next:
		return bufferv1.AppendOutcome_APPEND_OUTCOME_OUT_OF_ORDER
	case e.Rows > 0 && w.known[e.Fingerprint] == nil:
		return bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_SCHEMA
	}
	target := w.known[e.Fingerprint]
	if target == nil {
		target = w.table
	}
	if err := arrowx.CheckEntry(target, e); err != nil {
		w.broken = append(w.broken, err.Error())
		return bufferv1.AppendOutcome_APPEND_OUTCOME_INVALID
	}
	for i, o := range w.outstanding {
		if o.Partition != e.Partition || !o.Range.Overlaps(e.Range) {
			continue
		}
		if o.Range != e.Range || o.Rows != e.Rows || o.Quarantined != e.Quarantined || o.Digest != e.Digest || o.Revision != e.Revision {
			w.broken = append(w.broken, fmt.Sprintf("re-filled %s of %s differs: %+v and %+v", o.Range, o.Partition, o.Header, e.Header))
		}
		w.outstanding = slices.Delete(w.outstanding, i, i+1)
		w.refilled++
		break
	}
	w.next[e.Partition] = e.Range.Next
	w.entries = append(w.entries, e)
	return bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED
}

// commit makes everything appended committed.
func (w *world) commit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, next := range w.next {
		pos := w.committed[p]
		pos.Next, pos.LeaderEpoch = next, 0
		w.committed[p] = pos
	}
	w.broadcast(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Committed{Committed: &bufferv1.Committed{Positions: wire.PositionsToProto(w.committed)}}})
}

// restartLog loses the rows that are not committed, as the crash of a buffer with its journal does.
func (w *world) restartLog() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var kept []*event.Append
	for _, e := range w.entries {
		if e.Range.First >= w.committed[e.Partition].Next {
			w.outstanding = append(w.outstanding, e)
			continue
		}
		kept = append(kept, e)
	}
	w.entries = kept
	w.next = w.committed.Vector()
	for _, cancel := range w.streams {
		cancel()
	}
}

// dialProducer gives a client that puts records where they say, and knows of topics what they are now.
func (w *world) dialProducer() *kgo.Client {
	w.t.Helper()
	producer, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(99_000_000), kgo.ProducerBatchCompression(kgo.NoCompression()))
	require.NoError(w.t, err)
	w.t.Cleanup(producer.Close)
	return producer
}

// recreateTopic deletes the topic and makes it again, with one partition.
func (w *world) recreateTopic() {
	w.t.Helper()
	adm := kadm.NewClient(w.producer)
	_, err := adm.DeleteTopic(w.t.Context(), "orders")
	require.NoError(w.t, err)
	_, err = adm.CreateTopic(w.t.Context(), 1, 1, nil, "orders")
	require.NoError(w.t, err)
}

func (w *world) produce(partition int32, values ...[]byte) {
	w.t.Helper()
	records := make([]*kgo.Record, len(values))
	for i, v := range values {
		records[i] = &kgo.Record{Topic: "orders", Partition: partition, Key: []byte("k"), Value: v}
	}
	require.NoError(w.t, w.producer.ProduceSync(w.t.Context(), records...).FirstErr())
}

// framed is an order in the Confluent frame.
func framed(schemaID int, id string, units int64, note string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(schemaID))
	b = append(b, 0)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), id)
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(units))
	if note != "" {
		b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), note)
	}
	return b
}

func orders(schemaID, from, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		note := ""
		if schemaID == 2 {
			note = "n"
		}
		out[i] = framed(schemaID, fmt.Sprintf("o%d", from+i), int64(from+i), note)
	}
	return out
}

func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return ok()
	}, 30*time.Second, 5*time.Millisecond, what)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(w.t, w.broken)
}

// awaitLost waits until so many offsets of partition 0 are counted as lost: the answers of the log are on their way.
func (w *world) awaitLost(i *instance, want int) {
	w.t.Helper()
	w.await(fmt.Sprintf("%d offsets lost", want), func() bool {
		n, _ := i.metrics.Value("icestream_ingest_lost_offsets_total", "p", "orders", "0")
		return int(n) == want
	})
}

// appended waits until the log holds everything below next in the partition.
func (w *world) appended(partition int32, next int64) {
	w.t.Helper()
	w.await(fmt.Sprintf("partition %d appended to %d", partition, next), func() bool { return w.at(partition) == next })
}

func (w *world) at(partition int32) int64 {
	for p, n := range w.next {
		if p.Number == partition {
			return n
		}
	}
	return -1
}

// outcome is what the log holds, by offset: the order's id, "null", "bad REASON" or "skip REASON".
func (w *world) outcome(partition int32) map[int64]string {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[int64]string{}
	note := func(o int64, what string) {
		require.NotContains(w.t, out, o, "offset twice (G1)")
		out[o] = what
	}
	for _, e := range w.entries {
		if e.Partition.Number != partition {
			continue
		}
		if e.Rows > 0 {
			rec, err := arrowx.Decode(arrowx.RowSchema(w.known[e.Fingerprint]), e.RowBatch)
			require.NoError(w.t, err)
			ids := rec.Column(0)
			for i, o := range arrowx.Offsets(rec) {
				what := "null"
				if !ids.IsNull(i) {
					what = ids.ValueStr(i)
				}
				note(o, what)
			}
		}
		if e.Quarantined > 0 {
			rec, err := arrowx.Decode(arrowx.QuarantineSchema(), e.Quarantine)
			require.NoError(w.t, err)
			for i, o := range arrowx.Offsets(rec) {
				note(o, "bad "+rec.Column(6).(*array.String).Value(i))
			}
		}
		for _, s := range e.Skips {
			for o := s.First; o < s.Next; o++ {
				note(o, "skip "+s.Reason.String())
			}
		}
	}
	return out
}
