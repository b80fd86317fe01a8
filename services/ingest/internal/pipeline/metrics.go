package pipeline

import (
	"strconv"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

func counter(name, help string, labels ...string) obs.Def {
	return obs.Def{Name: name, Help: help, Kind: obs.KindCounter, Labels: labels}
}

func gauge(name, help string, labels ...string) obs.Def {
	return obs.Def{Name: name, Help: help, Kind: obs.KindGauge, Labels: labels}
}

func records() obs.Def {
	return counter("icestream_ingest_records_total", "Records fetched from Kafka.", "pipeline", "topic", "partition")
}

func bytes() obs.Def {
	return counter("icestream_ingest_bytes_total", "Bytes of the records fetched from Kafka, keys and values.", "pipeline", "topic", "partition")
}

func rows() obs.Def {
	return counter("icestream_ingest_rows_total", "Rows acknowledged by the table log.", "pipeline", "topic", "partition")
}

func quarantined() obs.Def {
	return counter("icestream_ingest_quarantined_total", "Records acknowledged by the table log as quarantined, by reason.", "pipeline", "topic", "reason")
}

func skipped() obs.Def {
	return counter("icestream_ingest_skipped_total", "Offsets acknowledged by the table log as skipped, by reason.", "pipeline", "topic", "reason")
}

func decodeErrors() obs.Def {
	return counter("icestream_ingest_decode_errors_total", "Records that could not be a row, by reason, each time they were met.", "pipeline", "topic", "reason")
}

func dataLoss() obs.Def {
	return counter("icestream_ingest_data_loss_total", "Times that Kafka no longer held what was to be read: below the log start, truncated, or a topic created again.", "pipeline", "topic", "partition")
}

func lostOffsets() obs.Def {
	return counter("icestream_ingest_lost_offsets_total", "Offsets recorded as lost under on_data_loss: continue.", "pipeline", "topic", "partition")
}

func lag() obs.Def {
	return gauge("icestream_ingest_lag_records", "Offsets between what the table log has acknowledged and the stable end of the topic partition.", "pipeline", "topic", "partition")
}

func stateOf() obs.Def {
	return gauge("icestream_ingest_partition_state", "What a topic partition is doing: 1 running, 2 paused, 3 waiting for a dependency, 4 stopped and in need of a decision.", "pipeline", "topic", "partition")
}

func fetchBuffer() obs.Def {
	return gauge("icestream_ingest_fetch_buffer_bytes", "Memory of records that were fetched and that no worker is done with.", "pipeline")
}

func inFlight() obs.Def {
	return gauge("icestream_ingest_in_flight_bytes", "Bytes sent to the table log and not yet acknowledged.", "pipeline", "table")
}

func commits() obs.Def {
	return counter("icestream_ingest_offset_commits_total", "Commits of committed positions to the Kafka group, by outcome.", "pipeline", "outcome")
}

// Defs returns the metrics of this package.
func Defs() []obs.Def {
	return []obs.Def{
		records(), bytes(), rows(), quarantined(), skipped(), decodeErrors(), dataLoss(), lostOffsets(), lag(), stateOf(),
		fetchBuffer(), inFlight(), commits(),
	}
}

// partitionMetrics are the metrics of one topic partition.
type partitionMetrics struct {
	m                       *obs.Metrics
	pipeline, topic, number string

	records, bytes, rows, loss, lostOffsets *obs.Counter
	lag, state                              *obs.Gauge
}

func newPartitionMetrics(m *obs.Metrics, pipeline string, tp source.TopicPartition) *partitionMetrics {
	n := strconv.Itoa(int(tp.Number))
	return &partitionMetrics{
		m: m, pipeline: pipeline, topic: tp.Topic, number: n,
		records: m.Counter(records(), pipeline, tp.Topic, n), bytes: m.Counter(bytes(), pipeline, tp.Topic, n),
		rows: m.Counter(rows(), pipeline, tp.Topic, n), loss: m.Counter(dataLoss(), pipeline, tp.Topic, n),
		lostOffsets: m.Counter(lostOffsets(), pipeline, tp.Topic, n),
		lag:         m.Gauge(lag(), pipeline, tp.Topic, n), state: m.Gauge(stateOf(), pipeline, tp.Topic, n),
	}
}

func (pm *partitionMetrics) read(n int, size int64) {
	pm.records.Add(float64(n))
	pm.bytes.Add(float64(size))
}

func (pm *partitionMetrics) invalid(reason string) {
	pm.m.Counter(decodeErrors(), pm.pipeline, pm.topic, reason).Inc()
}

// lost counts a loss that takes no offsets.
func (pm *partitionMetrics) lost() { pm.loss.Inc() }

// stored counts what an acknowledged entry held.
func (pm *partitionMetrics) stored(h *event.Header, reasons map[string]int64) {
	pm.rows.Add(float64(h.Rows))
	for reason, n := range reasons {
		pm.m.Counter(quarantined(), pm.pipeline, pm.topic, reason).Add(float64(n))
	}
	for _, s := range h.Skips {
		pm.m.Counter(skipped(), pm.pipeline, pm.topic, s.Reason.String()).Add(float64(s.Len()))
		if s.Reason == event.SkipLost { // not when it is found: an entry may be refused, and the next begins elsewhere
			pm.loss.Inc()
			pm.lostOffsets.Add(float64(s.Len()))
		}
	}
}

// forget takes the gauges of a revoked partition away.
func (pm *partitionMetrics) forget() {
	pm.m.Forget(lag(), pm.pipeline, pm.topic, pm.number)
	pm.m.Forget(stateOf(), pm.pipeline, pm.topic, pm.number)
}
