// Command icestream is the one tool for people: it runs all services in one
// process (run, dev), reads tables, and proves that nothing was lost (audit).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
)

func main() {
	ctx, stop := run.Signals(context.Background())
	code := execute(ctx, os.Args[1:])
	stop()
	os.Exit(int(code))
}

// execute runs the command line and returns the exit code.
func execute(ctx context.Context, args []string) run.Code {
	root := rootCommand()
	root.SetOut(os.Stdout) // or else cobra prints answers to stderr
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return run.OK
	}
	if !errors.Is(err, errSilent) {
		_, _ = fmt.Fprintln(os.Stderr, "icestream:", fault.Describe(err))
	}
	return exitCode(ctx, err)
}

// errSilent ends a command whose output has already said everything.
var errSilent = errors.New("already reported")

// exitCode maps an error to the table of exit codes (run.Codes).
func exitCode(ctx context.Context, err error) run.Code {
	if code := run.CodeOf(err); code != run.Internal {
		return code
	}
	switch fault.ReasonOf(err) {
	case fault.Internal:
	case fault.InvalidArgument, fault.UnknownTable, fault.NotFound, fault.Unsupported:
		return run.CannotTell
	default:
		return run.Dependency
	}
	if ctx.Err() != nil {
		return run.Interrupted
	}
	if strings.HasPrefix(err.Error(), "unknown command") || strings.HasPrefix(err.Error(), "unknown flag") {
		return run.CannotTell
	}
	return run.Internal
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "icestream",
		Short:         "Kafka to Apache Iceberg, readable in milliseconds, proven by one command",
		Long:          "Kafka to Apache Iceberg, readable in milliseconds, proven by one command.\n\n" + exitCodeHelp(),
		Version:       boot.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return run.WithCode(run.CannotTell, err) })
	root.AddCommand(
		devCommand(), runCommand(), validateCommand(), checkCommand(),
		readCommand(), tailCommand(), tablesCommand(), describeCommand(), statusCommand(), commitCommand(), pipelineCommand(),
		auditCommand(), journalCommand(), versionCommand(),
	)
	return root
}

func exitCodeHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for _, d := range run.Codes() {
		_, _ = fmt.Fprintf(&b, "  %3d  %-14s %s\n", d.Code, d.Name, d.Meaning)
	}
	return b.String()
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, revision and Go version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.Println("icestream", boot.Version())
			return nil
		},
	}
}
