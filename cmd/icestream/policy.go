package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

func policyCommand() *cobra.Command {
	return group("policy", "What becomes of records that cannot be rows", policyShowCommand(), policySetCommand())
}

func policyShowCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the policy of each pipeline, and which partitions stand still because of bad records",
		Example: `  icestream policy show -c icestream.yaml
  icestream policy show --dir ./icestream-dev -o json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := ask(cmd, &t, ingestOf, callTimeout, adminv1.NewAdminServiceClient,
				adminv1.AdminServiceClient.GetPolicy, &adminv1.GetPolicyRequest{})
			if err != nil {
				return err
			}
			if format == "json" {
				return printProto(cmd, r)
			}
			return printPolicies(cmd, r.GetPolicies())
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}

func printPolicies(cmd *cobra.Command, list []*adminv1.PipelinePolicy) error {
	rows := make([][]string, 0, len(list))
	for _, p := range list {
		note := ""
		if p.GetPolicy() != p.GetConfigured() {
			note = "switched; the configuration says " + p.GetConfigured()
		}
		rows = append(rows, []string{p.GetPipeline(), p.GetPolicy(), fmt.Sprint(len(p.GetStopped())), note})
	}
	if err := printTable(cmd.OutOrStdout(), []string{"PIPELINE", "POLICY", "STOPPED", ""}, rows); err != nil {
		return err
	}
	for _, p := range list {
		for _, s := range p.GetStopped() {
			cmd.Printf("%s stands still: %s\n", ident.Partition{Pipeline: p.GetPipeline(), Topic: s.GetTopic(), Number: s.GetPartition()}, strings.Map(printable, s.GetReason()))
		}
	}
	return nil
}

func policySetCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "set PIPELINE POLICY",
		Short: "Switch what becomes of records that cannot be rows: quarantine, stop or skip",
		Long: `Switch what becomes of records that cannot be rows: quarantine, stop or skip. Partitions that stopped for such records go
on at once. The switch lasts as long as the ingest process: after a restart the configuration (on_invalid) decides again.`,
		Example: "  icestream policy set -c icestream.yaml orders quarantine",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fault.New(fault.InvalidArgument, "%s wants a pipeline and one of quarantine, stop, skip, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := ask(cmd, &t, ingestOf, callTimeout, adminv1.NewAdminServiceClient,
				adminv1.AdminServiceClient.SetPolicy, &adminv1.SetPolicyRequest{Pipeline: args[0], Policy: args[1]})
			if err != nil {
				return err
			}
			if format == "json" {
				return printProto(cmd, r)
			}
			p := r.GetPolicy()
			cmd.Printf("pipeline %s: bad records: %s\n", p.GetPipeline(), p.GetPolicy())
			if p.GetPolicy() != p.GetConfigured() {
				cmd.Printf("until ingest restarts; to keep it, set on_invalid: %s in the configuration, which says %s\n", p.GetPolicy(), p.GetConfigured())
			}
			return nil
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}
