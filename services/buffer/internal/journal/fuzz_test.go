package journal

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/file"
)

// folder is a journal folder with these segments, all synced.
func folder(t testing.TB, segments ...[]byte) *file.Mem {
	t.Helper()
	fs := file.NewMem()
	for i, b := range segments {
		f, err := fs.Create("j/" + segmentName(uint64(i+1)))
		require.NoError(t, err)
		_, err = f.WriteAt(b, 0)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
	}
	require.NoError(t, fs.SyncDir("j"))
	return fs
}

// requireSound opens a folder of any bytes: whatever it holds, that is no error but of a newer version, a second start
// finds what the first one did, and a dump ends.
func requireSound(t *testing.T, fs *file.Mem) {
	t.Helper()
	_ = Dump(fs, "j", io.Discard) // an error says that it cannot be trusted
	j, first, err := Open(Options{FS: fs, Dir: "j", Log: quiet})
	if err != nil {
		require.ErrorIs(t, err, fault.Of(fault.Unsupported))
		return
	}
	require.NoError(t, j.begin())
	require.NoError(t, j.lock.Close())
	again, second, err := Open(Options{FS: fs.Crash(false, nil), Dir: "j", Log: quiet})
	require.NoError(t, err)
	require.NoError(t, second.Damage, "what was written after the first start is whole")
	require.Equal(t, fingerprint(j.states), fingerprint(again.states))
	if first.Damage != nil {
		require.Empty(t, second.Tables)
	}
}

// Any two files in the place of segments.
func FuzzRecover(f *testing.F) {
	one := segmentHeader{number: 1, firstGroup: 1}.encode()
	one = appendGroup(one, 1, appendEvent(nil, "a", epoch(1, 0)))
	one = appendGroup(one, 2, appendEvent(nil, "a", entry(0, 10, 100)))
	s := states{}
	_, err := scan(one, func(_ uint64, _ int, r Record) error { return s.apply(r) })
	require.NoError(f, err)
	two := segmentHeader{number: 2, firstGroup: 3}.encode()
	two = appendGroup(two, 3, appendImage(nil, "a", s["a"].Image(), s["a"].NextLSN()))
	two = appendGroup(two, 4, appendEvent(nil, "a", commit(2, 5)))
	f.Add(one, two)
	f.Add(one[:len(one)-5], two)
	f.Add(one, two[:len(two)-5])
	f.Add(one, bytes.Repeat([]byte{0}, 200))
	f.Fuzz(func(t *testing.T, one, two []byte) { requireSound(t, folder(t, one, two)) })
}

// Any payload in a group whose CRC is right: nothing but another program writes that, and even then nothing panics.
func FuzzPayload(f *testing.F) {
	f.Add(appendEvent(appendEvent(nil, "a", epoch(1, 0)), "a", entry(0, 10, 100)))
	f.Add(appendEvent(appendEvent(nil, "a", schema()), "b", commit(2, 5)))
	s := states{}
	for ev := range 2 {
		_ = s.apply(Record{Table: "a", Event: epoch(int64(ev)+1, 0)})
	}
	f.Add(appendImage(nil, "a", s["a"].Image(), 7))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) == 0 || len(payload) > maxGroup {
			return
		}
		requireSound(t, folder(t, appendGroup(segmentHeader{number: 1, firstGroup: 1}.encode(), 1, payload)))
	})
}
