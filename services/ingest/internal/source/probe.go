package source

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// probeGroup stands in for a handler: a probe takes part in no group.
type probeGroup struct{}

func (probeGroup) Assigned([]*Cursor)                       {}
func (probeGroup) Revoked(context.Context, []*Cursor, bool) {}
func (probeGroup) Trouble(error)                            {}
func (probeGroup) Topics(map[string]Topic)                  {}

// Probe connects once, with the credentials of cfg, and returns the cluster id
// and the topics that the pipeline would read. A topic that is named but not
// there is an error: it is waited for when the pipeline runs.
func Probe(ctx context.Context, cfg Config) (cluster string, topics map[string]Topic, err error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	cfg.Refresh = defaultRefresh
	common, err := cfg.common()
	if err != nil {
		return "", nil, err
	}
	client, err := kgo.NewClient(append(common, kgo.RetryTimeout(adminTimeout/2))...)
	if err != nil {
		return "", nil, fmt.Errorf("making the Kafka client: %w", err)
	}
	defer client.Close()
	c := &Consumer{cfg: cfg, h: probeGroup{}, probe: true, fetch: client, admin: kadm.NewClient(client)}
	if cfg.Pattern != nil {
		if c.whole, err = regexp.Compile(wholeName(cfg.Pattern)); err != nil {
			return "", nil, fmt.Errorf("%w: pattern %q: %w", ErrConfig, cfg.Pattern, err)
		}
	}
	topics, err = c.lookUpTopics(ctx)
	if err == nil {
		err = c.missing(topics)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no broker answered within %v: %w", adminTimeout, err)
	}
	return c.cluster, topics, err
}
