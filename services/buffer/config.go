// Package buffer is the service that owns table logs: it gives LSNs, journals
// what was accepted, holds hot rows until tables hold them, and feeds committer
// and readers. It dials nobody, and holds no Kafka, catalog or Parquet code.
package buffer

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
)

// DefaultDrain bounds the orderly end when Config does not say.
const DefaultDrain = 15 * time.Second

// Config of the service.
type Config struct {
	// Settings is the whole configuration; the buffer takes the sections it needs.
	Settings *config.Config
	// Instance names this process, for people; empty means the host name.
	Instance string
	// Version of the build.
	Version string
	// Drain bounds the orderly end; 0 means DefaultDrain.
	Drain time.Duration
	// Heartbeat of quiet follower streams; 0 means 5 s.
	Heartbeat time.Duration
}

// Deps are what the service shares with its process. Settings apart, all may be
// nil: then nothing is logged, measured or known.
type Deps struct {
	Log      *slog.Logger
	Metrics  *obs.Metrics
	Health   *obs.Health
	Resolver discovery.Resolver // names committer and readstate for people and for WRONG_DOOR
	Network  rpc.Network        // in place of the machine's
	FS       file.FS            // in place of the real file system
}

func (c *Config) normal() error {
	if c.Settings == nil {
		return errors.New("making the buffer service: no configuration was given")
	}
	if err := c.Settings.Require(config.Buffer); err != nil {
		return err
	}
	if c.Drain <= 0 {
		c.Drain = DefaultDrain
	}
	if c.Instance == "" {
		c.Instance, _ = os.Hostname() // only for people: an empty name does no harm
	}
	return nil
}

func (d *Deps) normal() {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Metrics == nil {
		d.Metrics = obs.NewMetrics(nil)
	}
	if d.Health == nil {
		d.Health = obs.NewHealth(d.Metrics)
	}
	if d.FS == nil {
		d.FS = file.OS{}
	}
}

// JournalDir is where the buffer with this data directory keeps its journal.
func JournalDir(dataDir string) string { return filepath.Join(dataDir, "journal") }
