package cold

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/readapi"
)

// together is a far store: a manifest is there when a second one has been asked for.
type together struct {
	icefile.FS

	mu    sync.Mutex
	asked int
	two   chan struct{}
}

// Open implements iceio.IO.
func (s *together) Open(name string) (iceio.File, error) {
	if strings.HasSuffix(name, ".avro") && !strings.Contains(name, "snap-") {
		s.mu.Lock()
		if s.asked++; s.asked == 2 {
			close(s.two)
		}
		s.mu.Unlock()
		select {
		case <-s.two:
		case <-time.After(5 * time.Second):
			return nil, context.DeadlineExceeded
		}
	}
	return s.FS.Open(name)
}

// The library reads as many as there are processors, and a quiet process takes one.
func TestAQuietProcessReadsManifestsOfAFarStoreSideBySide(t *testing.T) {
	w := newWarehouse(t)
	for n := range int64(4) {
		w.append(w.ours(), rows(0, n, n+1)...)
	}
	store := &together{two: make(chan struct{})}
	tbl := table.New(w.tbl.Identifier(), w.tbl.Metadata(), w.tbl.MetadataLocation(), func(context.Context) (iceio.IO, error) { return store, nil }, nil)
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	tasks, err := whole(t.Context(), tbl, readapi.ColdScan{Snapshot: tbl.CurrentSnapshot().SnapshotID}, nil)
	require.NoError(t, err)
	require.Len(t, tasks, 4)
}
