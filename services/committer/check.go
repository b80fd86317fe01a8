package committer

import (
	"context"
	"errors"
	"log/slog"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Check reaches the catalog with the settings given and changes nothing.
func Check(ctx context.Context, settings *config.Config) []boot.Check {
	c := settings.Catalog
	l, err := lake.Open(ctx, lakeConfig(c), slog.New(slog.DiscardHandler))
	if err == nil {
		err = errors.Join(l.Ping(ctx), l.Close())
	}
	return []boot.Check{boot.Checked("catalog", c.URI, c.Type+", warehouse "+c.Warehouse, err)}
}
