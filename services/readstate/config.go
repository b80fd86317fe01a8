// Package readstate is the service for readers: a replica of the hot rows of
// every table, and the files of the lake, as one consistent table. It has no
// right to write anything.
package readstate

import (
	"errors"
	"os"
	"time"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/services/readstate/internal/cold"
)

// DefaultDrain bounds the orderly end when Config does not say.
const DefaultDrain = 15 * time.Second

// Config of the service.
type Config struct {
	// Settings is the whole configuration; readstate takes the sections it needs.
	Settings *config.Config
	// Instance names this process, for people; empty means the host name.
	Instance string
	// Version of the build.
	Version string
	// Drain bounds the orderly end; 0 means DefaultDrain.
	Drain time.Duration
	// Poll is how often buffers are asked for their tables; 0 means 1 s.
	Poll time.Duration
	// PinEvery is how often pinned snapshots are reported; 0 means 5 s.
	PinEvery time.Duration
}

func (c *Config) normal() error {
	if c.Settings == nil {
		return errors.New("making the readstate service: no configuration was given")
	}
	if err := c.Settings.Require(config.Readstate); err != nil {
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

// cold is how the files of the lake are reached.
func (c *Config) cold() cold.Config {
	cat := c.Settings.Catalog
	props := cat.Properties.Reveal()
	if cat.Credential.IsSet() {
		props["credential"] = cat.Credential.Reveal()
	}
	if cat.Token.IsSet() {
		props["token"] = cat.Token.Reveal()
	}
	return cold.Config{Type: cat.Type, Name: cat.Name, URI: cat.URI, Warehouse: cat.Warehouse, Properties: props}
}
