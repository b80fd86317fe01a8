package server

import (
	"time"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/services/buffer/internal/table"
)

// Defs returns the metrics of the buffer.
func Defs() []obs.Def {
	return []obs.Def{
		hotRows(), hotBytes(), hotLimit(), creditBytes(), appends(), followersDef(), lagBytes(), epochWanted(),
		outstandingDef(), syncSeconds(), syncBytes(), reads(), sentRows(), sentBytes(), leaseCount(), leaseBytes(),
	}
}

func hotRows() obs.Def {
	return obs.Def{Name: "icestream_buffer_hot_rows", Help: "Rows held that the table does not hold yet.", Kind: obs.KindGauge, Labels: []string{"table"}}
}

func hotBytes() obs.Def {
	return obs.Def{Name: "icestream_buffer_hot_bytes", Help: "Bytes of hot rows and of appends that are not durable yet.", Kind: obs.KindGauge, Labels: []string{"table"}}
}

func hotLimit() obs.Def {
	return obs.Def{Name: "icestream_buffer_hot_limit_bytes", Help: "Budget of hot bytes over all tables (limits.hot.bytes); when it is used up, Kafka waits.", Kind: obs.KindGauge}
}

func creditBytes() obs.Def {
	return obs.Def{Name: "icestream_buffer_credit_bytes", Help: "Bytes that append streams may send and have not sent.", Kind: obs.KindGauge}
}

func appends() obs.Def {
	return obs.Def{Name: "icestream_buffer_appends_total", Help: "Appends by outcome; anything but accepted and a few duplicates is worth a look.", Kind: obs.KindCounter, Labels: []string{"table", "outcome"}}
}

func followersDef() obs.Def {
	return obs.Def{Name: "icestream_buffer_followers", Help: "Followers connected.", Kind: obs.KindGauge, Labels: []string{"table"}}
}

func lagBytes() obs.Def {
	return obs.Def{Name: "icestream_buffer_follower_lag_bytes", Help: "Bytes of events that the slowest follower has not taken. It is cut off when those of them that are no longer hot pass a quarter of the hot budget.", Kind: obs.KindGauge, Labels: []string{"table"}}
}

func epochWanted() obs.Def {
	return obs.Def{Name: "icestream_buffer_epoch_wanted", Help: "1 while the table waits for a fence commit of the committer, else 0.", Kind: obs.KindGauge, Labels: []string{"table"}}
}

func outstandingDef() obs.Def {
	return obs.Def{Name: "icestream_buffer_outstanding_entries", Help: "Entries that the journal remembers and whose rows have not been sent again since the restart.", Kind: obs.KindGauge, Labels: []string{"table"}}
}

func syncSeconds() obs.Def {
	return obs.Def{
		Name: "icestream_buffer_journal_sync_seconds", Help: "Time one fdatasync of the journal took.", Kind: obs.KindHistogram,
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
	}
}

func syncBytes() obs.Def {
	return obs.Def{Name: "icestream_buffer_journal_bytes_total", Help: "Bytes written to the journal.", Kind: obs.KindCounter}
}

func reads() obs.Def {
	return obs.Def{Name: "icestream_buffer_reads_total", Help: "Read calls that have ended, by call and reason; UNSPECIFIED is success.", Kind: obs.KindCounter, Labels: []string{"call", "reason"}}
}

func sentRows() obs.Def {
	return obs.Def{Name: "icestream_buffer_read_rows_total", Help: "Rows sent to readers.", Kind: obs.KindCounter, Labels: []string{"part"}}
}

func sentBytes() obs.Def {
	return obs.Def{Name: "icestream_buffer_read_bytes_total", Help: "Bytes of rows sent to readers.", Kind: obs.KindCounter, Labels: []string{"part"}}
}

func leaseCount() obs.Def {
	return obs.Def{Name: "icestream_buffer_leases", Help: "Read leases that are open.", Kind: obs.KindGauge}
}

func leaseBytes() obs.Def {
	return obs.Def{Name: "icestream_buffer_lease_bytes", Help: "Hot bytes that read leases keep.", Kind: obs.KindGauge}
}

// meter is the buffer's measuring of itself.
type meter struct{ m *obs.Metrics }

func newMeter(m *obs.Metrics) meter { return meter{m} }

func (m meter) append(name string, o table.Outcome) { m.m.Counter(appends(), name, o.String()).Inc() }

func (m meter) watchBudget(b *budget) {
	m.m.Gauge(hotLimit()).Set(float64(b.limit))
	m.m.GaugeFunc(creditBytes(), func() float64 { _, granted := b.read(); return float64(granted) })
}

// watchLog measures a log at every scrape.
func (m meter) watchLog(l *tableLog) {
	gauge := func(def obs.Def, f func() int64) {
		m.m.GaugeFunc(def, func() float64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return float64(f())
		}, l.name)
	}
	gauge(hotRows(), func() int64 { return l.m.View().Rows() })
	gauge(hotBytes(), l.counted.Load)
	gauge(followersDef(), func() int64 { return int64(len(l.followers)) })
	gauge(outstandingDef(), func() int64 { return int64(len(l.m.Outstanding())) })
	gauge(epochWanted(), func() int64 {
		if _, ok := l.m.Request(); ok {
			return 1
		}
		return 0
	})
	gauge(lagBytes(), func() (most int64) {
		for f := range l.followers {
			most = max(most, f.lag(l.feed))
		}
		return most
	})
}

// Synced measures one group of the journal.
func Synced(m *obs.Metrics) func(took time.Duration, bytes int) {
	return func(took time.Duration, bytes int) {
		m.Histogram(syncSeconds()).Observe(took.Seconds())
		m.Counter(syncBytes()).Add(float64(bytes))
	}
}

// ReadMeter counts what readers take (readapi.Meter).
type ReadMeter struct{ M *obs.Metrics }

// Read counts a call that has ended.
func (r ReadMeter) Read(call string, reason fault.Reason) {
	r.M.Counter(reads(), call, reason.String()).Inc()
}

// Sent counts rows and bytes.
func (r ReadMeter) Sent(part string, rows, bytes int64) {
	r.M.Counter(sentRows(), part).Add(float64(rows))
	r.M.Counter(sentBytes(), part).Add(float64(bytes))
}

// Leases sets what leases keep.
func (r ReadMeter) Leases(count int, bytes int64) {
	r.M.Gauge(leaseCount()).Set(float64(count))
	r.M.Gauge(leaseBytes()).Set(float64(bytes))
}
