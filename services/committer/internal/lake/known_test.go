package lake

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/testkit/faulty"
)

// An idle table is looked at every few seconds, and each commit looks for itself: what is here
// already, or came as the answer to the commit, is not decoded again.
func TestMetadataThatIsKnownByItsNameIsNotDecoded(t *testing.T) {
	b, f := newRESTBench(t, nil)
	b.commitRows(part(0), 3)
	b.reload()
	f.Loads(faulty.Always(faulty.Named()))
	before := b.Head()
	again, err := b.Reload(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, again)

	c := b.rowsOf(part(0), 5)
	require.NoError(t, b.Send(t.Context(), b.stage(c)))
	head, err := b.Reload(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, before.SnapshotID, head.SnapshotID)
	require.True(t, b.Find(c.CommitID))
	f.Heal()
	require.Equal(t, int64(8), b.rows(tableName))
	require.Equal(t, Proven, b.audit(true).Verdict)
}

// Only a name that the catalog gives makes a table known, and only for a while: with the table
// come credentials that end.
func TestWhatIsNotKnownIsDecoded(t *testing.T) {
	b, f := newRESTBench(t, nil)
	b.commitRows(part(0), 3)
	b.reload()
	other := b.other()
	other.insert(1, nil)
	f.Loads(faulty.Script(faulty.Named(), faulty.NamedLast()))
	_, err := b.Reload(t.Context())
	require.Error(t, err, "another head, and nothing to decode")
	_, err = b.Reload(t.Context())
	require.NoError(t, err, "a catalog that writes the name last is understood")
	require.True(t, b.Head().Foreign())

	b.mu.Lock()
	b.decoded = time.Now().Add(-freshFor)
	b.mu.Unlock()
	f.Loads(faulty.Script(faulty.Named()))
	_, err = b.Reload(t.Context())
	require.Error(t, err)
	b.reload()
	f.Loads(faulty.Script(faulty.Named()))
	b.reload()
}

// C4: an answer that pretends proves nothing, and neither does a stale table whose name is known.
func TestAnAnswerThatPretendsIsNotTheTable(t *testing.T) {
	b, f := newRESTBench(t, nil)
	b.commitRows(part(0), 3)
	b.reload()
	before := b.Head()
	c := b.rowsOf(part(0), 5)
	st := b.stage(c)
	f.Commits(faulty.Script(faulty.Pretended()))
	require.NoError(t, b.Send(t.Context(), st))
	b.reload()
	require.Equal(t, before.SnapshotID, b.Head().SnapshotID)
	require.False(t, b.Find(c.CommitID))

	b.other().insert(1, nil)
	require.NoError(t, b.seen.look(b.name, b.handle().Metadata()))
	b.seen.mu.Lock()
	b.seen.sequence[b.handle().Metadata().TableUUID()]++ // another handle has seen more
	b.seen.mu.Unlock()
	f.Loads(faulty.Script(faulty.Stale(1)))
	_, err := b.Reload(t.Context())
	require.ErrorIs(t, err, fault.Of(fault.Unavailable))
}

func TestTheNameStandsInFrontOrNowhere(t *testing.T) {
	for text, want := range map[string]string{
		`{"metadata-location":"s3://a/b.json","metadata":{"x":1`: "s3://a/b.json",
		" {\n \"metadata-location\" : \"s3://a/\\u0062\"":        "s3://a/b",
		`{"metadata-location":null,"metadata":{}}`:               "",
		`{"metadata-location":"s3://cut`:                         "",
		`{"metadata":{"metadata-location":"s3://a"}}`:            "",
		`["metadata-location"]`:                                  "",
		`<html>`:                                                 "",
		``:                                                       "",
	} {
		require.Equal(t, want, metadataLocation([]byte(text)), text)
	}
}

// Tables that a commit was answered with keep no other alive.
func TestTablesBeforeAreForgotten(t *testing.T) {
	held := func(decode bool) uint64 {
		b, _ := newRESTBench(t, nil)
		for range 60 {
			if decode {
				b.distrust()
			}
			b.commitRows(part(0), 1)
		}
		runtime.GC()
		runtime.GC() // what pools hold goes with the second
		var with, without runtime.MemStats
		runtime.ReadMemStats(&with)
		b.tbl, b.reach = nil, nil
		runtime.GC()
		runtime.ReadMemStats(&without)
		return with.HeapAlloc - min(with.HeapAlloc, without.HeapAlloc)
	}
	require.Less(t, held(false), 2*held(true))
}

// What a load that was refused brought is not what is here, and after an error of the storage
// credentials are asked for.
func TestARefusedLoadAndAnErrorOfTheStorageMakeNothingFresh(t *testing.T) {
	b, f := newRESTBench(t, nil)
	b.commitRows(part(0), 3)
	b.reload()
	b.distrust()
	b.seen.mu.Lock()
	id := b.handle().Metadata().TableUUID()
	b.seen.sequence[id]++
	b.seen.mu.Unlock()
	_, err := b.Reload(t.Context())
	require.ErrorIs(t, err, fault.Of(fault.Unavailable))
	require.Zero(t, b.decoded)
	b.seen.mu.Lock()
	b.seen.sequence[id]--
	b.seen.mu.Unlock()
	b.reload()
	require.NotZero(t, b.decoded)
	w, err := b.NewWriter(t.Context(), b.Head().Schema, WriterOptions{Attempt: ident.UUID{9}, Epoch: 1})
	require.NoError(t, err)
	require.Error(t, w.fail(errors.New("access denied")))
	w.Abort(t.Context())
	f.Loads(faulty.Script(faulty.Named()))
	_, err = b.Reload(t.Context())
	require.Error(t, err)
}
