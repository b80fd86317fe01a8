package committer

import (
	"context"
	"errors"
	"log/slog"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// AuditOptions say how an audit is made. The zero value is usable.
type AuditOptions struct {
	// Deep reads the _kafka columns of the whole table as well.
	Deep bool
	// Memory bounds what a deep audit remembers of offsets, in bytes; 256 MiB when
	// zero.
	Memory int64
	// Kafka, when set, is the log that the table is compared with; it makes the
	// audit deep.
	Kafka KafkaLog
	// Progress, when set, hears how far the reading is.
	Progress func(AuditProgress)
	// Log may be nil.
	Log *slog.Logger
}

// What an audit against Kafka needs, and how far a deep one is.
type (
	KafkaLog      = lake.KafkaLog
	LogTopic      = lake.LogTopic
	LogRecord     = lake.LogRecord
	AuditProgress = lake.Progress
)

// Report is the result of an audit: numbers per partition and what was found. Its
// JSON form is for programs.
type Report struct {
	lake.Report
	Verdict Verdict `json:"verdict"`
}

// String is the report for people.
func (r Report) String() string { return r.Text() }

// Verdict says what an audit proved.
type Verdict lake.Verdict

// The verdicts.
const (
	Proven   = Verdict(lake.Proven)
	Violated = Verdict(lake.Violated)
	Unknown  = Verdict(lake.Unknown)
)

// String is the verdict in words.
func (v Verdict) String() string { return lake.Verdict(v).String() }

// MarshalText writes the words.
func (v Verdict) MarshalText() ([]byte, error) { return lake.Verdict(v).MarshalText() }

// Code is the exit code of the verdict.
func (v Verdict) Code() run.Code {
	switch v {
	case Proven:
		return run.OK
	case Violated:
		return run.Violated
	default:
		return run.CannotTell
	}
}

// Audit proves G1 from the table alone, or against the log, with the catalog
// section of the settings. It only reads, and needs no running service. An error means that it
// could not be carried out at all.
func Audit(ctx context.Context, settings *config.Config, table string, o AuditOptions) (Report, error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l, err := lake.Open(ctx, lakeConfig(settings.Catalog), log)
	if err != nil {
		return Report{}, err
	}
	report, err := lake.Audit(ctx, l, table, lake.AuditOptions{Deep: o.Deep, Memory: o.Memory, Log: o.Kafka, Progress: o.Progress})
	return Report{Report: report, Verdict: Verdict(report.Verdict)}, errors.Join(meant(ctx, l, table, err), l.Close())
}
