package ingest

import (
	"fmt"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// Validate reports, as config.Errors, every setting that only this service can read and that it would not start with:
// certificates, schemas given as files, columns. It reaches no peer.
func Validate(c *config.Config) error {
	faults := c.Faults()
	if c.Kafka.UsesTLS() {
		checkTLS(faults, "kafka", c.Kafka.TLS)
	}
	checkTLS(faults, "registry", c.Registry.TLS)
	for _, key := range c.Registry.Overrides.PropertyNames() {
		if err := registry.CheckOverride(key, c.Registry.Overrides.Get(key)); err != nil {
			faults.Add("registry.overrides."+key, err.Error(), "correct that file, or what it imports")
		}
	}
	for i := range c.Pipelines {
		p := &c.Pipelines[i]
		if p.Format != "json" {
			continue
		}
		if _, err := declared(p); err != nil {
			faults.Add(fmt.Sprintf("pipelines[%d].columns", i), err.Error(), "")
		}
	}
	return faults.Err()
}

func checkTLS(faults *config.Faults, section string, t config.TLS) {
	if _, err := tlsConfig(t, true); err != nil {
		faults.Add(section+".ssl", err.Error(), "")
	}
}
