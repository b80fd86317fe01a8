package stack

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/testkit/faulty"
)

// proxied puts a proxy before the catalog; services that start from now on use it.
func (w *world) proxied() *faulty.Catalog {
	w.t.Helper()
	c := faulty.NewCatalog(w.t, w.settings.Catalog.URI)
	w.settings.Catalog.URI = c.URL()
	return c
}

// more produces so many records more and has them committed.
func (l *load) more(n uint64) {
	l.w.t.Helper()
	l.begin("orders", 4, n, 0)
	l.wait()
	l.w.settle("shop.orders", "orders")
}

// C1, C2, C4, C5, C10, C20, G1, G6, G11: whatever the catalog answers to a commit of the table, and to one of its
// quarantine, every row lands once, nothing waits for a command, and nothing is left behind.
func TestWhateverTheCatalogAnswersEveryRowLandsOnceAndNothingIsLeftBehind(t *testing.T) {
	w := newWorld(t, ordersText)
	proxy := w.proxied()
	l := w.produce("orders", 4, 2000, 0)
	w.start()
	l.wait()
	w.settle("shop.orders", "orders")
	for _, a := range faulty.Answers() {
		began := time.Now()
		proxy.Give(a)
		l.more(501) // one of 500 is poison
		proxy.Heal()
		t.Logf("%-50s %v", a.Name, time.Since(began).Round(time.Millisecond))
	}
	w.ready()
	w.settle("shop.orders", "orders")
	w.eventually(func() error {
		if n, _ := w.nodes[discovery.Committer].metrics.Value("icestream_committer_quarantine_pending", "shop.orders"); n > 0 {
			return fmt.Errorf("%v quarantine files are pending", n)
		}
		return nil
	})
	w.stop(discovery.Committer) // with its last commit and all that it still cleans up
	w.verify("shop.orders", l.ledger)
	require.Empty(t, w.leftovers("shop", "orders"))
	require.Empty(t, w.leftovers("shop", "orders__quarantine"))
	require.Empty(t, proxy.Missed(faulty.Answers()), "these never came to pass")
}

// C4: a request that the catalog carries out after the committer has looked for it, with and without a new committer in
// between that took the table over before or after it arrived.
func TestARequestThatIsCarriedOutLateLandsOnceOrNever(t *testing.T) {
	for _, when := range []string{"while the committer tries again", "after another took over", "before another takes over"} {
		t.Run(when, func(t *testing.T) {
			w := newWorld(t, ordersText)
			w.abrupt = when != "while the committer tries again"
			proxy := w.proxied()
			l := w.produce("orders", 4, 2000, 0)
			w.start()
			l.wait()
			w.settle("shop.orders", "orders")
			release, sent := make(chan struct{}), make(chan struct{})
			late := faulty.Script(faulty.Late(release, 504, "CommitStateUnknownException"))
			first := true
			proxy.Commits(faulty.For("orders", func(table string) faulty.Fault {
				if first {
					first = false
					close(sent)
				} else if when != "while the committer tries again" {
					return faulty.Refused(503, "ServiceUnavailableException") // until the committer has ended
				}
				return late(table)
			}))
			l.begin("orders", 4, 501, 0)
			l.wait()
			<-sent
			switch when {
			case "while the committer tries again":
				w.settle("shop.orders", "orders")
				close(release)
				proxy.Settle()
			case "after another took over":
				w.stop(discovery.Committer)
				proxy.Heal()
				w.start(discovery.Committer)
				w.settle("shop.orders", "orders")
				close(release)
				proxy.Settle()
			default:
				w.stop(discovery.Committer)
				proxy.Heal()
				close(release)
				proxy.Settle()
				w.start(discovery.Committer)
			}
			l.more(501)
			w.ready()
			w.verify("shop.orders", l.ledger)
			w.stop(discovery.Committer)
			left := w.leftovers("shop", "orders")
			if w.abrupt { // what a killed committer knew of manifests died with it
				left = slices.DeleteFunc(left, func(path string) bool { return strings.Contains(path, ".avro") })
			}
			require.Empty(t, left)
		})
	}
}

// leftovers are the files in the folder of a table that no snapshot and no metadata file in reach names.
func (w *world) leftovers(namespace, name string) []string {
	w.t.Helper()
	icefile.Register()
	ctx := w.t.Context()
	cat, err := rest.NewCatalog(ctx, "check", "http://"+local(w.ports.catalog))
	require.NoError(w.t, err)
	tbl, err := cat.LoadTable(ctx, []string{namespace, name})
	require.NoError(w.t, err)
	files, err := tbl.FS(ctx)
	require.NoError(w.t, err)
	named := map[string]bool{tbl.MetadataLocation(): true}
	for entry := range tbl.Metadata().PreviousFiles() {
		named[entry.MetadataFile] = true
	}
	for _, s := range tbl.Metadata().Snapshots() {
		named[s.ManifestList] = true
		manifests, err := s.Manifests(files)
		require.NoError(w.t, err)
		for _, m := range manifests {
			if named[m.FilePath()] {
				continue
			}
			named[m.FilePath()] = true
			for e, err := range m.Entries(files, false) {
				require.NoError(w.t, err)
				named[e.DataFile().FilePath()] = true
			}
		}
	}
	paths := map[string]bool{}
	for location := range maps.Keys(named) {
		paths[strings.TrimPrefix(location, "file://")] = true
	}
	var left []string
	root := strings.TrimPrefix(tbl.Location(), "file://")
	require.NoError(w.t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !paths[path] {
			info, ierr := os.Stat(path)
			if ierr != nil {
				return ierr
			}
			left = append(left, fmt.Sprintf("%s (%d bytes, %s)", path, info.Size(), info.ModTime().Format(time.TimeOnly)))
		}
		return err
	}))
	return left
}
