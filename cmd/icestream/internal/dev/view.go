package dev

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"time"
)

// Stats is one moment of a run, as the live view shows it.
type Stats struct {
	Elapsed     time.Duration `json:"-"`
	Seconds     float64       `json:"seconds"`
	Produced    int64         `json:"produced"`
	Visible     int64         `json:"visible"`
	Hot         int64         `json:"hot"`
	Committed   int64         `json:"committed"`
	Quarantined int64         `json:"quarantined"`
	Lag         int64         `json:"lag"`
	Commits     int64         `json:"commits"`
	Reads       int64         `json:"reads_checked"`
	// Freshness of the newest record that a reader sees, hot and from the
	// snapshot alone, in seconds.
	HotFreshness       float64 `json:"hot_freshness_seconds"`
	CommittedFreshness float64 `json:"committed_freshness_seconds"`
}

// view shows a run to people or programs. Safe for concurrent use.
type view interface {
	// stats shows the present moment.
	stats(s Stats)
	// say tells of an event: a word for programs, a sentence for people, facts.
	say(event, sentence string, facts map[string]any)
	// end takes the live line away.
	end()
}

// newView picks the view: JSON lines, a live line on a terminal, or plain lines.
func newView(out io.Writer, asJSON, terminal bool) view {
	switch {
	case asJSON:
		return &jsonView{enc: json.NewEncoder(out)}
	case terminal:
		return &liveView{out: out}
	default:
		return &plainView{out: out, every: 2 * time.Second}
	}
}

func (s Stats) line() string {
	return fmt.Sprintf("produced %s · hot %s · committed %s · quarantined %d · lag %s · fresh %s hot, %s committed · %d commits · %d reads exact",
		count(s.Produced), count(s.Hot), count(s.Committed), s.Quarantined, count(s.Lag),
		seconds(s.HotFreshness), seconds(s.CommittedFreshness), s.Commits, s.Reads)
}

// count prints a number with thin groups of three digits.
func count(n int64) string {
	s := fmt.Sprint(n)
	var b strings.Builder
	for i, r := range s {
		if i > 0 && (len(s)-i)%3 == 0 && s[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(r)
	}
	return b.String()
}

func seconds(f float64) string {
	switch {
	case f <= 0:
		return "now"
	case f < 1:
		return fmt.Sprintf("%.0f ms", f*1000)
	default:
		return fmt.Sprintf("%.1f s", f)
	}
}

// plainView prints a line every so often.
type plainView struct {
	mu    sync.Mutex
	out   io.Writer
	every time.Duration
	last  time.Duration
}

func (v *plainView) stats(s Stats) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last > 0 && s.Elapsed-v.last < v.every {
		return
	}
	v.last = s.Elapsed
	_, _ = fmt.Fprintf(v.out, "%6.1fs  %s\n", s.Elapsed.Seconds(), s.line())
}

func (v *plainView) say(_, sentence string, _ map[string]any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, _ = fmt.Fprintln(v.out, sentence)
}

func (v *plainView) end() {}

// liveView keeps one line at the bottom of a terminal up to date.
type liveView struct {
	mu  sync.Mutex
	out io.Writer
	on  bool
}

// clearLine goes to the first column and erases to the end of the line.
const clearLine = "\r\x1b[K"

func (v *liveView) stats(s Stats) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.on = true
	_, _ = fmt.Fprintf(v.out, clearLine+"%5.1fs %s", s.Elapsed.Seconds(), s.line())
}

func (v *liveView) say(_, sentence string, _ map[string]any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.on {
		_, _ = io.WriteString(v.out, clearLine)
	}
	_, _ = fmt.Fprintln(v.out, sentence)
}

func (v *liveView) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.on {
		_, _ = fmt.Fprintln(v.out)
	}
	v.on = false
}

// jsonView prints one object a line.
type jsonView struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (v *jsonView) stats(s Stats) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s.Seconds = s.Elapsed.Seconds()
	_ = v.enc.Encode(struct {
		Event string `json:"event"`
		Stats
	}{"stats", s})
}

func (v *jsonView) say(event, sentence string, facts map[string]any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	object := map[string]any{"event": event}
	maps.Copy(object, facts)
	if sentence != "" {
		object["text"] = sentence
	}
	_ = v.enc.Encode(object)
}

func (v *jsonView) end() {}
