// Command icestream is the one tool for people: it runs all services in one
// process (run, dev), reads tables, and proves that nothing was lost (audit).
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/internal/run"
)

func main() {
	ctx, stop := run.Signals(context.Background())
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(int(code))
}

// execute runs the command line and returns the exit code.
func execute(ctx context.Context, args []string, out, errs io.Writer) run.Code {
	root := rootCommand()
	root.SetOut(out) // or else cobra prints answers to stderr
	root.SetErr(errs)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return run.OK
	}
	err = hintAtCommand(root, err)
	stopped := ctx.Err() != nil && errors.Is(err, context.Canceled) // the user knows
	if !errors.Is(err, errSilent) && !stopped {
		_, _ = fmt.Fprintln(errs, "icestream:", describe(err))
	}
	return exitCode(ctx, err)
}

// hintAtCommand says behind an unknown command which one was meant perhaps.
func hintAtCommand(root *cobra.Command, err error) error {
	var word string
	if n, _ := fmt.Sscanf(err.Error(), unknownCommand+" %q", &word); n != 1 {
		return err
	}
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
		for _, sub := range c.Commands() {
			if sub.Name() == word {
				return fmt.Errorf("%w; did you mean %s?", err, sub.CommandPath())
			}
		}
	}
	return fmt.Errorf("%w%s; `icestream --help` lists all", err, near.Hint(word, names))
}

// unknownCommand begins cobra's error, which has no type.
const unknownCommand = "unknown command"

// describe prints an error for people, joined ones each on a line of its own.
func describe(err error) string {
	for e := err; e != nil && e.Error() == err.Error(); e = errors.Unwrap(e) { // marks add no words
		joined, ok := e.(interface{ Unwrap() []error })
		if !ok {
			continue
		}
		var texts, lines []string
		for _, one := range joined.Unwrap() {
			texts, lines = append(texts, one.Error()), append(lines, describe(one))
		}
		if strings.Join(texts, "\n") == err.Error() {
			return strings.Join(lines, "\n")
		}
	}
	return fault.Describe(err)
}

// errSilent ends a command whose output has already said everything.
var errSilent = errors.New("already reported")

// exitCode maps an error to the table of exit codes (run.Codes).
func exitCode(ctx context.Context, err error) run.Code {
	if code := run.CodeOf(err); code != run.Internal {
		return code
	}
	if _, ok := errors.AsType[config.Errors](err); ok { // found by a verb after the file was read
		return run.BadConfig
	}
	if ctx.Err() != nil {
		return run.Interrupted
	}
	switch fault.ReasonOf(err) {
	case fault.Internal, fault.Corrupt:
	case fault.Unavailable, fault.NotReady, fault.Unauthorized, fault.DiskFull, fault.NotOwner, fault.WrongDoor:
		return run.Dependency
	default:
		return run.CannotTell
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return run.Dependency
	}
	if strings.HasPrefix(err.Error(), unknownCommand) {
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
		// Hints are ours, on the same line.
		DisableSuggestions: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return run.WithCode(run.CannotTell, fmt.Errorf("%w; `%s --help` shows the flags", err, cmd.CommandPath()))
	})
	root.AddCommand(
		devCommand(), runCommand(), validateCommand(), checkCommand(),
		readCommand(), tailCommand(), tablesCommand(), describeCommand(), statusCommand(), commitCommand(), renewCommand(), offsetsCommand(), pipelineCommand(),
		planCommand(), schemaCommand(), quarantineCommand(), policyCommand(), auditCommand(), journalCommand(), versionCommand(),
	)
	return root
}

// groupNote marks groups for the reference page.
const groupNote = "group"

// group is a command that is only a name for others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Annotations: map[string]string{groupNote: ""}}
	var verbs, examples []string
	for _, s := range subs {
		cmd.AddCommand(s)
		verbs = append(verbs, s.Name())
		examples = append(examples, s.Example)
	}
	cmd.Example = strings.Join(examples, "\n")
	cmd.FParseErrWhitelist.UnknownFlags = true // they belong to the verb that is missing
	cmd.Args = func(_ *cobra.Command, args []string) error {
		given := "got none"
		if len(args) > 0 {
			given = fmt.Sprintf("not %q%s", args[0], near.Hint(args[0], verbs))
		}
		return fault.New(fault.InvalidArgument, "%s wants a verb: %s, %s", use, strings.Join(verbs, " or "), given)
	}
	cmd.RunE = func(*cobra.Command, []string) error { return nil } // or else cobra prints help and succeeds
	return cmd
}

// noArguments refuses arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fault.New(fault.InvalidArgument, "%s takes no argument, got %q; `%s --help` shows how to use it",
		cmd.CommandPath(), args, cmd.CommandPath())
}

// oneArgument wants the one that the command's usage names.
func oneArgument(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	_, name, _ := strings.Cut(cmd.Use, " ")
	given := "got none"
	if len(args) > 1 {
		given = fmt.Sprintf("got %q", args)
	}
	return fault.New(fault.InvalidArgument, "%s wants one %s, %s; `%s --help` shows how to use it", cmd.CommandPath(), name, given, cmd.CommandPath())
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
	var format string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print version, revision, its time, Go version and platform",
		Example: "  icestream version -o json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := boot.ThisBuild()
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), b)
			}
			revision := cmp.Or(b.Revision, "unknown: built without version control")
			if b.Modified {
				revision += ", modified"
			}
			cmd.Printf("icestream %s\nrevision  %s\ntime      %s\ngo        %s\nplatform  %s\n", b.Version, revision, cmp.Or(b.Time, "unknown"), b.Go, b.Platform)
			return nil
		},
	}
	outputFlag(cmd, &format, "text", "json")
	return cmd
}
