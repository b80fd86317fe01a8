package journal

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
)

// fingerprint is the state of all tables as text.
func fingerprint(s states) string {
	out := ""
	for _, name := range []string{"a", "b"} {
		v := s[name]
		if v == nil || !v.Ready() {
			continue
		}
		img := v.Image()
		out += fmt.Sprintf("%s %s next %d schemas %d", name, describe(&img.Commit), v.NextLSN(), len(img.Schemas))
		for _, a := range img.Hot {
			out += fmt.Sprintf(" %s@%d", a.Range, a.LSN)
		}
		out += "\n"
	}
	return out
}

// At every operation of a run with several segments the machine stops. Whatever
// part of what was not synced survives, the journal opens undamaged with the
// state after some number of groups: never fewer than were acknowledged.
func TestACrashAtEveryStepKeepsAtLeastWhatWasAcknowledged(t *testing.T) {
	type step struct {
		table string
		evs   []event.Event
	}
	steps := []step{{"a", []event.Event{epoch(1, 0), schema()}}, {"b", []event.Event{epoch(1, 3)}}}
	for i := range int64(12) {
		steps = append(steps, step{"a", []event.Event{entry(i*10, i*10+10, 0)}})
		steps[len(steps)-1].evs[0].Append.LSN += 100 + entryLSN(i)
		if i%4 == 3 {
			steps = append(steps, step{"a", []event.Event{commit(2+i, i*10-5)}}, step{"b", []event.Event{commit(2+i, 3)}})
		}
	}
	want := []string{""}
	s := states{}
	for _, st := range steps {
		for _, ev := range st.evs {
			s.apply(Record{Table: st.table, Event: ev})
		}
		want = append(want, fingerprint(s))
	}

	fs := file.NewMem()
	acked, crashes := 0, 0
	fs.Before(func(op file.Op, name string) error {
		for _, clone := range clones(fs) {
			crashes++
			requirePrefix(t, clone, want, acked, fmt.Sprintf("crash before %s of %s, %d acknowledged", op, name, acked))
		}
		return nil
	})
	j, _, err := Open(Options{FS: fs, Dir: "j", Log: quiet, SegmentBytes: 700})
	require.NoError(t, err)
	require.NoError(t, j.begin())
	for _, st := range steps {
		j.Append(st.table, st.evs, func(err error) { require.NoError(t, err); acked++ })
		require.NoError(t, j.drain(t.Context()))
	}
	require.Equal(t, len(steps), acked)
	require.Greater(t, j.number, uint64(3), "the run must cross segments")
	require.Greater(t, crashes, 1000)
}

func entryLSN(i int64) ident.LSN { return ident.LSN(i * 10) }

// clones returns what a crash now could leave: with and without the names that
// were not synced, and the unsynced bytes dropped, cut at any byte, or with a
// hole of zeros.
func clones(fs *file.Mem) []*file.Mem {
	longest := 0
	fs.Crash(true, func(_ string, synced, written []byte) []byte {
		longest = max(longest, len(written)-len(synced))
		return synced
	})
	out := []*file.Mem{fs.Crash(false, nil), fs.Crash(true, nil)}
	for n := 1; n <= longest; n += 1 + longest/64 {
		cut := func(_ string, synced, written []byte) []byte {
			if len(written) <= len(synced) {
				return written
			}
			return written[:min(len(written), len(synced)+n)]
		}
		hole := func(_ string, synced, written []byte) []byte {
			b := append([]byte{}, written...)
			for i := len(synced); i < min(len(b), len(synced)+n); i++ {
				b[i] = 0
			}
			return b
		}
		out = append(out, fs.Crash(false, cut), fs.Crash(true, cut), fs.Crash(true, hole))
	}
	return out
}

// requirePrefix opens a crashed clone twice (the first opening must not harm the
// second) and compares.
func requirePrefix(t *testing.T, fs *file.Mem, want []string, acked int, when string) {
	t.Helper()
	for range 2 {
		f, rec, err := recoverDir(fs, "j", quiet)
		require.NoError(t, err, when)
		require.NoError(t, rec.Damage, when)
		got := fingerprint(f.states)
		ok := false
		for k := acked; k <= min(acked+1, len(want)-1); k++ {
			ok = ok || got == want[k]
		}
		require.True(t, ok, "%s: got\n%swant\n%s", when, got, want[acked])
		j, _, err := Open(Options{FS: fs, Dir: "j", Log: quiet})
		require.NoError(t, err, when)
		require.NoError(t, j.begin(), when)
		require.NoError(t, j.lock.Close())
		fs = fs.Crash(false, nil)
	}
}
