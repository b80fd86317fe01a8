package journal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"syscall"
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

// step is what one Append writes.
type step struct {
	table string
	evs   []event.Event
}

// story is a run of two tables that crosses several segments, and the state after each of its steps.
func story() (steps []step, want []string) {
	steps = []step{{"a", []event.Event{epoch(1, 0), schema()}}, {"b", []event.Event{epoch(1, 3)}}}
	for i := range int64(12) {
		steps = append(steps, step{"a", []event.Event{entry(i*10, i*10+10, 0)}})
		steps[len(steps)-1].evs[0].Append.LSN += 100 + entryLSN(i)
		if i%4 == 3 {
			steps = append(steps, step{"a", []event.Event{commit(2+i, i*10-5)}}, step{"b", []event.Event{commit(2+i, 3)}})
		}
	}
	want = []string{""}
	s := states{}
	for _, st := range steps {
		for _, ev := range st.evs {
			_ = s.apply(Record{Table: st.table, Event: ev})
		}
		want = append(want, fingerprint(s))
	}
	return steps, want
}

// tell runs the story on fs until the journal ends or the story does; acked counts the steps that were acknowledged.
func tell(t *testing.T, fs *file.Mem, steps []step, acked *int) (*Journal, error) {
	t.Helper()
	j, _, err := Open(Options{FS: fs, Dir: "j", Log: quiet, SegmentBytes: 700, Ahead: 300, Retry: func(context.Context) error { return nil }})
	require.NoError(t, err)
	if err := j.roomy(t.Context(), j.begin); err != nil {
		return j, err
	}
	for _, st := range steps {
		j.Append(st.table, st.evs, func(err error) { require.NoError(t, err); *acked++ })
		if err := j.drain(t.Context()); err != nil {
			return j, err
		}
	}
	return j, nil
}

// At every operation of a run with several segments the machine stops. Whatever
// part of what was not synced survives, in whatever order, the journal opens
// undamaged with the state after some number of groups: never fewer than were
// acknowledged (G5).
func TestACrashAtEveryStepKeepsAtLeastWhatWasAcknowledged(t *testing.T) {
	steps, want := story()
	rng := rand.New(rand.NewPCG(1, 1))
	fs := file.NewMem()
	acked, crashes := 0, 0
	fs.Before(func(op file.Op, name string) error {
		for _, clone := range append(clones(fs), reordered(fs, rng, 12)...) {
			crashes++
			requirePrefix(t, clone, want, acked, fmt.Sprintf("crash before %s of %s, %d acknowledged", op, name, acked))
		}
		return nil
	})
	j, err := tell(t, fs, steps, &acked)
	require.NoError(t, err)
	require.Equal(t, len(steps), acked)
	require.Greater(t, j.number, uint64(3), "the run must cross segments")
	require.Greater(t, crashes, 2000)
}

// At every operation the disk is full, for one operation or for several, or fails
// for good; and soon after that the machine stops. A full disk is survived without
// a restart; any other error ends the journal, and nothing is acknowledged after
// it. What was acknowledged is there, and the journal is undamaged.
func TestADiskThatFailsAtAnyStepLosesNothingThatWasAcknowledged(t *testing.T) {
	steps, want := story()
	broken := errors.New("medium error")
	rng := rand.New(rand.NewPCG(2, 2))
	// Where a full disk is found by syncing, what is on disk is unknown, and the journal must end; so it must where an
	// unfinished segment cannot be taken away.
	final := map[file.Op]bool{file.OpSync: true, file.OpSyncDir: true, file.OpRemove: true}
	for _, fault := range []struct {
		err   error
		times int
	}{{syscall.ENOSPC, 1}, {syscall.ENOSPC, 4}, {syscall.EDQUOT, 9}, {broken, 1}} {
		for at, more := 0, true; more; at++ {
			fs := file.NewMem()
			acked, n, hit := 0, -1, file.Op("")
			more = false
			fs.Before(func(op file.Op, name string) error {
				if n++; n < at {
					return nil
				}
				more = true
				when := fmt.Sprintf("%v at operation %d (%s), crash at %d before %s of %s, %d acknowledged", fault.err, at, hit, n, op, name, acked)
				if n < at+14 {
					for _, clone := range reordered(fs, rng, 2) {
						requirePrefix(t, clone, want, acked, when)
					}
				}
				if n < at+fault.times {
					if n == at {
						hit = op
					}
					return fault.err
				}
				return nil
			})
			j, err := tell(t, fs, steps, &acked)
			for _, clone := range reordered(fs, rng, 2) {
				requirePrefix(t, clone, want, acked, fmt.Sprintf("%v at operation %d (%s), at the end", fault.err, at, hit))
			}
			switch {
			case !more:
			case errors.Is(fault.err, broken):
				require.ErrorIs(t, err, broken, "operation %d (%s)", at, hit)
			case err == nil:
				require.Equal(t, len(steps), acked)
				require.NoError(t, j.full)
			default:
				require.True(t, fault.times > 1 || final[hit], "a full disk at operation %d (%s) ended the journal: %v", at, hit, err)
				require.Less(t, acked, len(steps))
			}
		}
	}
}

// The machine stops again while a journal that a crash left behind is being recovered.
func TestACrashWhileRecoveringKeepsWhatTheFirstOneLeft(t *testing.T) {
	steps, want := story()
	rng := rand.New(rand.NewPCG(3, 3))
	type left struct {
		fs    *file.Mem
		acked int
	}
	var all []left
	fs, acked := file.NewMem(), 0
	fs.Before(func(file.Op, string) error {
		for _, clone := range reordered(fs, rng, 4) {
			all = append(all, left{clone, acked})
		}
		return nil
	})
	_, err := tell(t, fs, steps, &acked)
	require.NoError(t, err)
	twice := 0
	for _, l := range all {
		numbers, err := segments(l.fs, "j")
		require.NoError(t, err)
		if len(numbers) > 1 {
			twice++
		}
		l.fs.Before(func(op file.Op, name string) error {
			for _, clone := range reordered(l.fs, rng, 2) {
				requirePrefix(t, clone, want, l.acked, fmt.Sprintf("second crash before %s of %s, %d acknowledged", op, name, l.acked))
			}
			return nil
		})
		j, _, err := Open(Options{FS: l.fs, Dir: "j", Log: quiet})
		require.NoError(t, err)
		require.NoError(t, j.begin())
	}
	require.Greater(t, twice, 10, "crashes while a segment is replaced")
}

// A damaged journal is set aside; a crash in the middle of that leaves nothing that a later start could take for the
// journal as it was.
func TestACrashWhileADamagedJournalIsSetAsideRevivesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	steps, want := story()
	fs, acked := file.NewMem(), 0
	var two *file.Mem // with two segments
	fs.Before(func(op file.Op, _ string) error {
		if op == file.OpRemove {
			two = fs.Crash(true, nil)
		}
		return nil
	})
	_, err := tell(t, fs, steps, &acked)
	require.NoError(t, err)
	numbers, err := segments(two, "j")
	require.NoError(t, err)
	require.Len(t, numbers, 2)
	whole, _, err := recoverDir(two.Crash(true, nil), "j", quiet)
	require.NoError(t, err)
	newest := fingerprint(whole.states)
	require.Contains(t, want, newest)
	for _, n := range numbers { // a group of either segment has rotted
		bad := two.Crash(true, func(name string, _, b []byte) []byte {
			if filepath.Base(name) == segmentName(n) {
				b[headerLen+groupLen+3] ^= 1
			}
			return b
		})
		bad.Before(func(file.Op, string) error {
			for _, clone := range reordered(bad, rng, 8) {
				f, rec, err := recoverDir(clone, "j", quiet)
				require.NoError(t, err)
				if rec.Damage == nil && len(rec.Tables) > 0 {
					require.Equal(t, newest, fingerprint(f.states), "segment %d rotted", n)
				}
			}
			return nil
		})
		_, rec, err := recoverDir(bad, "j", quiet)
		require.NoError(t, err)
		if n == numbers[0] {
			require.ErrorIs(t, rec.Damage, errDamaged)
		}
	}
}

func entryLSN(i int64) ident.LSN { return ident.LSN(i * 10) }

// behind is where what was written begins to differ from what was synced: groups are written over zeros that may have been
// synced long ago.
func behind(synced, written []byte) int {
	n := 0
	for n < min(len(synced), len(written)) && synced[n] == written[n] {
		n++
	}
	return n
}

// clones returns what a crash now could leave: with and without the names that
// were not synced, and the unsynced bytes dropped, cut at any byte, or with a
// hole of zeros.
func clones(fs *file.Mem) []*file.Mem {
	longest := 0
	fs.Crash(true, func(_ string, synced, written []byte) []byte {
		longest = max(longest, len(written)-behind(synced, written))
		return synced
	})
	out := []*file.Mem{fs.Crash(false, nil), fs.Crash(true, nil)}
	for n := 1; n <= longest; n += 1 + longest/64 {
		cut := func(_ string, synced, written []byte) []byte {
			if len(written) < len(synced) {
				return written
			}
			upTo := min(len(written), behind(synced, written)+n)
			return append(slices.Clone(written[:upTo]), synced[min(len(synced), upTo):]...)
		}
		hole := func(_ string, synced, written []byte) []byte {
			b := slices.Clone(written)
			from := behind(synced, written)
			clear(b[from:min(len(b), from+n)])
			return b
		}
		out = append(out, fs.Crash(false, cut), fs.Crash(true, cut), fs.Crash(true, hole))
	}
	return out
}

// reordered returns what a crash now could leave where blocks of what was not
// synced reached the disk in any order, as long as the file may have grown and
// with any of the names that were not synced.
func reordered(fs *file.Mem, rng *rand.Rand, n int) []*file.Mem {
	out := make([]*file.Mem, 0, n)
	for range n {
		block := []int{1, 16, 64, 512}[rng.IntN(4)]
		out = append(out, fs.CrashNames(func(string) bool { return rng.IntN(2) == 0 }, func(_ string, synced, written []byte) []byte {
			if len(written) < len(synced) { // cut, which may have happened or not
				return [][]byte{synced, written}[rng.IntN(2)]
			}
			b := append([]byte{}, synced...)
			b = append(b, make([]byte, len(written)-len(synced))...)
			for from := behind(synced, written); from < len(b); from += block {
				if rng.IntN(2) == 0 {
					copy(b[from:min(from+block, len(b))], written[from:])
				}
			}
			if rng.IntN(2) == 0 {
				b = b[:len(synced)+rng.IntN(len(b)-len(synced)+1)]
			}
			return b
		}))
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
