package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// Check reaches Kafka, for each pipeline, and the schema registry with the
// settings given. It takes part in no consumer group and changes nothing.
func Check(ctx context.Context, settings *config.Config) []boot.Check {
	c := Config{Settings: settings}
	if err := c.normal(); err != nil {
		return []boot.Check{boot.Checked("kafka", "", "", err)}
	}
	brokers := strings.Join(settings.Kafka.BootstrapServers, ",")
	kafka := make([]boot.Check, len(settings.Pipelines))
	var wg sync.WaitGroup // one peer that does not answer must not keep the others waiting
	for i := range settings.Pipelines {
		wg.Go(func() {
			p := &settings.Pipelines[i]
			detail, err := c.checkKafka(ctx, p)
			kafka[i] = boot.Checked("kafka, pipeline "+p.Name, brokers, detail, err)
		})
	}
	rest := c.checkRegistry(ctx)
	wg.Wait()
	return append(kafka, rest...)
}

func (c *Config) checkRegistry(ctx context.Context) (out []boot.Check) {
	settings := c.Settings
	schemas, err := c.newRegistry()
	if err == nil {
		for i := range settings.Pipelines {
			p := &settings.Pipelines[i]
			if err := formats(p, schemas); err != nil {
				out = append(out, boot.Checked("format, pipeline "+p.Name, p.Format, "", err))
			}
		}
	}
	if schemas == nil && err == nil {
		return out
	}
	detail := ""
	if err == nil {
		var subjects int
		subjects, err = schemas.Ping(ctx)
		detail = fmt.Sprintf("%d subjects", subjects)
	}
	return append(out, boot.Checked("registry", strings.Join(settings.Registry.URLs, ","), detail, err))
}

// formats tries whether records and keys of a pipeline can be decoded with its settings.
func formats(p *config.Pipeline, schemas *registry.Client) error {
	if _, err := codec(p, schemas); err != nil {
		return err
	}
	_, err := keyCodec(p, schemas)
	return err
}

func (c *Config) checkKafka(ctx context.Context, p *config.Pipeline) (string, error) {
	src, err := c.sourceConfig(p, int64(c.Settings.Limits.IngestBytes), slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	cluster, topics, err := source.Probe(ctx, src)
	if err != nil {
		return "", err
	}
	names := make([]string, 0, len(topics))
	for name, t := range topics {
		names = append(names, fmt.Sprintf("%s (%d partitions)", name, len(t.Partitions)))
	}
	slices.Sort(names)
	return fmt.Sprintf("cluster %s, topics %s", cluster, strings.Join(names, ", ")), nil
}
