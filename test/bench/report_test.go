//go:build bench

package bench

import (
	"fmt"
	"io"
	"math"
)

// report prints tables and remembers which ratios miss their aim.
type report struct {
	w      io.Writer
	missed []string
}

func (r *report) line(format string, args ...any) { _, _ = fmt.Fprintf(r.w, format+"\n", args...) }

func (r *report) load(when string) {
	if l := loadAverage(); l != "" {
		r.line("load average at the %s: %s (ratios of a busy machine are worse than those of a quiet one)", when, l)
	}
}

// ratio renders a ratio next to its aim.
func (r *report) ratio(name string, got float64) string {
	aim, ok := aims[name]
	switch {
	case !ok:
		return fmt.Sprintf("%5.2f   -  ", got)
	case got < aim:
		r.missed = append(r.missed, fmt.Sprintf("%s: %.2f of its floor, aim %.2f", name, got, aim))
		return fmt.Sprintf("%5.2f %4.2f MISSED", got, aim)
	default:
		return fmt.Sprintf("%5.2f %4.2f ok", got, aim)
	}
}

const mib = 1 << 20

func (r *report) pipelineHeader() {
	r.line("")
	r.line("whole pipeline: Kafka to committed Parquet, four services in one process; floor: the Parquet stage alone, same rows")
	r.line("%-6s %9s %8s │ %10s %8s │ %10s %8s │ %9s %9s │ %8s %8s │ %6s │ %9s │ %s", "shape", "records", "B/record",
		"rows/s", "CPUs/M", "floor r/s", "CPUs/M", "peak RSS", "peak heap", "B/row", "floor", "start", "CPU ratio", "ratio aim")
}

func (r *report) pipeline(name string, from topic, p pair) {
	r.line("%-6s %9d %8.0f │ %10.0f %8.2f │ %10.0f %8.2f │ %5.0f MiB %5.0f MiB │ %8.1f %8.1f │ %5.1fs │ %9.2f │ %s", name, from.records,
		float64(from.Bytes)/float64(from.records), p.pipeline.rate(), p.pipeline.cpuPerMillion(), p.floor.rate(), p.floor.cpuPerMillion(),
		float64(p.pipeline.rss)/mib, float64(p.pipeline.heap)/mib, p.pipeline.bytesPerRow(), p.floor.bytesPerRow(),
		p.pipeline.start.Seconds(), p.floor.cpuPerMillion()/p.pipeline.cpuPerMillion(), r.ratio(name, p.pipeline.rate()/p.floor.rate()))
}

func (r *report) pipelineFooter() {
	r.line("ratio: rows/s of the pipeline to those of its floor; CPU ratio: CPU of the floor to that of the pipeline, steadier on a busy machine")
	r.line("CPUs/M: CPU seconds (user and system) per million rows, peers and producer not counted; hot.bytes %s; best of %d rounds", *hotBytes, *rounds)
}

func (r *report) hop(h hop) {
	r.line("")
	r.line("hop: 1 MiB batches, acknowledged, %d under way, loopback, both ends in this process", hopInFlight)
	r.line("gRPC append stream %.2f GB/s, %.2f CPU s/GB │ plain TCP %.2f GB/s, %.2f CPU s/GB │ CPU ratio %.2f │ ratio aim %s",
		h.grpc.rate/1e9, h.grpc.cpu, h.tcp.rate/1e9, h.tcp.cpu, h.tcp.cpu/h.grpc.cpu, r.ratio("hop", h.grpc.rate/h.tcp.rate))
	r.line("plain TCP into one block of memory for all messages: %.2f GB/s, %.2f CPU s/GB, ratio %.2f",
		h.oneBlock.rate/1e9, h.oneBlock.cpu, h.grpc.rate/h.oneBlock.rate)
}

func (r *report) decode(all []decoded) {
	r.line("")
	r.line("decode: Protobuf to Arrow columns, one core, against a protowire walk that stores nothing and against dynamicpb with Arrow's builders")
	r.line("%-7s %9s │ %-17s │ %-19s │ %-20s │ %-17s │ %s", "shape", "ns/record", "of the walk  aim", "x dynamicpb  aim", "one in ten bad  most", "500 schemas  most", "allocs/record  most")
	for _, d := range all {
		name := "decode " + d.shape
		r.line("%-7s %9.0f │ %-17s │ %-19s │ %-20s │ %-17s │ %s", d.shape, d.ns, r.ratio(name, d.walk), r.ratio(name+" dynamicpb", d.rival),
			r.most(name+" bad", d.bad, 1.25), r.most(name+" after many schemas", d.many, 1.15), r.most(name+" allocs", d.allocs, 0.1))
	}
}

// most renders a figure next to what it may be at most.
func (r *report) most(name string, got, most float64) string {
	if math.IsInf(got, 1) {
		return "    -" // not measured
	}
	if got > most {
		r.missed = append(r.missed, fmt.Sprintf("%s: %.2f, at most %.2f", name, got, most))
		return fmt.Sprintf("%5.2f %4.2f MISSED", got, most)
	}
	return fmt.Sprintf("%5.2f %4.2f ok", got, most)
}
