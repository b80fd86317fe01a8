package main

import (
	"errors"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/icestream/icestream/cmd/icestream/internal/dev"
	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/fault"
)

// followRate is the default of a run without end, in records a second: as fast as
// it goes would leave the pipeline further behind by the minute.
const followRate = 1000

func devCommand() *cobra.Command {
	o := dev.Options{}
	var plant, format string
	ports := []struct {
		into *int
		name string
	}{
		{&o.Ports.Kafka, "kafka"},
		{&o.Ports.Registry, "registry"},
		{&o.Ports.Catalog, "catalog"},
		{&o.Ports.Metrics, "metrics"},
		{&o.Ports.Ingest, "ingest"},
		{&o.Ports.Buffer, "buffer"},
		{&o.Ports.Committer, "committer"},
		{&o.Ports.Readstate, "readstate"},
	}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything on embedded peers and prove that every record landed once",
		Long: `Run everything on embedded peers: an in-process Kafka, a schema registry, an Iceberg REST catalog over
SQLite and a warehouse folder, all on real ports; a generator of realistic Protobuf orders with some poison;
and the four services over real gRPC. At the end union, files and quarantine are compared with what was
produced, the table is audited, and the exit code is 0 only if everything is exact.

Ctrl-C ends the production early. What was produced until then is committed and verified like any other run, and
the exit code is the one of this verification: 0 when everything is exact, 1 when not. With pipelines of your own what
the topics hold at Ctrl-C is committed and every table audited; exit code 2 says that some of it is in no table yet,
which partitions that is, and why.

With -o json every line is one object; the first (event started) has every endpoint.`,
		Example: `  icestream dev
  icestream dev --follow --rate 5000
  icestream dev --plant lose          # shows that the verification can fail
  icestream dev --config my.yaml --no-generator --follow -o json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Plant = catalog.Fault(plant)
			given := cmd.Flags().Changed
			o.Rate = paced(o, given("rate"))
			if err := errors.Join(checkPlant(o.Plant), checkDev(o, given("records"))); err != nil {
				return err
			}
			for _, p := range ports {
				if *p.into < 0 || *p.into > math.MaxUint16 {
					return fault.New(fault.InvalidArgument, "--%s-port %d: want a port up to %d, or 0 for a free one", p.name, *p.into, math.MaxUint16)
				}
			}
			o.JSON = format == "json"
			o.Out, o.Width, o.Program = cmd.OutOrStdout(), terminalWidth(), program()
			return dev.Run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.Int64Var(&o.Records, "records", 200_000, "records to produce; the run ends by itself")
	f.BoolVar(&o.Follow, "follow", false, "produce until Ctrl-C, 1000 records a second unless --rate says otherwise")
	f.Float64Var(&o.Rate, "rate", 0, "records a second; 0 is as fast as it goes (default that, with --follow 1000)")
	f.StringVar(&o.Dir, "dir", "./icestream-dev", "folder of the run")
	f.BoolVar(&o.Keep, "keep", false, "continue with what the last run left in the folder, instead of clearing it")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the generator")
	f.StringVar(&plant, "plant", "", "damage the table before it is verified: lose, double or alter")
	f.StringVarP(&o.Config, "config", "c", "", "your own pipelines, on the embedded peers")
	f.BoolVar(&o.NoGenerator, "no-generator", false, "produce nothing; bring your own producer")
	outputFlag(cmd, &format, "text", "json")
	for _, p := range ports {
		f.IntVar(p.into, p.name+"-port", 0, "port of "+p.name+" on 127.0.0.1 (default a free one)")
	}
	return cmd
}

// terminalWidth is nil when the output is no terminal.
func terminalWidth() func() int {
	fd := int(os.Stdout.Fd())
	if !term.IsTerminal(fd) {
		return nil
	}
	return func() int {
		width, _, err := term.GetSize(fd)
		if err != nil || width <= 0 {
			return 80
		}
		return width
	}
}

// program is how the user called this tool, for lines to paste.
func program() string {
	if exe, err := os.Executable(); err == nil && strings.Contains(exe, "go-build") {
		return "go run ./cmd/icestream" // the binary is gone when it has ended
	}
	return os.Args[0]
}

// paced is the rate of a run; given says whether the user chose it.
func paced(o dev.Options, given bool) float64 {
	if o.Follow && !given {
		return followRate
	}
	return o.Rate
}

// checkDev refuses what does not belong together, and numbers that would be taken
// for something else: a run of no records has no end. records says whether the user
// gave a number of them.
func checkDev(o dev.Options, records bool) error {
	switch {
	case o.NoGenerator && !o.Follow:
		return fault.New(fault.InvalidArgument, "--no-generator needs --follow: without a generator nothing says when a run is over")
	case o.NoGenerator != (o.Config != ""):
		return fault.New(fault.InvalidArgument, "--config and --no-generator belong together: the generator feeds its own pipeline")
	case o.NoGenerator && o.Plant != "":
		return fault.New(fault.InvalidArgument, "--plant needs the generator: only what it produced is known, so only there a fault can be told")
	case o.Records < 1:
		return fault.New(fault.InvalidArgument, "--records %d: want at least one; --follow produces without end", o.Records)
	case o.Follow && records:
		return fault.New(fault.InvalidArgument, "--records and --follow do not go together: a run either ends after so many records or produces until Ctrl-C")
	case o.Follow && o.Plant != "":
		return fault.New(fault.InvalidArgument, "--plant and --follow do not go together: the fault is planted at the end of a run; leave --follow out")
	case o.Rate < 0:
		return fault.New(fault.InvalidArgument, "--rate %v: want records a second, or 0 for as fast as it goes", o.Rate)
	default:
		return nil
	}
}

func checkPlant(f catalog.Fault) error {
	if f == "" {
		return nil
	}
	var names []string
	for _, known := range catalog.Faults() {
		if f == known {
			return nil
		}
		names = append(names, string(known))
	}
	return fault.New(fault.InvalidArgument, "--plant %q: want one of %s", f, strings.Join(names, ", "))
}
