// Package dev is `icestream dev`: the whole pipeline on embedded peers, with a
// generator whose ledger knows what must come out, and a verification at the end.
package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/devpeers/orders"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/stack"
)

// ConfigFile is left in the folder of a run, so that `--dir` finds its services.
const ConfigFile = "icestream.yaml"

// logFile takes the logs of all services and peers.
const logFile = "icestream.log"

// ledgerFile is what the generator knows of its records; a run of the user's own
// pipelines has none.
const ledgerFile = "ledger"

// The generator's topic, and the table that it becomes.
const (
	topic      = "orders"
	tableName  = "shop.orders"
	partitions = 4
)

// pipelinesText is the configuration of a run without --config.
const pipelinesText = `deployment: dev
node: { log_format: json }
defaults: { commit: { interval: 5s } }
pipelines:
  - name: orders
    topics: [orders]
    table: shop.orders
    message: ` + orders.MessageName + `
`

// Options of a run.
type Options struct {
	Dir         string
	Keep        bool
	Records     int64
	Follow      bool
	Rate        float64
	Seed        uint64
	Plant       catalog.Fault
	Config      string
	NoGenerator bool
	JSON        bool
	// Width of the terminal in characters, asked for at every line; nil when Out
	// is no terminal.
	Width func() int
	// Program is how the user calls this tool, for lines to paste.
	Program string
	Ports   Ports
	Out     io.Writer

	settle    time.Duration // bounds the last commits; 0 is finalTimeout
	firstRead time.Duration // bounds the wait for a read; 0 is firstReadTimeout
}

// Run carries a whole run out. The error is nil only if everything was verified
// and exact; a fault found in the data has the exit code run.Violated. When ctx
// ends, production stops and what was produced is verified.
func Run(ctx context.Context, o Options) (err error) {
	boot.Tune(stack.Services * boot.Headroom)
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return fmt.Errorf("finding the folder of the run: %w", err)
	}
	lock, err := prepareFolder(o.Dir, o.Keep)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	logs, err := os.OpenFile(filepath.Join(o.Dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of the run: %w", err)
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	r := &runner{o: o, view: newView(o.Out, o.JSON, o.Width), started: time.Now()}
	defer r.view.end()

	r.peers, err = startPeers(ctx, o.Dir, o.Ports, slog.New(slog.NewJSONHandler(logs, nil)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.peers.close()) }()
	c, err := r.configure()
	if err != nil {
		return err
	}
	if r.process, err = boot.Open(ctx, c, logs); err != nil {
		return takenService(err, o.Ports)
	}
	if r.stack, err = stack.New(ctx, r.process); err != nil {
		return takenService(err, o.Ports)
	}
	if err := r.announce(); err != nil {
		return err
	}
	var verdict error
	r.process.Group.AddTask("dev", func(inner context.Context) error {
		verdict = r.drive(ctx, inner)
		r.process.Group.Stop()
		return nil
	})
	// The services go on after Ctrl-C until everything produced is verified.
	err = r.process.Group.Run(context.WithoutCancel(ctx))
	return errors.Join(verdict, err)
}

// runner is one run.
type runner struct {
	o       Options
	view    view
	peers   *peers
	process *boot.Process
	stack   *stack.Stack
	ledger  *orders.Ledger
	started time.Time
	// warnings about the configuration, until they are shown.
	warnings config.Warnings
}

// configure reads the user's pipelines, or the generator's, and points them at
// the embedded peers.
func (r *runner) configure() (*config.Config, error) {
	local := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	p := r.o.Ports
	overrides := append([]config.Override{
		{Path: "node.data_dir", Value: filepath.Join(r.o.Dir, "data")},
		{Path: "node.metrics", Value: local(p.Metrics), Flag: "--metrics-port"},
		{Path: "services.ingest.listen", Value: local(p.Ingest), Flag: "--ingest-port"},
		{Path: "services.buffer.listen", Value: local(p.Buffer), Flag: "--buffer-port"},
		{Path: "services.committer.listen", Value: local(p.Committer), Flag: "--committer-port"},
		{Path: "services.readstate.listen", Value: local(p.Readstate), Flag: "--readstate-port"},
	}, addresses(r.peers.kafka.Addr(), r.peers.registry.URL(), r.peers.catalog.URL(), r.peers.catalog.Warehouse())...)
	var c *config.Config
	var err error
	var warnings config.Warnings
	if r.o.Config != "" {
		c, warnings, err = config.Load(r.o.Config, os.Environ(), overrides)
		if err == nil {
			warnings = append(warnings, ownPeers(r.o.Config, c)...)
		}
	} else {
		c, warnings, err = config.Parse("dev", []byte(pipelinesText), nil, overrides)
	}
	if err != nil {
		r.warn(warnings)
		return nil, run.WithCode(run.BadConfig, err)
	}
	r.warnings = warnings
	return c, nil
}

// addresses are the settings that name peers.
func addresses(kafka, registry, catalog, warehouse string) []config.Override {
	return []config.Override{
		{Path: "kafka.bootstrap.servers", Value: kafka},
		{Path: "registry.url", Value: registry},
		{Path: "catalog.type", Value: "rest"},
		{Path: "catalog.uri", Value: catalog},
		{Path: "catalog.warehouse", Value: warehouse},
	}
}

// ownPeers warns of addresses that a configuration names and a run does not use.
func ownPeers(path string, c *config.Config) config.Warnings {
	var named []string
	if c.Overruled("kafka.bootstrap.servers") {
		named = append(named, "kafka")
	}
	if c.Overruled("registry.url") {
		named = append(named, "registry")
	}
	if c.Overruled("catalog.uri") || c.Overruled("catalog.warehouse") {
		named = append(named, "catalog")
	}
	if slices.ContainsFunc([]string{"ingest", "buffer", "committer", "readstate"}, func(s string) bool { return c.Overruled("services." + s + ".listen") }) {
		named = append(named, "services")
	}
	if len(named) == 0 {
		return nil
	}
	return config.Warnings{{Where: path, What: "the addresses of " + strings.Join(named, ", ") + " are not used: dev has its own"}}
}

// warn shows what is odd about the configuration.
func (r *runner) warn(warnings config.Warnings) {
	for _, w := range warnings {
		r.view.say("warning", "warning: "+fmt.Sprint(w), nil)
	}
}

// announce prints where everything listens, and leaves it in the folder. Programs
// take the addresses from the first line: nothing may come before it.
func (r *runner) announce() error {
	c := *r.process.Config
	a := r.stack.Addresses()
	c.Discovery.Ingest, c.Discovery.Buffer, c.Discovery.Committer, c.Discovery.Readstate = a["ingest"], a["buffer"], a["committer"], a["readstate"]
	c.Node.Metrics = r.process.MetricsAddress()
	if err := os.WriteFile(filepath.Join(r.o.Dir, ConfigFile), c.Redacted(), 0o600); err != nil {
		return fmt.Errorf("leaving the configuration in the folder: %w", err)
	}
	r.view.say("started", fmt.Sprintf(`icestream dev in %s (logs in %s)
  kafka      %s
  registry   %s
  catalog    %s
  warehouse  %s
  grpc       ingest %s · buffer %s · committer %s · readstate %s
  metrics    http://%s/metrics`,
		r.o.Dir, logFile, r.peers.kafka.Addr(), r.peers.registry.URL(), r.peers.catalog.URL(), r.peers.catalog.Warehouse(),
		a["ingest"], a["buffer"], a["committer"], a["readstate"], c.Node.Metrics),
		map[string]any{
			"kafka": r.peers.kafka.Addr(), "registry": r.peers.registry.URL(), "catalog": r.peers.catalog.URL(),
			"warehouse": r.peers.catalog.Warehouse(), "grpc": a, "metrics": "http://" + c.Node.Metrics + "/metrics", "dir": r.o.Dir,
		})
	r.warn(r.warnings)
	return nil
}

// produce starts the generator; done is closed when it has ended.
func (r *runner) produce(ctx context.Context) (p *orders.Producer, done <-chan error, err error) {
	id, err := r.peers.register(ctx, topic+"-value", orders.Schema())
	if err != nil {
		return nil, nil, err
	}
	records := uint64(r.o.Records)
	if r.o.Follow {
		records = 0
	}
	p, err = orders.NewProducer(orders.ProducerConfig{
		Brokers: []string{r.peers.kafka.Addr()}, Topic: topic, Partitions: partitions,
		Generator: orders.NewGenerator(orders.Config{Seed: r.o.Seed, SchemaID: id, PoisonEvery: 5000, TombstoneEvery: 7000}),
		Ledger:    r.ledger, First: uint64(r.ledger.Total()), Records: records, Rate: r.o.Rate, Logger: r.process.Log,
	})
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return p, ended, nil
}

// violated is the verdict of a verification that found a fault.
func violated(what string, report fmt.Stringer) error {
	return run.WithCode(run.Violated, fault.New(fault.Corrupt, "%s: %s", what, report))
}
