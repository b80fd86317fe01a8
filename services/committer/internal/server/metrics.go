package server

import (
	"time"

	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/services/committer/internal/commit"
)

// Defs returns the metrics of the committer.
func Defs() []obs.Def {
	return []obs.Def{
		defAttempts, defAttemptSeconds, defStepSeconds, defCuts, defRows, defQuarantined, defReplayed, defFiles, defBytes, defCommitAge, defConfirmedAge,
		defPending, defEncoded, defOpenFiles, defLag, defHeld, defHot, defFailing,
	}
}

// The declarations are constants in all but name.
var (
	defAttempts       = obs.Def{Name: "icestream_committer_attempts_total", Help: "Commit attempts that were settled, by kind of commit and outcome; an outcome that was ambiguous at first says so.", Kind: obs.KindCounter, Labels: []string{"table", "kind", "outcome"}}
	defAttemptSeconds = obs.Def{Name: "icestream_committer_attempt_seconds", Help: "Time from the first request of a commit attempt until its outcome was known.", Kind: obs.KindHistogram, Labels: []string{"table", "kind"}}
	defStepSeconds    = obs.Def{Name: "icestream_committer_step_seconds", Help: "Time that a step of a commit took: close, poison, stage, send, look, clean, apply, report.", Kind: obs.KindHistogram, Labels: []string{"table", "step"}}
	defCuts           = obs.Def{Name: "icestream_committer_cuts_total", Help: "Data commits that landed, by what made the cut due.", Kind: obs.KindCounter, Labels: []string{"table", "reason"}}
	defRows           = obs.Def{Name: "icestream_committer_rows_total", Help: "Rows that landed.", Kind: obs.KindCounter, Labels: []string{"table"}}
	defQuarantined    = obs.Def{Name: "icestream_committer_quarantined_total", Help: "Records that landed in quarantine.", Kind: obs.KindCounter, Labels: []string{"table"}}
	defReplayed       = obs.Def{Name: "icestream_committer_replayed_total", Help: "Quarantined records that became rows by a replay.", Kind: obs.KindCounter, Labels: []string{"table"}}
	defFiles          = obs.Def{Name: "icestream_committer_files_total", Help: "Data files that landed.", Kind: obs.KindCounter, Labels: []string{"table"}}
	defBytes          = obs.Def{Name: "icestream_committer_file_bytes_total", Help: "Bytes of data files that landed.", Kind: obs.KindCounter, Labels: []string{"table"}}
	defCommitAge      = obs.Def{Name: "icestream_committer_row_commit_seconds", Help: "Time from the arrival of the first row of a commit until it landed.", Kind: obs.KindHistogram, Labels: []string{"table"}}
	defConfirmedAge   = obs.Def{Name: "icestream_committer_confirmed_age_seconds", Help: "Seconds since a commit of ours was last seen in the table.", Kind: obs.KindGauge, Labels: []string{"table"}}
	defPending        = obs.Def{Name: "icestream_committer_quarantine_pending", Help: "Commits whose quarantine file is not in the quarantine table yet.", Kind: obs.KindGauge, Labels: []string{"table"}}
	defEncoded        = obs.Def{Name: "icestream_committer_open_bytes", Help: "Encoded bytes in the files of the next commit.", Kind: obs.KindGauge, Labels: []string{"table"}}
	defOpenFiles      = obs.Def{Name: "icestream_committer_open_files", Help: "Data files that are open.", Kind: obs.KindGauge, Labels: []string{"table"}}
	defLag            = obs.Def{Name: "icestream_committer_lag_records", Help: "Offsets between the committed position and the end of the topics, as ingest last saw it.", Kind: obs.KindGauge, Labels: []string{"table"}}
	defFailing        = obs.Def{Name: "icestream_committer_failing_seconds", Help: "Seconds for which nothing that was tried on the table has succeeded; 0 when the last thing did.", Kind: obs.KindGauge, Labels: []string{"table"}}
	defHeld           = obs.Def{Name: "icestream_committer_held_bytes", Help: "Bytes between the streams and the files, bounded by limits.committer.bytes.", Kind: obs.KindGauge}
	defHot            = obs.Def{Name: "icestream_committer_uncommitted_bytes", Help: "Hot bytes that are not committed, of all tables.", Kind: obs.KindGauge}
)

// observer counts for one table.
type observer struct {
	m     *obs.Metrics
	table string
}

// Attempted implements commit.Observer.
func (o observer) Attempted(kind, outcome string, took time.Duration) {
	o.m.Counter(defAttempts, o.table, kind, outcome).Inc()
	o.m.Histogram(defAttemptSeconds, o.table, kind).Observe(took.Seconds())
}

// Stepped implements commit.Observer.
func (o observer) Stepped(step commit.Step, took time.Duration) {
	o.m.Histogram(defStepSeconds, o.table, string(step)).Observe(took.Seconds())
}

// Landed implements commit.Observer.
func (o observer) Landed(b *commit.Batch, bytes int64) {
	var quarantined int64
	for _, a := range b.Parts {
		quarantined += a.Count.Quarantined
	}
	o.m.Counter(defCuts, o.table, string(b.Cut)).Inc()
	o.m.Counter(defRows, o.table).Add(float64(b.Rows()))
	o.m.Counter(defQuarantined, o.table).Add(float64(quarantined))
	o.m.Counter(defFiles, o.table).Add(float64(len(b.Files)))
	o.m.Counter(defBytes, o.table).Add(float64(bytes))
	o.m.Histogram(defCommitAge, o.table).Observe(time.Since(b.Opened).Seconds())
}

// gauges measures a table until remove is called.
func (e *entry) gauges(m *obs.Metrics) (remove func()) {
	status := func(f func(commit.Status) float64) func() float64 {
		return func() float64 { return f(e.table.Status()) }
	}
	name := e.table.Name()
	all := []func(){
		m.GaugeFunc(defConfirmedAge, status(func(s commit.Status) float64 { return age(s.Confirmed) }), name),
		m.GaugeFunc(defFailing, status(func(s commit.Status) float64 { return age(s.FailingSince) }), name),
		m.GaugeFunc(defPending, status(func(s commit.Status) float64 { return float64(s.Pending) }), name),
		m.GaugeFunc(defEncoded, func() float64 { return float64(e.puller.Load().Encoded) }, name),
		m.GaugeFunc(defOpenFiles, func() float64 { return float64(e.puller.OpenFiles()) }, name),
		m.GaugeFunc(defLag, e.lag, name),
	}
	return func() {
		for _, f := range all {
			f()
		}
	}
}

func age(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return time.Since(t).Seconds()
}

// lag is how far the table is behind the ends of its topics.
func (e *entry) lag() float64 {
	committed := e.table.Status().Head.State.Vector()
	var lag int64
	for part, pr := range e.puller.Progress() {
		if next, ok := committed[part]; ok && pr.StableEnd > next {
			lag += pr.StableEnd - next
		}
	}
	return float64(lag)
}
