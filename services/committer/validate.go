package committer

import (
	"fmt"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Validate reports, as config.Errors, every setting of a table that this service would refuse to make it with. It
// reaches no peer.
func Validate(c *config.Config) error {
	faults := c.Faults()
	for i, p := range c.Pipelines {
		for _, err := range lake.CheckProperties(p.TableProperties()) {
			faults.Add(fmt.Sprintf("pipelines[%d].properties", i), fault.Text(err), "")
		}
	}
	return faults.Err()
}
