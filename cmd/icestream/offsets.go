package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/stack"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer"
)

func offsetsCommand() *cobra.Command {
	return group("offsets", "Look at and decide about the positions that a table holds", offsetsShowCommand(), offsetsResetCommand())
}

func offsetsShowCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "show TABLE",
		Short: "Show the committed positions of a table, by its history and by the copy",
		Long: `Show the committed positions of a table: by its history, and by the copy in the table property. Where they differ,
somebody rolled the table back, and nothing is written to it before an operator decides (exit code 1). Needs no
running service.`,
		Example: "  icestream offsets show -c icestream.yaml shop.orders",
		Args:    oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, closePeers, err := t.lake(cmd)
			if err != nil {
				return err
			}
			defer closePeers()
			o, err := committer.ShowOffsets(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				err = printJSON(cmd.OutOrStdout(), o)
			} else {
				err = printOffsets(cmd, o)
			}
			if err == nil && o.Problem != "" {
				err = run.WithCode(run.Violated, errSilent)
			}
			return err
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func printOffsets(cmd *cobra.Command, o committer.Offsets) error {
	rows := make([][]string, 0, len(o.Partitions))
	for _, p := range o.Partitions {
		rows = append(rows, []string{
			ident.Partition{Pipeline: p.Pipeline, Topic: p.Topic, Number: p.Partition}.String(), strconv.FormatInt(p.Start, 10), nextOffset(p.Table), nextOffset(p.Copy),
			strconv.FormatInt(p.Rows, 10), strconv.FormatInt(p.Quarantined, 10), strconv.FormatInt(p.Skipped, 10),
		})
	}
	err := printTable(cmd.OutOrStdout(), []string{"PARTITION", "START", "TABLE", "COPY", "ROWS", "QUARANTINED", "SKIPPED"}, rows)
	if o.Problem != "" {
		cmd.Println(o.Problem)
	}
	return err
}

// nextOffset is one for people.
func nextOffset(next int64) string {
	if next < 0 {
		return "-"
	}
	return strconv.FormatInt(next, 10)
}

func offsetsResetCommand() *cobra.Command {
	var t target
	var format, to, reason string
	var parts []string
	var yes, unchecked bool
	cmd := &cobra.Command{
		Use:   "reset TABLE",
		Short: "Decide where a table goes on that somebody rolled back",
		Long: `Decide where a table goes on that another engine rolled back, or whose state was lost; the committer has stopped it.

  --to table   go on where its history ends: what was lost is read again from Kafka, if it is still there
  --to copy    go on where the copy in the table property says: what a roll-back took is given up and counted as lost,
               what commits that it took had put into quarantine too
  --partition  move a partition forward; what lies between is given up and counted as lost (repeatable). Never back:
               the table holds the rows, and they would land twice. Nor beyond the end of Kafka's log, which is asked
               first: with --unchecked it is not

Without --yes it only says what would be done, and what Kafka has no more of it. The decision is kept in the table, and
the audit shows it.`,
		Example: `  icestream offsets reset -c icestream.yaml shop.orders --to table
  icestream offsets reset -c icestream.yaml shop.orders --to table --reason "rolled back by mistake" --yes
  icestream offsets reset -c icestream.yaml shop.orders --partition orders/orders/3=120000 --yes`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &committerv1.ResetOffsetsRequest{Table: args[0], Reason: reason, Unchecked: unchecked}
			switch to {
			case "":
			case "table":
				req.Base = committerv1.ResetBase_RESET_BASE_TABLE
			case "copy":
				req.Base = committerv1.ResetBase_RESET_BASE_COPY
			default:
				return fault.New(fault.InvalidArgument, "--to %q: want table or copy", to)
			}
			for _, text := range parts {
				f, err := parseForward(text)
				if err != nil {
					return err
				}
				req.Forward = append(req.Forward, f)
			}
			a, err := t.resetOffsets(cmd, req, yes)
			if err != nil {
				return err
			}
			if format == "json" {
				return printProto(cmd, a)
			}
			return printReset(cmd, args[0], a, yes)
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	cmd.Flags().StringVar(&to, "to", "", "which positions hold: table or copy")
	cmd.Flags().StringArrayVar(&parts, "partition", nil, "partition to move forward, as pipeline/topic/partition=offset or, as it is printed, pipeline/topic[partition]=offset")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever audits the table later")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it; without, only say what would be done")
	cmd.Flags().BoolVar(&unchecked, "unchecked", false, "do not ask Kafka whether it has the offsets: what comes below them is never read")
	return cmd
}

// resetOffsets asks what would be done, then Kafka for what it holds of that, and
// then the committer, which judges both.
func (t *target) resetOffsets(cmd *cobra.Command, req *committerv1.ResetOffsetsRequest, yes bool) (*committerv1.ResetOffsetsResponse, error) {
	send := func(req *committerv1.ResetOffsetsRequest) (*committerv1.ResetOffsetsResponse, error) {
		return ask(cmd, t, committerOf, callTimeout, committerv1.NewAdminServiceClient, committerv1.AdminServiceClient.ResetOffsets, req)
	}
	if !req.GetUnchecked() {
		plan, err := send(&committerv1.ResetOffsetsRequest{Table: req.GetTable(), Base: req.GetBase(), Forward: req.GetForward(), DryRun: true, Unchecked: true})
		if err != nil {
			return nil, err
		}
		var topics []string
		for _, p := range plan.GetPartitions() {
			topics = append(topics, p.GetPartition().GetTopic())
		}
		slices.Sort(topics)
		req.Log, err = t.kafkaHolds(cmd, slices.Compact(topics))
		switch {
		case err != nil && len(req.GetForward()) > 0:
			return nil, fault.New(fault.ReasonOf(err), "resetting table %s: whether Kafka has the offset is not known, and positions never go back: %w; --unchecked moves on without a look",
				req.GetTable(), err)
		case err != nil:
			cmd.PrintErrln("warning: what Kafka still has of it is not known:", fault.Describe(err))
		}
	}
	req.DryRun = !yes
	return send(req)
}

// kafkaHolds is what Kafka holds of topics. One that is gone has nothing.
func (t *target) kafkaHolds(cmd *cobra.Command, topics []string) ([]*committerv1.LogExtent, error) {
	c, err := t.file(cmd)
	if err != nil {
		return nil, err
	}
	log, err := stack.OpenKafkaLog(c)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	var out []*committerv1.LogExtent
	for _, name := range topics {
		topic, err := log.Topic(cmd.Context(), name)
		if fault.ReasonOf(err) == fault.NotFound {
			cmd.PrintErrf("warning: Kafka has no topic %s\n", name)
			continue
		}
		if err != nil {
			return out, err
		}
		for n, r := range topic.Partitions {
			out = append(out, &committerv1.LogExtent{
				Partition: wire.PartitionToProto(ident.Partition{Topic: name, TopicID: topic.ID, Number: n}), Cluster: topic.Cluster, Range: wire.RangeToProto(r),
			})
		}
	}
	return out, nil
}

// parseForward reads pipeline/topic/partition=offset, or the partition as it is
// printed, pipeline/topic[partition]; what stands before the partition may be left out
// from the left.
func parseForward(text string) (*committerv1.ResetForward, error) {
	where, offset, ok := strings.Cut(text, "=")
	if open := strings.LastIndexByte(where, '['); open > 0 && strings.HasSuffix(where, "]") {
		where = where[:open] + "/" + where[open+1:len(where)-1]
	}
	words := strings.Split(where, "/")
	next, err := strconv.ParseInt(offset, 10, 64)
	number, nerr := strconv.ParseInt(words[len(words)-1], 10, 32)
	if !ok || err != nil || nerr != nil || next < 0 || number < 0 || len(words) > 3 {
		return nil, fault.New(fault.InvalidArgument, "--partition %q: want pipeline/topic/partition=offset", text)
	}
	f := &committerv1.ResetForward{Partition: int32(number), Offset: next}
	if len(words) > 1 {
		f.Topic = words[len(words)-2]
	}
	if len(words) > 2 {
		f.Pipeline = words[0]
	}
	return f, nil
}

func printReset(cmd *cobra.Command, table string, a *committerv1.ResetOffsetsResponse, done bool) error {
	rows := make([][]string, 0, len(a.GetPartitions()))
	for _, p := range a.GetPartitions() {
		part := p.GetPartition()
		rows = append(rows, []string{
			fullName(part), nextOffset(p.GetTable()), nextOffset(p.GetCopy()),
			nextOffset(p.GetNext()), strconv.FormatInt(max(0, p.GetCopy()-p.GetNext()), 10), strconv.FormatInt(p.GetLost(), 10),
		})
	}
	if err := printTable(cmd.OutOrStdout(), []string{"PARTITION", "TABLE", "COPY", "GOES ON AT", "READ AGAIN", "LOST"}, rows); err != nil {
		return err
	}
	for _, p := range a.GetPartitions() {
		if p.GetRemark() != "" {
			cmd.Printf("%s: %s\n", fullName(p.GetPartition()), p.GetRemark())
		}
	}
	if done {
		cmd.Printf("%s was reset in snapshot %d; log epoch %d begins\n", table, a.GetSnapshotId(), a.GetLogEpoch())
	} else {
		cmd.Printf("nothing was changed; add --yes to reset %s\n", table)
	}
	return nil
}
