package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
	"github.com/icestream/icestream/services/ingest/internal/pipeline"
	"github.com/icestream/icestream/services/ingest/internal/plan"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// What a plan is made of.
type (
	// PlanTable is the live table as far as a verdict depends on it.
	PlanTable = plan.Table
	// PlanStep is the verdict on one source schema.
	PlanStep = plan.Step
	// PlanSample says what became of the newest records of a topic partition.
	PlanSample = plan.Sampled
)

// PlanOptions say what is planned.
type PlanOptions struct {
	// Table looks up the live table of a pipeline. A table that is not there is no
	// error.
	Table func(ctx context.Context, pipeline, table string) (PlanTable, error)
	// Pipelines are the names of those to look at; empty for all.
	Pipelines []string
	// Only is the table to look at; empty for all.
	Only string
	// Subject replaces the subjects that the topics stand for, Version (above 0)
	// all versions.
	Subject string
	Version int
	// File is a Protobuf file that is not registered yet, with its text and the
	// files that it may import by import path; it replaces the registry.
	File    string
	Text    string
	Imports map[string]string
	// Sample is how many of the newest records of each partition are decoded.
	Sample int
	// Log may be nil.
	Log *slog.Logger
}

// PlanReport is the result of Plan.
type PlanReport struct {
	Steps   []PlanStep   `json:"steps"`
	Samples []PlanSample `json:"samples,omitempty"`
	// Unknown is what could not be found out.
	Unknown []string `json:"unknown,omitempty"`
}

// Breaking reports whether records of some schema would not land as rows.
func (r *PlanReport) Breaking() bool {
	return slices.ContainsFunc(r.Steps, func(s PlanStep) bool { return s.Verdict.Breaking() })
}

// Code is the exit code for the report: 1 for a breaking change, 2 when something
// could not be found out, 0 else.
func (r *PlanReport) Code() run.Code {
	switch {
	case r.Breaking():
		return run.Violated
	case len(r.Unknown) > 0:
		return run.CannotTell
	default:
		return run.OK
	}
}

// Plan compares schemas of the registry (or of a file) with the live tables and
// decodes the newest records of each partition, as the settings say and without
// any service. It changes nothing and takes part in no consumer group. An error
// means that the question was wrong; what cannot be reached is in the report.
func Plan(ctx context.Context, settings *config.Config, o PlanOptions) (*PlanReport, error) {
	c := Config{Settings: settings}
	if err := c.normal(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	schemas, err := c.newRegistry()
	if err != nil {
		return nil, err
	}
	p := &planner{c: &c, o: o, schemas: schemas, report: &PlanReport{Steps: []PlanStep{}}, judges: map[[2]string]*plan.Judge{}}
	found := false
	for i := range settings.Pipelines {
		pl := &settings.Pipelines[i]
		if len(o.Pipelines) > 0 && !slices.Contains(o.Pipelines, pl.Name) {
			continue
		}
		some, err := p.pipeline(ctx, pl)
		if err != nil {
			return nil, err
		}
		found = found || some
	}
	if !found && len(p.report.Unknown) == 0 {
		return nil, fault.New(fault.NotFound, "planning: no pipeline of the configuration matches pipelines %q, table %q; it has %q",
			o.Pipelines, o.Only, settings.PipelineNames())
	}
	return p.report, nil
}

type planner struct {
	c       *Config
	o       PlanOptions
	schemas *registry.Client
	report  *PlanReport
	judges  map[[2]string]*plan.Judge // by pipeline and table
}

func (p *planner) unknown(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.report.Unknown, text) {
		p.report.Unknown = append(p.report.Unknown, text)
	}
}

func (p *planner) add(steps ...PlanStep) {
	for _, s := range steps {
		if s.Verdict == plan.Unknown {
			p.unknown("pipeline %s: %s: %s", s.Pipeline, s.Source, s.Error)
		}
		p.report.Steps = append(p.report.Steps, s)
	}
}

// pipeline plans one pipeline; false means that it has nothing to do with the question.
func (p *planner) pipeline(ctx context.Context, pl *config.Pipeline) (bool, error) {
	cdc, err := codecsOf(pl, p.schemas, p.o.File != "")
	if err != nil {
		return false, err
	}
	src, err := p.c.sourceConfig(pl, int64(p.c.Settings.Limits.IngestBytes), p.o.Log)
	if err != nil {
		return false, err
	}
	topics := p.topics(ctx, pl, src)
	tables, err := pl.TopicTables(slices.Collect(maps.Keys(topics)))
	if err != nil {
		p.unknown("pipeline %s: %s", pl.Name, err)
	}
	some := false
	for _, topic := range slices.Sorted(maps.Keys(tables)) {
		if p.o.Only != "" && p.o.Only != tables[topic] {
			delete(topics, topic)
			continue
		}
		some = true
		if j := p.judge(ctx, pl, tables[topic]); j != nil {
			p.schemasOf(ctx, pl, cdc, j, topic)
		} else {
			delete(topics, topic)
		}
	}
	if p.o.Sample > 0 && len(topics) > 0 {
		p.samples(ctx, pl, cdc, src, topics, tables)
	}
	return some, nil
}

// topics are those that the pipeline reads, from the cluster where that is needed.
func (p *planner) topics(ctx context.Context, pl *config.Pipeline, src source.Config) map[string]source.Topic {
	out := map[string]source.Topic{}
	for _, t := range pl.Topics {
		out[t] = source.Topic{Name: t}
	}
	if p.o.Sample <= 0 && pl.Pattern == "" {
		return out
	}
	_, there, err := source.Probe(ctx, src)
	if err != nil {
		p.unknown("pipeline %s: looking up its topics: %s", pl.Name, err)
	}
	maps.Copy(out, there)
	return out
}

// judge is nil where the table cannot be looked up.
func (p *planner) judge(ctx context.Context, pl *config.Pipeline, table string) *plan.Judge {
	key := [2]string{pl.Name, table}
	if j, known := p.judges[key]; known {
		return j
	}
	t, err := p.o.Table(ctx, pl.Name, table)
	if err != nil {
		p.unknown("table %s: %s", table, err)
		p.judges[key] = nil
		return nil
	}
	t.Name = table
	if !t.Exists {
		t.FormatVersion = pl.FormatVersion
	}
	p.judges[key] = plan.NewJudge(pl.Name, pl.OnRename == "rename", t)
	return p.judges[key]
}

// schemasOf judges the schemas that records of a topic may have.
func (p *planner) schemasOf(ctx context.Context, pl *config.Pipeline, cdc plan.Codecs, j *plan.Judge, topic string) {
	if p.o.File != "" {
		p.file(ctx, pl, cdc, j)
		return
	}
	subject := registry.Qualified(pl.Schema.Context, cmp.Or(p.o.Subject, pl.Schema.Subject, topic+"-value"))
	keys := registry.Qualified(pl.Schema.Context, topic+"-key")
	fixed := pl.Schema.Framing == "none" && pl.Schema.ID != 0 && p.o.Subject == ""
	if fixed || p.schemas == nil || !config.Registered(pl.Format) {
		p.add(p.judged(ctx, j, cdc, keys, "the configured schema", func() (pipeline.Source, error) {
			return cdc.Value.Source(ctx, &frame.Frame{Form: frame.Fixed})
		}))
		return
	}
	versions, err := p.versions(ctx, subject)
	if err != nil {
		p.unknown("pipeline %s: subject %s: %s", pl.Name, subject, err)
		return
	}
	for _, v := range versions {
		p.add(p.version(ctx, cdc, j, keys, subject, v))
	}
}

func (p *planner) versions(ctx context.Context, subject string) ([]int, error) {
	if p.o.Version > 0 {
		return []int{p.o.Version}, nil
	}
	versions, err := p.schemas.Versions(ctx, subject)
	if errors.Is(err, registry.ErrNotFound) {
		err = fmt.Errorf("the registry does not have it; name the subject with --subject: %w", err)
	}
	return versions, err
}

func (p *planner) version(ctx context.Context, cdc plan.Codecs, j *plan.Judge, keys, subject string, v int) PlanStep {
	step := p.judged(ctx, j, cdc, keys, fmt.Sprintf("subject %s version %d", subject, v), func() (pipeline.Source, error) {
		return p.sourceOf(ctx, cdc.Value, subject, v)
	})
	step.Subject, step.Version = subject, v
	return step
}

// sourceOf is the source of a version of a subject, 0 for the latest, in the context that the subject names.
func (p *planner) sourceOf(ctx context.Context, codec pipeline.Codec, subject string, version int) (pipeline.Source, error) {
	schemed, ok := codec.(pipeline.Schemed)
	if !ok {
		return nil, fmt.Errorf("reading subject %s: the format has no schemas in the registry", subject)
	}
	id, err := p.schemas.ID(ctx, subject, version)
	if err != nil {
		return nil, err
	}
	return schemed.SourceAt(ctx, registry.Ref{ID: id, Context: registry.ContextOf(subject)})
}

// judged is the verdict on a source, with the column of the key, of a subject of its own, where there is one.
func (p *planner) judged(ctx context.Context, j *plan.Judge, cdc plan.Codecs, keys, what string, find func() (pipeline.Source, error)) PlanStep {
	s, err := find()
	if err == nil && cdc.Key != nil {
		var key pipeline.Source
		if key, err = p.keySource(ctx, cdc.Key, keys); err == nil && key != nil {
			s = pipeline.WithKey(s, key)
		}
	}
	if err != nil {
		return j.Failed(what, err)
	}
	return j.Judge(s)
}

// keySource is the newest schema of the subject of keys, nil where the registry has none.
func (p *planner) keySource(ctx context.Context, key pipeline.Codec, subject string) (pipeline.Source, error) {
	if f, err := key.Split(nil, nil); err == nil && f.Form == frame.Fixed {
		return key.Source(ctx, &f)
	}
	src, err := p.sourceOf(ctx, key, subject, 0)
	if errors.Is(err, registry.ErrNotFound) {
		return nil, nil
	}
	return src, err
}

// codecsOf are the formats of a pipeline; a file that is compared needs no registry.
func codecsOf(pl *config.Pipeline, schemas *registry.Client, file bool) (plan.Codecs, error) {
	var out plan.Codecs
	var err error
	if out.Value, err = codec(pl, schemas); err == nil && !file {
		out.Key, err = keyCodec(pl, schemas)
	}
	return out, err
}

// file judges a file that is not registered. The key's column is left out: its schema is not in the file.
func (p *planner) file(ctx context.Context, pl *config.Pipeline, cdc plan.Codecs, j *plan.Judge) {
	files, ok := cdc.Value.(*pipeline.Protobuf)
	if !ok {
		p.unknown("pipeline %s: its format is %s, only Protobuf files can be compared", pl.Name, pl.Format)
		return
	}
	p.add(p.judged(ctx, j, plan.Codecs{Value: cdc.Value}, "", "file "+p.o.File, func() (pipeline.Source, error) {
		return files.FileSource(ctx, p.o.File, p.o.Text, p.o.Imports)
	}))
}

// samples decodes the newest records of each partition.
func (p *planner) samples(ctx context.Context, pl *config.Pipeline, cdc plan.Codecs, src source.Config, topics map[string]source.Topic, tables map[string]string) {
	maps.DeleteFunc(topics, func(_ string, t source.Topic) bool { return len(t.Partitions) == 0 }) // not there, and said so
	list, err := source.ReadSamples(ctx, src, topics, int64(p.o.Sample))
	if err != nil {
		p.unknown("pipeline %s: reading samples: %s", pl.Name, err)
		return
	}
	for _, s := range list {
		table := tables[s.Topic]
		j := p.judges[[2]string{pl.Name, table}]
		if j == nil {
			continue
		}
		out := PlanSample{Pipeline: pl.Name, Table: table, Topic: s.Topic, Partition: s.Number, From: s.From, Next: s.End}
		steps, err := j.Sample(ctx, cdc, int64(p.c.Settings.Limits.RecordMax), s.Records, &out)
		p.add(steps...)
		switch {
		case err != nil:
			out.Error = err.Error()
		case !s.Whole:
			out.Error = "time was up before the end was reached"
		}
		if out.Error != "" {
			p.unknown("sample of %s: %s", s.TopicPartition, out.Error)
		}
		p.report.Samples = append(p.report.Samples, out)
	}
}
