package ingest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/event"
)

// revision runs the service for one more record and gives what its entry says about how records become rows.
func (w *world) revision() uint64 {
	w.mu.Lock()
	next := max(w.at(0), 0) + 1
	w.mu.Unlock()
	w.produce(0, framed(1, "bare", 3, "")[6:])
	i := w.start()
	defer i.stop(w.t)
	w.appended(0, next)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.entries[len(w.entries)-1].Revision
}

// The same bytes become another row after the latest version of the subject is another one: a log that is filled again
// must see that.
func TestTheSchemaThatLatestMeansIsPartOfTheRevision(t *testing.T) { // G5
	for _, pipeline := range []string{
		"topics: [orders], schema: {framing: none, subject: orders-value}",
		"topics: [orders], format: raw, key: decode, key_format: protobuf, key_schema: {framing: none, subject: orders-value}",
	} {
		w := newWorld(t, pipeline, topic(1))
		first := w.revision()
		require.Equal(t, first, w.revision())
		w.mu.Lock()
		w.latest = 2
		w.mu.Unlock()
		require.NotEqual(t, first, w.revision())
	}
}

// No entry is begun before it is known what latest means.
func TestRecordsWaitForTheRegistryToSayWhatLatestIs(t *testing.T) { // G8
	w := newWorld(t, "topics: [orders], schema: {framing: none, subject: orders-value}", topic(1))
	w.registryErr = 503
	w.produce(0, nil, framed(1, "bare", 3, "")[6:])
	w.start()
	w.await("waiting is told", func() bool { return w.progress[0].State == event.PartitionWaiting && w.requests > 1 })
	require.Empty(t, w.outcome(0))
	w.mu.Lock()
	w.registryErr = 0
	w.mu.Unlock()
	w.appended(0, 2)

	w = newWorld(t, "topics: [orders], schema: {framing: none, subject: orders-value}", topic(1))
	w.registryErr = 401
	w.produce(0, nil)
	w.start()
	w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
	require.Empty(t, w.outcome(0))
}

// So are the schemas that the operator supplies, and what they import.
func TestOverridesArePartOfTheRevision(t *testing.T) { // G5
	dir := t.TempDir()
	file, imported := filepath.Join(dir, "o.proto"), filepath.Join(dir, "a.proto")
	write := func(path, text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	text := "syntax = \"proto3\"; import \"a.proto\"; message Order { string id = 1; A a = 3; "
	write(file, text+"}")
	write(imported, `syntax = "proto3"; message A {}`)
	w := newWorld(t, "topics: [orders], schema: {framing: none, id: 1}", topic(1))
	raw := newWorld(t, "topics: [orders], format: raw", topic(1))
	seen := map[uint64]string{w.revision(): "none"}
	note := func(what string) {
		got := w.revision()
		require.Empty(t, seen[got], "%s", what)
		require.Equal(t, got, w.revision(), "the same files say the same")
		seen[got] = what
	}
	without := raw.revision()
	for _, x := range []*world{w, raw} {
		x.cfg.Registry.Overrides = config.Properties{"1": config.NewSecret(file)}
	}
	note("given")
	write(file, text+"string note = 4; }")
	note("another text")
	write(imported, `syntax = "proto3"; message A { int32 x = 1; }`)
	note("another import")
	require.Equal(t, without, raw.revision(), "raw values have no schema")
}
