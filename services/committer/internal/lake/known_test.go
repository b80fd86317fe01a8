package lake

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
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

	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 5})
	c.Files = b.write(b.batch(part(0), r))
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
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 5})
	c.Files = b.write(b.batch(part(0), r))
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
