package ingest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/schema"
)

// loseSchemas makes the log forget all schemas, as one does that comes back without its journal. change, done before anybody
// asks again, is what becomes of the committer meanwhile.
func (w *world) loseSchemas(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = map[string]*schema.Schema{}
	for _, cancel := range w.streams {
		cancel()
	}
	if change != nil {
		change()
	}
}

// alter replaces the table by one with other columns, as another engine does.
func (w *world) alter(change func(*schema.Schema)) {
	w.table = w.table.Clone()
	change(w.table)
	w.table.AssignIDs()
}

// G11: the log has forgotten a schema, and nobody publishes it by himself: whoever waits for it has it published, or does
// without.
func TestRowsLandWhateverBecameOfTheSchemaThatTheLogKnew(t *testing.T) {
	begin := func(t *testing.T) (*world, *instance) {
		w := newWorld(t, ordersTopic+", tombstones: row", topic(1))
		i := w.start()
		w.produce(0, nil)
		w.appended(0, 1)
		return w, i
	}
	t.Run("rows without a value, before any record with one", func(t *testing.T) {
		w, i := begin(t)
		w.loseSchemas(nil)
		w.produce(0, nil)
		w.appended(0, 2)
		require.Len(t, w.outcome(0), 2)
		w.ready(i)
	})
	t.Run("rows without a value, when others have changed the table", func(t *testing.T) {
		w, i := begin(t)
		w.loseSchemas(func() {
			w.alter(func(s *schema.Schema) {
				s.Columns = append(s.Columns, &schema.Node{Name: "theirs", Type: schema.Of(schema.Long)})
			})
		})
		w.produce(0, nil)
		w.appended(0, 2)
		w.ready(i)
	})
	t.Run("rows of a source that the table refuses now wait for a decision, and say so", func(t *testing.T) {
		w, _ := begin(t)
		w.produce(0, orders(1, 1, 1)...)
		w.appended(0, 2)
		w.loseSchemas(func() { w.refuse = true })
		w.produce(0, orders(1, 2, 1)...)
		w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
		require.Contains(t, w.progress[0].Reason, "text is never a number")
		require.EqualValues(t, 2, w.at(0))
	})
	t.Run("records of a source that are sent to quarantine now go there", func(t *testing.T) {
		w, i := begin(t)
		w.produce(0, orders(1, 1, 1)...)
		w.appended(0, 2)
		w.loseSchemas(func() {
			w.alter(func(s *schema.Schema) { s.Column("units").Type = schema.Of(schema.String) })
			w.decisions = []schema.Decision{{Source: "schema id 1, message shop.Order", Action: schema.Quarantine}}
		})
		w.produce(0, orders(1, 2, 1)...)
		w.appended(0, 3)
		require.EqualValues(t, 1, w.entries[len(w.entries)-1].Quarantined)
		w.ready(i)
	})
	t.Run("the stream does not bring what the committer published", func(t *testing.T) {
		w, i := begin(t)
		w.loseSchemas(func() { w.mute = true })
		w.produce(0, nil)
		w.appended(0, 2)
		w.ready(i)
	})
}
