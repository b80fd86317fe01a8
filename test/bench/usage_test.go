//go:build bench

package bench

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// measure is what a piece of work took.
type measure struct {
	rows  int64
	bytes int64 // encoded
	wall  time.Duration
	start time.Duration // from start to the first row, where that means something
	cpu   time.Duration // user and system, of this process
	rss   int64         // peak resident bytes; 0 where the system does not tell
	heap  int64         // peak live and unswept heap bytes
}

// rate is rows per second.
func (m measure) rate() float64 { return float64(m.rows) / m.wall.Seconds() }

// cpuPerMillion is CPU seconds per million rows.
func (m measure) cpuPerMillion() float64 { return m.cpu.Seconds() / float64(m.rows) * 1e6 }

func (m measure) bytesPerRow() float64 { return float64(m.bytes) / float64(m.rows) }

// cpuTime is what this process has used so far.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// meter measures from its start to its end.
type meter struct {
	t       *testing.T
	profile *os.File
	stop    chan struct{}
	done    sync.WaitGroup
	peak    uint64

	begun time.Time
	cpu   time.Duration
}

// newMeter returns freed memory to the system and starts to watch peaks. The
// clock runs only from begin on. profile is the file of a CPU profile, or empty.
func newMeter(t *testing.T, profile string) *meter {
	t.Helper()
	debug.FreeOSMemory()
	resetPeak()
	m := &meter{t: t, stop: make(chan struct{})}
	if profile != "" {
		f, err := os.Create(profile)
		require.NoError(t, err)
		require.NoError(t, pprof.StartCPUProfile(f))
		m.profile = f
	}
	m.done.Go(m.watch)
	m.begin()
	return m
}

// begin starts the clock again.
func (m *meter) begin() { m.begun, m.cpu = time.Now(), cpuTime(m.t) }

func (m *meter) watch() {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		metrics.Read(sample)
		m.peak = max(m.peak, sample[0].Value.Uint64())
		select {
		case <-m.stop:
			return
		case <-tick.C:
		}
	}
}

// end returns what was used since begin, and the peaks since newMeter.
func (m *meter) end(rows int64) measure {
	m.t.Helper()
	out := measure{rows: rows, wall: time.Since(m.begun), cpu: cpuTime(m.t) - m.cpu, rss: peakRSS()}
	m.close()
	out.heap = int64(m.peak)
	return out
}

func (m *meter) close() {
	close(m.stop)
	m.done.Wait()
	if m.profile != nil {
		pprof.StopCPUProfile()
		require.NoError(m.t, m.profile.Close())
	}
}

// resetPeak makes the system forget the peak so far. Only Linux can.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peakRSS is the peak of resident memory since resetPeak, 0 where the system
// cannot say.
func peakRSS() int64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib int64
		if rest, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			if _, err := fmt.Sscan(rest, &kib); err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// loadAverage is how busy the machine is, empty where the system does not say.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}
