package committer

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
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

const tableName = "shop.orders"

func part(n int32) ident.Partition {
	return ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{7}, Number: n}
}

// rig is a committer over a real catalog and a scripted buffer.
type rig struct {
	t        *testing.T
	settings *config.Config
	buffer   *scriptedBuffer
	resolver discovery.Static
	service  *Service
	metrics  *obs.Metrics
	conn     *grpc.ClientConn
	cancel   context.CancelFunc
	done     chan error
}

func newRig(t *testing.T) *rig {
	dir := t.TempDir()
	buffer, address := newScriptedBuffer(t)
	set := config.Default()
	set.Deployment = "test"
	set.Services.Committer.Listen = "127.0.0.1:0"
	set.Catalog = config.Catalog{Type: "sql", Name: "icestream", URI: "sqlite://" + dir + "/catalog.db", Warehouse: "file://" + dir + "/warehouse"}
	set.Defaults.Commit.Interval = time.Hour // tests say when
	return &rig{t: t, settings: set, buffer: buffer, resolver: discovery.Static{discovery.Buffer: address}}
}

func (r *rig) start() {
	r.metrics = obs.NewMetrics(nil)
	s, err := New(r.t.Context(), Config{Settings: r.settings, Instance: "test", Drain: 20 * time.Second, Poll: 100 * time.Millisecond},
		Deps{Resolver: r.resolver, Metrics: r.metrics, Log: slog.New(slog.NewTextHandler(r.t.Output(), nil))})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conn, err := rpc.Dial(s.Addr(), rpc.Options{Codec: wire.Codec{}, FromStatus: wire.FromStatus})
	require.NoError(r.t, err)
	r.service, r.cancel, r.done, r.conn = s, cancel, done, conn
	r.t.Cleanup(func() { cancel(); _ = conn.Close() })
}

func (r *rig) stop() {
	require.NoError(r.t, r.conn.Close())
	r.cancel()
	require.NoError(r.t, <-r.done)
}

func (r *rig) request(parts ...int32) *committerv1.OpenTableRequest {
	req := &committerv1.OpenTableRequest{
		Pipeline: "orders", Table: tableName, Owner: "test/cluster",
		Settings: &committerv1.TableSettings{Partition: "bucket(4, id)", MetadataLsn: true, MetadataKafka: true},
	}
	for _, n := range parts {
		req.Partitions = append(req.Partitions, &committerv1.PartitionStart{Partition: wire.PartitionToProto(part(n))})
	}
	return req
}

func (r *rig) open(parts ...int32) *committerv1.OpenTableResponse {
	req := r.request(parts...)
	var resp *committerv1.OpenTableResponse
	require.EventuallyWithT(r.t, func(c *assert.CollectT) {
		ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
		defer cancel()
		var err error
		resp, err = committerv1.NewTableServiceClient(r.conn).OpenTable(ctx, req)
		require.NoError(c, err)
	}, 30*time.Second, 10*time.Millisecond)
	return resp
}

// propose proposes an id column and others, and returns the fingerprint.
func (r *rig) propose(names ...string) string {
	candidate := &schema.Schema{Columns: []*schema.Node{{Name: "id", Number: 1, Type: schema.Of(schema.Long)}}}
	for i, name := range names {
		candidate.Columns = append(candidate.Columns, &schema.Node{Name: name, Number: int32(i + 2), Type: schema.Of(schema.String)})
	}
	resp, err := r.proposeSchema(candidate)
	require.NoError(r.t, err)
	require.Empty(r.t, resp.GetRefusals())
	return resp.GetSchema().GetFingerprint()
}

// proposeSchema proposes a schema until the committer can say yes or no.
func (r *rig) proposeSchema(candidate *schema.Schema) (*committerv1.ProposeSchemaResponse, error) {
	text, err := json.Marshal(candidate)
	require.NoError(r.t, err)
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	req := &committerv1.ProposeSchemaRequest{Pipeline: "orders", Table: tableName, SourceSchema: "7", Candidate: text}
	var resp *committerv1.ProposeSchemaResponse
	require.Eventually(r.t, func() bool { // as ingest does: a buffer that is being told of the table takes no schema yet
		resp, err = committerv1.NewTableServiceClient(r.conn).ProposeSchema(ctx, req)
		return fault.ReasonOf(err) != fault.Unavailable
	}, 30*time.Second, 10*time.Millisecond)
	return resp, err
}

// commitNow calls CommitNow once: everything that readers could see is committed
// when it answers, also what was still on its way to the committer.
func (r *rig) commitNow(want ident.Vector) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 40*time.Second)
	defer cancel()
	resp, err := committerv1.NewAdminServiceClient(r.conn).CommitNow(ctx, &committerv1.CommitNowRequest{Table: tableName})
	require.NoError(r.t, err)
	commit, err := wire.CommitFromProto(resp.GetCommit())
	require.NoError(r.t, err)
	require.Equal(r.t, want, commit.Positions.Vector())
}

func (r *rig) audit() Report {
	report, err := Audit(r.t.Context(), r.settings, tableName, AuditOptions{Deep: true})
	require.NoError(r.t, err)
	require.Equal(r.t, Proven, report.Verdict, report.String())
	return report
}

func TestRowsBecomeAProvenTable(t *testing.T) {
	r := newRig(t)
	r.start()
	opened := r.open(0, 1)
	require.Equal(t, r.resolver[discovery.Buffer], opened.GetBuffer())
	require.Len(t, opened.GetPositions(), 2)
	fp := r.propose("city")
	r.buffer.await("the fence", func() bool { return r.buffer.serving })

	r.buffer.append(fp, part(0), 100)
	r.buffer.append(fp, part(1), 50)
	r.buffer.append(fp, part(0), 33)
	r.commitNow(ident.Vector{part(0): 133, part(1): 50})
	report := r.audit()
	require.Equal(t, int64(37), report.Quarantine+report.Pending, "every fifth of 133 and of 50")

	// A schema with one more column: files of both shapes, one table.
	wider := r.propose("city", "street")
	require.NotEqual(t, fp, wider)
	r.buffer.append(fp, part(0), 10)
	r.buffer.append(wider, part(0), 10)
	r.buffer.append(fp, part(0), 10)
	r.commitNow(ident.Vector{part(0): 163, part(1): 50})
	r.audit()

	// What is held when it stops is committed.
	r.buffer.append(wider, part(1), 20)
	require.Eventually(t, func() bool { return r.held() > 0 }, 20*time.Second, time.Millisecond)
	r.stop()
	require.Equal(t, int64(233), total(r.audit()))

	rows, ok := r.metrics.Value("icestream_committer_rows_total", tableName)
	require.True(t, ok)
	require.Positive(t, rows)
}

// G9: a table that was dropped does not come back empty because the committer was restarted: the buffer remembers it.
// An operator who wants that says so.
func TestADroppedTableIsNotMadeAnewUnlessToldSo(t *testing.T) {
	r := newRig(t)
	r.start()
	old := r.open(0)
	r.buffer.await("the fence", func() bool { return r.buffer.serving })
	renew := func() error {
		_, err := committerv1.NewAdminServiceClient(r.conn).RenewTable(t.Context(), &committerv1.RenewTableRequest{Table: tableName})
		return err
	}
	require.ErrorIs(t, renew(), fault.Of(fault.Conflict), "it is open")
	r.stop()
	r.drop("orders")

	r.start()
	_, err := committerv1.NewTableServiceClient(r.conn).OpenTable(t.Context(), r.request(0))
	require.ErrorIs(t, err, fault.Of(fault.Stopped))
	require.ErrorContains(t, err, "dropped or renamed")
	require.ErrorContains(t, err, "icestream renew "+tableName)
	reasons := ""
	for _, c := range r.service.d.Health.Report("committer").Components {
		reasons += c.Reason
	}
	require.Contains(t, reasons, "dropped or renamed", "it is red")

	require.NoError(t, renew())
	r.buffer.lose() // as one that was restarted finds the journal of another table
	fresh := r.open(0)
	require.NotEqual(t, old.GetTableUuid(), fresh.GetTableUuid())
	r.buffer.await("the fence", func() bool { return r.buffer.serving })
	r.stop()
}

// drop drops a table as another engine would.
func (r *rig) drop(name string) {
	r.t.Helper()
	db, err := sql.Open("sqlite", strings.TrimPrefix(r.settings.Catalog.URI, "sqlite://"))
	require.NoError(r.t, err)
	_, err = db.ExecContext(r.t.Context(), "DELETE FROM iceberg_tables WHERE table_name = ?", name)
	require.NoError(r.t, errors.Join(err, db.Close()))
}

// G9: the buffer was moved without its journal and remembers nothing; the quarantine of the dropped table does.
func TestATableIsNotMadeBesideTheQuarantineOfAnOldOne(t *testing.T) {
	r := newRig(t)
	r.start()
	r.open(0)
	fp := r.propose("city")
	r.buffer.await("the fence", func() bool { return r.buffer.serving })
	r.buffer.append(fp, part(0), 10)
	r.commitNow(ident.Vector{part(0): 10})
	r.stop()
	r.drop("orders")
	r.buffer.lose()
	r.buffer.change(func() { r.buffer.commit = event.Commit{} })

	r.start()
	open := func() error {
		_, err := committerv1.NewTableServiceClient(r.conn).OpenTable(t.Context(), r.request(0))
		return err
	}
	err := open()
	require.ErrorIs(t, err, fault.Of(fault.Stopped))
	require.ErrorContains(t, err, "__quarantine")
	r.drop("orders__quarantine")
	require.NoError(t, open())
	r.buffer.await("the fence", func() bool { return r.buffer.serving })
	r.stop()
}

func (r *rig) held() int64 {
	h, err := r.service.hub.Held(context.Background(), tableName)
	if err != nil {
		return -1
	}
	return h.Rows
}

func total(r Report) int64 {
	var n int64
	for _, p := range r.Partitions {
		n += p.Next - p.Start
	}
	return n
}

func TestARestartFinishesWhatItFindsAndTellsTheBuffer(t *testing.T) {
	r := newRig(t)
	r.start()
	r.open(0)
	fp := r.propose()
	r.buffer.await("the fence", func() bool { return r.buffer.serving })
	r.buffer.append(fp, part(0), 40)
	r.commitNow(ident.Vector{part(0): 40})
	r.stop()

	r.buffer.append(fp, part(0), 15)
	before := r.buffer.commit.WriterEpoch
	r.start() // opens its tables by itself: nobody calls OpenTable
	r.buffer.await("the report of the new writer", func() bool { return r.buffer.commit.WriterEpoch == before+1 })
	r.commitNow(ident.Vector{part(0): 55})
	r.audit()
	r.stop()
}

func TestALostBufferGetsANewEpochAndNoLSNTwice(t *testing.T) {
	r := newRig(t)
	r.start()
	r.open(0)
	fp := r.propose()
	r.buffer.await("the fence", func() bool { return r.buffer.serving })
	r.buffer.append(fp, part(0), 40)
	r.commitNow(ident.Vector{part(0): 40})
	old := r.buffer.commit
	r.buffer.lose()
	r.buffer.await("the next fence", func() bool { return r.buffer.serving })
	require.Equal(t, old.LogEpoch+1, r.buffer.commit.LogEpoch)
	require.GreaterOrEqual(t, r.buffer.commit.LSN.Start, old.LSN.Reserved, "G5")
	r.buffer.append(fp, part(0), 20)
	r.commitNow(ident.Vector{part(0): 60})
	r.audit()
	r.stop()
}

func TestARefusedSchemaNamesTheColumnAndChangesNothing(t *testing.T) {
	r := newRig(t)
	r.start()
	r.open(0)
	r.propose("city")
	resp, err := r.proposeSchema(&schema.Schema{Columns: []*schema.Node{{Name: "id", Number: 1, Type: schema.Of(schema.String)}}})
	require.NoError(t, err)
	require.Len(t, resp.GetRefusals(), 1)
	require.Equal(t, "id", resp.GetRefusals()[0].GetPath())
	require.Nil(t, resp.GetSchema())
	r.stop()
}

func TestCallsForUnknownTablesAndOtherOwnersAreRefused(t *testing.T) {
	r := newRig(t)
	r.start()
	r.open(0)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := committerv1.NewAdminServiceClient(r.conn).CommitNow(ctx, &committerv1.CommitNowRequest{Table: "shop.nothing"})
	require.Equal(t, fault.UnknownTable, fault.ReasonOf(err))
	_, err = committerv1.NewTableServiceClient(r.conn).OpenTable(ctx, &committerv1.OpenTableRequest{
		Pipeline: "orders", Table: tableName, Owner: "test/another-cluster",
	})
	require.Equal(t, fault.Stopped, fault.ReasonOf(err))
	require.ErrorContains(t, err, "test/cluster")
	status, err := adminv1.NewAdminServiceClient(r.conn).GetStatus(ctx, &adminv1.GetStatusRequest{})
	require.NoError(t, err)
	require.Equal(t, "running", status.GetFacts()["table shop.orders: state"])
	r.stop()
}
