package readapi

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
	"github.com/icestream/icestream/internal/wire"
)

// Defaults of Options.
const (
	DefaultLease      = time.Minute
	DefaultMaxLease   = 15 * time.Minute
	DefaultLeaseBytes = 512 << 20
	DefaultStall      = 30 * time.Second
)

// Options of a Server. Tables is required.
type Options struct {
	Tables Tables
	// Cold is nil at the buffer: what needs it is answered WRONG_DOOR.
	Cold Cold
	// Readers returns the addresses of services that have a Cold port, for
	// WRONG_DOOR; nil means none are known.
	Readers func() []string
	// MaxLease bounds every lease; a longer one is cut, and the answer says so.
	MaxLease time.Duration
	// LeaseBytes bounds the hot bytes that all leases together keep, each entry
	// counted once. A read beyond it is refused with OVER_LIMIT.
	LeaseBytes int64
	// Stall is how long a stream may wait for its reader to take one message
	// before it is cut with OVER_LIMIT.
	Stall time.Duration
	// Meter is told what is read; nil means nobody is.
	Meter Meter
	// Log receives state changes; nil discards them.
	Log *slog.Logger
}

// Meter counts what is read. Safe for concurrent use.
type Meter interface {
	// Read counts a call ("begin", "hot", "scan", "wait", "tail") that has ended,
	// with fault.Unspecified where it did not fail.
	Read(call string, reason fault.Reason)
	// Sent counts rows and bytes that went to readers; part is "hot" or "cold".
	Sent(part string, rows, bytes int64)
	// Leases sets how many leases there are and the hot bytes they keep.
	Leases(count int, bytes int64)
}

type noMeter struct{}

func (noMeter) Read(string, fault.Reason)  {}
func (noMeter) Sent(string, int64, int64)  {}
func (noMeter) Leases(count int, by int64) {}

// Server answers icestream.readstate.v1. Safe for concurrent use.
type Server struct {
	readstatev1.UnimplementedReadStateServiceServer
	opt    Options
	leases *leases

	closeOnce sync.Once
	closed    chan struct{}
}

// New returns a server. Close it before the connections are drained.
func New(o Options) *Server {
	if o.MaxLease <= 0 {
		o.MaxLease = DefaultMaxLease
	}
	if o.LeaseBytes <= 0 {
		o.LeaseBytes = DefaultLeaseBytes
	}
	if o.Stall <= 0 {
		o.Stall = DefaultStall
	}
	if o.Meter == nil {
		o.Meter = noMeter{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{opt: o, leases: newLeases(o.LeaseBytes, o.Meter), closed: make(chan struct{})}
}

// Close ends leases, tails and waits. Streams that have an end are let finish.
func (s *Server) Close() {
	s.closeOnce.Do(func() {
		close(s.closed)
		s.leases.close()
	})
}

// Pins returns the oldest snapshot of a table that a lease keeps, by sequence
// number; zeros when there is none. A snapshot whose sequence number is not
// known here counts as the oldest there can be.
func (s *Server) Pins(table string) (snapshot, sequence int64) { return s.leases.oldest(table) }

// errClosed tells streams that the server ends.
func errClosed() error {
	return fault.New(fault.Unavailable, "the server is shutting down: read elsewhere")
}

// wrongDoor says who answers a call that needs files of the lake.
func (s *Server) wrongDoor(what string) error {
	var addresses []string
	if s.opt.Readers != nil {
		addresses = s.opt.Readers()
	}
	if len(addresses) == 0 {
		return fault.New(fault.WrongDoor, "%s is answered by readstate, and this server knows no address of one", what)
	}
	list := strings.Join(addresses, ",")
	return fault.New(fault.WrongDoor, "%s is answered by readstate at %s", what, list).With("addresses", list)
}

// counted reports the outcome of a call and turns its error into a status. A
// reader that leaves is no failure.
func (s *Server) counted(call string, err error) error {
	reason := fault.ReasonOf(err)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		reason = fault.Unspecified
	}
	s.opt.Meter.Read(call, reason)
	return wire.ToStatus(err)
}

// ListTables lists the tables that the server knows.
func (s *Server) ListTables(context.Context, *readstatev1.ListTablesRequest) (*readstatev1.ListTablesResponse, error) {
	out := &readstatev1.ListTablesResponse{}
	for _, name := range s.opt.Tables.Names() {
		src, err := s.opt.Tables.Table(name)
		if err != nil {
			continue // it went away since
		}
		pos, _ := src.Position() // without one the summary says why
		out.Tables = append(out.Tables, summary(name, src.Status(), pos))
	}
	return out, nil
}

func summary(name string, st Status, pos readview.Position) *readstatev1.TableSummary {
	return &readstatev1.TableSummary{
		Table: name, TableUuid: wire.UUIDToProto(st.Table), SnapshotId: pos.Commit.SnapshotID,
		HotRows: st.Rows, HotBytes: st.Bytes, State: st.State,
	}
}

// DescribeTable returns schema, positions, lag and freshness. It works for a
// table that is not ready, and then says what is known.
func (s *Server) DescribeTable(_ context.Context, req *readstatev1.DescribeTableRequest) (*readstatev1.DescribeTableResponse, error) {
	src, err := s.opt.Tables.Table(req.GetTable())
	if err != nil {
		return nil, wire.ToStatus(err)
	}
	st := src.Status()
	pos, err := src.Position()
	if err != nil && fault.ReasonOf(err) != fault.NotReady {
		return nil, wire.ToStatus(err)
	}
	out := &readstatev1.DescribeTableResponse{Summary: summary(req.GetTable(), st, pos)}
	if err == nil {
		out.Commit, out.LogEpoch = wire.CommitToProto(&pos.Commit), int64(pos.Commit.LogEpoch)
		if pos.HasSchema {
			out.Schema = wire.SchemaToProto(&pos.Schema)
		}
	}
	for _, p := range allPartitions(pos, st.Progress) {
		out.Partitions = append(out.Partitions, partitionStatus(p, pos, st.Progress))
	}
	return out, nil
}

// allPartitions returns what is committed, visible or reported, in order.
func allPartitions(pos readview.Position, progress map[ident.Partition]Progress) []ident.Partition {
	seen := make(map[ident.Partition]bool, len(pos.Vector)+len(progress))
	for p := range pos.Commit.Positions {
		seen[p] = true
	}
	for p := range pos.Vector {
		seen[p] = true
	}
	for p := range progress {
		seen[p] = true
	}
	out := make([]ident.Partition, 0, len(seen))
	for p := range seen {
		out = append(out, p)
	}
	slices.SortFunc(out, ident.Partition.Compare)
	return out
}

func partitionStatus(p ident.Partition, pos readview.Position, progress map[ident.Partition]Progress) *readstatev1.PartitionStatus {
	out := &readstatev1.PartitionStatus{
		Partition: wire.PartitionToProto(p), Committed: pos.Commit.Positions[p].Next, Visible: pos.Vector[p],
	}
	if pr, ok := progress[p]; ok {
		out.Progress, out.Heard = wire.ProgressToProto(&pr.Progress), timestamppb.New(pr.Heard)
		out.Lag = max(pr.StableEnd-out.Visible, 0)
	}
	return out
}
