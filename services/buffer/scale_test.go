package buffer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/buffer"
)

// heldDisk is a disk whose syncs wait while hold is locked.
type heldDisk struct {
	file.OS
	hold sync.RWMutex
}

type heldFile struct {
	file.File
	d *heldDisk
}

// Create implements file.FS.
func (d *heldDisk) Create(name string) (file.File, error) {
	f, err := d.OS.Create(name)
	return heldFile{f, d}, err
}

// Sync implements file.File.
func (f heldFile) Sync() error {
	f.d.hold.RLock()
	defer f.d.hold.RUnlock()
	return f.File.Sync()
}

// A thousand tables on one buffer share its journal: what waits is made durable by one fdatasync, there is one segment,
// and memory holds the tables and their rows and little else (G7). A restart knows all of them at once.
func TestAThousandTablesShareOneJournal(t *testing.T) {
	const tables, rounds = 1000, 5
	cfg := settings(t, "node.data_dir", t.TempDir(), "limits.hot.bytes", "256MiB")
	heap, files := heapMiB(), openFiles(t)
	disk := &heldDisk{}
	b := startOn(t, disk, cfg)
	name := func(i int) string { return fmt.Sprintf("shop.t%d", i) }
	require.NoError(t, each(tables, func(i int) error { return b.serveTable(name(i)) }))
	senders := make([]*sender, tables)
	for i := range senders {
		senders[i] = b.sender(name(i))
	}
	round := func(r int64, wait func()) {
		a := entry(t, p0, r*10, r*10+10, 100)
		for _, s := range senders {
			e := *a
			s.send(&e)
		}
		wait()
		for _, s := range senders {
			require.Equal(t, bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED, s.result().GetOutcome())
		}
	}
	before := b.syncs()
	disk.hold.Lock() // as if one sync took until all tables have sent
	round(0, func() {
		defer disk.hold.Unlock()
		require.Eventually(t, func() bool { return b.accepted(t) == tables }, 20*time.Second, 10*time.Millisecond)
	})
	require.LessOrEqual(t, b.syncs()-before, 2.0, "whatever waited while the first group was synced takes one sync together")
	began, syncs := time.Now(), b.syncs()
	for r := range int64(rounds) {
		round(r+1, func() {})
	}
	took, syncs := time.Since(began), b.syncs()-syncs
	t.Logf("%d appends to %d tables in %v: %.0f fsyncs (%.0f a second), %.0f appends each; %d files more, heap %d MiB more with client and server",
		tables*rounds, tables, took.Round(time.Millisecond), syncs, syncs/took.Seconds(), tables*rounds/syncs, openFiles(t)-files, heapMiB()-heap)
	require.Less(t, openFiles(t)-files, 20)
	require.Less(t, heapMiB()-heap, int64(256))
	require.Len(t, segmentsOf(t, cfg.Node.DataDir), 1)
	for _, s := range senders {
		s.cancel()
	}
	require.NoError(t, b.stop())

	began = time.Now()
	b = startOn(t, file.OS{}, cfg)
	t.Logf("started again with its journal of %d KiB in %v", segmentsOf(t, cfg.Node.DataDir)[0]>>10, time.Since(began).Round(time.Millisecond))
	require.True(t, b.openTable(name(tables-1), state(2, 1, ident.Vector{p0: 0, p1: 0}, firstLSN)).GetServing())
	require.Len(t, b.sender(name(tables-1)).welcome.GetOutstanding(), rounds+1)
	require.Len(t, segmentsOf(t, cfg.Node.DataDir), 1)
}

// each calls f for 0 to n-1, some at a time, and returns the first error.
func each(n int, f func(int) error) error {
	const lanes = 64
	out := make(chan error, lanes)
	for lane := range lanes {
		go func() {
			var err error
			for i := lane; i < n && err == nil; i += lanes {
				err = f(i)
			}
			out <- err
		}()
	}
	var first error
	for range lanes {
		if err := <-out; first == nil {
			first = err
		}
	}
	return first
}

// serveTable is serve for a goroutine that is not the test's.
func (b *bed) serveTable(name string) error {
	c := state(1, 0, ident.Vector{p0: 0, p1: 0}, ident.LSNState{})
	_, sch := rowSchema(b.t)
	out, err := b.log.OpenTable(b.ctx(), &bufferv1.OpenTableRequest{Table: name, Commit: wire.CommitToProto(&c), Schemas: wire.SchemasToProto([]event.Schema{sch})})
	if err != nil {
		return err
	}
	return b.grant(name, out.GetEpochWanted().GetNonce(), state(2, 1, ident.Vector{p0: 0, p1: 0}, firstLSN))
}

// accepted is the number of tables that have accepted an append.
func (b *bed) accepted(t *testing.T) (n int) {
	t.Helper()
	families, err := b.metrics.Registry().Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "icestream_buffer_appends_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "accepted" && m.GetCounter().GetValue() > 0 {
					n++
				}
			}
		}
	}
	return n
}

// syncs is the number of fdatasyncs of the journal so far.
func (b *bed) syncs() float64 {
	n, _ := b.metrics.Value("icestream_buffer_journal_sync_seconds")
	return n
}

// segmentsOf are the sizes of the journal's segments.
func segmentsOf(t *testing.T, dir string) (sizes []int64) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(buffer.JournalDir(dir), "*.journal"))
	require.NoError(t, err)
	for _, name := range names {
		st, err := os.Stat(name)
		require.NoError(t, err)
		sizes = append(sizes, st.Size())
	}
	return sizes
}

func heapMiB() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc >> 20)
}

// openFiles is the number of open files of this process, 0 where the system does not say.
func openFiles(t *testing.T) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}
