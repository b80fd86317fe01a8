package buffer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"time"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/buffer/internal/journal"
	"github.com/icestream/icestream/services/buffer/internal/server"
)

// Service is one buffer. Make it with New and run it once.
type Service struct {
	cfg     Config
	deps    Deps
	journal *journal.Journal
	host    *server.Host
	reads   *readapi.Server
	rpc     *rpc.Server
}

// Defs returns the metrics of the service.
func Defs() []obs.Def { return server.Defs() }

// DumpJournal prints the journal in dir (see JournalDir) and changes nothing; it
// needs no service and may run beside one.
func DumpJournal(dir string, w io.Writer) error { return journal.Dump(file.OS{}, dir, w) }

// New opens the journal and the gRPC address. Nothing is served before Run. Its
// errors, marked with their exit code, are a refused configuration, a taken address, a data directory in use,
// and a journal of a newer version; a damaged or lost journal is none of them.
func New(ctx context.Context, cfg Config, deps Deps) (_ *Service, err error) {
	if err := cfg.normal(); err != nil {
		return nil, run.WithCode(run.BadConfig, err)
	}
	deps.normal()
	s := &Service{cfg: cfg, deps: deps}
	if s.rpc, err = s.listen(ctx); err != nil {
		return nil, run.WithCode(run.BadConfig, err)
	}
	dir := JournalDir(cfg.Settings.Node.DataDir)
	j, rec, err := journal.Open(journal.Options{
		FS: deps.FS, Dir: dir, Log: deps.Log, Synced: server.Synced(deps.Metrics),
		Changed: func() { s.host.JournalChanged() },
	})
	if err != nil {
		stopped, stop := context.WithCancel(ctx)
		stop()
		_ = s.rpc.Run(stopped) // gives the address back
		return nil, run.WithCode(run.Internal, err)
	}
	lost := ""
	if rec.Damage != nil {
		lost = "the journal of this buffer was damaged and is set aside in " + dir
	}
	s.journal = j
	s.host = server.NewHost(server.Options{
		Boot: newID(), Journal: j, Recovered: rec.Tables, Lost: lost, Nonce: newNonce,
		HotBytes: int64(cfg.Settings.Limits.HotBytes), MaxQueue: int64(cfg.Settings.Limits.MaxMessage()),
		Heartbeat: cfg.Heartbeat, PinLife: cfg.Settings.Reads.MaxLease, Committer: s.address(ctx, discovery.Committer),
		Metrics: deps.Metrics, Health: deps.Health, Log: deps.Log, Draining: s.rpc.Draining(),
		OwnPins: func(table string) (int64, int64) { return s.reads.Pins(table) },
	})
	s.reads = readapi.New(readapi.Options{
		Tables: s.host, Readers: s.readers, MaxLease: cfg.Settings.Reads.MaxLease,
		LeaseBytes: max(1, int64(cfg.Settings.Limits.HotBytes)/4), Meter: server.ReadMeter{M: deps.Metrics}, Log: deps.Log,
	})
	bufferv1.RegisterTableLogServiceServer(s.rpc.Registrar(), server.NewService(s.host))
	readstatev1.RegisterReadStateServiceServer(s.rpc.Registrar(), s.reads)
	adminv1.RegisterAdminServiceServer(s.rpc.Registrar(), server.NewAdmin(s.host, cfg.Instance, cfg.Version, time.Now()))
	return s, nil
}

func (s *Service) listen(ctx context.Context) (*rpc.Server, error) {
	o := rpc.Options{
		Service: "buffer", Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus,
		MaxMessage: s.cfg.Settings.Limits.MaxMessage(), Metrics: s.deps.Metrics, Log: s.deps.Log,
		Network: s.deps.Network,
	}
	return rpc.Listen(ctx, s.cfg.Settings.Services.Buffer.Listen, o)
}

// address returns where a service is, "" when nobody knows.
func (s *Service) address(ctx context.Context, role discovery.Role) string {
	if s.deps.Resolver == nil {
		return ""
	}
	list, err := s.deps.Resolver.Instances(ctx, role)
	if err != nil || len(list) == 0 {
		return ""
	}
	return list[0]
}

// readers names the services that answer what the buffer does not.
func (s *Service) readers() []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if a := s.address(ctx, discovery.Readstate); a != "" {
		return []string{a}
	}
	return nil
}

// Addr is the gRPC address in use.
func (s *Service) Addr() string { return s.rpc.Address() }

// Run serves until ctx ends and then drains: readers and streams are told, calls
// in progress finish, and the journal writes what it has taken. It returns the
// failure that ended it, such as an fsync error.
func (s *Service) Run(ctx context.Context) error {
	g := run.NewGroup(run.Options{Log: s.deps.Log, Drain: s.cfg.Drain})
	g.Add("journal", s.journal.Run)
	g.Add("gRPC server", s.rpc.Run)
	g.Add("health", func(ctx context.Context) error {
		return s.rpc.FollowHealth(ctx, s.deps.Health, "buffer",
			bufferv1.TableLogService_ServiceDesc.ServiceName, readstatev1.ReadStateService_ServiceDesc.ServiceName)
	})
	g.OnStop("end reads", func(context.Context) error { s.reads.Close(); return nil })
	g.OnStop("drain calls", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Drain/2)
		defer cancel()
		return s.rpc.Drain(ctx)
	})
	return g.Run(ctx)
}

// newID returns a random identity.
func newID() (u ident.UUID) {
	_, _ = rand.Read(u[:]) // never fails: it crashes the program instead
	return u
}

// newNonce returns a random number that is not zero.
func newNonce() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) | 1
}
