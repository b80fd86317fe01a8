package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/ingest"
)

func planCommand() *cobra.Command {
	var t target
	var f planFlags
	var o ingest.PlanOptions
	var format string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say what the schemas of the registry, or of a file, would do to the live tables",
		Long: `Compare every version of the registry subjects (or a file that is not registered yet) with the live tables, in order and
each on top of the ones before: columns to add, widen or rename, and what would be refused and why. Then decode the newest
records of each partition and say how many would be quarantined or wait. Runs with the credentials of the configuration,
needs no service, and changes nothing. Exit code 0 no breaking change, 1 breaking change, 2 cannot tell, as when a peer
cannot be reached.`,
		Example: `  icestream plan -c icestream.yaml
  icestream plan -c icestream.yaml --pipeline orders --proto order.proto --include ./proto -o json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.proto != "" && !cmd.Flags().Changed("sample") {
				f.sample = 0 // no record has that schema yet
			}
			return f.plan(cmd, &t, o, format)
		},
	}
	t.flags(cmd)
	f.flags(cmd)
	cmd.Flags().IntVar(&f.sample, "sample", 100, "how many of the newest records of each partition are decoded; 0 for none, which is the default with --proto")
	cmd.Flags().StringArrayVar(&o.Pipelines, "pipeline", nil, "only this pipeline; may be given again")
	cmd.Flags().StringVar(&o.Only, "table", "", "only this table")
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

// readProto reads a Protobuf file and all that it may import.
func readProto(path string, includes []string) (name, text string, imports map[string]string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", "", nil, fault.New(fault.InvalidArgument, "--proto: %w", err)
	}
	imports = map[string]string{}
	for _, dir := range includes {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(p) != ".proto" {
				return err
			}
			rel, err := filepath.Rel(dir, p)
			if err != nil {
				return err
			}
			b, err := os.ReadFile(p)
			if _, taken := imports[filepath.ToSlash(rel)]; err == nil && !taken { // the first folder wins, as with protoc
				imports[filepath.ToSlash(rel)] = string(b)
			}
			return err
		})
		if err != nil {
			return "", "", nil, fault.New(fault.InvalidArgument, "--include %s: %w", dir, err)
		}
	}
	name = filepath.Base(path)
	delete(imports, name)
	return name, string(b), imports, nil
}

func printPlan(cmd *cobra.Command, r *ingest.PlanReport, format string) error {
	var err error
	if format == "json" {
		err = printJSON(cmd.OutOrStdout(), r)
	} else {
		err = printPlanText(cmd, r)
	}
	if err == nil && r.Code() != run.OK {
		err = run.WithCode(r.Code(), errSilent)
	}
	return err
}

func printPlanText(cmd *cobra.Command, r *ingest.PlanReport) error {
	for _, s := range r.Steps {
		source := s.Source
		if s.Subject != "" && !strings.HasPrefix(source, "subject ") {
			source = fmt.Sprintf("subject %s version %d (%s)", s.Subject, s.Version, source)
		}
		cmd.Printf("%s <- pipeline %s, %s: %s\n", s.Table, s.Pipeline, source, s.Verdict)
		for _, c := range s.Changes {
			cmd.Println("  +", c)
		}
		for _, c := range s.Casts {
			cmd.Println("  = stored without loss:", c)
		}
		for _, c := range s.Ignored {
			cmd.Println("  - left out by decision: field", c)
		}
		for _, f := range s.Refusals {
			cmd.Printf("  ! column %s (field %s): the table has %s, the schema has %s: %s\n", f.Column, f.Field, f.TableType, f.SourceType, f.Why)
		}
		if s.Error != "" {
			cmd.Println("  !", s.Error)
		}
	}
	if len(r.Samples) > 0 {
		cmd.Println()
		if err := printSamples(cmd, r.Samples); err != nil {
			return err
		}
	}
	for _, u := range r.Unknown {
		cmd.Println("cannot tell:", u)
	}
	switch r.Code() {
	case run.OK:
		cmd.Println("no breaking change")
	case run.Violated:
		cmd.Println("BREAKING: records of what is refused would wait for `icestream schema accept | ignore | quarantine`, those of what is unusable go to quarantine")
	default:
	}
	return nil
}

func printSamples(cmd *cobra.Command, samples []ingest.PlanSample) error {
	rows := make([][]string, 0, len(samples))
	var faults []string
	for _, s := range samples {
		at := ident.TopicPartition(s.Topic, s.Partition)
		rows = append(rows, []string{
			s.Table, at, fmt.Sprintf("%d to %d", s.From, s.Next), fmt.Sprint(s.Records), fmt.Sprint(s.Rows), fmt.Sprint(s.Tombstones),
			fmt.Sprint(s.Quarantined()), fmt.Sprint(s.Waiting),
		})
		for _, reason := range slices.Sorted(maps.Keys(s.Quarantine)) {
			b := s.Quarantine[reason]
			faults = append(faults, fmt.Sprintf("%s: %d records %s, first at offset %d: %s", at, b.Count, reason, b.Offset, b.Error))
		}
		if s.Error != "" {
			faults = append(faults, at+": "+s.Error)
		}
	}
	err := printTable(cmd.OutOrStdout(), []string{"TABLE", "PARTITION", "OFFSETS", "RECORDS", "ROWS", "TOMBSTONES", "QUARANTINE", "WAIT"}, rows)
	for _, f := range faults {
		cmd.Println("  ", f)
	}
	return err
}
