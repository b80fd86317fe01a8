package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/lru"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/forward"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// callTimeout bounds calls to the committer, which may have to commit before it answers.
const callTimeout = 60 * time.Second

// maxPlans bounds the plans of a table: writers may bring schemas without end. A plan that is dropped and needed again is
// agreed on again; sessions keep those that they hold.
const maxPlans = 256

// table is one table that the pipeline feeds: its state at the committer, its append stream, its decode plans.
type table struct {
	p      *Pipeline
	name   string
	stream *forward.Stream

	opening run.Turn // one OpenTable at a time

	mu        sync.Mutex
	opened    bool
	running   bool   // the stream has been started
	buffer    string // where the committer says it is, "" to discover it
	at        string // where the stream led last
	positions ident.Positions
	latest    *event.Schema
	plans     *lru.Cache[planKey, *plan]
	proposing map[planKey]run.Turn // of plans that are being agreed on
	convinced map[string]time.Time // topics whose records fit the settings, and until when that is believed
	down      error
}

// plan is how the payloads of one source schema become rows of the table.
type plan struct {
	id     planKey
	target *batch.Target
	agreed *event.Schema // what the committer answered
	source Source
	make   func() batch.Rows

	// refused is set instead where an operator sends the records of a refused schema to quarantine; until says when to
	// ask again, since the operator may decide otherwise.
	refused *RecordError
	until   time.Time

	mu   sync.Mutex
	free []batch.Rows
}

func (pl *plan) rows() batch.Rows {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if n := len(pl.free); n > 0 {
		r := pl.free[n-1]
		pl.free = pl.free[:n-1]
		return r
	}
	return pl.make()
}

// put takes a batch back after Reset.
func (pl *plan) put(r batch.Rows) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.free = append(pl.free, r)
}

func newTable(p *Pipeline, name string) *table {
	t := &table{p: p, name: name, opening: run.NewTurn(), positions: ident.Positions{}, plans: lru.New[planKey, *plan](maxPlans), proposing: map[planKey]run.Turn{}}
	t.stream = forward.New(forward.Options{
		Connect: t.connect, Moved: t.moved, Table: name, Pipeline: p.c.Pipeline.Name, Instance: p.c.Instance, Budget: p.budget,
		Backoff:   backoff.Policy{Initial: 50 * time.Millisecond, Max: 2 * time.Second, Factor: 2, Jitter: 0.3},
		Committed: t.committed, State: t.state, Log: p.c.Log,
	})
	return t
}

func (t *table) connect(ctx context.Context) (grpc.ClientConnInterface, error) {
	t.mu.Lock()
	addr := t.buffer
	t.mu.Unlock()
	conn, at, err := t.p.c.Buffer(ctx, t.name, addr)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.at = at
	t.mu.Unlock()
	return conn, nil
}

func (t *table) moved(ctx context.Context) string {
	t.mu.Lock()
	at := t.at
	t.mu.Unlock()
	return t.p.c.Moved(ctx, t.name, at)
}

func (t *table) state(err error) {
	t.mu.Lock()
	t.down = err
	if err != nil {
		t.buffer = "" // the table may have moved: discover its owner again
	}
	t.mu.Unlock()
	t.p.changed()
}

// committed takes committed positions in and has them committed to the Kafka group.
func (t *table) committed(ps ident.Positions) {
	t.mu.Lock()
	maps.Copy(t.positions, ps)
	t.mu.Unlock()
	t.p.commitSoon()
}

func (t *table) position(p ident.Partition) (ident.Position, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pos, ok := t.positions[p]
	return pos, ok
}

// open makes sure that the committer has opened the table and knows the partition, and that the stream runs. With
// again it asks the committer even if it seems to know.
func (t *table) open(ctx context.Context, part ident.Partition, again bool) error {
	if err := t.opening.Take(ctx); err != nil {
		return err
	}
	defer t.opening.Give()
	t.mu.Lock()
	opened := t.opened
	t.mu.Unlock()
	if !opened {
		if err := t.call(ctx, nil); err != nil {
			return err
		}
	}
	if _, known := t.position(part); !known || again {
		if err := t.knownOtherwise(part); err != nil {
			return err
		}
		starts, err := t.starts(ctx, part)
		if err != nil {
			return err
		}
		if err := t.call(ctx, starts); err != nil {
			return err
		}
		if _, known := t.position(part); !known {
			return fault.New(fault.Unavailable, "opening table %s: the committer does not know %s yet", t.name, part)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.running {
		t.running = true
		t.p.spawn(func(ctx context.Context) { _ = t.stream.Run(ctx) }) // ends with ctx
	}
	return nil
}

// knownOtherwise refuses a partition whose topic the table knows under another id: the topic was created again.
func (t *table) knownOtherwise(part ident.Partition) error {
	if part.TopicID.IsZero() || t.p.c.Pipeline.OnDataLoss == "continue" {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for p, pos := range t.positions {
		if p.Topic == part.Topic && p.Number == part.Number && !p.TopicID.IsZero() && p.TopicID != part.TopicID {
			return &stopError{fmt.Errorf("%w: table %s holds %s up to offset %d under the topic id %s, the cluster has %s; set on_data_loss: continue to read the new topic from its beginning",
				source.ErrRecreated, t.name, part, pos.Next, p.TopicID, part.TopicID)}
		}
	}
	return nil
}

// starts proposes a start for every partition that feeds the table and that it does not know. Only a table that knows
// nothing of the pipeline takes the configured start: whatever appears later begins at the earliest record. The asked
// partition is named even if it is known, since the log may have said that it is not.
func (t *table) starts(ctx context.Context, asked ident.Partition) ([]*committerv1.PartitionStart, error) {
	topics := t.p.topicsOf(t.name)
	t.mu.Lock()
	s := t.p.start
	if len(t.positions) > 0 {
		s = source.Start{Mode: "earliest"}
	}
	t.mu.Unlock()
	offsets, err := t.p.consumer.Starts(ctx, s, topics)
	if err != nil {
		return nil, fmt.Errorf("looking up where table %s starts: %w", t.name, err)
	}
	var out []*committerv1.PartitionStart
	for _, topic := range topics {
		for _, n := range topic.Partitions {
			part := t.p.partition(topic, n)
			pos, known := t.position(part)
			if known && part != asked {
				continue
			}
			start, found := offsets[source.TopicPartition{Topic: topic.Name, Number: n}]
			switch {
			case !known && found:
				pos.Start = start
			case !known && part == asked:
				return nil, fault.New(fault.Unavailable, "looking up where table %s starts: %s has no leader at the moment", t.name, part)
			case !known: // it is asked for when it is back
				continue
			}
			out = append(out, &committerv1.PartitionStart{Partition: wire.PartitionToProto(part), Start: pos.Start})
		}
	}
	return out, nil
}

func (t *table) call(ctx context.Context, starts []*committerv1.PartitionStart) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := t.p.c.Committer(ctx, t.name)
	if err != nil {
		return fmt.Errorf("finding the committer of table %s: %w", t.name, err)
	}
	c := t.p.c.Pipeline
	resp, err := committerv1.NewTableServiceClient(conn).OpenTable(ctx, &committerv1.OpenTableRequest{
		Pipeline: c.Name, Revision: t.p.c.Revision, Table: t.name, Owner: t.p.owner(), Partitions: starts,
		Settings: &committerv1.TableSettings{
			Partition: c.Partition.String(), Sort: c.Sort.String(), MetadataLsn: c.Lsn(), MetadataKafka: c.KafkaColumn(),
			Properties: c.TableProperties(),
		},
	})
	if err != nil {
		return stopIfFinal(fmt.Errorf("opening table %s: %w", t.name, wire.FromStatus(err)))
	}
	ps, err := wire.PositionsFromProto(resp.GetPositions())
	if err != nil {
		return fmt.Errorf("opening table %s: reading its positions: %w", t.name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opened, t.buffer = true, resp.GetBuffer()
	for p, pos := range ps {
		if have, ok := t.positions[p]; !ok || have.Next < pos.Next {
			t.positions[p] = pos
		}
	}
	if resp.GetSchema() != nil {
		s, err := wire.SchemaFromProto(resp.GetSchema())
		if err != nil {
			return fmt.Errorf("opening table %s: reading its schema: %w", t.name, err)
		}
		t.latest = &s
	}
	return nil
}

// recordReplaced has the committer record that the cluster's log has other records at the offsets of r than were read.
func (t *table) recordReplaced(ctx context.Context, part ident.Partition, r ident.Range) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := t.p.c.Committer(ctx, t.name)
	if err != nil {
		return fmt.Errorf("finding the committer of table %s: %w", t.name, err)
	}
	_, err = committerv1.NewTableServiceClient(conn).RecordReplaced(ctx, &committerv1.RecordReplacedRequest{
		Table: t.name, Partition: wire.PartitionToProto(part), Range: wire.RangeToProto(r),
	})
	if err != nil {
		return t.failed(ctx, fmt.Errorf("recording in table %s that Kafka replaced offsets %v of %s: %w", t.name, r, part, wire.FromStatus(err)))
	}
	return nil
}

// failed takes in why a call about the table failed: a committer that does not know it is told, anew, and an answer that
// no retry changes is turned into a stop.
func (t *table) failed(ctx context.Context, err error) error {
	if errors.Is(err, fault.Of(fault.UnknownTable)) { // another committer than the one that opened it
		return errors.Join(err, t.call(ctx, nil))
	}
	return stopIfFinal(err)
}

// stopIfFinal turns an answer that no retry changes into a stop.
func stopIfFinal(err error) error {
	switch fault.ReasonOf(err) {
	case fault.SchemaRefused, fault.InvalidArgument, fault.Stopped, fault.Unauthorized, fault.Unsupported, fault.Corrupt:
		return &stopError{err}
	default:
		return err
	}
}

// planFor returns the plan for the frames of a record, agreeing on a target with the committer at its first use. The error is a
// *RecordError, a *stopError, or one that heals by itself.
func (t *table) planFor(ctx context.Context, r refs) (*plan, error) {
	key := r.planKey()
	t.mu.Lock()
	pl, _ := t.plans.Get(key)
	if pl.fresh() {
		t.mu.Unlock()
		return pl.result()
	}
	lock := t.proposing[key]
	if lock == nil {
		lock = run.NewTurn()
		t.proposing[key] = lock
	}
	t.mu.Unlock()
	if err := lock.Take(ctx); err != nil { // one partition asks, the others wait for its answer
		return nil, err
	}
	defer func() {
		t.mu.Lock()
		if t.proposing[key] == lock {
			delete(t.proposing, key) // ids must not pile up; those who wait hold the turn
		}
		t.mu.Unlock()
		lock.Give()
	}()
	t.mu.Lock()
	pl, _ = t.plans.Get(key)
	t.mu.Unlock()
	if pl.fresh() {
		return pl.result()
	}
	src, err := t.p.source(ctx, r)
	if err != nil {
		return nil, err
	}
	pl, err = t.agree(ctx, src)
	if err != nil {
		return nil, err
	}
	pl.id = key
	t.mu.Lock()
	t.plans.Put(key, pl)
	t.mu.Unlock()
	return pl.result()
}

// refusedFor is how long the records of a refused schema go to quarantine before the committer is asked again.
const refusedFor = 30 * time.Second

// fresh reports whether there is a plan and nothing needs to be asked.
func (pl *plan) fresh() bool {
	return pl != nil && (pl.refused == nil || time.Now().Before(pl.until))
}

func (pl *plan) result() (*plan, error) {
	if pl.refused != nil {
		return nil, pl.refused
	}
	return pl, nil
}

// agree proposes a source schema and compiles its plan for the target that the committer answers.
func (t *table) agree(ctx context.Context, src Source) (*plan, error) {
	target, err := t.propose(ctx, src)
	if rf, ok := errors.AsType[*RecordError](err); ok {
		return &plan{source: src, refused: rf, until: time.Now().Add(refusedFor)}, nil
	}
	if err != nil {
		return nil, err
	}
	s := &schema.Schema{}
	if err := json.Unmarshal(target.Columns, s); err != nil {
		return nil, fmt.Errorf("reading the target schema of table %s: %w", t.name, err)
	}
	make, err := Compile(src, s)
	if err != nil {
		return nil, &stopError{fmt.Errorf("compiling the decoder of %s for table %s: %w", src.Name(), t.name, err)}
	}
	t.mu.Lock()
	t.latest = target
	t.mu.Unlock()
	return &plan{source: src, make: make, target: newTarget(s, target.Fingerprint), agreed: target}, nil
}

func newTarget(s *schema.Schema, fingerprint string) *batch.Target {
	return &batch.Target{Schema: arrowx.RowSchema(s), Fingerprint: fingerprint, Mapped: len(s.Mapped())}
}

// propose asks the committer for the target of a source schema. The error is a *RecordError where an operator sends its
// records to quarantine.
func (t *table) propose(ctx context.Context, src Source) (*event.Schema, error) {
	return t.ask(ctx, src, false)
}

// ask is propose, or in a dry run a question that changes nothing.
func (t *table) ask(ctx context.Context, src Source, dry bool) (*event.Schema, error) {
	candidate, err := json.Marshal(src.Candidate())
	if err != nil {
		return nil, &stopError{fmt.Errorf("writing the candidate columns of %s: %w", src.Name(), err)}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := t.p.c.Committer(ctx, t.name)
	if err != nil {
		return nil, fmt.Errorf("finding the committer of table %s: %w", t.name, err)
	}
	resp, err := committerv1.NewTableServiceClient(conn).ProposeSchema(ctx, &committerv1.ProposeSchemaRequest{
		Pipeline: t.p.c.Pipeline.Name, Table: t.name, SourceSchema: src.Name(), Candidate: candidate,
		SourceOrder: orderOf(src), FollowRenames: t.p.c.Pipeline.OnRename == "rename", DryRun: dry,
	})
	if err != nil {
		return nil, t.failed(ctx, fmt.Errorf("proposing %s for table %s: %w", src.Name(), t.name, wire.FromStatus(err)))
	}
	if r := resp.GetRefusals(); len(r) > 0 {
		return nil, t.refusal(src, r, resp.GetQuarantine())
	}
	for _, change := range resp.GetChanges() {
		if dry {
			break
		}
		t.p.c.Log.Info("table schema changed", "table", t.name, "source", src.Name(), "change", change)
	}
	s, err := wire.SchemaFromProto(resp.GetSchema())
	if err != nil {
		return nil, fmt.Errorf("reading the target schema of table %s: %w", t.name, err)
	}
	return &s, nil
}

// ReasonSchemaRefused is the quarantine reason of records whose schema the table refuses, where an operator decided so.
const ReasonSchemaRefused = "schema_refused"

// refusal says why records of a source wait, and what ends it; or, where that was decided, why they are in quarantine.
func (t *table) refusal(src Source, list []*committerv1.SchemaRefusal, quarantine bool) error {
	var parts []string
	for _, r := range list {
		field := ""
		if r.GetField() != "" { // the source may call it otherwise: columns follow numbers
			field = " (field " + r.GetField() + ")"
		}
		parts = append(parts, fmt.Sprintf("column %s%s is %s in the table and %s in the source: %s",
			r.GetPath(), field, r.GetTableType(), r.GetSourceType(), r.GetWhy()))
	}
	text := fmt.Sprintf("table %s refuses %s: %s", t.name, src.Name(), strings.Join(fault.FirstOf(parts, 3), "; "))
	if quarantine {
		return &RecordError{Reason: ReasonSchemaRefused, Text: text}
	}
	return &stopError{fault.New(fault.SchemaRefused,
		"%s; the records wait until `icestream schema accept %s` (or ignore, or quarantine instead of accept) says what to do, or the table or the schema is changed", text, t.name)}
}

// orderOf is the age of a source schema among others, 0 where it is not known.
func orderOf(src Source) int64 {
	if o, ok := src.(interface{ Order() int64 }); ok {
		return o.Order()
	}
	return 0
}

// target asks the committer which schema rows of a plan have now, and has it publish that to the log.
func (t *table) target(ctx context.Context, pl *plan) (fingerprint string, err error) {
	if pl != nil && pl.source != nil {
		s, err := t.propose(ctx, pl.source)
		if err != nil {
			return "", err
		}
		return s.Fingerprint, nil
	}
	if err := t.call(ctx, nil); err != nil {
		return "", err
	}
	s, err := t.newest()
	if err != nil {
		return "", err
	}
	return s.Fingerprint, nil
}

// newest is the schema that the committer answered last.
func (t *table) newest() (*event.Schema, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.latest == nil {
		return nil, fault.New(fault.Unavailable, "the committer has not said which schema table %s has", t.name)
	}
	return t.latest, nil
}

// nullPlan makes tombstone rows where no record with a schema was seen yet.
func (t *table) nullPlan() (*plan, error) {
	latest, err := t.newest()
	if err != nil {
		return nil, err
	}
	s := &schema.Schema{}
	if err := json.Unmarshal(latest.Columns, s); err != nil {
		return nil, fmt.Errorf("reading the schema of table %s: %w", t.name, err)
	}
	mapped := s.Mapped()
	return &plan{id: planKey{noValue: true, noKey: true}, target: newTarget(s, latest.Fingerprint), make: func() batch.Rows { return &nullRows{mapped: mapped} }}, nil
}

// reconsider forgets that the records of a schema go to quarantine, so that the committer is asked again.
func (t *table) reconsider(key planKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if pl, _ := t.plans.Get(key); pl != nil && pl.refused != nil {
		t.plans.Delete(key)
	}
}

// forget drops a plan, so that its target is agreed on again.
func (t *table) forget(pl *plan) {
	if pl == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if have, _ := t.plans.Get(pl.id); have == pl {
		t.plans.Delete(pl.id)
	}
}
