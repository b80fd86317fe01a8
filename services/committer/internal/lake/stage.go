package lake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// Kinds of commits, kept in the summary for people and for the audit.
const (
	KindData     = "data"     // files
	KindProgress = "progress" // positions only
	KindFence    = "fence"    // a new log epoch
	KindWriter   = "writer"   // a new writer epoch
	KindSchema   = "schema"   // schema, partition spec, sort order or number maps
	KindAnchor   = "anchor"   // carries the state over foreign snapshots
	KindExpire   = "expire"   // removes old snapshots of ours
	KindReset    = "reset"    // an operator decided about positions
	KindReplay   = "replay"   // rows of records that were quarantined
)

// keyReplay marks snapshots whose rows were quarantined before: they are no rows
// of the ranges that the snapshot stands for, and an older token leaves them out.
// Its value is the number of rows.
const keyReplay = prefix + "replay"

// tag names our last own snapshot, so that another engine's expiry spares it.
const tag = "icestream"

// Change is what a commit of ours does. State is the full state after it, made
// from the loaded head's by Carry; pipelines of the head that it leaves out are
// carried by Stage.
type Change struct {
	CommitID ident.UUID
	Kind     string
	State    State
	Files    []File
	// Schema is the full table schema after the commit, nil for no change. Its
	// field ids are above the head's LastID where they are new.
	Schema *schema.Schema
	// Numbers are the number maps of the pipelines whose map changed.
	Numbers map[string]schema.NumberMap
	// Evolution replaces what the table remembers about schema changes.
	Evolution *Evolution
	// Partition and Sort replace the settings that the table remembers. They take
	// effect when their columns are there, at the latest with a schema change.
	Partition, Sort *string
	// Expire removes own snapshots that the policy does not keep.
	Expire *ExpirePolicy
	// Reset is what an operator decided; of KindReset alone.
	Reset *Reset
}

// Staged is a commit whose manifests are written and which the catalog has not
// been asked for yet. It may be sent again and again while the head is its base:
// it is the same snapshot each time, so it lands once at most.
type Staged struct {
	CommitID   ident.UUID
	SnapshotID int64
	Sequence   int64
	Base       int64 // snapshot it is built on and asserts, 0 for none
	Rows       int64 // in its files

	requirements []table.Requirement
	updates      []table.Update
	copies       []table.Update // property and tag: left out where the catalog refuses them
	snapshot     *table.Snapshot
	removal      []table.Update // of expired snapshots: with the first request alone
	before       *table.Table
	expired      []int64
	sent         bool
}

// Stage prepares a commit on the loaded head. It refuses a change that does not
// fit that very head: of a lower writer epoch (Fenced), with a range that does
// not begin where the head ends (OutOfOrder), or on a table that was rolled back
// or lost its state (Stopped). On error nothing refers to what it may have
// written; the change's data files stay.
func (t *Table) Stage(ctx context.Context, c Change) (*Staged, error) {
	deadline := t.lake.cfg.Timeouts.Stage * time.Duration(1+len(c.Files)/1000)
	ctx, cancel := context.WithTimeout(t.lake.storage(ctx), deadline)
	defer cancel()
	head := t.Head()
	state, err := t.prepare(head, c)
	if err != nil {
		return nil, err
	}
	st, err := t.stage(ctx, head, state, c)
	if err != nil {
		t.distrust()
		return nil, classify(err, "staging commit %s of table %s", c.CommitID, t.name)
	}
	return st, nil
}

// stagedOf is what can be known later of a snapshot that was sent.
func stagedOf(s *table.Snapshot) *Staged {
	st := &Staged{SnapshotID: s.SnapshotID, Sequence: s.SequenceNumber, snapshot: s}
	if s.ParentSnapshotID != nil {
		st.Base = *s.ParentSnapshotID
	}
	return st
}

// prepare checks the change against the head and completes its state.
func (t *Table) prepare(head Head, c Change) (State, error) {
	state := c.State.Clone()
	state.CommitID, state.Format = c.CommitID, Format
	for name, p := range head.State.Carry().Pipelines {
		if state.Pipelines[name] == nil {
			state.Pipelines[name] = p
		}
	}
	next := t.handle().Metadata().LastSequenceNumber() + 1
	for _, p := range state.Pipelines {
		for i := range p.Pending {
			if p.Pending[i].CommitID == c.CommitID {
				p.Pending[i].Sequence = next
			}
		}
	}
	if err := state.check(); err != nil {
		return State{}, err
	}
	if err := fits(t.name, head, state, c); err != nil {
		return State{}, err
	}
	return state, nil
}

// fits is the check of the committer against the very snapshot it asserts
// (design section 3): it makes doubles and holes impossible whatever leases say.
func fits(name string, head Head, state State, c Change) error {
	if state.WriterEpoch < head.State.WriterEpoch {
		return fault.New(fault.Fenced, "staging commit %s of table %s: writer epoch %d is over, the table has %d: another committer took over",
			c.CommitID, name, state.WriterEpoch, head.State.WriterEpoch)
	}
	if c.Kind == KindReset {
		if head.State.Format == 0 {
			return nil // nothing is known but what the operator says
		}
	} else if head.RolledBack != nil {
		return head.RolledBack
	} else if head.StateLost != nil {
		return head.StateLost
	}
	if state.LogEpoch < head.State.LogEpoch || state.LSN.Reserved < head.State.LSN.Reserved {
		return fault.New(fault.Fenced, "staging commit %s of table %s: log epoch %d with reservation %d is below the table's %d with %d",
			c.CommitID, name, state.LogEpoch, state.LSN.Reserved, head.State.LogEpoch, head.State.LSN.Reserved)
	}
	have := head.State.Positions()
	after := state.Positions()
	for part, pos := range have {
		if after[part].Next < pos.Next || after[part].Start != pos.Start {
			return fault.New(fault.OutOfOrder, "staging commit %s of table %s: %s would go back from %d to %d",
				c.CommitID, name, part, pos.Next, after[part].Next)
		}
	}
	for _, p := range state.Pipelines {
		for part, pos := range p.Positions {
			begins, old := pos.Start, have[part]
			if _, known := have[part]; known {
				begins = old.Next
			}
			if first, advanced := p.First[part]; (advanced && first != begins) || (!advanced && pos.Next != begins) {
				return fault.New(fault.OutOfOrder, "staging commit %s of table %s: %s goes from %d to %d, but the table ends at %d",
					c.CommitID, name, part, first, pos.Next, begins)
			}
		}
	}
	return nil
}

// clockSlack is how far the time of a snapshot may lie before that of the one before it: catalogs take no more.
const clockSlack = time.Minute

// clock refuses to stage while this machine's clock is behind the table's: the catalog would not take the snapshot.
func clock(name string, meta table.Metadata, now time.Time) error {
	last := time.UnixMilli(meta.LastUpdatedMillis()).UTC()
	if behind := last.Sub(now); behind > clockSlack {
		return fault.New(fault.Unavailable,
			"table %s was last changed at %s, and the clock of this machine is %s behind that: catalogs take no snapshot that is older than the table. Set the clock right, here or where that change was made; commits go on by themselves then",
			name, last.Format(time.RFC3339), behind.Round(time.Second))
	}
	return nil
}

func (t *Table) stage(ctx context.Context, head Head, state State, c Change) (*Staged, error) {
	before := t.handle()
	if err := clock(t.name, before.Metadata(), time.Now()); err != nil {
		return nil, err
	}
	st := &Staged{CommitID: c.CommitID, Base: head.SnapshotID, before: before}
	meta, err := t.changeSchema(st, before.Metadata(), c.Schema)
	if err != nil {
		return nil, err
	}
	tbl := t.rehandle(meta)
	tx := tbl.NewTransaction()
	if err := tx.AssertRefSnapshotID(""); err != nil {
		return nil, err
	}
	if err := t.changeSettings(tx, head, c); err != nil {
		return nil, err
	}
	keys, err := encodeState(state)
	if err != nil {
		return nil, err
	}
	summary := maps.Clone(keys)
	summary[keyKind] = c.Kind
	if c.Kind == KindReplay {
		var rows int64
		for _, f := range c.Files {
			rows += f.Rows
		}
		summary[keyReplay] = strconv.FormatInt(rows, 10)
	}
	if c.Reset != nil {
		if summary[keyReset], err = encodeReset(*c.Reset); err != nil {
			return nil, err
		}
	}
	if err := addFiles(ctx, tx, tbl, c.Files, summary); err != nil {
		return nil, err
	}
	commit, err := tx.TableCommit()
	if err != nil {
		return nil, err
	}
	staged, err := tx.StagedTable()
	if err != nil {
		return nil, err
	}
	snapshot := staged.CurrentSnapshot()
	st.snapshot, st.SnapshotID, st.Sequence = snapshot, snapshot.SnapshotID, snapshot.SequenceNumber
	for _, f := range c.Files {
		st.Rows += f.Rows
	}
	st.requirements = append(st.requirements, commit.Requirements...)
	st.updates = append(st.updates, commit.Updates...)
	if c.Expire != nil {
		t.stageExpiry(st, before.Metadata(), state, *c.Expire)
	}
	return st, t.stageCopies(st, keys)
}

// changeSchema adds a schema to the request and returns the metadata as it will
// be, on which the rest is staged: the snapshot then names the new schema.
func (t *Table) changeSchema(st *Staged, meta table.Metadata, sch *schema.Schema) (table.Metadata, error) {
	if sch == nil {
		return meta, nil
	}
	converted, err := toIceberg(sch, nextSchemaID(meta))
	if err != nil {
		return nil, err
	}
	converted = identified(converted, meta.CurrentSchema())
	st.requirements = append(st.requirements,
		table.AssertCurrentSchemaID(meta.CurrentSchema().ID), table.AssertLastAssignedFieldID(meta.LastColumnID()))
	st.updates = append(st.updates, table.NewAddSchemaUpdate(converted), table.NewSetCurrentSchemaUpdate(-1))
	return table.UpdateTableMetadata(meta, st.updates, "")
}

// changeSettings puts number maps and settings into properties, and gives the
// table the partition spec and sort order that its settings ask for once their
// columns are there.
func (t *Table) changeSettings(tx *table.Transaction, head Head, c Change) error {
	props := iceberg.Properties{}
	if deployment := deploymentOf(c.State); deployment != "" && t.handle().Properties()[propertyOwner] == "" && !t.plain() {
		props[propertyOwner] = deployment // a table that others made is ours to look after from now on
	}
	if len(c.Numbers) > 0 {
		v, err := encodeNumberMaps(withNumbers(head.Numbers, c.Numbers))
		if err != nil {
			return err
		}
		props[propertyNumbers] = v
	}
	if c.Evolution != nil {
		v, err := encodeEvolution(*c.Evolution)
		if err != nil {
			return err
		}
		props[propertyEvolution] = v
	}
	partition, sort := head.Partition, head.Sort
	if c.Partition != nil {
		partition = *c.Partition
		props[propertyPartition] = partition
	}
	if c.Sort != nil {
		sort = *c.Sort
		props[propertySort] = sort
	}
	if err := tx.SetProperties(props); err != nil {
		return err
	}
	if c.Schema == nil && c.Partition == nil && c.Sort == nil {
		return nil
	}
	sch := head.Schema
	if c.Schema != nil {
		sch = c.Schema
	}
	if len(sch.Mapped()) == 0 {
		return nil
	}
	if err := changeSpec(tx, t.handle().Metadata(), partition, sch, c.Partition != nil); err != nil {
		return err
	}
	return changeSort(tx, t.handle().Metadata(), sort, sch, c.Sort != nil)
}

// deploymentOf is the deployment that the owners of the pipelines name.
func deploymentOf(s State) string {
	for _, p := range s.Pipelines {
		if deployment, _, ok := strings.Cut(p.Owner, "/"); ok {
			return deployment
		}
	}
	return ""
}

// changeSpec replaces the default partition spec. A table that has one keeps it
// unless the setting was changed: it may be somebody else's (case T7).
func changeSpec(tx *table.Transaction, meta table.Metadata, partition string, sch *schema.Schema, replace bool) error {
	spec := meta.PartitionSpec()
	if !replace && (partition == "" || spec.NumFields() > 0) {
		return nil
	}
	fields, err := parsePartition(partition)
	if err != nil {
		return err
	}
	update := tx.UpdateSpec(true)
	for _, f := range spec.Fields() {
		if _, void := f.Transform.(iceberg.VoidTransform); !void {
			update = update.RemoveField(f.Name)
		}
	}
	for _, f := range fields {
		if err := f.check(sch); err != nil {
			return err
		}
		update = update.AddField(f.column, f.iceberg(), f.name())
	}
	return update.Commit()
}

func changeSort(tx *table.Transaction, meta table.Metadata, sort string, sch *schema.Schema, replace bool) error {
	if !replace && (sort == "" || meta.DefaultSortOrder() != table.UnsortedSortOrderID) {
		return nil
	}
	fields, err := parseSort(sort)
	if err != nil {
		return err
	}
	if len(fields) == 0 {
		return tx.ReplaceSortOrder(table.UnsortedSortOrder)
	}
	order, err := sortOrder(fields, sch)
	if err != nil {
		return err
	}
	return tx.ReplaceSortOrder(order)
}

// addFiles makes the snapshot. The library's check for doubled paths reads every
// manifest (case T13) and its name mapping is not kept in step with schema
// changes, so both are off: our names are unique by construction and our files
// carry field ids.
func addFiles(ctx context.Context, tx *table.Transaction, tbl *table.Table, files []File, summary iceberg.Properties) error {
	if len(files) == 0 {
		sch, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
		if err != nil {
			return err
		}
		none, err := array.NewRecordReader(sch, nil)
		if err != nil {
			return err
		}
		defer none.Release()
		return tx.Append(ctx, none, summary)
	}
	data := make([]iceberg.DataFile, len(files))
	for i, f := range files {
		if f.data == nil {
			return fault.New(fault.Internal, "adding %s: the file was not made by a writer of this process", f.Path)
		}
		data[i] = f.data
	}
	if tbl.Metadata().Version() < 3 {
		return tx.AddDataFiles(ctx, data, summary, table.WithoutDuplicateCheck(), table.WithoutAutoNameMapping())
	}
	if slices.ContainsFunc(files, func(f File) bool { return f.args == nil }) {
		// Written before the table was upgraded. Rows get the same ids by inheritance;
		// manifests are not merged on this way, which the next commit makes good.
		return tx.NewRowDelta(summary).AddRows(data...).Commit(ctx)
	}
	if err := number(data, files, tbl.Metadata().NextRowID()); err != nil {
		return err
	}
	return tx.AddDataFiles(ctx, data, summary, table.WithoutDuplicateCheck(), table.WithoutAutoNameMapping())
}

// number gives the rows of files their ids (row lineage, format version 3): from the
// table's next one on, which the commit moves on by at least as many. They count
// only where the base is still the head when the commit lands, as all of it does.
func number(data []iceberg.DataFile, files []File, next int64) error {
	for i, f := range files {
		args := *f.args
		first := next
		args.FirstRowID = &first
		numbered, err := table.DataFileFromMetadata(args)
		if err != nil {
			return fmt.Errorf("numbering the rows of %s: %w", f.Path, err)
		}
		data[i] = numbered
		next += f.Rows
	}
	return nil
}

// stageCopies adds the high-water mark and the tag.
func (t *Table) stageCopies(st *Staged, keys map[string]string) error {
	if t.plain() {
		return nil
	}
	v, err := encodeMark(mark{Snapshot: st.SnapshotID, Sequence: st.Sequence, Keys: keys})
	if err != nil {
		return fmt.Errorf("writing %s: %w", propertyMark, err)
	}
	st.copies = []table.Update{
		table.NewSetPropertiesUpdate(iceberg.Properties{propertyMark: v}),
		table.NewSetSnapshotRefUpdate(tag, st.SnapshotID, table.TagRef, 0, 0, 0),
	}
	return nil
}

// Send asks the catalog for a staged commit. nil means that the catalog said
// yes; Conflict that it said no; anything else that nobody knows: the request
// may have landed, or may still land. Only Reload and Find tell.
func (t *Table) Send(ctx context.Context, st *Staged) error {
	ctx, cancel := context.WithTimeout(t.lake.storage(ctx), t.lake.cfg.Timeouts.Commit)
	defer cancel()
	copies := st.copies
	if t.plain() {
		copies = nil
	}
	removal := st.removal
	if st.sent {
		removal = nil // readers may have pinned, and others tagged, a snapshot of the list since it was made
	}
	st.sent = true
	meta, err := t.send(ctx, st, removal, copies)
	if len(copies) > 0 && (badRequest(err) || unauthorized(err)) {
		// A definite no, and the same snapshot without the copies can land only
		// once too.
		plain, again := t.send(ctx, st, removal, nil)
		if again == nil {
			t.refusedCopies(err)
		}
		meta, err = plain, again
	} else if err == nil && len(copies) > 0 {
		t.noCopies.Store(0)
	}
	if err != nil {
		return t.lake.manners.hint(classify(err, "committing %s to table %s", st.CommitID, t.name))
	}
	t.dropOldMetadata(ctx, st.before.Metadata(), meta)
	return nil
}

// refusedCopies notes that a commit was taken without the copies alone.
func (t *Table) refusedCopies(why error) {
	if t.noCopies.Add(1) == enoughRefusals {
		t.log.Warn("the catalog refuses table properties or tags: commits go without the copy of the state", "error", why)
	}
}

func (t *Table) send(ctx context.Context, st *Staged, removal, copies []table.Update) (table.Metadata, error) {
	updates := slices.Concat(st.updates, removal, copies)
	meta, location, err := t.cat.CommitTable(ctx, t.ident, st.requirements, updates)
	if err == nil {
		t.answer(meta, location)
	}
	return meta, err
}
