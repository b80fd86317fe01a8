package main

import (
	"github.com/spf13/cobra"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
)

func renewCommand() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "renew TABLE",
		Short: "Let a table that was dropped be made anew",
		Long: `Let a table that was dropped be made anew: its pipelines start over at the beginning of their topics. Without this a
table that the buffer remembers and the catalog does not have is refused. Drop or rename the quarantine table too, and
restart the buffer afterwards: its log is still that of the old table.`,
		Example: "  icestream renew -c icestream.yaml shop.orders",
		Args:    oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := ask(cmd, &t, committerOf, callTimeout, committerv1.NewAdminServiceClient,
				committerv1.AdminServiceClient.RenewTable, &committerv1.RenewTableRequest{Table: args[0]})
			if err != nil {
				return err
			}
			if format == "json" {
				return printProto(cmd, a)
			}
			cmd.Printf("%s is made anew when ingest next asks for it; restart the buffer, whose log is still that of the old table\n", args[0])
			return nil
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json")
	return cmd
}
