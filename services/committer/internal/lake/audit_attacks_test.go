package lake

import (
	"fmt"
	"iter"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// dataFiles are the paths of the data files of the head, in the order of the
// manifests.
func (b *bench) dataFiles() []string {
	b.Helper()
	files, err := b.files(b.Context())
	require.NoError(b, err)
	var out []string
	require.NoError(b, walkEntries(b.Context(), files, b.handle().Metadata(), func(e entry) {
		if !e.deletes {
			out = append(out, e.file.FilePath())
		}
	}))
	return out
}

// quarantineOther is another engine at the quarantine table.
func (b *bench) quarantineOther() *other {
	b.Helper()
	q, err := b.lake.Load(b.Context(), tableName+ident.QuarantineSuffix)
	require.NoError(b, err)
	return &other{TB: b.TB, tbl: q.handle()}
}

// quarantineRows appends records to a quarantine table, as another engine would.
func (o *other) quarantineRows(p ident.Partition, r ident.Range) {
	o.Helper()
	o.reload()
	sch, err := table.SchemaToArrowSchema(o.tbl.Schema(), nil, true, false)
	require.NoError(o, err)
	ours := quarantined(p, r)
	reader, err := array.NewRecordReader(sch, []arrow.RecordBatch{array.NewRecordBatch(sch, ours.Columns(), ours.NumRows())})
	require.NoError(o, err)
	o.tbl, err = o.tbl.Append(o.Context(), reader, nil)
	require.NoError(o, err)
}

// Without statistics of the offsets, rows of others may be copies of ours: only
// the offsets tell.
func TestRowsOfOthersWithoutStatisticsProveNothing(t *testing.T) {
	for name, fake := range map[string]bool{"rows of their own": false, "copies of ours": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 6)
			o := b.other()
			o.keepNoStatistics()
			if fake {
				o.kafkaRows(b, part(0), ident.Range{First: 2, Next: 4})
			} else {
				o.insert(2, nil)
			}
			b.reload()
			requireVerdict(t, Unknown, b.audit(false))
			if fake {
				requireViolation(t, b.audit(true), "offsets that are more than one row: [2 3]")
			} else {
				requireVerdict(t, Proven, b.audit(true))
			}
		})
	}
}

// What is called an append, and puts other rows in the place of ours, proves nothing:
// counts look at the files that were taken, not at the name.
func TestAnAppendThatTakesRowsOfOursProvesNothing(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	ours := b.dataFiles()
	files := b.write(b.batch(part(0), ident.Range{First: 0, Next: 6}))
	o := b.other()
	o.do(func(tx *table.Transaction) error {
		return tx.ReplaceDataFiles(t.Context(), ours, []string{files[0].Path}, nil)
	})
	b.reload()
	swap := o.tbl.CurrentSnapshot().SnapshotID
	b.forge(func(doc map[string]any) { summaryOf(t, doc, swap)["operation"] = "append" })
	for _, deep := range []bool{false, true} {
		r, err := Audit(t.Context(), b.lake, tableName, AuditOptions{Deep: deep})
		require.NoError(t, err)
		require.Contains(t, r.Text(), fmt.Sprintf("snapshot %d: another writer put files in the place of others (append)", swap))
		requireVerdict(t, map[bool]Verdict{false: Unknown, true: Proven}[deep], r)
	}
}

// One quarantined record taken away, and another put in its place: the counts of
// the quarantine table agree.
func TestAQuarantinedRecordThatWasExchangedIsFound(t *testing.T) {
	for _, pending := range []bool{false, true} {
		t.Run(fmt.Sprintf("others pending %v", pending), func(t *testing.T) {
			b := ledger(t)
			if !pending {
				require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
			}
			o := b.quarantineOther()
			o.do(func(tx *table.Transaction) error {
				return tx.Delete(t.Context(), iceberg.EqualTo(iceberg.Reference("offset"), int64(5)), nil)
			})
			culprit := o.tbl.CurrentSnapshot().SnapshotID
			// Offset 12 of partition 0 is a control record: no row, and not quarantined.
			o.quarantineRows(part(0), ident.Range{First: 12, Next: 13})
			plain := b.audit(false)
			requireVerdict(t, Unknown, plain)
			require.Contains(t, plain.Text(), fmt.Sprintf("snapshot %d", culprit))
			requireViolation(t, b.audit(true), "orders[1]: 5 offsets are in the quarantine table or pending, 6 were counted")
		})
	}
}

// The files of the outbox are read too: one that was exchanged shows.
func TestAPendingFileWithOtherRecordsIsFound(t *testing.T) {
	b := ledger(t)
	e := b.Head().State.Pending()[2]
	require.Len(t, e.Files, 1)
	files, err := b.WriteQuarantine(t.Context(), b.options(), quarantined(part(1), ident.Range{First: 40, Next: 42}))
	require.NoError(t, err)
	requireVerdict(t, Proven, b.audit(true))
	other, err := os.ReadFile(localPath(files[0].Path))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(localPath(e.Files[0].Path), other, 0o600))
	requireViolation(t, b.audit(true), "quarantined records of offsets 5 to 41")
}

// A file that somebody cut off, or overwrote: its name is there, its rows are not.
func TestAFileThatIsNotWhatWasWrittenIsFound(t *testing.T) {
	spoil := map[string]func(text []byte) []byte{
		"cut off":        func(text []byte) []byte { return text[:len(text)/2] },
		"empty":          func([]byte) []byte { return nil },
		"scribbled over": func(text []byte) []byte { return []byte(strings.Repeat("x", len(text))) },
		"bad pages": func(text []byte) []byte {
			for i := 4; i < len(text)*3/4; i++ {
				text[i] ^= 0x5a
			}
			return text
		},
	}
	for name, f := range spoil {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 600)
			path := localPath(b.dataFiles()[0])
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, f(text), 0o600))
			if plain := b.audit(false); name == "cut off" || name == "empty" {
				requireVerdict(t, Violated, plain)
				require.Contains(t, plain.Text(), path)
			}
			r := b.audit(true)
			require.NotEqual(t, Proven, r.Verdict, r.Text())
			require.Contains(t, r.Text(), path)
		})
	}
}

// What counts found is told, even where the rows cannot be read.
func TestAViolationIsToldThoughTheRowsCannotBeRead(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	b.commitRows(part(0), 600)
	path := localPath(b.dataFiles()[0])
	o := b.other()
	o.kafkaRows(b, part(0), ident.Range{First: 2, Next: 4})
	b.reload()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("x", len(text))), 0o600))
	r := b.audit(true)
	requireViolation(t, r, "added 2 rows that name Kafka records")
	require.Contains(t, r.Text(), "deep scan")
}

// A history that runs in a circle is no history.
func TestAHistoryThatRunsInACircleIsAViolation(t *testing.T) {
	b, _ := twoPartitions(t, true)
	b.forge(func(doc map[string]any) {
		list := doc["snapshots"].([]any)
		list[0].(map[string]any)["parent-snapshot-id"] = list[len(list)-1].(map[string]any)["snapshot-id"]
	})
	r, err := Audit(t.Context(), b.lake, tableName, AuditOptions{Deep: true})
	require.NoError(t, err)
	requireVerdict(t, Violated, r)
}

// equalityDelete deletes the rows with that id by an equality delete, as Flink does.
func (o *other) equalityDelete(id int64) {
	o.Helper()
	field, ok := o.tbl.Schema().FindFieldByName("id")
	require.True(o, ok)
	sch, err := table.SchemaToArrowSchema(iceberg.NewSchema(0, field), nil, true, false)
	require.NoError(o, err)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, sch)
	rb.Field(0).(*array.Int64Builder).Append(id)
	rec := rb.NewRecordBatch()
	one := iter.Seq2[arrow.RecordBatch, error](func(yield func(arrow.RecordBatch, error) bool) { yield(rec, nil) })
	o.do(func(tx *table.Transaction) error {
		return tx.CommitEqualityDeletes(o.Context(), []int{field.ID}, one, nil)
	})
}

func TestEqualityDeletesOfOthersAreCountedByTheRowsThatAreLeft(t *testing.T) {
	for name, c := range map[string]struct {
		id   int64
		deep Verdict
	}{"of a row of ours": {2, Violated}, "of no row": {77, Proven}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 6)
			b.other().equalityDelete(c.id)
			b.reload()
			requireVerdict(t, Unknown, b.audit(false))
			requireVerdict(t, c.deep, b.audit(true))
			b.commitRows(part(0), 3) // offsets that come later are not touched by it
			requireVerdict(t, c.deep, b.audit(true))
		})
	}
}

// Deletion vectors of several data files stand in one file (format version 3).
func TestDeletionVectorsOfOthersAreNoDoubledFile(t *testing.T) {
	b := newBench(t, version3(nil))
	b.commitRows(part(0), 6)
	b.other().insert(3, nil)
	b.other().insert(3, nil)
	o := b.other()
	path := strings.TrimSuffix(b.dataFiles()[0], ".parquet") + ".puffin"
	require.NoError(t, os.WriteFile(localPath(path), make([]byte, 100), 0o600))
	b.reload()
	var vectors []iceberg.DataFile
	for i, of := range b.dataFiles()[1:] {
		f, err := iceberg.NewDataFileBuilder(*iceberg.UnpartitionedSpec, iceberg.EntryContentPosDeletes, path, iceberg.PuffinFile, nil, nil, nil, 1, 100)
		require.NoError(t, err)
		vectors = append(vectors, f.ReferencedDataFile(of).ContentOffset(int64(4+40*i)).ContentSizeInBytes(40).Build())
	}
	require.Len(t, vectors, 2)
	o.do(func(tx *table.Transaction) error {
		return tx.NewRowDelta(nil).AddDeletes(vectors...).Commit(t.Context())
	})
	b.reload()
	r := b.audit(false)
	requireVerdict(t, Unknown, r)
	require.Len(t, r.Findings, 1)
	require.Contains(t, r.Text(), "2 delete files of another writer remove rows")
}

// A column of ours that others widened is read all the same.
func TestAWidenedPartitionColumnIsRead(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	b.other().do(func(tx *table.Transaction) error {
		return tx.UpdateSchema(true, false).UpdateColumn([]string{schema.KafkaColumn, "partition"},
			table.ColumnUpdate{FieldType: iceberg.Optional[iceberg.Type]{Val: iceberg.PrimitiveTypes.Int64, Valid: true}}).Commit()
	})
	b.reload()
	requireVerdict(t, Proven, b.audit(true))
}

// What was lost, and what was given up, is told at the end of the proof.
func TestAProofTellsWhatWasLost(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindData)
	c.advance(part(0), Totals{Skipped: map[event.SkipReason]int64{event.SkipLost: 5, event.SkipControl: 1}})
	b.commit(c)
	b.commitRows(part(0), 6)
	r := b.audit(false)
	requireVerdict(t, Proven, r)
	require.Contains(t, r.Text(), "note: p/orders[0]: 5 offsets are counted as lost", "of what an earlier release wrote only the number is known")
	require.Contains(t, r.Text(), "1 control, 5 lost")

	// The state itself says which offsets are gone and why, also when every snapshot
	// that brought them is expired.
	lose := func(p ident.Partition, n int64, why Loss) {
		c := b.change(KindData)
		r := c.advance(p, Totals{Skipped: map[event.SkipReason]int64{event.SkipLost: n}})
		c.State.Pipelines["p"].Lose(Lost{Partition: p, Range: r, Why: why})
		b.commit(c)
	}
	lose(part(0), 4, LossGone)
	lose(part(0), 3, LossGone)
	lose(part(1), 2, LossGivenUp)
	for range 5 {
		b.commitRows(part(0), 2)
	}
	b.other().do(func(tx *table.Transaction) error {
		return tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
	})
	b.reload()
	r = b.audit(true)
	requireVerdict(t, Proven, r)
	require.Contains(t, r.Text(), "note: p/orders[0]: offsets 12 to 18, 7 of them, are counted as lost: Kafka did not have them any more")
	require.Contains(t, r.Text(), "note: p/orders[1]: offsets 0 to 1, 2 of them, are counted as lost: an operator gave them up")
	require.Equal(t, []LostReport{{ident.Range{First: 12, Next: 19}, LossGone}}, r.Partitions[0].Lost)
	text, err := r.JSON()
	require.NoError(t, err)
	require.Regexp(t, `"lost": \[\s*\{\s*"first": 12,\s*"next": 19,\s*"why": "gone"\s*\}\s*\]`, string(text))
	require.Equal(t, int64(12), r.Partitions[0].Skipped["lost"])

	// Somebody who edits it is found.
	c = b.change(KindData)
	c.State.Pipelines["p"].Lose(Lost{Partition: part(1), Range: ident.Range{First: 50, Next: 90}, Why: LossGone})
	b.commit(c)
	requireViolation(t, b.audit(false), "offsets [50,90) are remembered as lost, but the table accounts for")
	requireViolation(t, b.audit(false), "42 offsets are remembered as lost, but 2 are counted")
}

// What is remembered as lost is neither named twice nor there; and a list that only
// the summary has, the copy contradicts.
func TestAnEditedListOfLostOffsetsIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		lost []ident.Range // of rows [0,6), then [6,14) that are counted as lost, then poison [14,15)
		deep bool
		want string
	}{
		"as it is":    {[]ident.Range{{First: 6, Next: 14}}, true, ""},
		"twice":       {[]ident.Range{{First: 8, Next: 12}, {First: 6, Next: 10}}, false, "offsets [6,10) and [8,12) are remembered as lost: some of them twice"},
		"of rows":     {[]ident.Range{{First: 4, Next: 8}}, true, "offsets that are a row or quarantined, but remembered as lost: [4 5]"},
		"of a record": {[]ident.Range{{First: 13, Next: 15}}, true, "offsets that are a row or quarantined, but remembered as lost: [14]"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 6)
			change := b.change(KindData)
			change.advance(part(0), Totals{Quarantined: 1, Skipped: map[event.SkipReason]int64{event.SkipLost: 8}})
			b.poison(&change, quarantined(part(0), ident.Range{First: 14, Next: 15}))
			for _, r := range c.lost {
				change.State.Pipelines["p"].Lose(Lost{Partition: part(0), Range: r, Why: LossGone})
			}
			b.commit(change)
			r := b.audit(c.deep)
			if c.want == "" {
				requireVerdict(t, Proven, r)
			} else {
				requireViolation(t, r, c.want)
			}
		})
	}
	b := newBench(t, Settings{})
	change := b.change(KindData)
	change.advance(part(0), Totals{Skipped: map[event.SkipReason]int64{event.SkipLost: 8}})
	st := b.commit(change)
	b.forge(func(doc map[string]any) {
		summaryOf(t, doc, st.SnapshotID)["icestream.p.lost"] = `[{"topic":"orders","partition":0,"first":2,"next":4,"why":"gone"}]`
	})
	requireViolation(t, b.audit(false), "differ in icestream.p.lost: one of them was edited")
}

// Ranges that somebody took out of the state, and out of the copy too, are found for as
// long as the history reaches back to a commit that remembers them.
func TestLostOffsetsThatAreNotRememberedAnyMoreAreFound(t *testing.T) {
	// lose loses the second and third of every three offsets.
	lose := func(b *bench, times int64, edit func(*Pipeline)) {
		c := b.change(KindData)
		p := c.State.Pipelines["p"]
		r := c.advance(part(0), Totals{Skipped: map[event.SkipReason]int64{event.SkipLost: 2 * times, event.SkipControl: times}})
		for first := r.First + 1; first < r.Next; first += 3 {
			p.Lose(Lost{Partition: part(0), Range: ident.Range{First: first, Next: first + 2}, Why: LossGone})
		}
		edit(p)
		b.commit(c)
	}
	asItIs := func(*Pipeline) {}
	for name, c := range map[string]struct {
		edit func(*Pipeline) // of [1,3), [4,6), [7,9), the last of which is new
		want string
	}{
		"nothing":       {asItIs, ""},
		"all":           {func(p *Pipeline) { p.Lost = nil }, "p/orders[0]: offsets [4,6), which snapshot "},
		"the first":     {func(p *Pipeline) { p.Lost = p.Lost[1:] }, "p/orders[0]: offsets [1,3), which snapshot "},
		"a part":        {func(p *Pipeline) { p.Lost[1].First++ }, "p/orders[0]: offsets [4,6), which snapshot "},
		"a reason":      {func(p *Pipeline) { p.Lost[1].Why = LossGivenUp }, "p/orders[0]: offsets [4,6), which snapshot "},
		"one that grew": {func(p *Pipeline) { p.Lost[1].Next++; p.Lost = p.Lost[:2] }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			lose(b, 2, asItIs)
			lose(b, 1, c.edit)
			r := b.audit(false)
			if c.want == "" {
				requireVerdict(t, Proven, r)
				return
			}
			requireViolation(t, r, c.want)
			require.Contains(t, r.Text(), "are not remembered any more: the list was edited, or a release that does not know it has committed")
			b.other().expire()
			b.reload()
			requireVerdict(t, Proven, b.audit(false)) // nothing tells it from an older release
		})
	}
	t.Run("too many", func(t *testing.T) {
		b := newBench(t, Settings{})
		lose(b, 60, asItIs)
		lose(b, 10, asItIs)
		require.Len(t, b.Head().State.Pipelines["p"].Lost, 64)
		requireVerdict(t, Proven, b.audit(false))
	})
}

// A topic that was created again leaves something unread that nobody can count: the
// report says so for as long as the table knows both.
func TestAProofTellsOfATopicThatWasCreatedAgain(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	again := part(0)
	again.TopicID = ident.UUID{99}
	b.commitRows(again, 3)
	r := b.audit(false)
	requireVerdict(t, Proven, r)
	require.Contains(t, r.Text(), "note: topic orders of pipeline p was created again (on_data_loss: continue): the table has id "+part(0).TopicID.String()+" partition 0 up to offset 6")
	require.Contains(t, r.Text(), "id "+again.TopicID.String()+" partition 0 up to offset 3")
}

// A life of a topic of which nothing was read does not make the rows of another
// one ambiguous.
func TestALifeOfATopicWithoutOffsetsIsNoOther(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	again := part(0)
	again.TopicID = ident.UUID{2}
	c := b.change(KindProgress)
	c.State.Pipelines["p"].Positions[again] = ident.Position{LeaderEpoch: -1}
	c.State.Pipelines["p"].Totals[again] = Totals{}
	b.commit(c)
	requireVerdict(t, Proven, b.audit(true))
}

// An expiry by others leaves the head where it is; what is missing then is no
// violation, and the audit looks again.
func TestAnExpiryMeanwhileIsNoticed(t *testing.T) {
	b := newBench(t, Settings{})
	for range 3 {
		b.commitRows(part(0), 6)
	}
	a := &auditor{t: b.Table, head: b.Head()}
	require.False(t, a.moved(t.Context()))
	b.other().do(func(tx *table.Transaction) error {
		return tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
	})
	require.True(t, a.moved(t.Context()))
}

// A table that never stands still: what is not there and not named any more was
// expired, what is still named was lost.
func TestWhatAnExpiryTookMeanwhileIsNoViolation(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	a := &auditor{t: b.Table, r: &Report{}}
	a.r.findGone("snapshot 7", "its manifest list is gone")
	a.forgive(t.Context())
	requireVerdict(t, Unknown, *a.r)
	require.Contains(t, a.r.Text(), "audit it again")
	a.r.findGone(b.dataFiles()[0], "file is gone")
	a.forgive(t.Context())
	requireVerdict(t, Violated, *a.r)
	a.r.Findings = a.r.Findings[:1]
	a.r.find(Violated, "snapshot 8", "its counts do not agree")
	a.forgive(t.Context())
	requireVerdict(t, Violated, *a.r)
}

// Brokers before 2.8 have no topic ids.
func TestAResetOfATopicWithoutAnIDTakesItsRecordsOutOfQuarantine(t *testing.T) {
	p := part(0)
	p.TopicID = ident.UUID{}
	b := newBench(t, Settings{})
	commit := func() *Staged {
		c := b.change(KindData)
		r := c.advance(p, Totals{Rows: 4, Quarantined: 2})
		c.Files = b.write(b.batch(p, ident.Range{First: r.First, Next: r.Next - 2}))
		b.poison(&c, quarantined(p, ident.Range{First: r.Next - 2, Next: r.Next}))
		st := b.commit(c)
		require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
		return st
	}
	first := commit()
	commit()
	b.rollBack(first.SnapshotID)
	b.reset(0)
	requireVerdict(t, Proven, b.audit(true))
	require.Equal(t, int64(2), b.audit(false).Quarantine)
}
