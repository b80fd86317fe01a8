//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/run"
)

var others = flag.Bool("others", false, "let pyiceberg and DuckDB change a table between our commits")

// deed is what another engine does to a table, and what the audit says of it afterwards.
type deed struct {
	act   string // engine, act and arguments of peers/foreign.py
	table string // "" is the main table
	names bool   // the audit names each snapshot of the deed
	says  string // what the audit says; "%d" is the first snapshot of the deed
}

// harmless leave every row of ours in place: the next commits go on, and the audit against the log proves it.
var harmless = []deed{
	{act: "pyiceberg append 0 3", names: true},
	{act: "pyiceberg add_column added_by_others"},
	{act: "pyiceberg refs"},
	{act: "duckdb append 10 4", names: true},
	{act: "pyiceberg overwrite 3 5", names: true}, // a file of ours could be among those written anew
	{act: "duckdb append 20 4", names: true},
	{act: "duckdb update_own", names: true}, // with delete files
	{act: "duckdb delete_own", names: true},
	{act: "pyiceberg rename_column added_by_others renamed_by_others"},
	{act: "pyiceberg rewrite", names: true},
	{act: "pyiceberg expire"},
	{act: "pyiceberg forget"},
	{act: "pyiceberg partition seq 4"},
	{act: "pyiceberg unpartition seq"},
	{act: "pyiceberg append 30 2", names: true},
	{act: "pyiceberg delete_own", names: true},
	{act: "pyiceberg drop_column renamed_by_others"},
	{act: "pyiceberg drop_refs"},
	{act: "pyiceberg expire"},
}

// harmful take rows of ours, or bring rows that pass for ours: the next commits go on, and the audit names the snapshot.
var harmful = []deed{
	{act: "pyiceberg delete_ours 100 107", says: "VIOLATED: snapshot %d: another writer removed 7 rows of ours"},
	{act: "pyiceberg pass_off 2", says: "VIOLATED: snapshot %d: another writer added 2 rows that name Kafka records, which we did not write"},
	{act: "pyiceberg blind 200 205", says: "VIOLATED: snapshot %d: another writer removed"},
	{act: "pyiceberg delete_poison", table: "__quarantine", says: "snapshot %d (delete of another writer) removed"},
	{act: "duckdb delete_ours 300 311", says: "snapshot %d"},
	{act: "pyiceberg delete_all", says: "VIOLATED: snapshot %d: another writer removed"},
}

// G1, G9, T2, T7, T10, C16: engines that share no code with us write to a table under load, between our commits. Nothing
// that leaves our rows alone hinders us or the proof; what does not is named by the audit; a roll-back stops the table, red,
// until an operator decides; a table that was renamed away is missed, and gone on with when it is back.
func TestOtherEnginesWriteBetweenOurCommits(t *testing.T) {
	if !*others {
		t.Skip("runs with -others (make e2e-others)")
	}
	b := startBed(t)
	p := plan{name: "others", topic: "others", message: order, interval: "2s"}
	s := &scenario{suite: b.newSuite(t, p), plan: p}
	load := s.produce("--count", "1000000", "--bad", "500", "--rate", "300")
	s.flowing()
	for _, d := range harmless {
		s.suffers(d, run.OK)
	}
	s.renamedAway()
	s.rolledBack()
	s.halt(load)
	s.committedIs(s.table(), s.made, time.Minute)
	t.Log(s.audit(s.table(), "--against", "kafka"))
	v := b.judge(t, s.table(), s.manifests...)
	require.Zero(t, v.Lost+v.Doubled)

	load = s.produce("--count", "1000000", "--start", "2000000", "--bad", "500", "--rate", "300")
	for _, d := range harmful {
		s.suffers(d, run.Violated)
	}
	s.halt(load)
	s.committedIs(s.table(), s.made, time.Minute)
	s.waitReady(time.Minute)
}

// made is what peers/foreign.py tells.
type foreign struct {
	Tries     int `json:"tries"`
	Snapshots []struct {
		ID        int64  `json:"id"`
		Operation string `json:"operation"`
		Rows      int64  `json:"rows"`
	} `json:"snapshots"`
}

// foreign lets another engine do something.
func (s *scenario) foreign(table, act string) foreign {
	s.t.Helper()
	args := slices.Concat([]string{"peers/foreign.py"}, s.bed.readers(table), strings.Fields(act))
	out := python(s.t, act, args...)
	s.t.Logf("%s: %s", act, strings.TrimSpace(out))
	var f foreign
	require.NoError(s.t, json.Unmarshal([]byte(out), &f))
	return f
}

// suffers lets another engine do something, waits until rows produced after it are hot and committed, and has the table
// audited against the log.
func (s *scenario) suffers(d deed, want run.Code) {
	s.t.Helper()
	var f foreign
	s.suffer(func() {
		s.signal("committerd", syscall.SIGSTOP) // at any moment of a commit; else slow engines lose every race
		defer s.signal("committerd", syscall.SIGCONT)
		f = s.foreign(s.table()+d.table, d.act)
	})
	says := d.says
	if strings.Contains(says, "%d") {
		require.NotEmpty(s.t, f.Snapshots, "%s made no snapshot", d.act)
		says = fmt.Sprintf(says, f.Snapshots[0].ID)
	}
	out, code := s.verdict("--against", "kafka")
	require.Equal(s.t, want, code, "audit after %s: %s", d.act, out)
	require.Contains(s.t, out, says, "audit after %s", d.act)
	if d.names {
		require.NotEmpty(s.t, f.Snapshots, "%s made no snapshot", d.act)
		for _, made := range f.Snapshots {
			require.Contains(s.t, out, fmt.Sprintf("snapshot %d", made.ID), "audit after %s", d.act)
		}
	}
}

// verdict audits the table, whatever comes out.
func (s *scenario) verdict(args ...string) (string, run.Code) {
	s.t.Helper()
	out, err := s.icestream(s.t.Context(), append([]string{"audit", "-c", s.config, s.table()}, args...)...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return out + err.Error(), run.Code(exit.ExitCode())
	}
	require.NoError(s.t, err)
	return out, run.OK
}

// red waits until the committer says why it is not ready.
func (s *scenario) red(words string) {
	s.t.Helper()
	s.eventually(time.Minute, "the committer is red", func() error {
		status, says, err := s.readiness("committerd")
		if err == nil && (status == http.StatusOK || !strings.Contains(says, words)) {
			err = fmt.Errorf("it says %d: %s", status, says)
		}
		return err
	})
}

// renamedAway lets another engine rename the table and back (T5).
func (s *scenario) renamedAway() {
	s.t.Helper()
	s.foreign(s.table(), "pyiceberg rename_table shop.elsewhere")
	s.red(s.table())
	s.suffer(func() { s.foreign("shop.elsewhere", "pyiceberg rename_table "+s.table()) })
	s.audit(s.table(), "--against", "kafka")
}

// rolledBack lets another engine roll the table back, and an operator decide.
func (s *scenario) rolledBack() {
	s.t.Helper()
	s.foreign(s.table(), "pyiceberg roll_back 1")
	s.red("somebody rolled it back")
	out, code := s.verdict()
	require.Equal(s.t, run.Violated, code, "%s", out)
	require.Contains(s.t, out, "icestream offsets reset "+s.table()+" --to table")
	s.suffer(func() {
		done, err := s.icestream(s.t.Context(), "offsets", "reset", "-c", s.config, s.table(), "--to", "table", "--reason", "rolled back by mistake", "--yes")
		require.NoError(s.t, err)
		s.t.Log(done)
	})
	require.Contains(s.t, s.audit(s.table(), "--against", "kafka"), "an operator reset positions")
	s.waitReady(time.Minute)
}
