package table

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
)

var update = flag.Bool("update", false, "rewrite the output in testdata scripts")

// script runs the lines of a testdata file against one machine with a journal
// whose records are durable only after "sync". What a command answers is indented
// below it. Commands:
//
//	open|report SEQ EPOCH p0=N p1=N lsn=START/NEXT/RESERVED    the table's state, from the committer
//	grant SEQ EPOCH p0=… lsn=…                                 with the nonce that is wanted
//	append pN FIRST NEXT [rev=N] [digest=N] [lost]             from ingest
//	sync [N]                                                   N steps become durable (all)
//	crash                                                      restart from what was synced
//	lose                                                       restart with an empty disk
type script struct {
	t       *testing.T
	m       *Machine
	nonce   func() uint64
	waiting []*Step
	disk    []event.Event
	out     strings.Builder
}

// G3, G4, G5: whole stories that a reader can follow.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			raw, err := os.ReadFile(name)
			require.NoError(t, err)
			s := &script{t: t, nonce: nonces()}
			s.boot()
			for line := range strings.Lines(string(raw)) {
				line = strings.TrimRight(line, "\n")
				if strings.HasPrefix(line, "    ") {
					continue // output of an earlier run
				}
				s.out.WriteString(line + "\n")
				if line != "" && line[0] != '#' {
					s.command(strings.Fields(line))
				}
			}
			if *update {
				require.NoError(t, os.WriteFile(name, []byte(s.out.String()), 0o644))
			}
			require.Equal(t, string(raw), s.out.String())
		})
	}
}

func (s *script) say(format string, args ...any) { fmt.Fprintf(&s.out, "    "+format+"\n", args...) }

func (s *script) boot() {
	v := readview.New()
	for _, ev := range s.disk {
		v.Apply(ev)
	}
	var rec *Recovered
	if v.Ready() {
		rec = &Recovered{Image: v.Image(), NextLSN: v.NextLSN()}
	}
	s.m, s.waiting = New("t", bootID, s.nonce, rec, ""), nil
}

func (s *script) command(f []string) {
	switch f[0] {
	case "open", "report", "grant":
		s.committer(f[0], s.state(f[1:]))
	case "append":
		s.append(f[1:])
	case "sync":
		n := len(s.waiting)
		if len(f) > 1 {
			n = s.number(f[1])
		}
		s.sync(n)
	case "crash":
		s.boot()
		s.say("%s", s.m.State())
	case "lose":
		s.disk = nil
		s.boot()
		s.say("%s", s.m.State())
	default:
		s.t.Fatalf("unknown command %v", f)
	}
}

func (s *script) committer(what string, c event.Commit) {
	var step *Step
	var err error
	switch what {
	case "open":
		step, err = s.m.Open(c, []event.Schema{schemaA}, nil)
	case "report":
		step, err = s.m.Report(c)
	default:
		req, _ := s.m.Request()
		step, err = s.m.Grant(req.Nonce, c)
	}
	if err != nil {
		s.say("refused: %s", fault.Describe(err))
	}
	if step != nil {
		s.waiting = append(s.waiting, step)
		s.say("to be made durable: %d records", len(step.Records))
	}
	if req, ok := s.m.Request(); ok {
		s.say("epoch wanted: %s", req.Reason)
	}
}

func (s *script) append(f []string) {
	a := rows(map[string]ident.Partition{"p0": p0, "p1": p1}[f[0]], int64(s.number(f[1])), int64(s.number(f[2])))
	for _, opt := range f[3:] {
		switch k, v, _ := strings.Cut(opt, "="); k {
		case "rev":
			a.Revision = uint64(s.number(v))
		case "digest":
			a.Digest[5] = byte(s.number(v))
		case "lost":
			a.Rows, a.Skips = 0, []event.Skip{{Range: a.Range, Reason: event.SkipLost}}
		}
	}
	v := s.m.Append(a)
	if v.Step == nil {
		s.say("%s", strings.TrimSuffix(fmt.Sprintf("%s, next %d: %s", v.Outcome, v.Next, v.Text), ": "))
		if req, ok := s.m.Request(); ok {
			s.say("epoch wanted: %s", req.Reason)
		}
		return
	}
	s.waiting = append(s.waiting, v.Step)
	s.say("%s, next %d, LSN %d, %d records to the journal", v.Outcome, v.Next, a.LSN, len(v.Step.Records))
}

func (s *script) sync(n int) {
	for ; n > 0 && len(s.waiting) > 0; n-- {
		step := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.disk = append(s.disk, step.Records...)
		evs, err := s.m.Done(step)
		if err != nil {
			s.say("void: %s", fault.Describe(err))
		}
		for _, ev := range evs {
			switch {
			case ev.Append != nil:
				s.say("event %d: append p%d %s LSN %d", ev.Seq, ev.Append.Partition.Number, ev.Append.Range, ev.Append.LSN)
			case ev.Commit != nil:
				s.say("event %d: commit %d", ev.Seq, ev.Commit.SequenceNumber)
			case ev.Schema != nil:
				s.say("event %d: schema %s", ev.Seq, ev.Schema.Fingerprint)
			case ev.Epoch != nil:
				s.say("event %d: log epoch %d", ev.Seq, ev.Epoch.Commit.LogEpoch)
			}
		}
	}
	v := s.m.View()
	s.say("%s; committed %s, visible %s, outstanding %d", s.m.State(), short(v.Committed()), short(v.Visible()), len(s.m.Outstanding()))
}

func short(v ident.Vector) string {
	var out []string
	for _, p := range v.Partitions() {
		out = append(out, fmt.Sprintf("p%d=%d", p.Number, v[p]))
	}
	return strings.Join(out, " ")
}

func (s *script) state(f []string) event.Commit {
	v, lsn := ident.Vector{}, ident.LSNState{}
	for _, opt := range f[2:] {
		k, val, _ := strings.Cut(opt, "=")
		switch k {
		case "p0":
			v[p0] = int64(s.number(val))
		case "p1":
			v[p1] = int64(s.number(val))
		case "lsn":
			part := strings.Split(val, "/")
			lsn = ident.LSNState{Start: ident.LSN(s.number(part[0])), Next: ident.LSN(s.number(part[1])), Reserved: ident.LSN(s.number(part[2]))}
		}
	}
	return state(int64(s.number(f[0])), ident.LogEpoch(s.number(f[1])), v, lsn)
}

func (s *script) number(text string) int {
	n, err := strconv.Atoi(text)
	require.NoError(s.t, err)
	return n
}
