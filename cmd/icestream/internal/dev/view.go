package dev

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Stats is one moment of a run with the generator, as the live view shows it.
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
	// Freshness of what a reader sees, hot and from the snapshot alone, in
	// seconds; null while there is nothing to see, or nobody knows.
	HotFreshness       *float64 `json:"hot_freshness_seconds"`
	CommittedFreshness *float64 `json:"committed_freshness_seconds"`
}

// TableStats is one moment of one table in a run of the user's own pipelines.
type TableStats struct {
	Table    string `json:"table"`
	HotRows  int64  `json:"hot_rows"`
	Snapshot int64  `json:"snapshot"`
	State    string `json:"state"`
}

// view shows a run to people or programs. Safe for concurrent use.
type view interface {
	// stats shows the present moment of the generator's table.
	stats(s Stats)
	// tables shows the present moment of the user's tables, and what waits.
	tables(elapsed time.Duration, tables []TableStats, waiting []string)
	// say tells of an event: a word for programs, a sentence for people, facts.
	say(event, sentence string, facts map[string]any)
	// end leaves the last moment on the screen.
	end()
}

// newView picks the view: JSON lines, live lines on a terminal that is as wide as
// width says, or plain lines.
func newView(out io.Writer, asJSON bool, width func() int) view {
	switch {
	case asJSON:
		return &jsonView{enc: json.NewEncoder(out)}
	case width != nil:
		return &liveView{out: out, width: width}
	default:
		return &plainView{out: out, every: 2 * time.Second}
	}
}

// judge sets lag and freshness. What the services answer may be older than what
// is produced, or miss: then what is not visible is behind, and nothing is fresh
// for it. age is that of the newest visible row, nil where it is not known.
func (s *Stats) judge(age *float64) {
	s.Lag = max(s.Lag, s.Produced-s.Visible, 0)
	switch {
	case s.Visible == 0:
		s.HotFreshness = nil
	case s.Lag == 0: // a reader who sees everything is as fresh as can be, however old that is
		s.HotFreshness = new(0.0)
	default:
		s.HotFreshness = age
	}
}

// lines are short, so that a terminal of 80 columns shows them whole.
func (s Stats) lines() []string {
	return []string{
		fmt.Sprintf("produced %s · hot %s · committed %s · quarantined %s", count(s.Produced), count(s.Hot), count(s.Committed), count(s.Quarantined)),
		fmt.Sprintf("lag %s · fresh %s hot, %s committed", count(s.Lag), age(s.HotFreshness), age(s.CommittedFreshness)),
		fmt.Sprintf("%s · %s exact", many(s.Commits, "commit"), many(s.Reads, "read")),
	}
}

func (t TableStats) line() string {
	return fmt.Sprintf("%s: %s · snapshot %d · %s", t.Table, many(t.HotRows, "hot row"), t.Snapshot, t.State)
}

func tableLines(tables []TableStats, waiting []string) []string {
	lines := make([]string, 0, len(tables)+len(waiting))
	for _, t := range tables {
		lines = append(lines, t.line())
	}
	return append(lines, waitingLines(waiting)...)
}

func waitingLines(waiting []string) []string {
	lines := make([]string, 0, len(waiting))
	for _, w := range waiting {
		lines = append(lines, "waiting: "+w)
	}
	return lines
}

// count prints a number in groups of three digits.
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

// many prints a number of things, each called what.
func many(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return count(n) + " " + what
}

// age prints seconds for people; "–" where there is nothing to be fresh.
func age(f *float64) string {
	switch {
	case f == nil:
		return "–"
	case *f <= 0:
		return "now"
	case *f < 1:
		return fmt.Sprintf("%.0f ms", *f*1000)
	default:
		return fmt.Sprintf("%.1f s", *f)
	}
}

// plainView prints a line every so often.
type plainView struct {
	mu    sync.Mutex
	out   io.Writer
	every time.Duration
	last  time.Duration
	shown []string
}

func (v *plainView) stats(s Stats) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last > 0 && s.Elapsed-v.last < v.every {
		return
	}
	v.last = s.Elapsed
	_, _ = fmt.Fprintf(v.out, "%6.1fs  %s\n", s.Elapsed.Seconds(), strings.Join(s.lines(), " · "))
}

func (v *plainView) tables(elapsed time.Duration, tables []TableStats, waiting []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines := tableLines(tables, waiting)
	for _, line := range lines {
		if !slices.Contains(v.shown, line) {
			_, _ = fmt.Fprintf(v.out, "%6.1fs  %s\n", elapsed.Seconds(), line)
		}
	}
	v.shown = lines
}

func (v *plainView) say(_, sentence string, _ map[string]any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, _ = fmt.Fprintln(v.out, sentence)
}

func (v *plainView) end() {}

// liveView keeps a few lines at the bottom of a terminal up to date.
type liveView struct {
	mu    sync.Mutex
	out   io.Writer
	width func() int
	block []string // what stands at the bottom; the cursor is at its end
}

// clearBelow erases from the cursor to the end of the screen.
const clearBelow = "\x1b[J"

func (v *liveView) stats(s Stats) { v.show(s.Elapsed, s.lines()) }

func (v *liveView) tables(elapsed time.Duration, tables []TableStats, waiting []string) {
	v.show(elapsed, tableLines(tables, waiting))
}

func (v *liveView) show(elapsed time.Duration, lines []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	block := make([]string, len(lines))
	for i, line := range lines {
		head := "         "
		if i == 0 {
			head = fmt.Sprintf("%6.1fs  ", elapsed.Seconds())
		}
		block[i] = cut(head+line, v.width()-1)
	}
	_, _ = io.WriteString(v.out, v.erase()+strings.Join(block, "\n"))
	v.block = block
}

// erase takes the block away and leaves the cursor where it began. A line that
// wrapped could not be taken away: that is why they are cut.
func (v *liveView) erase() string {
	if len(v.block) == 0 {
		return ""
	}
	up := ""
	if n := len(v.block) - 1; n > 0 {
		up = fmt.Sprintf("\x1b[%dA", n)
	}
	return "\r" + up + clearBelow
}

// cut shortens a line to at most n characters.
func cut(line string, n int) string {
	if r := []rune(line); n > 0 && len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return line
}

// say prints above the block, which comes back with the next moment.
func (v *liveView) say(_, sentence string, _ map[string]any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, _ = fmt.Fprintln(v.out, v.erase()+sentence)
	v.block = nil
}

func (v *liveView) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.block) > 0 {
		_, _ = fmt.Fprintln(v.out)
	}
	v.block = nil
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

func (v *jsonView) tables(elapsed time.Duration, tables []TableStats, waiting []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, t := range tables {
		_ = v.enc.Encode(struct {
			Event   string  `json:"event"`
			Seconds float64 `json:"seconds"`
			TableStats
		}{"table", elapsed.Seconds(), t})
	}
	if len(waiting) > 0 {
		_ = v.enc.Encode(map[string]any{"event": "waiting", "seconds": elapsed.Seconds(), "reasons": waiting})
	}
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
