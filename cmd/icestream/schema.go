package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer"
	"github.com/icestream/icestream/services/ingest"
)

func schemaCommand() *cobra.Command {
	return group("schema", "Look at the schemas of a table, and decide about those that it refuses",
		schemaShowCommand(), schemaDiffCommand(), schemaHistoryCommand(), schemaWaitingCommand(),
		decideCommand("accept", committerv1.SchemaAction_SCHEMA_ACTION_ACCEPT, "Give refused fields a column of their own",
			`Give refused fields a column of their own, beside the one that they do not fit: units, then units_2. Records whose
field still fits the old column fill that one. Nothing that is written changes.`),
		decideCommand("ignore", committerv1.SchemaAction_SCHEMA_ACTION_IGNORE, "Leave refused fields out",
			`Leave refused fields out. Where a record's field fits its column nothing changes; where it does not, the column is
null and the rest of the record is a row as usual.`),
		decideCommand("quarantine", committerv1.SchemaAction_SCHEMA_ACTION_QUARANTINE, "Send the records of refused schemas to quarantine",
			`Send the records of a refused schema to quarantine, with the reason schema_refused, as long as the table refuses it.`),
	)
}

// readSchema reads a table's schema from the catalog.
func readSchema(cmd *cobra.Command, t *target, table string) (*committer.TableSchema, error) {
	c, closePeers, err := t.lake(cmd)
	if err != nil {
		return nil, err
	}
	defer closePeers()
	return committer.ReadSchema(cmd.Context(), c, table, nil)
}

func schemaShowCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "show TABLE",
		Short: "Show the columns of a table, what feeds them, and what was decided",
		Long: `Show the columns of a table with their field ids, the fields that feed them (pipeline and number path: 5.element.2 is
field 2 of the elements of field 5, 3~2 the second column of field 3), and what was decided. Needs only the catalog.`,
		Example: `  icestream schema show -c icestream.yaml shop.orders
  icestream schema show --dir ./icestream-dev shop.orders -o json`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := readSchema(cmd, &t, args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), s)
			}
			return printSchema(cmd, s)
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func printSchema(cmd *cobra.Command, s *committer.TableSchema) error {
	cmd.Printf("table %s, uuid %s, format version %d, schema %d\n", s.Table, s.UUID, s.FormatVersion, s.SchemaID)
	if s.Partition != "" {
		cmd.Printf("partition %s\n", s.Partition)
	}
	if s.Sort != "" {
		cmd.Printf("sort %s\n", s.Sort)
	}
	var rows [][]string
	s.Schema.Walk(func(path string, n *schema.Node) {
		null := "null"
		if n.Required {
			null = "required"
		}
		rows = append(rows, []string{strconv.Itoa(int(n.FieldID)), path, n.Type.String(), null, strings.Join(s.Feeds(n.FieldID), ", ")})
	})
	cmd.Println()
	if err := printTable(cmd.OutOrStdout(), []string{"ID", "COLUMN", "TYPE", "", "FED BY"}, rows); err != nil {
		return err
	}
	rows = nil
	for _, pipeline := range slices.Sorted(maps.Keys(s.Decisions)) {
		for _, d := range s.Decisions[pipeline] {
			rows = append(rows, []string{timeForPeople(d.At), pipeline, d.String()})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	cmd.Println()
	return printTable(cmd.OutOrStdout(), []string{"DECIDED", "PIPELINE", "WHAT"}, rows)
}

// timeForPeople prints a time to the second, "" for none.
func timeForPeople(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func schemaHistoryCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "history TABLE",
		Short: "Show every schema of a table, when it came, and why",
		Long: `Show every schema in the metadata of a table with the oldest snapshot of it that is left, what changed, and who asked for
it: the source schema of a pipeline, an operator, or another tool. Needs only the catalog.`,
		Example: `  icestream schema history -c icestream.yaml shop.orders
  icestream schema history --dir ./icestream-dev shop.orders -o json`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := readSchema(cmd, &t, args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), s.History)
			}
			printHistory(cmd, s.History)
			return nil
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func printHistory(cmd *cobra.Command, list []committer.SchemaChange) {
	for _, c := range list {
		when := timeForPeople(c.Time)
		if when == "" {
			when = "time not known"
		}
		what := fmt.Sprintf("schema %d", c.SchemaID)
		if c.Decision != "" {
			what = "decision"
		}
		if c.Current {
			what += " (current)"
		}
		if c.SnapshotID != 0 {
			what += fmt.Sprintf(", from snapshot %d", c.SnapshotID)
		}
		who := c.Cause
		if c.Pipeline != "" {
			who = "pipeline " + c.Pipeline + ", " + who
		}
		cmd.Printf("%s  %s: %s\n", when, what, who)
		for _, line := range c.Changes {
			cmd.Println("  ", line)
		}
	}
}

// planFlags are the flags of plan and schema diff that choose what is compared.
type planFlags struct {
	proto    string
	includes []string
	subject  string
	version  int
	sample   int
}

func (f *planFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.proto, "proto", "", "Protobuf file that is not registered yet, instead of the registry's schemas")
	cmd.Flags().StringArrayVar(&f.includes, "include", nil, "folder with the files that --proto imports; may be given again")
	cmd.Flags().StringVar(&f.subject, "subject", "", "subject of the registry, instead of those of the topics")
	cmd.Flags().IntVar(&f.version, "version", 0, "version of the subject, instead of all")
}

// plan runs the comparison and prints it; the exit code is in the error.
func (f *planFlags) plan(cmd *cobra.Command, t *target, o ingest.PlanOptions, format string) error {
	c, closePeers, err := t.lake(cmd)
	if err != nil {
		return err
	}
	defer closePeers()
	o.Subject, o.Version, o.Sample = f.subject, f.version, f.sample
	if f.proto != "" {
		if o.File, o.Text, o.Imports, err = readProto(f.proto, f.includes); err != nil {
			return err
		}
	}
	o.Table = func(ctx context.Context, pipeline, table string) (ingest.PlanTable, error) {
		s, err := committer.ReadSchema(ctx, c, table, nil)
		if committer.Missing(err) {
			return ingest.PlanTable{}, nil
		}
		if err != nil {
			return ingest.PlanTable{}, err
		}
		return ingest.PlanTable{
			Exists: true, Schema: s.Schema, Numbers: s.Numbers[pipeline], Decisions: s.Decisions[pipeline],
			Newest: s.Newest[pipeline], Pinned: s.Pinned, FormatVersion: s.FormatVersion,
		}, nil
	}
	report, err := ingest.Plan(cmd.Context(), c, o)
	if err != nil {
		return err
	}
	return printPlan(cmd, report, format)
}

func schemaDiffCommand() *cobra.Command {
	var t target
	var f planFlags
	var format string
	cmd := &cobra.Command{
		Use:   "diff TABLE",
		Short: "Compare one source schema with the live table",
		Long: `Compare a version of a subject, or a file, with the live table: columns to add, widen or rename, fields that are stored in
another type, and what is refused and why. Changes nothing. Exit code 0 it fits or the table can be changed, 1 it is
refused, 2 cannot tell.`,
		Example: `  icestream schema diff -c icestream.yaml shop.orders --subject orders-value --version 3
  icestream schema diff -c icestream.yaml shop.orders --proto order.proto --include ./proto`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.plan(cmd, &t, ingest.PlanOptions{Only: args[0]}, format)
		},
	}
	t.flags(cmd)
	f.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func schemaWaitingCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:     "waiting",
		Short:   "List the source schemas that tables refuse and partitions wait with",
		Example: "  icestream schema waiting -c icestream.yaml",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			resp, err := ask(cmd, &t, committerOf, callTimeout, committerv1.NewAdminServiceClient,
				committerv1.AdminServiceClient.ListSchemaRefusals, &committerv1.ListSchemaRefusalsRequest{})
			if err != nil {
				return err
			}
			if format == "json" {
				return printProto(cmd, resp)
			}
			printWaiting(cmd, resp.GetRefused())
			return nil
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func printWaiting(cmd *cobra.Command, list []*committerv1.RefusedSchema) {
	if len(list) == 0 {
		cmd.Println("nothing waits for a decision")
	}
	for _, r := range list {
		cmd.Printf("table %s, pipeline %s, %s waits:\n", r.GetTable(), r.GetPipeline(), r.GetSourceSchema())
		for _, f := range r.GetRefusals() {
			cmd.Printf("   column %s, field %s: the table has %s, the records bring %s: %s\n",
				f.GetPath(), f.GetField(), f.GetTableType(), f.GetSourceType(), f.GetWhy())
		}
	}
}

// decideTimeout bounds a decision, which is a commit.
const decideTimeout = time.Minute

func decideCommand(verb string, action committerv1.SchemaAction, short, long string) *cobra.Command {
	var t target
	var format string
	req := &committerv1.DecideSchemaRequest{Action: action}
	cmd := &cobra.Command{
		Use:   verb + " TABLE",
		Short: short,
		Long: long + ` The decision is about everything that waits on the table and matches the flags; it is kept in the table, so every
ingest and every restart agrees. A partition that waits tries again within 10 seconds. Deciding the same again changes nothing.`,
		Example: "  icestream schema " + verb + " -c icestream.yaml shop.orders",
		Args:    oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Table = args[0]
			resp, err := ask(cmd, &t, committerOf, decideTimeout, committerv1.NewAdminServiceClient,
				committerv1.AdminServiceClient.DecideSchema, req)
			if err != nil {
				return err
			}
			if format == "json" {
				return printProto(cmd, resp)
			}
			printDecided(cmd, verb, resp)
			return nil
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&req.Pipeline, "pipeline", "", "only what this pipeline brings")
	cmd.Flags().StringVar(&req.SourceSchema, "schema", "", "only this source schema, as icestream schema waiting names it")
	if action != committerv1.SchemaAction_SCHEMA_ACTION_QUARANTINE {
		cmd.Flags().StringVar(&req.Column, "column", "", "only this column (or the number path of its field)")
		cmd.Example += "\n  icestream schema " + verb + " -c icestream.yaml shop.orders --column units"
	}
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func printDecided(cmd *cobra.Command, verb string, resp *committerv1.DecideSchemaResponse) {
	for _, d := range resp.GetDecisions() {
		about := fmt.Sprintf("field %s, column %s (%s in the table, %s in %s)", d.GetField(), d.GetColumn(), d.GetTableType(), d.GetSourceType(), d.GetSourceSchema())
		if d.GetField() == "" {
			about = "the records of " + d.GetSourceSchema()
		}
		already := ""
		if resp.GetAlready() {
			already = ", decided at " + timeForPeople(time.UnixMicro(d.GetDecided()))
		}
		cmd.Printf("pipeline %s: %s %s%s\n", d.GetPipeline(), verb, about, already)
	}
	if len(resp.GetRefused()) > 0 {
		printWaiting(cmd, resp.GetRefused())
	}
}
