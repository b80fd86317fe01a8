package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/stack"
	"github.com/icestream/icestream/services/committer"
)

func auditCommand() *cobra.Command {
	var t target
	var format, against string
	var o committer.AuditOptions
	var memory int64
	cmd := &cobra.Command{
		Use:   "audit TABLE",
		Short: "Prove that every offset landed exactly once",
		Long: `Prove from the table alone that every offset landed exactly once: the ranges of all our snapshots tile each
partition, running totals and file statistics agree, every file exists and none is added twice, and the
quarantine table holds what was quarantined. Snapshots of other writers are followed, and the one that took rows of
ours away, or brought rows that pass for ours, is named. Needs no running service.

--deep reads where every row came from: it finds what counts cannot. --against kafka compares that with the log: every
record that the log still has, up to the committed position, is a row, quarantined, or counted as skipped.

Exit code 0 proven, 1 violated, 2 cannot tell (and why), 4 the catalog cannot be reached.`,
		Example: `  icestream audit -c icestream.yaml shop.orders
  icestream audit -c icestream.yaml shop.orders --against kafka
  icestream audit --dir ./icestream-dev shop.orders --deep -o json`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			if against != "" && against != "kafka" {
				return fault.New(fault.InvalidArgument, "--against %q: the only thing to compare with is kafka", against)
			}
			c, closePeers, err := t.lake(cmd)
			if err != nil {
				return err
			}
			defer closePeers()
			if against != "" {
				if t.dir != "" { // a broker that has ended with its run need not be asked partition by partition
					if err := t.reach(cmd.Context(), c.Kafka.BootstrapServers[0]); err != nil {
						return err
					}
				}
				log, err := stack.OpenKafkaLog(c)
				if err != nil {
					return err
				}
				defer log.Close()
				o.Kafka = log
			}
			o.Memory = memory << 20
			bar := newBar(cmd.ErrOrStderr())
			o.Progress = bar.show
			report, err := committer.Audit(cmd.Context(), c, args[0], o)
			bar.clear()
			if err != nil {
				return err
			}
			if format == "json" {
				err = printJSON(cmd.OutOrStdout(), report)
			} else {
				cmd.Print(report.String())
			}
			if err == nil && report.Verdict.Code() != run.OK {
				err = run.WithCode(report.Verdict.Code(), errSilent)
			}
			return err
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	cmd.Flags().BoolVar(&o.Deep, "deep", false, "also read the offsets of every row")
	cmd.Flags().StringVar(&against, "against", "", "compare with the log itself: kafka (implies --deep)")
	cmd.Flags().Int64Var(&memory, "memory", 256, "MiB that --deep may remember offsets in; beyond it the table is read in several passes")
	return cmd
}

// bar shows on a terminal how far something is.
type bar struct {
	w     io.Writer // nil: no terminal
	shown bool
}

// newBar draws on w if it is a terminal.
func newBar(w io.Writer) *bar {
	if f, ok := w.(interface{ Fd() uintptr }); !ok || !term.IsTerminal(int(f.Fd())) {
		return &bar{}
	}
	return &bar{w: w}
}

const barWidth = 30

func (b *bar) show(p committer.AuditProgress) {
	if b.w == nil {
		return
	}
	b.shown = true
	_, _ = fmt.Fprint(b.w, "\r\x1b[K", barText(p)) // a bar that cannot be drawn is no error
}

// barText is the bar without what moves the cursor.
func barText(p committer.AuditProgress) string {
	pass := ""
	if p.Pass > 1 {
		pass = fmt.Sprintf(", pass %d", p.Pass)
	}
	if p.Total <= 0 {
		return fmt.Sprintf("%d  %s%s", p.Done, p.What, pass)
	}
	done := min(p.Done, p.Total)
	n := int(done * barWidth / p.Total)
	return fmt.Sprintf("[%s%s] %3d%%  %s%s", strings.Repeat("=", n), strings.Repeat(" ", barWidth-n), done*100/p.Total, p.What, pass)
}

// clear takes the bar away.
func (b *bar) clear() {
	if b.shown {
		_, _ = fmt.Fprint(b.w, "\r\x1b[K")
	}
}
