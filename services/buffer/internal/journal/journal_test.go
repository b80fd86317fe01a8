package journal

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
)

var update = flag.Bool("update", false, "rewrite golden files")

var (
	quiet = slog.New(slog.DiscardHandler)
	part  = ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{9, 8}, Number: 3}
)

func entry(first, next int64, lsn ident.LSN) event.Event {
	return event.Event{Append: &event.Append{Header: event.Header{
		Partition: part, Range: ident.Range{First: first, Next: next}, LeaderEpoch: 5, Revision: 0xfeed, Fingerprint: "fp",
		Rows: next - first - 1, Skips: []event.Skip{{Range: ident.Range{First: next - 1, Next: next}, Reason: event.SkipControl}},
		Digest: ident.Digest{1, 2, 3}, MinTime: 1700000000000, MaxTime: 1700000000999,
	}, LSN: lsn, RowBatch: []byte("never written")}}
}

func state(seq int64, next int64) event.Commit {
	return event.Commit{
		Table: ident.UUID{7}, SnapshotID: -seq, SequenceNumber: seq, CommitTime: time.UnixMicro(1700000000000123).UTC(),
		MetadataLocation: "s3://lake/x.metadata.json", LogEpoch: 1, WriterEpoch: 2, LSN: ident.LSNState{Start: 100, Next: 100, Reserved: 1 << 40},
		Positions: ident.Positions{part: {Start: 1, Next: next, LeaderEpoch: 4}},
	}
}

func commit(seq, next int64) event.Event { c := state(seq, next); return event.Event{Commit: &c} }

func epoch(seq, next int64) event.Event {
	return event.Event{Epoch: &event.Epoch{Commit: state(seq, next)}}
}

func schema() event.Event {
	return event.Event{Schema: &event.Schema{Fingerprint: "fp", TableSchemaID: 2, Columns: []byte(`{"columns":[]}`)}}
}

// running is a journal with its writer.
type running struct {
	*Journal
	rec  Recovered
	stop func() error
}

func start(t *testing.T, fs file.FS, change ...func(*Options)) *running {
	t.Helper()
	opt := Options{FS: fs, Dir: "j", Log: quiet}
	for _, f := range change {
		f(&opt)
	}
	j, rec, err := Open(opt)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan error, 1)
	go func() { out <- j.Run(ctx) }()
	once := sync.OnceValue(func() error { cancel(); return <-out })
	t.Cleanup(func() { _ = once() })
	return &running{j, rec, once}
}

// put appends and waits.
func (r *running) put(table string, evs ...event.Event) error {
	got := make(chan error, 1)
	r.Append(table, evs, func(err error) { got <- err })
	return <-got
}

func TestARestartRemembersWhatIsOutstandingAndForgetsWhatIsCommitted(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs)
	require.Empty(t, j.rec.Tables)
	require.NoError(t, j.put("a", epoch(1, 0), schema()))
	require.NoError(t, j.put("a", entry(0, 10, 100), entry(10, 20, 110)))
	require.NoError(t, j.put("b", epoch(1, 5)))
	require.NoError(t, j.put("a", commit(2, 12)))
	require.NoError(t, j.stop())

	for range 2 { // the second time from the image the first restart wrote
		j = start(t, fs)
		a := j.rec.Tables["a"]
		require.Equal(t, state(2, 12), a.Image.Commit)
		require.Equal(t, ident.LSN(120), a.NextLSN)
		require.Equal(t, []event.Schema{*schema().Schema}, a.Image.Schemas)
		require.Len(t, a.Image.Hot, 1)
		want := *entry(10, 20, 110).Append
		want.RowBatch = nil
		require.Equal(t, want, *a.Image.Hot[0])
		require.Equal(t, state(1, 5), j.rec.Tables["b"].Image.Commit)
		require.NoError(t, j.put("b"))
		require.NoError(t, j.stop())
		names, err := fs.List("j")
		require.NoError(t, err)
		require.Len(t, names, 1, "a restart leaves one segment")
	}
	require.NoError(t, start(t, fs).put("a", epoch(9, 12)))
}

func TestGivenLSNsAreRememberedEvenWhenTheirEntriesAreCommitted(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs)
	require.NoError(t, j.put("a", epoch(1, 0), entry(0, 10, 500)))
	require.NoError(t, j.put("a", commit(2, 10))) // its LSN state says 100
	require.NoError(t, j.stop())
	require.NoError(t, start(t, fs).stop())
	require.Equal(t, ident.LSN(510), start(t, fs).rec.Tables["a"].NextLSN)
}

func TestAJournalIsUsedByOneProcess(t *testing.T) {
	fs := file.NewMem()
	start(t, fs)
	_, _, err := Open(Options{FS: fs, Dir: "j", Log: quiet})
	require.ErrorContains(t, err, "another process")
}

func TestSegmentsAreReplacedWhenTheyHaveGrown(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs, func(o *Options) { o.SegmentBytes = 2000 })
	require.NoError(t, j.put("a", epoch(1, 0)))
	for i := range int64(200) {
		require.NoError(t, j.put("a", entry(i*10, i*10+10, ident.LSN(100+i*10))))
		require.NoError(t, j.put("a", commit(2+i, i*10)))
	}
	names, err := fs.List("j")
	require.NoError(t, err)
	require.Len(t, names, 1)
	require.NoError(t, j.stop())
	b, err := readAll(fs, "j/"+names[0])
	require.NoError(t, err)
	require.Less(t, len(b), 4000)
	rec := start(t, fs).rec.Tables["a"]
	require.Equal(t, int64(201), rec.Image.Commit.SequenceNumber)
	require.Equal(t, ident.LSN(2100), rec.NextLSN)
	require.Len(t, rec.Image.Hot, 1)
}

// Two tables whose entries wait share one fdatasync.
func TestOneSyncServesAllTablesThatWait(t *testing.T) {
	fs := file.NewMem()
	var mu sync.Mutex
	syncs := 0
	release := make(chan struct{})
	entered := make(chan struct{}, 100)
	j := start(t, fs, func(o *Options) {
		o.Synced = func(time.Duration, int) { mu.Lock(); syncs++; mu.Unlock() }
	})
	require.NoError(t, j.put("a", epoch(1, 0)))
	fs.Before(func(op file.Op, _ string) error {
		if op == file.OpSync {
			entered <- struct{}{}
			<-release
		}
		return nil
	})
	var wg sync.WaitGroup
	add := func(table string, ev event.Event) {
		wg.Add(1)
		j.Append(table, []event.Event{ev}, func(err error) { require.NoError(t, err); wg.Done() })
	}
	add("a", entry(0, 10, 100))
	<-entered // the first group is being synced: what comes now waits together
	for _, table := range []string{"a", "b", "c"} {
		add(table, epoch(5, 0))
	}
	close(release)
	wg.Wait()
	require.Equal(t, 3, syncs)
}

func TestAFullDiskMakesAppendsWaitAndNothingElse(t *testing.T) {
	fs := file.NewMem()
	room := make(chan struct{})
	waiting := make(chan struct{}, 100)
	j := start(t, fs, func(o *Options) {
		o.Retry = func(ctx context.Context) error {
			waiting <- struct{}{}
			select {
			case <-room:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	require.NoError(t, j.put("a", epoch(1, 0)))
	var full sync.Map
	full.Store("on", true)
	fs.Before(func(op file.Op, _ string) error {
		if on, _ := full.Load("on"); op == file.OpWrite && on == true {
			return syscall.ENOSPC
		}
		return nil
	})
	got := make(chan error, 1)
	j.Append("a", []event.Event{entry(0, 10, 100)}, func(err error) { got <- err })
	<-waiting
	require.ErrorIs(t, j.Health(), fault.Of(fault.DiskFull))
	require.Empty(t, got)
	full.Store("on", false)
	close(room)
	require.NoError(t, <-got)
	require.NoError(t, j.Health())
	require.NoError(t, j.stop())
	require.Len(t, start(t, fs).rec.Tables["a"].Image.Hot, 1)
}

func TestAFailedSyncEndsTheJournalForGood(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs)
	require.NoError(t, j.put("a", epoch(1, 0)))
	broken := errors.New("medium error")
	fails := 1
	fs.Before(func(op file.Op, _ string) error {
		if op == file.OpSync && fails > 0 {
			fails--
			return broken
		}
		return nil
	})
	require.ErrorIs(t, j.put("a", entry(0, 10, 100)), broken)
	require.ErrorIs(t, j.put("a", entry(0, 10, 100)), broken, "a later success would prove nothing")
	require.ErrorIs(t, j.Health(), broken)
	require.ErrorIs(t, j.stop(), broken)
}

func TestANewerFormatIsRefusedByName(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs)
	require.NoError(t, j.put("a", epoch(1, 0)))
	require.NoError(t, j.stop())
	b, err := readAll(fs, "j/"+segmentName(1))
	require.NoError(t, err)
	b[8] = 2
	copy(b[48:], leCRC(b[:48]))
	write(t, fs, "j/"+segmentName(1), b)
	_, _, err = Open(Options{FS: fs, Dir: "j", Log: quiet})
	require.ErrorIs(t, err, fault.Of(fault.Unsupported))
}

func leCRC(b []byte) []byte {
	c := checksum(b)
	return []byte{byte(c), byte(c >> 8), byte(c >> 16), byte(c >> 24)}
}

func write(t *testing.T, fs file.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Open(name)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(0))
	_, err = f.WriteAt(b, 0)
	require.NoError(t, err)
}

// A flipped bit anywhere is either a torn tail in or behind the very last group, or the
// whole journal is set aside: an LSN that was shown is never given again (G5).
func TestRotIsNeverTakenForATornTail(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs)
	require.NoError(t, j.put("a", epoch(1, 0)))
	require.NoError(t, j.put("a", entry(0, 10, 100)))
	require.NoError(t, j.put("a", entry(10, 20, 110)))
	require.NoError(t, j.stop())
	b, err := readAll(fs, "j/"+segmentName(1))
	require.NoError(t, err)
	var offs []int
	s, err := scan(b, func(_ uint64, off int, _ Record) error { offs = append(offs, off); return nil })
	require.NoError(t, err)
	last := offs[len(offs)-1]
	require.Greater(t, len(b), s.valid+40, "zeros are written ahead")
	for i := range s.valid + 40 {
		if i >= 52 && i < headerLen {
			continue // zero padding says nothing
		}
		bad := bytes.Clone(b)
		bad[i] ^= 4
		m := file.NewMem()
		f, err := m.Create("j/" + segmentName(1))
		require.NoError(t, err)
		_, err = f.WriteAt(bad, 0)
		require.NoError(t, err)
		j, rec, err := Open(Options{FS: m, Dir: "j", Log: quiet})
		require.NoError(t, err)
		require.NoError(t, j.lock.Close())
		if i >= last {
			require.NoError(t, rec.Damage)
			kept := 1
			if i >= s.valid {
				kept = 2 // what rotted was written ahead
			}
			require.Len(t, rec.Tables["a"].Image.Hot, kept)
			require.NotZero(t, rec.Torn)
			continue
		}
		if i < headerLen && rec.Damage == nil {
			// Segment 1 without a header looks like one being created: nothing is remembered,
			// which costs an epoch and is safe.
			require.Empty(t, rec.Tables)
			continue
		}
		require.ErrorIs(t, rec.Damage, errDamaged, "byte %d", i)
		require.Empty(t, rec.Tables)
		names, err := m.List("j")
		require.NoError(t, err)
		require.Equal(t, []string{segmentName(1) + ".damaged"}, names)
	}
}

// A file that does not grow has nothing of the file system's own to be made durable with a group.
func TestGroupsAreWrittenIntoWhatTheFileHasAlready(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs)
	require.NoError(t, j.put("a", epoch(1, 0)))
	size := func() int64 {
		f, err := fs.Open("j/" + segmentName(1))
		require.NoError(t, err)
		n, err := f.Size()
		require.NoError(t, err)
		return n
	}
	first := size()
	grown := 0
	for i := range int64(2000) {
		before := size()
		require.NoError(t, j.put("a", entry(i*10, i*10+10, ident.LSN(100+i*10))))
		if size() != before {
			grown++
		}
	}
	groups := size() - first
	require.Positive(t, groups)
	require.LessOrEqual(t, grown, int(groups/defaultAhead)+1)
	require.NoError(t, j.stop())

	// And that a file ends with zeros is its usual end.
	j = start(t, fs)
	require.NoError(t, j.rec.Damage)
	require.Zero(t, j.rec.Torn)
	require.Len(t, j.rec.Tables["a"].Image.Hot, 2000)
}

// What is written ahead is not worth waiting for: a group finds room as long as the disk has some.
func TestADiskWithoutRoomAheadStillTakesGroups(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs)
	require.NoError(t, j.put("a", epoch(1, 0)))
	writes := 0
	fs.Before(func(op file.Op, _ string) error {
		if op != file.OpWrite {
			return nil
		}
		if writes++; writes%2 == 0 { // each group is followed by an attempt
			return syscall.ENOSPC
		}
		return nil
	})
	j.ahead = 0
	require.NoError(t, j.put("a", entry(0, 10, 100)))
	require.Equal(t, 2, writes)
	require.NoError(t, j.Health())
	require.NoError(t, j.put("a", entry(10, 20, 110)))
	require.Equal(t, 3, writes, "not tried again before as much was written")
	require.Len(t, start(t, fs.Crash(false, nil)).rec.Tables["a"].Image.Hot, 2)
}

// A segment that stands alone holds the state of all tables at its head. Where zeros are in its place they are not what was
// written ahead.
func TestAHeadThatHasBecomeZerosIsDamage(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs)
	require.NoError(t, j.put("a", epoch(1, 0), entry(0, 10, 100)))
	require.NoError(t, j.stop())
	j = start(t, fs)
	require.NoError(t, j.put("a", entry(10, 20, 110)))
	require.NoError(t, j.stop())
	name := "j/" + segmentName(2)
	b, err := readAll(fs, name)
	require.NoError(t, err)
	clear(b[headerLen:])
	write(t, fs, name, b)
	j = start(t, fs)
	require.ErrorIs(t, j.rec.Damage, errDamaged)
	require.Empty(t, j.rec.Tables)
}

func TestGoldenBytes(t *testing.T) {
	b := segmentHeader{number: 4, id: ident.UUID{1, 2, 3}, firstGroup: 77}.encode()
	var payload []byte
	for _, ev := range []event.Event{epoch(1, 0), schema(), entry(0, 10, 100), commit(2, 5)} {
		payload = appendEvent(payload, "shop.orders", ev)
	}
	b = appendGroup(b, 77, payload)
	img := event.Image{
		Commit: state(2, 5), Schemas: []event.Schema{*schema().Schema},
		Ended: []event.EndedEpoch{{Epoch: 0, Base: ident.Vector{part: 1}}}, Hot: []*event.Append{entry(0, 10, 100).Append},
	}
	b = appendGroup(b, 78, appendImage(nil, "shop.orders", img, 110))
	path := filepath.Join("testdata", "v1.hex")
	text := hex.Dump(b)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "bytes of a released version never change")

	var got []Record
	s, err := scan(b, func(_ uint64, _ int, r Record) error { got = append(got, r); return nil })
	require.NoError(t, err)
	require.False(t, s.torn)
	require.Len(t, got, 5)
	img.Hot[0].RowBatch = nil
	require.Equal(t, img, *got[4].Image)
	require.Equal(t, ident.LSN(110), got[4].NextLSN)
	require.Equal(t, state(2, 5), *got[3].Event.Commit)
}

// A journal of every version that was ever released is read by this build, from its bytes alone.
func TestGoldenJournalsAreRecovered(t *testing.T) {
	files, err := filepath.Glob("testdata/v*.hex")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		var b []byte
		for line := range strings.Lines(string(text)) { // of hex.Dump
			raw, err := hex.DecodeString(strings.ReplaceAll(line[10:min(len(line), 58)], " ", ""))
			require.NoError(t, err)
			b = append(b, raw...)
		}
		fs := file.NewMem()
		f, err := fs.Create("j/" + segmentName(4))
		require.NoError(t, err)
		_, err = f.WriteAt(b, 0)
		require.NoError(t, err)
		j := start(t, fs)
		require.NoError(t, j.rec.Damage)
		require.Zero(t, j.rec.Torn)
		got := j.rec.Tables["shop.orders"]
		require.Equal(t, state(2, 5), got.Image.Commit)
		require.Equal(t, ident.LSN(110), got.NextLSN)
		require.Equal(t, []event.Schema{*schema().Schema}, got.Image.Schemas)
		require.Equal(t, []event.EndedEpoch{{Epoch: 0, Base: ident.Vector{part: 1}}}, got.Image.Ended)
		want := *entry(0, 10, 100).Append
		want.RowBatch = nil
		require.Len(t, got.Image.Hot, 1)
		require.Equal(t, want, *got.Image.Hot[0])
		require.NoError(t, j.put("shop.orders", entry(10, 20, 110)), "and is written on")
	}
}

func TestDumpPrintsEveryRecordAndChangesNothing(t *testing.T) {
	fs := file.NewMem()
	j := start(t, fs)
	require.NoError(t, j.put("shop.orders", epoch(1, 0), schema(), entry(0, 10, 100), commit(2, 5)))
	require.NoError(t, j.stop())
	fs.Before(func(op file.Op, name string) error { return errors.New("dump must not " + string(op)) })
	var out strings.Builder
	require.NoError(t, Dump(fs, "j", &out))
	for _, want := range []string{"segment 0000000000000001", "group 1 at 64", "shop.orders epoch:", "schema: fp", "orders/orders[3] [0,10) LSN 100", "commit: "} {
		require.Contains(t, out.String(), want)
	}
	require.Error(t, Dump(fs, "nowhere", io.Discard))
}
