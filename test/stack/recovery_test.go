package stack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/fault"
)

func (w *world) journal() string { return filepath.Join(w.dir, "data", "journal") }

// seen waits until the table shows the topic notes up to its end, and returns its rows, a token for them, and the log epoch.
func (w *world) seen() (rows map[string]string, token string, epoch int64) {
	w.t.Helper()
	w.eventually(func() error {
		if have, end := w.visible("shop.notes", "notes"); have != end {
			return fmt.Errorf("%d of %d offsets are visible", have, end)
		}
		return nil
	})
	w.replicated("shop.notes")
	w.eventually(func() (err error) {
		rows, token, err = w.readAt("shop.notes", "value", "")
		return err
	})
	desc, err := w.describe("shop.notes")
	require.NoError(w.t, err)
	return rows, token, desc.GetLogEpoch()
}

// A buffer dies with rows that no table holds yet. With its journal it gives every row the LSN that readers saw; with a
// journal that is gone, has rotted or is an old copy, or where the pipeline makes other rows of the same records now, the
// log epoch ends. Either way no row is lost, doubled or given another's LSN, and a token from before is answered with the
// same rows or refused (G1, G3, G5; issue 5 point 2).
func TestWhateverBecameOfTheJournalRowsAndTokensStayTrue(t *testing.T) {
	text := strings.Replace(textPipeline, "interval: 1s", "interval: 1h", 1)
	w := newWorld(t, text)
	require.NoError(t, w.kafka.EnsureTopic("notes", 2))
	w.abrupt = true
	w.start()
	cl := w.client()
	var all []string
	send := func(prefix string) {
		t.Helper()
		all = append(all, w.note(cl, 0, prefix, 5)...)
		all = append(all, w.note(cl, 1, prefix+"-b", 5)...)
	}
	answers := map[string]bool{}
	owner := map[string]string{} // of every LSN that was ever shown
	name := func(rows map[string]string) {
		t.Helper()
		for value, at := range rows {
			lsn := at[strings.Index(at, " ")+1:]
			if was, shown := owner[lsn]; shown {
				require.Equal(t, was, value, "LSN %s names two rows", lsn)
			}
			owner[lsn] = value
		}
	}
	for _, tc := range []struct {
		name   string
		epochs int64 // that begin
		same   bool  // a token from before must be answered, not refused
		harm   func()
	}{
		{"kept", 0, true, func() {}},
		{"lost", 1, false, func() { require.NoError(t, os.RemoveAll(w.journal())) }},
		{"rotten", 1, false, func() {
			names, err := filepath.Glob(filepath.Join(w.journal(), "*.journal"))
			require.NoError(t, err)
			require.Len(t, names, 1)
			b, err := os.ReadFile(names[0])
			require.NoError(t, err)
			b[100] ^= 1
			require.NoError(t, os.WriteFile(names[0], b, 0o600))
		}},
		{"another revision", 1, false, func() {
			w.stop(discovery.Ingest)
			w.configure(strings.Replace(text, "format: string", "format: string, tombstones: row", 1))
			w.start(discovery.Ingest)
		}},
		{"an old copy", 1, true, func() { // of the time before the last commit
			require.NoError(t, os.RemoveAll(w.journal()))
			require.NoError(t, os.CopyFS(w.journal(), os.DirFS(filepath.Join(w.dir, "copy"))))
		}},
	} {
		send(tc.name)
		if tc.name == "an old copy" {
			require.NoError(t, os.CopyFS(filepath.Join(w.dir, "copy"), os.DirFS(w.journal())))
			send("after the copy")
			w.settle("shop.notes", "notes")
		}
		before, token, epoch := w.seen()
		name(before)
		w.stop(discovery.Buffer)
		tc.harm()
		w.start(discovery.Buffer)
		w.ready()
		after, _, now := w.seen()
		require.Equal(t, epoch+tc.epochs, now, tc.name)
		require.Len(t, after, len(all), tc.name)
		w.eventually(func() error {
			rows, _, err := w.readAt("shop.notes", "value", token)
			if err != nil && fault.ReasonOf(err) != fault.EpochChanged {
				return fmt.Errorf("%s: %w", tc.name, err)
			}
			require.True(t, err == nil || !tc.same, "%s: %v", tc.name, err)
			if err == nil {
				require.Equal(t, before, rows, tc.name)
			}
			answers[tc.name] = err == nil
			return nil
		})
		name(after)
		for value, was := range before {
			require.True(t, tc.epochs > 0 || after[value] == was, "%s: %q had %s and has %s", tc.name, value, was, after[value])
		}
	}
	t.Logf("tokens that were answered, not refused: %v", answers)
	w.settle("shop.notes", "notes")
	slices.Sort(all)
	require.Equal(t, all, w.notes())
	w.audit("shop.notes")
	aside, err := filepath.Glob(filepath.Join(w.journal(), "*.damaged"))
	require.NoError(t, err)
	require.Len(t, aside, 1, "the one that had rotted is kept to be looked at")
}

// All services die at once and come back in any order, with time between them: nothing needs another to be there first
// (G1, G3, G4, G5, G11).
func TestServicesComeBackInAnyOrder(t *testing.T) {
	w := newWorld(t, ordersText)
	w.abrupt = true
	l := w.produce("orders", 4, 0, 2000)
	w.start()
	w.ready()
	stopReading := w.readAlong(l)
	rng := seeded(t)
	rounds := 4
	if *soak {
		rounds = 48
	}
	for range rounds {
		w.pause(time.Duration(rng.IntN(1500)) * time.Millisecond)
		order := slices.Clone(roles)
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, r := range order {
			w.nodes[r].cancel()
		}
		w.stop(order...)
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, r := range order {
			w.start(r)
			w.pause(time.Duration(rng.IntN(400)) * time.Millisecond)
		}
		began := time.Now()
		w.ready()
		t.Logf("started as %v, all ready %v after the last", order, time.Since(began).Round(time.Millisecond))
	}
	l.halt()
	w.settle("shop.orders", "orders")
	stopReading()
	w.verify("shop.orders", l.ledger)
}
