package main

import (
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/stack"
	"github.com/icestream/icestream/services/buffer"
	"github.com/icestream/icestream/services/committer"
	"github.com/icestream/icestream/services/ingest"
)

func runCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run all four services in one process against real peers",
		Long: `Run all four services in one process against real peers. Peers that are away are waited for: readiness
(node.metrics, /readyz) says which. SIGTERM drains: intake stops, what is hot is committed, then everything ends.`,
		Example: "  icestream run -c icestream.yaml",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			boot.Tune(stack.Services * boot.Headroom)
			c, err := t.file(cmd)
			if err != nil {
				return err
			}
			p, err := boot.Open(cmd.Context(), c, os.Stderr)
			if err != nil {
				return err
			}
			if _, err := stack.New(cmd.Context(), p); err != nil {
				return err
			}
			p.FollowLoad()
			return p.Group.Run(cmd.Context())
		},
	}
	t.flags(cmd)
	return cmd
}

func validateCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check the configuration file and print every mistake with its place",
		Long: `Check the configuration file and print every mistake with its place, among them what only a service can tell: columns of
format json, certificates, schemas given as files, properties of tables. Reaches no peer; icestream check does.`,
		Example: "  icestream validate -c icestream.yaml",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.file(cmd)
			if err == nil {
				err = validate(c)
			}
			if err != nil {
				return err
			}
			for _, p := range lacking(c) {
				cmd.PrintErrf("warning: %s: `icestream run` needs it\n", p)
			}
			names := make([]string, 0, len(c.Pipelines))
			for _, p := range c.Pipelines {
				names = append(names, p.Name)
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]any{"valid": true, "file": t.path(), "pipelines": names})
			}
			if len(names) == 0 {
				cmd.Printf("%s is valid; it has no pipelines\n", t.path())
				return nil
			}
			cmd.Printf("%s is valid; pipelines: %s\n", t.path(), strings.Join(names, ", "))
			return nil
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	show := &cobra.Command{
		Use:     "show",
		Short:   "Print the whole configuration in force, secrets redacted",
		Example: "  icestream validate show -c icestream.yaml",
		Args:    noArguments,
	}
	var s target
	show.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := s.file(cmd)
		if err != nil {
			return err
		}
		cmd.Print(string(c.Redacted()))
		return nil
	}
	s.flags(show)
	cmd.AddCommand(show)
	return cmd
}

// validate adds what only the services can tell without their peers.
func validate(c *config.Config) error {
	return run.WithCode(run.BadConfig, errors.Join(ingest.Validate(c), committer.Validate(c)))
}

// lacking names the settings without which `icestream run` would not start: a warning, since a file may be that of one
// service, or of `icestream dev`.
func lacking(c *config.Config) (out config.Errors) {
	if missing, ok := errors.AsType[config.Errors](c.Require(config.Ingest, config.Committer)); ok {
		out = missing
	}
	return out
}

func checkCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Reach every peer of the configuration and say what is wrong",
		Long:  "Reach broker, registry and catalog with the credentials of the configuration. Exit code 0 when all work, 4 when one does not.",
		Example: `  icestream check -c icestream.yaml
  icestream check -c icestream.yaml -o json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.file(cmd)
			if err != nil {
				return err
			}
			var lake []boot.Check
			var wg sync.WaitGroup // a peer that does not answer keeps no other waiting
			wg.Go(func() { lake = committer.Check(cmd.Context(), c) })
			results := ingest.Check(cmd.Context(), c)
			wg.Wait()
			results = append(results, lake...)
			if err := cmd.Context().Err(); err != nil { // what was not asked did not fail
				return err
			}
			return printChecks(cmd, results, format)
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func printChecks(cmd *cobra.Command, results []boot.Check, format string) error {
	bad := false
	rows := make([][]string, 0, len(results))
	for _, r := range results {
		word := "ok"
		if !r.OK {
			word, bad = "FAILED", true
		}
		rows = append(rows, []string{r.Peer, r.Address, word, r.Detail})
	}
	var err error
	if format == "json" {
		err = printJSON(cmd.OutOrStdout(), results)
	} else {
		err = printTable(cmd.OutOrStdout(), []string{"PEER", "ADDRESS", "RESULT", "DETAIL"}, rows)
	}
	if err == nil && bad {
		err = run.WithCode(run.Dependency, errSilent)
	}
	return err
}

func journalCommand() *cobra.Command {
	dump := &cobra.Command{
		Use:     "dump FOLDER",
		Short:   "Print every entry of a journal folder, without changing it",
		Example: "  icestream journal dump ./data/journal",
		Args:    oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			return run.WithCode(run.CannotTell, buffer.DumpJournal(args[0], cmd.OutOrStdout()))
		},
	}
	return group("journal", "Look into a buffer's journal", dump)
}
