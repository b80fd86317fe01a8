package committer

import (
	"errors"
	"os"
	"time"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/services/committer/internal/commit"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
	"github.com/icestream/icestream/services/committer/internal/maintain"
	"github.com/icestream/icestream/services/committer/internal/server"
)

// DefaultDrain bounds the orderly end, with the last commits, when Config does
// not say.
const DefaultDrain = 30 * time.Second

// redIntervals is how many commit intervals a failure may last before the table
// is not ready.
const redIntervals = 3

// Config of the service.
type Config struct {
	// Settings is the whole configuration; the committer takes the sections it
	// needs.
	Settings *config.Config
	// Instance names this process, for people; empty means the host name.
	Instance string
	// Version of the build.
	Version string
	// Drain bounds the orderly end; 0 means DefaultDrain.
	Drain time.Duration
	// Poll is how often the head of a table is looked at for snapshots of others;
	// 0 means 10 s.
	Poll time.Duration
	// Expire is how many snapshots of ours must be ready to go before they are
	// removed, Keep how many stay in any case; 0 means 10 and 50.
	Expire, Keep int
	// RedAfter is how long a failure may last before the table is not ready; 0
	// means three commit intervals, at least 30 s.
	RedAfter time.Duration
}

func (c *Config) normal() error {
	if c.Settings == nil {
		return errors.New("making the committer service: no configuration was given")
	}
	if err := c.Settings.Require(config.Committer); err != nil {
		return err
	}
	if c.RedAfter <= 0 {
		c.RedAfter = max(redIntervals*c.Settings.Defaults.Commit.Interval, 30*time.Second)
	}
	if c.Drain <= 0 {
		c.Drain = DefaultDrain
	}
	if c.Instance == "" {
		c.Instance, _ = os.Hostname() // only for people: an empty name does no harm
	}
	return nil
}

// lakeConfig is the catalog section in the words of the lake.
func lakeConfig(c config.Catalog) lake.Config {
	props := c.Properties.Reveal()
	if c.Credential.IsSet() {
		props["credential"] = c.Credential.Reveal()
	}
	if c.Token.IsSet() {
		props["token"] = c.Token.Reveal()
	}
	return lake.Config{Type: c.Type, URI: c.URI, Name: c.Name, Warehouse: c.Warehouse, Properties: props}
}

// hubOptions derives everything that the tables need from the configuration. The
// committer's budget is halved: one half for what waits to be written, one for
// open row groups.
func (c *Config) hubOptions() server.Options {
	set := c.Settings
	held := int64(set.Limits.CommitterBytes)
	return server.Options{
		Deployment: set.Deployment, Instance: c.Instance, Version: c.Version,
		Plan:     c.plan,
		Commit:   commit.Options{Poll: c.Poll, Drain: c.Drain * 2 / 3},
		Held:     held / 2,
		Files:    held / 2,
		Maintain: maintain.Policy{Every: c.Expire, Keep: c.Keep, MaxLease: set.Reads.MaxLease},
		RedAfter: c.RedAfter,
	}
}

// plan is when a table fed by these pipelines is committed: the most eager of
// them decides. Pipelines that are not configured any more count as the defaults.
func (c *Config) plan(pipelines []string) server.Plan {
	var options []config.Commit
	for _, name := range pipelines {
		if p := c.Settings.Pipeline(name); p != nil {
			options = append(options, p.Commit)
		}
	}
	if len(options) == 0 {
		options = []config.Commit{c.Settings.Defaults.Commit}
	}
	first := options[0]
	out := server.Plan{FileSize: int64(first.FileSize), Policy: cut.Policy{
		Interval: first.Interval, Rows: first.Rows, Bytes: bound(first), Budget: int64(c.Settings.Limits.HotBytes),
	}}
	for _, o := range options[1:] {
		out.FileSize = max(out.FileSize, int64(o.FileSize))
		out.Policy.Interval = min(out.Policy.Interval, o.Interval)
		out.Policy.Rows = lower(out.Policy.Rows, o.Rows)
		out.Policy.Bytes = lower(out.Policy.Bytes, bound(o))
	}
	out.Policy.EmptyAfter = max(10*out.Policy.Interval, 10*time.Minute)
	return out
}

// bound is the encoded bytes at which a table is cut: what the pipeline says, or
// one full file.
func bound(o config.Commit) int64 {
	if o.Bytes > 0 {
		return int64(o.Bytes)
	}
	return int64(o.FileSize)
}

// lower is the lower of two bounds, of which 0 is none.
func lower(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
