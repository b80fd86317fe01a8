package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/devpeers/orders"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer"
)

// finalTimeout bounds the last commits and checks of a run.
const finalTimeout = 5 * time.Minute

// firstReadTimeout bounds the wait for the first read of a short run.
const firstReadTimeout = 10 * time.Second

// quietTime is how long a run may get nowhere until it says what is not ready.
const quietTime = 5 * time.Second

// statsEvery is how often the positions are asked for.
const statsEvery = 250 * time.Millisecond

// driver follows a run while the services work.
type driver struct {
	*runner

	reads  readstatev1.ReadStateServiceClient
	admin  committerv1.AdminServiceClient
	check  *checker
	reader *grpc.ClientConn

	readsChecked atomic.Int64
	reading      chan struct{} // holds one while a read is under way: two would only slow each other
	mu           sync.Mutex
	last         Stats
	began        []int64 // by partition: the positions that this run began with
	lastSnapshot int64
	lastCommit   time.Time
	firstHot     time.Duration
}

// drive produces, watches and verifies. outer ends at Ctrl-C, inner with the
// services.
func (r *runner) drive(outer, inner context.Context) error {
	a := r.stack.Addresses()
	limit := r.process.Config.Limits.MaxMessage()
	reader, err := boot.Dial(a["readstate"], limit)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	writer, err := boot.Dial(a["committer"], limit)
	if err != nil {
		return err
	}
	defer func() { _ = writer.Close() }()
	d := &driver{
		runner: r, reads: readstatev1.NewReadStateServiceClient(reader), reader: reader,
		admin: committerv1.NewAdminServiceClient(writer), reading: make(chan struct{}, 1),
	}
	if r.o.NoGenerator {
		return d.own(outer, inner)
	}
	if r.ledger, err = orders.OpenLedger(filepath.Join(r.o.Dir, ledgerFile)); err != nil {
		return err
	}
	defer func() { _ = r.ledger.Close() }()
	d.check = newChecker(reader, r.ledger, tableName)
	return d.generated(outer, inner)
}

// generated runs the generator and proves that everything came through.
func (d *driver) generated(outer, inner context.Context) error {
	before := d.ledger.Total() // by earlier runs, with --keep
	if err := d.peers.kafka.EnsureTopic(topic, partitions); err != nil {
		return err
	}
	d.began = d.peers.kafka.EndOffsets(topic)
	if n := unknown(d.began, d.ledger.Vector()); n > 0 {
		return fault.New(fault.InvalidArgument, "the run before in %s ended before its ledger was on disk: topic %s holds %s that it does not know, so nothing could be verified; "+
			"start without --keep, which clears the folder, or with --no-generator, which verifies nothing", d.o.Dir, topic, many(n, "record"))
	}
	producer, produced, err := d.produce(outer)
	if err != nil {
		return err
	}
	work, stop := context.WithCancel(inner)
	defer stop()
	faults := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { d.watch(work, func() int64 { return before + int64(producer.Acknowledged()) }) })
	wg.Go(func() { d.readAtRandom(work, faults) })
	select {
	case err = <-produced:
	case err = <-faults:
	case <-inner.Done():
		err = fault.New(fault.Stopped, "the services ended before the run did: see %s", logFile)
	}
	if err == nil || (outer.Err() != nil && !errors.Is(err, fault.Of(fault.Corrupt))) {
		d.view.say("produced", fmt.Sprintf("produced %s; committing and verifying", many(d.ledger.Total(), "record")),
			map[string]any{"records": d.ledger.Total()})
		if err = d.readBeforeTheEnd(work); err == nil {
			err = d.settle(work)
		}
	}
	stop()
	wg.Wait()
	if err == nil && len(faults) > 0 { // found while the last commits were made
		err = <-faults
	}
	if err != nil {
		return err
	}
	return d.verify(inner)
}

// watch keeps the view up to date, and says what is not ready when nothing moves.
func (d *driver) watch(ctx context.Context, produced func() int64) {
	tick := time.NewTicker(statsEvery)
	defer tick.Stop()
	s := stall{since: time.Now()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := d.measure(ctx, produced())
			d.view.stats(now)
			if waiting := s.tell(time.Now(), now, d.waiting()); len(waiting) > 0 {
				d.view.say("waiting", strings.Join(waitingLines(waiting), "\n"), map[string]any{"seconds": now.Elapsed.Seconds(), "reasons": waiting})
			}
			// A run that is killed can be continued with --keep; a failure is
			// sticky in the ledger and ends the production.
			_ = d.ledger.Flush()
		}
	}
}

// stall notices that a run gets nowhere.
type stall struct {
	visible, committed int64
	since              time.Time // of the last that moved or was said
	told               []string
}

// tell returns what is waited for if it is time to say so, and it was not said yet.
func (s *stall) tell(now time.Time, at Stats, waiting []string) []string {
	if at.Visible != s.visible || at.Committed != s.committed {
		*s = stall{visible: at.Visible, committed: at.Committed, since: now}
	}
	if now.Sub(s.since) < quietTime || slices.Equal(waiting, s.told) {
		return nil
	}
	s.told, s.since = waiting, now // a reason that keeps changing is not said all the time
	return waiting
}

// waiting names the components that are not ready, with their reasons: a topic that nobody has made yet, a table that
// belongs to another deployment.
func (d *driver) waiting() []string {
	var out []string
	for _, c := range d.process.Health.Report("").Components {
		if !c.Ready && c.Reason != "" {
			out = append(out, c.Name+": "+c.Reason)
		}
	}
	return out
}

// measure asks for the positions of the generator's table.
func (d *driver) measure(ctx context.Context, produced int64) Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.last
	s.Elapsed, s.Produced, s.Reads = time.Since(d.started), produced, d.readsChecked.Load()
	s.Quarantined = d.ledger.Count(orders.OutcomeQuarantine)
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	desc, err := d.reads.DescribeTable(call, &readstatev1.DescribeTableRequest{Table: tableName})
	if err != nil {
		s.judge(nil)
		return s // not there yet, or recovering; status tells
	}
	newest, now := d.newest(call), time.Now()
	s.Visible, s.Committed, s.Lag = 0, 0, 0
	for _, p := range desc.GetPartitions() {
		s.Visible += p.GetVisible()
		s.Committed += p.GetCommitted()
		s.Lag += p.GetLag()
	}
	s.Hot = desc.GetSummary().GetHotRows()
	if d.firstHot == 0 && beyond(d.began, desc.GetPartitions()) {
		d.firstHot = time.Since(d.started)
		d.view.say("first_hot_row", fmt.Sprintf("first hot row after %.1f s", d.firstHot.Seconds()), map[string]any{"seconds": d.firstHot.Seconds()})
	}
	if id := desc.GetCommit().GetSnapshotId(); id != d.lastSnapshot {
		if s.Committed > d.last.Committed {
			if s.Committed > sum(d.began) { // with --keep the table begins with the commits of earlier runs
				s.Commits++
			}
			d.lastCommit = time.UnixMicro(desc.GetCommit().GetCommitTime())
		}
		d.lastSnapshot = id
	}
	var old *float64
	if !newest.IsZero() {
		old = new(max(0, now.Sub(newest).Seconds()))
	}
	s.judge(old)
	s.CommittedFreshness = nil
	if !d.lastCommit.IsZero() {
		s.CommittedFreshness = new(now.Sub(d.lastCommit).Seconds())
	}
	d.last = s
	return s
}

// newest is the time of the newest record that a read would show now; zero where there is none. What ingest reports of itself
// comes once a second.
func (d *driver) newest(ctx context.Context) time.Time {
	begun, err := d.reads.BeginRead(ctx, &readstatev1.BeginReadRequest{Table: tableName, Lease: durationpb.New(time.Second)})
	if err != nil {
		return time.Time{}
	}
	_, _ = d.reads.EndRead(ctx, &readstatev1.EndReadRequest{ReadId: begun.GetReadId()}) // else its lease ends
	if begun.GetNewest() == nil {
		return time.Time{}
	}
	return begun.GetNewest().AsTime()
}

// unknown is the number of records below the ends of the topic that a ledger does not know.
func unknown(ends []int64, ledger map[int32]int64) (n int64) {
	for part, end := range ends {
		n += max(0, end-ledger[int32(part)])
	}
	return n
}

func sum(offsets []int64) (total int64) {
	for _, o := range offsets {
		total += o
	}
	return total
}

// beyond tells whether something is visible that was not there when the run
// began: with --keep the rows of earlier runs are visible at once.
func beyond(began []int64, now []*readstatev1.PartitionStatus) bool {
	return slices.ContainsFunc(now, func(p *readstatev1.PartitionStatus) bool {
		n := int(p.GetPartition().GetNumber())
		return n < len(began) && p.GetVisible() > began[n]
	})
}

// readAtRandom reads the union at random moments and compares it with the
// ledger. The first difference ends the run.
func (d *driver) readAtRandom(ctx context.Context, faults chan<- error) {
	took := time.Duration(0)
	for {
		// A read takes the whole table: as it grows, reads get rarer, so that
		// checking takes a tenth of the time and not all of it.
		// The first comes soon, so that a short run is read from too.
		pause := max(time.Duration(300+rand.IntN(1500))*time.Millisecond, 9*took)
		if d.readsChecked.Load() == 0 {
			pause = time.Duration(20+rand.IntN(200)) * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		began := time.Now()
		err := d.readOnce(ctx, false)
		took = time.Since(began)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !retryable(err) {
			faults <- err
			return
		}
	}
}

// readOnce compares one read of the union with the ledger. A read that saw no row
// is no proof of anything, and is not counted. With first only the first of a run
// is made: one that was under way already will do.
func (d *driver) readOnce(ctx context.Context, first bool) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case d.reading <- struct{}{}:
	}
	defer func() { <-d.reading }()
	if first && d.readsChecked.Load() > 0 {
		return nil
	}
	report, err := d.check.union(ctx)
	switch {
	case err != nil:
		return err
	case !report.OK():
		return violated("a read while records flowed differs from what was produced", report)
	case report.Seen > 0:
		d.readsChecked.Add(1)
	}
	return nil
}

// readBeforeTheEnd makes sure that a run too short for a random moment is read
// from while its rows are hot. It gives up where nothing can be read: what
// is wrong then, the last commits tell.
func (d *driver) readBeforeTheEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(d.o.firstRead, firstReadTimeout))
	defer cancel()
	for {
		if d.readsChecked.Load() > 0 {
			return nil
		}
		if err := d.readOnce(ctx, true); err != nil && ctx.Err() == nil && !retryable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// retryable errors of a read: the table is not there yet, or a commit took the
// snapshot away under it.
func retryable(err error) bool {
	r := fault.ReasonOf(err)
	return r.Retryable() || r == fault.UnknownTable || r == fault.SnapshotGone || r == fault.SchemaChanged || r == fault.WrongDoor ||
		errors.Is(err, context.DeadlineExceeded)
}

// settle commits until the committed position is the end offset everywhere.
func (d *driver) settle(ctx context.Context) error {
	limit := cmp.Or(d.o.settle, finalTimeout)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for {
		if _, err := d.admin.CommitNow(ctx, &committerv1.CommitNowRequest{Table: tableName}); err != nil {
			last = wire.FromStatus(err)
		}
		behind, err := d.behind(ctx)
		if err == nil && behind == "" {
			return nil
		}
		if err != nil {
			last = err
		}
		select {
		case <-ctx.Done():
			waiting := "every component is ready"
			if w := d.waiting(); len(w) > 0 {
				waiting = "not ready are " + strings.Join(w, "; ")
			}
			return errors.Join(fault.New(fault.Unavailable, "not everything was committed within %v: %s; %s; `icestream status --dir %s` and %s tell more",
				limit, behind, waiting, d.o.Dir, logFile), last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// behind names a partition whose committed position is not its end offset.
func (d *driver) behind(ctx context.Context) (string, error) {
	desc, err := d.reads.DescribeTable(ctx, &readstatev1.DescribeTableRequest{Table: tableName})
	if err != nil {
		return "the table cannot be described", wire.FromStatus(err)
	}
	committed := map[int32]int64{}
	for _, p := range desc.GetPartitions() {
		committed[p.GetPartition().GetNumber()] = p.GetCommitted()
	}
	for n, end := range d.peers.kafka.EndOffsets(topic) {
		if committed[int32(n)] != end {
			return fmt.Sprintf("partition %d is committed to %d of %d", n, committed[int32(n)], end), nil
		}
	}
	return "", nil
}

// verify compares union, files and quarantine with the ledger and audits the table.
func (d *driver) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, finalTimeout)
	defer cancel()
	d.view.stats(d.measure(ctx, d.ledger.Total()))
	d.view.end()
	name := strings.Split(tableName, ".")
	if d.o.Plant != "" {
		if err := d.peers.catalog.Plant(ctx, name, d.o.Plant); err != nil {
			return err
		}
		d.view.say("planted", fmt.Sprintf("planted on purpose: %s", d.o.Plant), map[string]any{"fault": d.o.Plant})
	}
	union, err := d.settledUnion(ctx)
	if err != nil {
		return err
	}
	files, err := d.check.files(ctx, d.peers.catalog, name)
	if err != nil {
		return err
	}
	quarantine, err := d.check.quarantine(ctx, d.peers.catalog, []string{name[0], name[1] + ident.QuarantineSuffix})
	if err != nil {
		return err
	}
	audit, err := committer.Audit(ctx, d.process.Config, tableName, committer.AuditOptions{Log: d.process.Log})
	if err != nil {
		return err
	}
	d.view.say("verified", d.summary(union, files, quarantine)+"\n"+audit.String(), map[string]any{
		"rows": files.Seen, "quarantined": quarantine.Seen, "tombstones_skipped": d.ledger.Count(orders.OutcomeSkip),
		"reads_checked": d.readsChecked.Load(), "union_exact": union.OK(), "files_exact": files.OK(), "quarantine_exact": quarantine.OK(),
		"audit": audit.Verdict.String(), "first_hot_row_seconds": d.firstHot.Seconds(), "seconds": time.Since(d.started).Seconds(),
	})
	var errs []error
	for _, c := range []struct {
		what   string
		report orders.Report
	}{
		{"the union of hot and cold differs", union},
		{"the files of the table differ", files},
		{"the quarantine differs", quarantine},
	} {
		if !c.report.OK() {
			errs = append(errs, violated(c.what+" from what was produced", c.report))
		}
	}
	if code := audit.Verdict.Code(); code != run.OK {
		errs = append(errs, run.WithCode(code, fault.New(fault.Corrupt, "the audit of %s says: %s", tableName, audit.Verdict)))
	}
	if len(errs) > 0 {
		return run.WithCode(run.Violated, errors.Join(errs...))
	}
	d.view.say("next", d.next(), map[string]any{"exit_code": 0})
	return nil
}

// settledUnion reads the union once more; after a planted fault the snapshot of
// another writer has to arrive first.
func (d *driver) settledUnion(ctx context.Context) (orders.Report, error) {
	for {
		report, err := d.check.union(ctx)
		if err == nil || !retryable(err) {
			return report, err
		}
		select {
		case <-ctx.Done():
			return report, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (d *driver) summary(union, files, quarantine orders.Report) string {
	mark := func(ok bool) string {
		if ok {
			return "exact"
		}
		return "WRONG"
	}
	reads := "none: the run was over before the first"
	if n := d.readsChecked.Load(); n > 0 {
		reads = count(n) + ", each exact"
	}
	return fmt.Sprintf(`verified against the generator's ledger, as multisets of (partition, offset, row checksum):
  reads while records flowed   %s
  union of hot and cold        %s: %s
  files of the table           %s: %s, read without our code
  quarantine                   %s: %s, byte for byte
  skipped                      %s
  time                         first hot row after %.1f s, everything after %.1f s`,
		reads, mark(union.OK()), many(union.Seen, "row"), mark(files.OK()), many(files.Seen, "row"), mark(quarantine.OK()),
		many(quarantine.Seen, "record"), many(d.ledger.Count(orders.OutcomeSkip), "tombstone"), d.firstHot.Seconds(), time.Since(d.started).Seconds())
}

// next is ready to paste once the run has ended.
func (d *driver) next() string {
	location := ""
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if desc, err := d.reads.DescribeTable(ctx, &readstatev1.DescribeTableRequest{Table: tableName}); err == nil {
		location = desc.GetCommit().GetMetadataLocation()
	}
	return fmt.Sprintf(`now try:
  %s read --dir %s %s --limit 5
  %s audit --dir %s %s
  duckdb -c "INSTALL iceberg; LOAD iceberg; SELECT count(*) FROM iceberg_scan('%s')"
  python -c "from pyiceberg.catalog.sql import SqlCatalog; print(SqlCatalog('icestream', uri='sqlite:///%s', warehouse='%s').load_table('%s').scan().to_arrow().num_rows)"  # pip install 'pyiceberg[sql-sqlite,pyarrow]'`,
		d.o.Program, d.o.Dir, tableName, d.o.Program, d.o.Dir, tableName, location, d.peers.catalog.DatabasePath(), d.peers.catalog.Warehouse(), tableName)
}
