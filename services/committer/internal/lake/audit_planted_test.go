package lake

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/apache/iceberg-go/table/compaction"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// forge changes the metadata of the table behind everybody's back.
func (b *bench) forge(change func(doc map[string]any)) {
	b.Helper()
	path := localPath(b.reload().MetadataLocation)
	text, err := os.ReadFile(path)
	require.NoError(b, err)
	var doc map[string]any
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	require.NoError(b, d.Decode(&doc))
	change(doc)
	text, err = json.Marshal(doc)
	require.NoError(b, err)
	require.NoError(b, os.WriteFile(path, text, 0o600))
}

func requireVerdict(t testing.TB, want Verdict, r Report) {
	t.Helper()
	require.Equal(t, want, r.Verdict, r.Text())
}

// summaryOf finds the summary of a snapshot in a metadata document.
func summaryOf(t testing.TB, doc map[string]any, id int64) map[string]any {
	t.Helper()
	for _, s := range doc["snapshots"].([]any) {
		if s := s.(map[string]any); fmt.Sprint(s["snapshot-id"]) == fmt.Sprint(id) {
			return s["summary"].(map[string]any)
		}
	}
	require.Fail(t, "no such snapshot")
	return nil
}

// dropSnapshot takes a snapshot out of the history and links its child to its
// parent.
func dropSnapshot(doc map[string]any, id int64) {
	var parent any
	list := doc["snapshots"].([]any)
	kept := slices.DeleteFunc(slices.Clone(list), func(s any) bool {
		m := s.(map[string]any)
		if fmt.Sprint(m["snapshot-id"]) != fmt.Sprint(id) {
			return false
		}
		parent = m["parent-snapshot-id"]
		return true
	})
	for _, s := range kept {
		if m := s.(map[string]any); fmt.Sprint(m["parent-snapshot-id"]) == fmt.Sprint(id) {
			m["parent-snapshot-id"] = parent
		}
	}
	doc["snapshots"] = kept
	doc["snapshot-log"] = slices.DeleteFunc(slices.Clone(doc["snapshot-log"].([]any)), func(s any) bool {
		return fmt.Sprint(s.(map[string]any)["snapshot-id"]) == fmt.Sprint(id)
	})
}

// edits are things that somebody may write into the summary of a snapshot that
// holds offsets [6,10) of partition 0 and [2,5) of partition 1.
var edits = map[string]struct {
	key, old, new string
	want          string // in plain words, whichever check finds it
}{
	"range":           {"icestream.p.offsets", `"0":[0,6,10,3]`, `"0":[0,7,10,3]`, "offsets [6,7) are in no commit"},
	"overlap":         {"icestream.p.offsets", `"0":[0,6,10,3]`, `"0":[0,4,10,3]`, "offsets [4,6) were committed twice"},
	"swapped ranges":  {"icestream.p.offsets", `"0":[0,6,10,3],"1":[0,2,5,3]`, `"0":[0,2,5,3],"1":[0,6,10,3]`, "committed twice"},
	"start":           {"icestream.p.offsets", `"0":[0,6,10,3]`, `"0":[1,6,10,3]`, "its start moved from 0 to 1"},
	"topic id":        {"icestream.p.offsets", `"id":"01000000-`, `"id":"02000000-`, "is forgotten"},
	"rows":            {"icestream.p.rows", `"commit":{"rows":7}`, `"commit":{"rows":6,"skipped":{"filtered":1}}`, "the commit counts 6 rows, its summary 7"},
	"running totals":  {"icestream.p.rows", `"0":{"rows":10}`, `"0":{"rows":9,"skipped":{"filtered":1}}`, "the totals grew by 6 rows"},
	"totals and rows": {"icestream.p.rows", `{"commit":{"rows":7},"totals":{"orders":{"0":{"rows":10}`, `{"commit":{"rows":6,"skipped":{"tombstone":1}},"totals":{"orders":{"0":{"rows":9,"skipped":{"tombstone":1}}`, "its summary 7"},
	"added records":   {"added-records", "7", "8", "its summary 8"},
	"LSNs":            {"icestream.lsn", "", "0,1,2", "an LSN may name two rows"},
	"writer epoch":    {"icestream.writer-epoch", "1", "0", "writer epoch"},
	"not JSON":        {"icestream.p.offsets", "{", "", "its state cannot be read"},
	"file's LSNs":     {"icestream.lsn", "0,15,", "0,9,", "it holds the LSN"},
}

// twoPartitions commits [0,6) and [0,2), then [6,10) and [2,5) in one commit, and
// returns that, with or without one behind it.
func twoPartitions(t *testing.T, more bool) (*bench, *Staged) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	b.commitRows(part(1), 2)
	c := b.change(KindData)
	r0, r1 := c.advance(part(0), Totals{Rows: 4}), c.advance(part(1), Totals{Rows: 3})
	c.Files = b.write(b.batch(part(0), r0), b.batch(part(1), r1))
	st := b.commit(c)
	if more {
		b.commitRows(part(0), 3)
	}
	return b, st
}

func TestAuditFindsEditedSummaries(t *testing.T) {
	for name, e := range edits {
		for _, newest := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, newest %v", name, newest), func(t *testing.T) {
				b, st := twoPartitions(t, !newest)
				require.Equal(t, Proven, b.audit(false).Verdict)
				b.forge(func(doc map[string]any) {
					s := summaryOf(t, doc, st.SnapshotID)
					old := s[e.key].(string)
					now := e.new
					if e.old != "" {
						now = strings.Replace(old, e.old, e.new, 1)
					}
					require.NotEqual(t, old, now, old)
					s[e.key] = now
				})
				r, err := Audit(t.Context(), b.lake, tableName, AuditOptions{})
				require.NoError(t, err)
				if r.Verdict == Unknown && newest && name == "not JSON" {
					return // the state of the head itself: nothing can be said
				}
				require.Equal(t, Violated, r.Verdict, r.Text())
				require.Contains(t, r.Text(), fmt.Sprint(st.SnapshotID), "the snapshot is named")
				if newest {
					return // whichever check found it: the copy in the property, if no other
				}
				require.Contains(t, r.Text(), e.want)
			})
		}
	}
}

// What a lone edit of the newest summary leaves consistent in itself, the copy in
// the table property contradicts.
func TestAuditFindsAPositionThatWasMovedForward(t *testing.T) {
	b, st := twoPartitions(t, false)
	b.forge(func(doc map[string]any) {
		s := summaryOf(t, doc, st.SnapshotID)
		for key, r := range map[string][2]string{
			"icestream.p.offsets": {`"0":[0,6,10,3]`, `"0":[0,6,11,3]`},
			"icestream.p.rows":    {`{"commit":{"rows":7},"totals":{"orders":{"0":{"rows":10}`, `{"commit":{"rows":7,"skipped":{"absent":1}},"totals":{"orders":{"0":{"rows":10,"skipped":{"absent":1}}`},
		} {
			now := strings.Replace(s[key].(string), r[0], r[1], 1)
			require.NotEqual(t, s[key], now, s[key])
			s[key] = now
		}
	})
	requireViolation(t, b.audit(false), "its summary and the copy in the table property icestream.state differ in icestream.p.offsets")
}

func TestAuditFindsARemovedSnapshotRange(t *testing.T) {
	b, st := twoPartitions(t, true)
	b.forge(func(doc map[string]any) { dropSnapshot(doc, st.SnapshotID) })
	r := b.audit(false)
	requireViolation(t, r, "offsets [6,10) are in no commit")
	require.Contains(t, r.Text(), "offsets [2,5) are in no commit")
}

// A range whose rows left with its snapshot: others rolled back and put what came
// later on top again.
func TestAuditFindsACommitThatWasLeftOut(t *testing.T) {
	b := newBench(t, Settings{})
	first := b.commitRows(part(0), 6)
	b.commitRows(part(0), 4)
	last := b.commitRows(part(0), 3)
	keys := maps.Clone(last.snapshot.Summary.Properties)
	var lost iceberg.DataFile
	files, err := b.files(t.Context())
	require.NoError(t, err)
	require.NoError(t, walkEntries(t.Context(), files, b.handle().Metadata(), func(e entry) {
		if e.added == last.SnapshotID {
			lost = e.file
		}
	}))
	o := b.other()
	o.do(func(tx *table.Transaction) error { return tx.RollbackToSnapshot(first.SnapshotID) })
	o.do(func(tx *table.Transaction) error {
		return tx.AddDataFiles(t.Context(), []iceberg.DataFile{lost}, keys, table.WithoutAutoNameMapping())
	})
	requireViolation(t, b.audit(false), "offsets [6,10) are in no commit")
}

func TestACommitOfOursThatStandsTwiceIsAViolation(t *testing.T) {
	b := newBench(t, Settings{})
	st := b.commitRows(part(0), 6)
	b.other().insert(0, maps.Clone(st.snapshot.Summary.Properties))
	requireViolation(t, b.audit(false), "it stands in the history twice")
}

// Rows that others take away are told by the statistics of the files: the audit
// names the snapshot, and says who made it (G9).
func TestAuditNamesTheSnapshotThatRemovedOurRows(t *testing.T) {
	for name, mode := range map[string]string{"copy on write": "copy-on-write", "merge on read": "merge-on-read"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 6)
			b.other().insert(3, nil)
			b.reload()
			o := b.other()
			o.do(func(tx *table.Transaction) error {
				return tx.SetProperties(iceberg.Properties{"write.delete.mode": mode})
			})
			o.do(func(tx *table.Transaction) error {
				return tx.Delete(t.Context(), iceberg.LessThan(iceberg.Reference("id"), int64(2)), iceberg.Properties{"engine-name": "spark"})
			})
			culprit := fmt.Sprint(o.tbl.CurrentSnapshot().SnapshotID)
			plain := b.audit(false)
			require.NotEqual(t, Proven, plain.Verdict, plain.Text())
			require.Contains(t, plain.Text(), culprit)
			require.Contains(t, plain.Text(), "spark")
			if mode == "copy-on-write" {
				requireViolation(t, plain, "spark removed 2 rows of ours")
			}
			deep := b.audit(true)
			requireViolation(t, deep, "4 offsets are rows, 6 were counted; offsets without a row begin with [0 1]")
			require.Contains(t, deep.Text(), culprit)
		})
	}
}

// Others may do to their own rows what they like.
func TestAuditIsProvenWhereOthersRemoveTheirOwnRows(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	b.other().insert(3, nil)
	b.reload()
	b.commitRows(part(0), 6)
	b.other().do(func(tx *table.Transaction) error {
		return tx.Delete(t.Context(), iceberg.IsNull(iceberg.Reference("id")), nil)
	})
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		require.Equal(t, Proven, r.Verdict, r.Text())
		require.Equal(t, int64(12), r.Live)
	}
}

// kafkaRows appends rows that name Kafka records, as a copy of the table would.
func (o *other) kafkaRows(b *bench, p ident.Partition, r ident.Range) {
	o.Helper()
	o.reload()
	sch, err := table.SchemaToArrowSchema(o.tbl.Schema(), nil, true, false)
	require.NoError(o, err)
	ours := b.batch(p, r)
	rec := array.NewRecordBatch(sch, ours.Columns(), ours.NumRows())
	reader, err := array.NewRecordReader(sch, []arrow.RecordBatch{rec})
	require.NoError(o, err)
	o.tbl, err = o.tbl.Append(o.Context(), reader, nil)
	require.NoError(o, err)
}

func TestAuditNamesTheSnapshotThatFakesOurRows(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	o := b.other()
	o.kafkaRows(b, part(0), ident.Range{First: 2, Next: 4})
	b.reload()
	requireViolation(t, b.audit(false), fmt.Sprintf("snapshot %d: another writer added 2 rows that name Kafka records", o.tbl.CurrentSnapshot().SnapshotID))
	requireViolation(t, b.audit(true), fmt.Sprintf("offsets that are more than one row: [2 3]; snapshots of others that may have brought rows: snapshot %d (append of another writer)",
		o.tbl.CurrentSnapshot().SnapshotID))
}

// One takes rows, another brings as many: counts agree, and say that they do not
// know. The offsets do.
func TestCountsThatAgreeByChanceProveNothing(t *testing.T) {
	for name, back := range map[string]ident.Range{"other rows": {First: 2, Next: 4}, "the same rows": {First: 0, Next: 2}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 6)
			o := b.other()
			o.do(func(tx *table.Transaction) error {
				return tx.Delete(t.Context(), iceberg.LessThan(iceberg.Reference("id"), int64(2)), nil)
			})
			o.kafkaRows(b, part(0), back)
			b.reload()
			requireVerdict(t, Unknown, b.audit(false))
			if deep := b.audit(true); name == "the same rows" {
				require.Equal(t, Proven, deep.Verdict, deep.Text())
			} else {
				requireViolation(t, deep, "offsets without a row begin with [0 1]")
			}
		})
	}
}

// T10: an engine that writes a table anew does so in two snapshots, one that takes all
// rows and one that brings them back. Where statistics do not tell whose rows those
// are, the offsets do.
func TestRowsThatMayHaveBeenBroughtBackAreDecidedByTheirOffsets(t *testing.T) {
	for name, back := range map[string]int64{"all": 6, "all but one": 5, "none": 0} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 6)
			o := b.other()
			o.keepNoStatistics()
			o.insert(1, nil)
			o.do(func(tx *table.Transaction) error { return tx.Delete(t.Context(), iceberg.AlwaysTrue{}, nil) })
			took := fmt.Sprintf("snapshot %d: another writer removed", o.tbl.CurrentSnapshot().SnapshotID)
			if back > 0 {
				o.kafkaRows(b, part(0), ident.Range{First: 0, Next: back})
			}
			b.reload()
			b.commitRows(part(0), 2)
			plain, deep := b.audit(false), b.audit(true)
			require.Contains(t, plain.Text(), took)
			require.Contains(t, deep.Text(), took)
			switch back {
			case 6:
				requireVerdict(t, Unknown, plain)
				requireVerdict(t, Proven, deep)
			case 5:
				requireVerdict(t, Unknown, plain)
				requireViolation(t, deep, "offsets without a row begin with [5]")
			default:
				requireViolation(t, plain, took)
				requireViolation(t, deep, took)
			}
		})
	}
}

// An update by another engine leaves counts alone.
func TestAnOverwriteIsProvenByTheOffsetsAlone(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	o := b.other()
	sch, err := table.SchemaToArrowSchema(o.tbl.Schema(), nil, true, false)
	require.NoError(t, err)
	ours := b.batch(part(0), ident.Range{First: 0, Next: 6})
	reader, err := array.NewRecordReader(sch, []arrow.RecordBatch{array.NewRecordBatch(sch, ours.Columns(), ours.NumRows())})
	require.NoError(t, err)
	o.do(func(tx *table.Transaction) error { return tx.Overwrite(t.Context(), reader, nil) })
	b.reload()
	r := b.audit(false)
	require.Equal(t, Unknown, r.Verdict, r.Text())
	r = b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
}

// compact rewrites all data files into one, as another engine would.
func (o *other) compact() {
	o.Helper()
	o.do(func(tx *table.Transaction) error {
		cfg := compaction.DefaultConfig()
		cfg.MinInputFiles = 2
		plan, err := compaction.Analyze(o.Context(), o.tbl, cfg)
		require.NoError(o, err)
		require.NotEmpty(o, plan.Groups)
		groups := make([]table.CompactionTaskGroup, len(plan.Groups))
		for i, g := range plan.Groups {
			groups[i] = table.CompactionTaskGroup{PartitionKey: g.PartitionKey, Tasks: g.Tasks, TotalSizeBytes: g.TotalSizeBytes}
		}
		_, err = tx.RewriteDataFiles(o.Context(), groups, table.RewriteDataFilesOptions{})
		return err
	})
}

func TestACompactionByOthersIsProven(t *testing.T) {
	b := newBench(t, Settings{})
	for range 3 {
		b.commitRows(part(0), 6)
	}
	b.other().compact()
	b.reload()
	b.commitRows(part(0), 6)
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		require.Equal(t, Proven, r.Verdict, r.Text())
		require.Contains(t, r.Text(), "replace of another writer, +0 rows")
	}
}

func TestACompactionThatLosesRowsIsNamed(t *testing.T) {
	b := newBench(t, Settings{})
	var paths []string
	for range 3 {
		b.commitRows(part(0), 6)
	}
	files, err := b.files(t.Context())
	require.NoError(t, err)
	require.NoError(t, walkEntries(t.Context(), files, b.handle().Metadata(), func(e entry) { paths = append(paths, e.file.FilePath()) }))
	w := b.write(b.batch(part(0), ident.Range{First: 0, Next: 11}))
	o := b.other()
	o.do(func(tx *table.Transaction) error {
		return tx.ReplaceDataFiles(t.Context(), paths[:2], []string{w[0].Path}, nil)
	})
	requireViolation(t, b.audit(false), fmt.Sprintf("snapshot %d: another writer removed 1 rows of ours", o.tbl.CurrentSnapshot().SnapshotID))
}

func TestAuditFindsAPathThatWasAddedAgain(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	var path string
	files, err := b.files(t.Context())
	require.NoError(t, err)
	require.NoError(t, walkEntries(t.Context(), files, b.handle().Metadata(), func(e entry) { path = e.file.FilePath() }))
	o := b.other()
	o.do(func(tx *table.Transaction) error { return tx.AddFiles(t.Context(), []string{path}, nil, true) })
	b.reload()
	r := b.audit(false)
	requireViolation(t, r, path+": file was added by snapshot")
	require.Contains(t, r.Text(), "added 6 rows that name Kafka records")
}

// The expiry of another engine takes our snapshots, and with them the name of the
// one that removed rows: that they are gone is still found.
func TestRowsThatAreGoneAreFoundAfterTheHistoryIsExpired(t *testing.T) {
	expire := func(b *bench) {
		_, _, err := b.cat.CommitTable(t.Context(), b.ident, nil, []table.Update{table.NewRemoveSnapshotRefUpdate(tag)})
		require.NoError(t, err)
		o := b.other()
		o.insert(1, nil)
		o.do(func(tx *table.Transaction) error {
			return tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
		})
	}
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	b.other().insert(2, nil)
	expire(b)
	require.Zero(t, b.reload().Own)
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		require.Equal(t, Proven, r.Verdict, r.Text())
	}

	b = newBench(t, Settings{})
	b.commitRows(part(0), 6)
	b.other().do(func(tx *table.Transaction) error {
		return tx.Delete(t.Context(), iceberg.LessThan(iceberg.Reference("id"), int64(2)), nil)
	})
	expire(b)
	b.reload()
	requireViolation(t, b.audit(false), "2 rows of ours fewer than were counted up to here")
}

// Bounds of the offset column are kept by engines that write them for fields of a
// struct; the library here does not, so the files are made up.
func TestAuditFindsAFileWhoseOffsetsAreNotThoseOfItsCommit(t *testing.T) {
	b, st := twoPartitions(t, false)
	state, _, err := decodeState(st.snapshot.Summary.Properties)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		file bounds
		want string
	}{
		"both partitions":   {bounds{offsets: &[2]int64{2, 9}, partitions: &[2]int64{0, 1}}, ""},
		"one partition":     {bounds{offsets: &[2]int64{6, 9}, partitions: &[2]int64{0, 0}}, ""},
		"no partition":      {bounds{offsets: &[2]int64{2, 9}}, ""},
		"nothing kept":      {bounds{}, ""},
		"below":             {bounds{offsets: &[2]int64{5, 8}, partitions: &[2]int64{0, 0}}, "it holds offsets 5 to 8 of partition 0, but snapshot"},
		"above":             {bounds{offsets: &[2]int64{6, 10}, partitions: &[2]int64{0, 0}}, "commits [6,10) there"},
		"of the other":      {bounds{offsets: &[2]int64{6, 9}, partitions: &[2]int64{1, 1}}, "commits [2,5) there"},
		"unknown partition": {bounds{offsets: &[2]int64{6, 9}, partitions: &[2]int64{7, 7}}, "it holds rows of partition 7, of which snapshot"},
		"above all":         {bounds{offsets: &[2]int64{2, 10}}, "it holds offsets 2 to 10 of some partitions"},
	} {
		t.Run(name, func(t *testing.T) {
			l := &link{snapshot: st.snapshot, own: true, state: state}
			l.added.files = []bounds{c.file}
			a := &auditor{t: b.Table, r: &Report{}}
			a.checkBounds(l)
			if c.want == "" {
				requireVerdict(t, Proven, *a.r)
			} else {
				requireViolation(t, *a.r, c.want)
			}
		})
	}
}

// A quarantine table that lost a record, or all of them.
func TestAuditNamesWhoTookARecordOutOfQuarantine(t *testing.T) {
	b := ledger(t)
	q, err := b.lake.Load(t.Context(), tableName+ident.QuarantineSuffix)
	require.NoError(t, err)
	qo := &other{TB: t, tbl: q.handle()}
	qo.do(func(tx *table.Transaction) error {
		return tx.Delete(t.Context(), iceberg.EqualTo(iceberg.Reference("offset"), int64(5)), iceberg.Properties{"engine-name": "trino"})
	})
	requireViolation(t, b.audit(false), fmt.Sprintf("snapshot %d (delete of trino) removed 2 and added 1 records", qo.tbl.CurrentSnapshot().SnapshotID))
	requireViolation(t, b.audit(true), "6 records are counted as quarantined; the table holds 3")
}

func TestAuditSaysThatTheQuarantineTableIsMissing(t *testing.T) {
	b := ledger(t)
	c := b.change(KindAnchor)
	p := c.State.Pipelines["p"]
	p.Pending = p.Pending[2:] // what was applied
	b.commit(c)
	require.NoError(t, b.cat.DropTable(t.Context(), append(slices.Clone(b.ident[:len(b.ident)-1]), b.ident[len(b.ident)-1]+ident.QuarantineSuffix)))
	for _, deep := range []bool{false, true} {
		requireViolation(t, b.audit(deep), tableName+ident.QuarantineSuffix+": the quarantine table is missing: 6 records are counted as quarantined, 2 of them are pending")
	}
}

func TestADeepAuditWithoutTheFilesOfTheQuarantineSaysSo(t *testing.T) {
	b := ledger(t)
	q, err := b.lake.Load(t.Context(), tableName+ident.QuarantineSuffix)
	require.NoError(t, err)
	var path string
	files, err := q.files(t.Context())
	require.NoError(t, err)
	require.NoError(t, walkEntries(t.Context(), files, q.handle().Metadata(), func(e entry) { path = e.file.FilePath() }))
	require.NoError(t, os.Remove(localPath(path)))
	requireViolation(t, b.audit(true), "quarantine file is gone")
}

// other pipeline: the state of each keeps apart (issue 5 points 6 and 7).
func TestAuditProvesTwoPipelinesOfOneTable(t *testing.T) {
	second := ident.Partition{Pipeline: "r", Topic: "returns", TopicID: ident.UUID{2}}
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	b.commitFor(second, 5)
	b.commitRows(part(0), 2)
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		require.Equal(t, Proven, r.Verdict, r.Text())
		require.Len(t, r.Partitions, 2)
	}

	// Of one topic in two pipelines a row does not say which one it is of; that one
	// is missing shows all the same.
	same := ident.Partition{Pipeline: "r", Topic: "orders", TopicID: ident.UUID{1}}
	b = newBench(t, Settings{})
	b.commitRows(part(0), 6)
	b.commitFor(same, 6)
	requireVerdict(t, Proven, b.audit(false))
	r := b.audit(true)
	require.Equal(t, Unknown, r.Verdict, r.Text())
	require.Contains(t, r.Text(), "all 12 rows are there")
	b.other().do(func(tx *table.Transaction) error {
		return tx.Delete(t.Context(), iceberg.EqualTo(iceberg.Reference("id"), int64(2)), nil)
	})
	requireViolation(t, b.audit(true), "12 rows were counted by the 2 pipelines")
}

// commitFor commits rows of another pipeline than that of the bench.
func (b *bench) commitFor(p ident.Partition, n int64) {
	b.Helper()
	c := b.change(KindData)
	pl := c.State.Pipelines[p.Pipeline]
	if pl == nil {
		pl = &Pipeline{Owner: "test/kafka", Positions: ident.Positions{}, Totals: map[ident.Partition]Totals{}}
		c.State.Pipelines[p.Pipeline] = pl
	}
	first := pl.Positions[p].Next
	r := ident.Range{First: first, Next: first + n}
	pl.First = map[ident.Partition]int64{p: first}
	pl.Positions[p] = ident.Position{Next: r.Next}
	pl.Totals[p] = pl.Totals[p].Add(Totals{Rows: n})
	pl.Delta = Totals{Rows: n}
	c.State.LSN.Next += ident.LSN(n)
	c.State.LSN.Reserved = c.State.LSN.Next + ident.Reservation
	c.Files = b.write(b.batch(p, r))
	b.commit(c)
}

// Tables about which nothing can be said: exit code 2, and why.
func TestAuditSaysWhyItCannotTell(t *testing.T) {
	l := newLake(t, t.TempDir())
	cannot := func(name, why string) {
		t.Helper()
		for _, deep := range []bool{false, true} {
			r, err := Audit(t.Context(), l, name, AuditOptions{Deep: deep})
			require.NoError(t, err)
			require.Equal(t, Unknown, r.Verdict, r.Text())
			require.Contains(t, r.Text(), why)
		}
	}
	_, err := Audit(t.Context(), l, tableName, AuditOptions{})
	require.ErrorIs(t, err, fault.Of(fault.UnknownTable), "of nothing there is no report")
	columns := &schema.Schema{Columns: schema.MetadataColumns(true, false)}
	columns.AssignIDs()
	require.NoError(t, l.create(t.Context(), tableName, columns, nil))
	cannot(tableName, "it is not a table of Icestream")
	require.NoError(t, l.create(t.Context(), "shop.theirs"+ident.QuarantineSuffix, columns, nil))
	cannot("shop.theirs"+ident.QuarantineSuffix, "it is not a table of Icestream")
	_, err = l.Create(t.Context(), "shop.fresh", Settings{LSN: true, Kafka: true, Owner: "test"})
	require.NoError(t, err)
	cannot("shop.fresh", "nothing was committed to it yet")

	b := ledger(t)
	l = b.lake
	_, err = Audit(t.Context(), l, tableName+ident.QuarantineSuffix, AuditOptions{})
	require.ErrorContains(t, err, "is the quarantine table of "+tableName+": say "+tableName)
	b.other().insert(1, iceberg.Properties{"kafka.connect.offsets.control.x": "{}"})
	cannot(tableName, "the Kafka Connect sink")
}

// An empty table of ours is proven: there is nothing in it, and nothing was read.
func TestAuditProvesAnEmptyTable(t *testing.T) {
	b := newBench(t, Settings{})
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		require.Equal(t, Proven, r.Verdict, r.Text())
		require.Zero(t, r.Live)
	}
	b.commitRows(part(0), 1)
	b.other().do(func(tx *table.Transaction) error {
		return tx.Delete(t.Context(), iceberg.AlwaysTrue{}, nil)
	})
	requireViolation(t, b.audit(false), "removed 1 rows of ours")
}

// What does not fit the memory is read in further passes, with the same result
// (G7 for the audit).
func TestADeepAuditInLittleMemoryFindsTheSame(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindData)
	var recs []arrow.RecordBatch
	for n := range int32(3) {
		for gap := range int64(4) {
			first := c.State.Pipelines["p"].Positions[part(n)].Next
			c.advance(part(n), Totals{Rows: 3, Skipped: map[event.SkipReason]int64{event.SkipAbsent: 1 << cellBits}})
			recs = append(recs, b.batch(part(n), ident.Range{First: first, Next: first + 3}))
			if gap > 0 {
				c.State.Pipelines["p"].First[part(n)] = 0
			}
		}
	}
	c.Files = b.write(recs...)
	b.commit(c)
	whole := b.audit(true)
	require.Equal(t, Proven, whole.Verdict, whole.Text())
	var said []Progress
	r, err := Audit(t.Context(), b.lake, tableName, AuditOptions{Deep: true, Memory: 2 * chunkBytes, Progress: func(p Progress) { said = append(said, p) }})
	require.NoError(t, err)
	require.Equal(t, Proven, r.Verdict, r.Text())
	require.Contains(t, r.Text(), "the table was read")
	for i := range r.Partitions {
		require.Equal(t, int64(12), *r.Partitions[i].Scanned)
	}
	require.NotEmpty(t, said)
	require.Greater(t, said[len(said)-1].Pass, 2)
	require.Equal(t, int64(36), said[len(said)-1].Done)

	b.other().do(func(tx *table.Transaction) error {
		return tx.Delete(t.Context(), iceberg.EqualTo(iceberg.Reference("id"), int64(1)), nil)
	})
	r, err = Audit(t.Context(), b.lake, tableName, AuditOptions{Deep: true, Memory: 2 * chunkBytes})
	require.NoError(t, err)
	requireViolation(t, r, "11 offsets are rows, 12 were counted; offsets without a row begin with [1")
}
