package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

// callTimeout bounds every unary call of the CLI.
const callTimeout = 15 * time.Second

// commitTimeout bounds CommitNow, which writes files and talks to the catalog.
const commitTimeout = 5 * time.Minute

// printProto prints a message as JSON in the names of the API.
func printProto(cmd *cobra.Command, m proto.Message) error {
	b, err := protoJSON(m)
	if err != nil {
		return err
	}
	return printJSON(cmd.OutOrStdout(), b)
}

// protoJSON is a message as JSON in the names of the API.
func protoJSON(m proto.Message) (json.RawMessage, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("printing the answer: %w", err)
	}
	return b, nil
}

func tablesCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:     "tables",
		Short:   "List tables with their hot rows and state",
		Example: "  icestream tables --dir ./icestream-dev",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := ask(cmd, &t, readstateOf, callTimeout, readstatev1.NewReadStateServiceClient,
				readstatev1.ReadStateServiceClient.ListTables, &readstatev1.ListTablesRequest{})
			if err != nil {
				return err
			}
			amiss := t.commitsAmiss(cmd)
			if format == "json" {
				return printListed(cmd, list, amiss)
			}
			rows := make([][]string, 0, len(list.GetTables()))
			for _, s := range list.GetTables() {
				if why := amiss[s.GetTable()]; why != "" {
					phrase, _, _ := strings.Cut(commitsPhrase(why), ": ")
					s.State += ", " + phrase
				}
				rows = append(rows, []string{
					s.GetTable(), strconv.FormatInt(s.GetSnapshotId(), 10),
					strconv.FormatInt(s.GetHotRows(), 10), bytesForPeople(s.GetHotBytes()), s.GetState(),
				})
			}
			return printTable(cmd.OutOrStdout(), []string{"TABLE", "SNAPSHOT", "HOT ROWS", "HOT BYTES", "STATE"}, rows)
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func describeCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:     "describe TABLE",
		Short:   "Show positions, lag and schema of a table",
		Example: "  icestream describe --dir ./icestream-dev shop.orders",
		Args:    oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := ask(cmd, &t, readstateOf, callTimeout, readstatev1.NewReadStateServiceClient,
				readstatev1.ReadStateServiceClient.DescribeTable, &readstatev1.DescribeTableRequest{Table: args[0]})
			if err != nil {
				return err
			}
			why := t.commitsAmiss(cmd)[args[0]]
			if format == "json" {
				return printDescribed(cmd, d, why)
			}
			return printDescription(cmd, d, why)
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

// commitsAmiss asks the committer why tables are not committed to as they should
// be: readers are served what the log holds, whatever becomes of the table. It is
// empty where no committer can be asked.
func (t *target) commitsAmiss(cmd *cobra.Command) map[string]string {
	out := map[string]string{}
	if t.addr != "" {
		return out // the address is that of another service
	}
	c, err := t.load(cmd)
	if err != nil {
		return out // the answer itself came without
	}
	st, err := t.askStatus(cmd.Context(), c.Discovery.Committer)
	if err != nil {
		cmd.PrintErrln("warning: the committer does not say how its tables are:", fault.Describe(err))
		return out
	}
	for _, comp := range st.GetComponents() {
		if table, ok := strings.CutPrefix(comp.GetName(), "committer/table "); ok && !comp.GetReady() {
			out[table] = comp.GetReason()
		}
	}
	return out
}

// commitsPhrase says what the committer says of a table it is not content with: its
// commits are stopped, or failing; or they go on, and something else waits.
func commitsPhrase(why string) string {
	for _, state := range []string{"stopped", "starting", "ended", "failing since"} {
		if strings.HasPrefix(why, state) {
			return "commits " + why
		}
	}
	return "committer not ready: " + why
}

// printListed prints the tables as JSON, each with what the committer says of it.
func printListed(cmd *cobra.Command, list *readstatev1.ListTablesResponse, amiss map[string]string) error {
	out := struct {
		Tables []json.RawMessage `json:"tables"`
	}{[]json.RawMessage{}}
	for _, s := range list.GetTables() {
		text, err := withCommits(s, amiss[s.GetTable()])
		if err != nil {
			return err
		}
		out.Tables = append(out.Tables, text)
	}
	return printJSON(cmd.OutOrStdout(), out)
}

// printDescribed prints the answer as JSON, with what the committer says.
func printDescribed(cmd *cobra.Command, d *readstatev1.DescribeTableResponse, why string) error {
	text, err := withCommits(d, why)
	if err != nil {
		return err
	}
	return printJSON(cmd.OutOrStdout(), text)
}

// withCommits is an answer as JSON with one more field where the committer is not
// content: why.
func withCommits(m proto.Message, why string) (json.RawMessage, error) {
	text, err := protoJSON(m)
	if err != nil || why == "" {
		return text, err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("printing the answer: %w", err)
	}
	if fields["commits"], err = json.Marshal(why); err == nil {
		text, err = json.Marshal(fields)
	}
	if err != nil {
		return nil, fmt.Errorf("printing the answer: %w", err)
	}
	return text, nil
}

func printDescription(cmd *cobra.Command, d *readstatev1.DescribeTableResponse, why string) error {
	uuid, err := wire.UUIDFromProto(d.GetSummary().GetTableUuid())
	if err != nil {
		return err
	}
	cmd.Printf("table %s, uuid %s, %s\n", d.GetSummary().GetTable(), uuid, d.GetSummary().GetState())
	if why != "" {
		phrase := commitsPhrase(why)
		cmd.Println(phrase)
		if strings.HasPrefix(phrase, "commits") {
			cmd.Println("what follows is what the log knew last")
		}
	}
	cmd.Printf("snapshot %d, committed %s, log epoch %d, writer epoch %d, %d hot rows\n\n", d.GetCommit().GetSnapshotId(),
		time.UnixMicro(d.GetCommit().GetCommitTime()).UTC().Format(time.RFC3339), d.GetLogEpoch(), d.GetCommit().GetWriterEpoch(),
		d.GetSummary().GetHotRows())
	rows := make([][]string, 0, len(d.GetPartitions()))
	for _, p := range d.GetPartitions() {
		end := max(p.GetVisible(), p.GetProgress().GetStableEnd()) // ingest tells the end once a second
		rows = append(rows, []string{
			p.GetPartition().GetPipeline(), partitionName(p.GetPartition()), strconv.FormatInt(p.GetCommitted(), 10),
			strconv.FormatInt(p.GetVisible(), 10), strconv.FormatInt(end, 10),
			strconv.FormatInt(p.GetLag(), 10), p.GetProgress().GetReason(),
		})
	}
	if err := printTable(cmd.OutOrStdout(), []string{"PIPELINE", "PARTITION", "COMMITTED", "VISIBLE", "END", "LAG", "STATE"}, rows); err != nil {
		return err
	}
	return printColumns(cmd, d.GetSchema().GetColumns())
}

// printColumns prints the columns of a table at every depth; text is the JSON of
// internal/schema.
func printColumns(cmd *cobra.Command, text []byte) error {
	if len(text) == 0 {
		return nil // the table has no row yet, and no schema
	}
	s := &schema.Schema{}
	if err := json.Unmarshal(text, s); err != nil {
		return fmt.Errorf("reading the schema of the table: %w", err)
	}
	var rows [][]string
	s.Walk(func(path string, n *schema.Node) {
		null := "null"
		if n.Required {
			null = "required"
		}
		rows = append(rows, []string{strconv.Itoa(int(n.FieldID)), path, n.Type.String(), null})
	})
	cmd.Println()
	return printTable(cmd.OutOrStdout(), []string{"ID", "COLUMN", "TYPE", ""}, rows)
}

func statusCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show every service, whether it is ready, and why not",
		Long:  "Show every service, whether it is ready, and why not. Exit code 0 when all are ready, 1 when one is not.",
		Example: `  icestream status -c icestream.yaml
  icestream status --dir ./icestream-dev -o json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.load(cmd)
			if err != nil {
				return err
			}
			return t.printStatus(cmd, c, format)
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func (t *target) printStatus(cmd *cobra.Command, c *config.Config, format string) error {
	d := c.Discovery
	services := []struct{ name, addr string }{{"ingest", d.Ingest}, {"buffer", d.Buffer}, {"committer", d.Committer}, {"readstate", d.Readstate}}
	all := true
	var rows [][]string
	answers := []json.RawMessage{}
	for _, s := range services {
		st, err := t.askStatus(cmd.Context(), s.addr)
		if err != nil {
			st = &adminv1.GetStatusResponse{Service: s.name, Components: []*adminv1.Component{{Name: "service", Reason: fault.Describe(err)}}}
		}
		all = all && st.GetReady()
		if format == "json" {
			b, err := protoJSON(st)
			if err != nil {
				return err
			}
			answers = append(answers, b)
			continue
		}
		for _, comp := range st.GetComponents() {
			rows = append(rows, []string{s.name, s.addr, comp.GetName(), ready(comp.GetReady()), comp.GetReason()})
		}
	}
	var err error
	if format == "json" {
		err = printJSON(cmd.OutOrStdout(), answers)
	} else {
		err = printTable(cmd.OutOrStdout(), []string{"SERVICE", "ADDRESS", "COMPONENT", "READY", "REASON"}, rows)
	}
	if err != nil {
		return err
	}
	if !all {
		return run.WithCode(run.Violated, errSilent)
	}
	return nil
}

func ready(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

func (t *target) askStatus(ctx context.Context, addr string) (*adminv1.GetStatusResponse, error) {
	if err := t.reach(ctx, addr); err != nil {
		return nil, err
	}
	conn, err := boot.Dial(addr, config.Default().Limits.MaxMessage())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	st, err := adminv1.NewAdminServiceClient(conn).GetStatus(ctx, &adminv1.GetStatusRequest{})
	return st, wire.FromStatus(err)
}

func commitCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:     "commit TABLE",
		Short:   "Commit what is hot now, without waiting for the interval",
		Example: "  icestream commit --dir ./icestream-dev shop.orders",
		Args:    oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := ask(cmd, &t, committerOf, commitTimeout, committerv1.NewAdminServiceClient,
				committerv1.AdminServiceClient.CommitNow, &committerv1.CommitNowRequest{Table: args[0]})
			if err != nil {
				return err
			}
			if format == "json" {
				return printProto(cmd, a)
			}
			if a.GetCommitted() {
				cmd.Printf("committed snapshot %d\n", a.GetCommit().GetSnapshotId())
			} else {
				cmd.Printf("nothing to commit; snapshot %d holds everything that is visible\n", a.GetCommit().GetSnapshotId())
			}
			return nil
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func pipelineCommand() *cobra.Command {
	var subs []*cobra.Command
	for _, v := range []struct {
		verb, short, done string
		state             adminv1.PipelineState
	}{
		{"pause", "Stop fetching; positions and rows stay", "paused", adminv1.PipelineState_PIPELINE_STATE_PAUSED},
		{"resume", "Fetch again", "running", adminv1.PipelineState_PIPELINE_STATE_RUNNING},
	} {
		var t target
		var format string
		sub := &cobra.Command{
			Use:     v.verb + " NAME",
			Short:   v.short,
			Example: "  icestream pipeline " + v.verb + " -c icestream.yaml orders",
			Args:    oneArgument,
		}
		sub.RunE = func(cmd *cobra.Command, args []string) error {
			_, err := ask(cmd, &t, ingestOf, callTimeout, adminv1.NewAdminServiceClient,
				adminv1.AdminServiceClient.SetPipelineState, &adminv1.SetPipelineStateRequest{Pipeline: args[0], State: v.state})
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]string{"pipeline": args[0], "state": v.done})
			}
			cmd.Printf("pipeline %s is %s\n", args[0], v.done)
			return nil
		}
		t.flags(sub)
		outputFlag(sub, &format, "table", "json")
		subs = append(subs, sub)
	}
	return group("pipeline", "Pause or resume a pipeline", subs...)
}
