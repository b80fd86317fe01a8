package dev

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer"
)

// ownQuiet is how long nothing may have been committed after Ctrl-C until what is left is told.
const ownQuiet = 3 * time.Second

// own runs the user's pipelines until Ctrl-C, then commits and audits each table.
func (d *driver) own(outer, inner context.Context) error {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-outer.Done():
			return d.ownEnd(inner)
		case <-inner.Done():
			return fault.New(fault.Stopped, "the services ended before the run did: see %s", logFile)
		case <-tick.C:
			d.ownStats(inner)
		}
	}
}

// ownStats shows every table, and what the services wait for.
func (d *driver) ownStats(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := d.reads.ListTables(call, &readstatev1.ListTablesRequest{})
	if err != nil {
		return
	}
	tables := make([]TableStats, 0, len(list.GetTables()))
	for _, t := range list.GetTables() {
		tables = append(tables, TableStats{t.GetTable(), t.GetHotRows(), t.GetSnapshotId(), t.GetState()})
	}
	d.view.tables(time.Since(d.started), tables, d.waiting())
}

// ownEnd commits what was produced, audits each table, and says what is in none.
func (d *driver) ownEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, finalTimeout)
	defer cancel()
	left, err := d.ownSettle(ctx)
	if err != nil {
		return err
	}
	list, err := d.reads.ListTables(ctx, &readstatev1.ListTablesRequest{})
	if err != nil {
		return wire.FromStatus(err)
	}
	d.view.end()
	var errs []error
	next := []string{"now try:"}
	for _, t := range list.GetTables() {
		next = append(next, fmt.Sprintf("  %s read --dir %s %s --limit 5", d.o.Program, d.o.Dir, t.GetTable()))
		_, err := d.admin.CommitNow(ctx, &committerv1.CommitNowRequest{Table: t.GetTable()})
		// A table of an earlier run in the folder that no pipeline feeds any more is not open: nothing is to be committed.
		if err = wire.FromStatus(err); err != nil && fault.ReasonOf(err) != fault.UnknownTable {
			errs = append(errs, err)
			continue
		}
		audit, err := committer.Audit(ctx, d.process.Config, t.GetTable(), committer.AuditOptions{Log: d.process.Log})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d.view.say("audit", audit.String(), map[string]any{"table": t.GetTable(), "verdict": audit.Verdict.String()})
		if code := audit.Verdict.Code(); code != run.OK {
			errs = append(errs, run.WithCode(code, fault.New(fault.Corrupt, "the audit of %s says: %s", t.GetTable(), audit.Verdict)))
		}
	}
	err = errors.Join(errs...)
	if err == nil && len(left) > 0 { // all that is in the tables is exact
		waiting := d.waiting()
		d.view.say("left", "produced, and in no table yet:\n  "+strings.Join(append(slices.Clone(left), waitingLines(waiting)...), "\n  "),
			map[string]any{"left": left, "reasons": waiting})
		err = run.WithCode(run.CannotTell, fault.New(fault.NotReady, "the tables are exact, but not all that was produced is in them: %s; `%s` goes on",
			strings.Join(fault.FirstOf(left, 3), "; "), GoOn(d.o.Dir)))
	}
	if code := run.CodeOf(err); len(list.GetTables()) > 0 && (code == run.OK || code == run.CannotTell) {
		d.view.say("next", strings.Join(next, "\n"), map[string]any{"exit_code": int(code)})
	}
	return err
}

// ownSettle commits until all that the topics held when it was called is in a table, or nothing moves any more. It
// returns what is left.
func (d *driver) ownSettle(ctx context.Context) (left []string, err error) {
	ends, err := d.ownEnds(ctx)
	if err != nil {
		return nil, err
	}
	at, since := int64(-1), time.Now()
	for {
		committed, err := d.ownCommitted(ctx)
		if err != nil {
			return nil, err
		}
		var total int64
		for _, n := range committed {
			total += n
		}
		if total != at {
			at, since = total, time.Now()
		}
		if left = ownLeft(d.process.Config.Pipelines, ends, committed); len(left) == 0 || time.Since(since) > ownQuiet {
			return left, nil
		}
		select {
		case <-ctx.Done():
			return left, nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// readPartition is a topic partition as one pipeline reads it.
type readPartition struct {
	pipeline, topic string
	number          int32
}

// ownCommitted commits every table and returns the committed position of each partition.
func (d *driver) ownCommitted(ctx context.Context) (map[readPartition]int64, error) {
	list, err := d.reads.ListTables(ctx, &readstatev1.ListTablesRequest{})
	if err != nil {
		return nil, wire.FromStatus(err)
	}
	out := map[readPartition]int64{}
	for _, t := range list.GetTables() {
		// What stops a commit is in the component's reason, and what is left in the answer.
		_, _ = d.admin.CommitNow(ctx, &committerv1.CommitNowRequest{Table: t.GetTable()})
		desc, err := d.reads.DescribeTable(ctx, &readstatev1.DescribeTableRequest{Table: t.GetTable()})
		if err != nil {
			return nil, wire.FromStatus(err)
		}
		for _, p := range desc.GetPartitions() {
			at := readPartition{p.GetPartition().GetPipeline(), p.GetPartition().GetTopic(), p.GetPartition().GetNumber()}
			out[at] = max(out[at], p.GetCommitted())
		}
	}
	return out, nil
}

// ownEnds is how far every topic reaches that a pipeline reads.
func (d *driver) ownEnds(ctx context.Context) (map[string][]int64, error) {
	topics, err := d.peers.kafka.Topics(ctx)
	ends := map[string][]int64{}
	for _, topic := range topics {
		ends[topic] = d.peers.kafka.EndOffsets(topic)
	}
	return ends, err
}

// ownLeft names the partitions whose records up to the end are not all in a table.
func ownLeft(pipelines []config.Pipeline, ends map[string][]int64, committed map[readPartition]int64) (left []string) {
	for i := range pipelines {
		p := &pipelines[i]
		for topic, list := range ends {
			if !p.Matches(topic) {
				continue
			}
			for n, end := range list {
				at, known := committed[readPartition{p.Name, topic, int32(n)}]
				if !known && p.Start.Mode != "earliest" || at >= end { // where it begins is not known before it is read
					continue
				}
				left = append(left, fmt.Sprintf("%s of pipeline %s: %s from offset %d on", ident.TopicPartition(topic, int32(n)), p.Name, many(end-at, "record"), at))
			}
		}
	}
	slices.Sort(left)
	return left
}
