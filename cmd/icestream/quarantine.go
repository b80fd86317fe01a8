package main

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/committer"
)

// replayTimeout bounds a replay for its caller; what has begun is finished without
// it.
const replayTimeout = time.Hour

// quarantineFlags are the ways to select quarantined records.
type quarantineFlags struct {
	pipeline, topic, reason string
	partition, schemaID     int32
	from, to, offset        int64
}

func (q *quarantineFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&q.pipeline, "pipeline", "", "only records of this pipeline")
	f.StringVar(&q.topic, "topic", "", "only records of this topic")
	f.Int32Var(&q.partition, "partition", 0, "only records of this partition")
	f.Int64Var(&q.offset, "offset", 0, "only the record at this offset")
	f.Int64Var(&q.from, "from", 0, "only records from this offset on")
	f.Int64Var(&q.to, "to", 0, "only records below this offset")
	f.StringVar(&q.reason, "reason", "", "only records quarantined for this reason")
	f.Int32Var(&q.schemaID, "schema-id", 0, "only records of this schema id")
}

// filter is what was asked for.
func (q *quarantineFlags) filter(cmd *cobra.Command) (committer.QuarantineFilter, error) {
	f := committer.QuarantineFilter{Pipeline: q.pipeline, Topic: q.topic, Reason: q.reason}
	given := cmd.Flags().Changed
	if given("partition") {
		f.Partition = &q.partition
	}
	if given("schema-id") {
		f.SchemaID = &q.schemaID
	}
	if given("from") {
		f.From = &q.from
	}
	if given("to") {
		f.To = &q.to
	}
	if given("offset") {
		if given("from") || given("to") {
			return f, fault.New(fault.InvalidArgument, "--offset excludes --from and --to")
		}
		next := q.offset + 1
		f.From, f.To = &q.offset, &next
	}
	return f, nil
}

func quarantineCommand() *cobra.Command {
	return group("quarantine", "Look at records that could not be rows, and replay them",
		quarantineListCommand(), quarantineShowCommand(), quarantineReplayCommand(), quarantineAllowCommand())
}

func quarantineListCommand() *cobra.Command {
	var t target
	var q quarantineFlags
	var format string
	var waiting bool
	cmd := &cobra.Command{
		Use:   "list TABLE",
		Short: "Count quarantined records by partition, reason and schema id",
		Long: `Count quarantined records by partition, reason and schema id. TABLE is the main table. Needs only the catalog and the
files, no running service. Records of rows that are still hot are counted once they are committed.`,
		Example: `  icestream quarantine list -c icestream.yaml shop.orders
  icestream quarantine list --dir ./icestream-dev shop.orders --waiting -o json`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := q.filter(cmd)
			if err != nil {
				return err
			}
			f.Waiting = waiting
			c, closePeers, err := t.lake(cmd)
			if err != nil {
				return err
			}
			defer closePeers()
			s, err := committer.CountQuarantine(cmd.Context(), c, args[0], f)
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), s)
			}
			return printQuarantine(cmd, s)
		},
	}
	t.flags(cmd)
	q.flags(cmd)
	cmd.Flags().BoolVar(&waiting, "waiting", false, "leave out what was replayed")
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func printQuarantine(cmd *cobra.Command, s committer.QuarantineSummary) error {
	rows := make([][]string, 0, len(s.Counts))
	var records, replayed int64
	for _, c := range s.Counts {
		newest := ""
		if !c.Newest.IsZero() {
			newest = c.Newest.Format(time.RFC3339)
		}
		rows = append(rows, []string{
			c.Pipeline, ident.TopicPartition(c.Topic, c.Partition), c.Reason, optional(c.SchemaID),
			strconv.FormatInt(c.Records, 10), strconv.FormatInt(c.Replayed, 10),
			fmt.Sprintf("%d to %d", c.First, c.Last), newest,
		})
		records += c.Records
		replayed += c.Replayed
	}
	err := printTable(cmd.OutOrStdout(), []string{"PIPELINE", "PARTITION", "REASON", "SCHEMA ID", "RECORDS", "REPLAYED", "OFFSETS", "NEWEST"}, rows)
	if err != nil {
		return err
	}
	cmd.Printf("\n%d records, %d of them replayed\n", records, replayed)
	if s.Pending > 0 {
		cmd.Printf("%d more are committed and not in the quarantine table yet; the committer puts them there by itself\n", s.Pending)
	}
	return nil
}

// optional prints a number that may be missing.
func optional(n *int32) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(int(*n))
}

// shownBytes is how much of a key or value is shown without --full.
const shownBytes = 256

func quarantineShowCommand() *cobra.Command {
	var t target
	var q quarantineFlags
	var format string
	var limit int
	var full, waiting bool
	cmd := &cobra.Command{
		Use:   "show TABLE",
		Short: "Show quarantined records: key, value, headers, schema id, reason and error",
		Long: `Show quarantined records: key, value, headers, schema id, reason and error, in the order of their offsets. Bytes are shown
as hex; with -o json, one object a line, as base64. Needs only the catalog and the files. Where none matches it says so,
with exit code 0.`,
		Example: `  icestream quarantine show -c icestream.yaml shop.orders --partition 0 --offset 4711
  icestream quarantine show -c icestream.yaml shop.orders --reason frame_missing --limit 3 -o json`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return fault.New(fault.InvalidArgument, "--limit %d: want a positive number, or 0 for all records", limit)
			}
			f, err := q.filter(cmd)
			if err != nil {
				return err
			}
			f.Waiting = waiting
			c, closePeers, err := t.lake(cmd)
			if err != nil {
				return err
			}
			defer closePeers()
			shown := 0
			err = committer.ShowQuarantine(cmd.Context(), c, args[0], f, limit, func(r committer.QuarantinedRecord) error {
				shown++
				if format == "json" {
					return printLine(cmd.OutOrStdout(), r)
				}
				return printRecord(cmd, r, full)
			})
			if err == nil && shown == 0 {
				err = nothingMatches(cmd, c, args[0], f)
			}
			return err
		},
	}
	t.flags(cmd)
	q.flags(cmd)
	cmd.Flags().IntVar(&limit, "limit", 10, "records at most; 0 for all")
	cmd.Flags().BoolVar(&full, "full", false, "show all bytes of keys and values")
	cmd.Flags().BoolVar(&waiting, "waiting", false, "leave out what was replayed")
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

// nothingMatches says that no record was found, and what the table has instead.
func nothingMatches(cmd *cobra.Command, c *config.Config, table string, f committer.QuarantineFilter) error {
	all, err := committer.CountQuarantine(cmd.Context(), c, table, committer.QuarantineFilter{})
	if err != nil {
		return err
	}
	has := map[string]int64{}
	var records int64
	for _, n := range all.Counts {
		has[n.Reason] += n.Records
		records += n.Records
	}
	switch {
	case records == 0:
		cmd.PrintErrf("%s has no quarantined record\n", table)
	case f.Reason != "" && has[f.Reason] == 0:
		cmd.PrintErrf("no quarantined record of %s has the reason %s; it has %s\n", table, f.Reason, strings.Join(slices.Sorted(maps.Keys(has)), ", "))
	default:
		cmd.PrintErrf("none of the %d quarantined records of %s matches; `icestream quarantine list` counts them by partition, reason and schema id\n", records, table)
	}
	if all.Pending > 0 {
		cmd.PrintErrf("%d more are committed and not in the quarantine table yet\n", all.Pending)
	}
	return nil
}

func printRecord(cmd *cobra.Command, r committer.QuarantinedRecord, full bool) error {
	cmd.Printf("%s offset %d\n", ident.Partition{Pipeline: r.Pipeline, Topic: r.Topic, Number: r.Partition}, r.Offset)
	line := func(name, value string) { cmd.Printf("  %-12s %s\n", name, strings.Map(printable, value)) }
	line("reason", r.Reason)
	line("error", r.Error)
	line("schema id", optional(r.SchemaID))
	if r.Time != nil {
		line("timestamp", r.Time.Format(time.RFC3339Nano))
	}
	if r.LSN != nil {
		line("lsn", strconv.FormatInt(*r.LSN, 10))
	}
	line("commit", r.CommitID)
	if r.ReplayedIn != "" {
		line("replayed in", r.ReplayedIn)
	}
	for _, h := range r.Headers {
		line("header", fmt.Sprintf("%s = %s (hex)", h.Key, hex.EncodeToString(h.Value)))
	}
	printBytes(cmd, "key", r.Key, full)
	printBytes(cmd, "value", r.Value, full)
	cmd.Println()
	return nil
}

func printBytes(cmd *cobra.Command, name string, b []byte, full bool) {
	if b == nil {
		cmd.Printf("  %-12s null\n", name)
		return
	}
	size := len(b)
	note := ""
	if !full && size > shownBytes {
		b, note = b[:shownBytes], fmt.Sprintf(", the first %d shown; --full shows all", shownBytes)
	}
	cmd.Printf("  %-12s %d bytes%s\n", name, size, note)
	for dump := range strings.Lines(hex.Dump(b)) {
		cmd.Printf("    %s", dump)
	}
}

func quarantineReplayCommand() *cobra.Command {
	var t target
	var q quarantineFlags
	var format string
	var dry bool
	cmd := &cobra.Command{
		Use:   "replay TABLE",
		Short: "Make rows of quarantined records whose cause was mended",
		Long: `Make rows of quarantined records whose cause was mended: a schema that the registry has by now, a table that takes it by
now. Each lands once, with the offset and LSN that it had; what still cannot be a row stays in quarantine with its old
reason. Reads that began before do not see them. Needs committer and ingest. With --dry-run records are only decoded.
Exit code 0 when every selected record is a row, 1 when some stay.`,
		Example: `  icestream quarantine replay -c icestream.yaml shop.orders --dry-run
  icestream quarantine replay -c icestream.yaml shop.orders --schema-id 12 -o json`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := q.filter(cmd)
			if err != nil {
				return err
			}
			r, err := ask(cmd, &t, committerOf, replayTimeout, committerv1.NewAdminServiceClient,
				committerv1.AdminServiceClient.ReplayQuarantine, &committerv1.ReplayQuarantineRequest{
					Table: args[0], DryRun: dry, Filter: &committerv1.QuarantineFilter{
						Pipeline: f.Pipeline, Topic: f.Topic, Partition: f.Partition, From: f.From, To: f.To, Reason: f.Reason, SchemaId: f.SchemaID,
					},
				})
			if err != nil {
				return err
			}
			if format == "json" {
				err = printProto(cmd, r)
			} else {
				err = printReplay(cmd, r, dry)
			}
			if err == nil && r.GetReplayed() < r.GetSelected() {
				err = run.WithCode(run.Violated, errSilent)
			}
			return err
		},
	}
	t.flags(cmd)
	q.flags(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "decode the records and change nothing")
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func printReplay(cmd *cobra.Command, r *committerv1.ReplayQuarantineResponse, dry bool) error {
	verb := "were replayed"
	if dry {
		verb = "would be rows"
	}
	cmd.Printf("%d of %d quarantined records %s\n", r.GetReplayed(), r.GetSelected(), verb)
	for _, s := range r.GetSnapshots() {
		cmd.Printf("snapshot %d: %d rows, commit %s\n", s.GetSnapshotId(), s.GetRows(), s.GetCommitId())
	}
	if !r.GetMarked() {
		cmd.Println("the quarantine table does not say so yet; the committer goes on trying by itself")
	}
	if len(r.GetRefusals()) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(r.GetRefusals()))
	for _, f := range r.GetRefusals() {
		rows = append(rows, []string{f.GetReason(), strconv.FormatInt(f.GetCount(), 10), f.GetFirst()})
	}
	cmd.Println()
	if err := printTable(cmd.OutOrStdout(), []string{"STAYS FOR", "RECORDS", "FIRST"}, rows); err != nil {
		return err
	}
	for _, f := range r.GetRefusals() {
		cmd.Printf("%s: %s\n", f.GetReason(), strings.Map(printable, f.GetError()))
	}
	return nil
}

func quarantineAllowCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "allow PIPELINE",
		Short: "Let partitions go on that stopped because too many of their records are bad",
		Long: `Let partitions go on that stopped because more than flood.share of their records are bad. What becomes of those records
is the pipeline's policy. Each partition is guarded again once a whole window of it is below the share.`,
		Example: "  icestream quarantine allow -c icestream.yaml orders",
		Args:    oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := ask(cmd, &t, ingestOf, callTimeout, adminv1.NewAdminServiceClient,
				adminv1.AdminServiceClient.AllowFlood, &adminv1.AllowFloodRequest{Pipeline: args[0]})
			if err != nil {
				return err
			}
			if format == "json" {
				return printProto(cmd, r)
			}
			for _, p := range r.GetReleased() {
				cmd.Printf("%s goes on; it stood still: %s\n", ident.TopicPartition(p.GetTopic(), p.GetPartition()), strings.Map(printable, p.GetReason()))
			}
			cmd.Printf("floods of bad records are allowed in pipeline %s, %d partitions were stopped\n", args[0], len(r.GetReleased()))
			return nil
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}
