// Package source is the only user of the Kafka client: membership of the pipeline's consumer group, fetching from
// exactly the offsets that the table log names, offset commits, and what the cluster says about topics.
//
// Two clients serve one pipeline. The group client only takes part in the group (cooperative-sticky) and commits
// offsets; it never fetches, and positions found in the group decide nothing. The fetch client reads partitions that
// were added by hand at an offset given by hand. So a rebalance cannot move a fetch position, and a seek cannot
// disturb the group.
package source

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"github.com/twmb/franz-go/plugin/kslog"

	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/sock"
)

// Config says what to read and how to reach it.
type Config struct {
	Brokers        []string
	ClientID       string
	Rack           string
	Group          string // the whole group name
	TLS            *tls.Config
	SASL           *SASL
	SessionTimeout time.Duration
	Topics         []string
	Pattern        *regexp.Regexp // matches whole names; instead of Topics
	// Budget bounds the memory of what was fetched and that no worker is done with: room.
	Budget int64
	// RecordMax is the largest record that must pass; larger ones must still be seen.
	RecordMax int64
	// Refresh is how often topics, ids, log starts and ends are looked up; 0 means 10 s.
	Refresh time.Duration
	// Seats is a folder in which the member id is kept while the process lives, so that
	// the next one need not wait for a session timeout after a kill; "" keeps none.
	Seats string
	// Dial replaces the network in tests.
	Dial func(ctx context.Context, network, host string) (net.Conn, error)
	Log  *slog.Logger
}

// SASL is a user of the cluster.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
	User      string
	Password  string
}

// ErrConfig is wrapped by errors about a Config.
var ErrConfig = errors.New("bad Kafka configuration")

func (s *SASL) mechanism() (sasl.Mechanism, error) {
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism(), nil
	default:
		return nil, fmt.Errorf("%w: sasl.mechanism %q: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", ErrConfig, s.Mechanism)
	}
}

func (c *Config) common() ([]kgo.Opt, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.ClientID),
		kgo.WithLogger(quiet{kslog.New(c.Log)}),
		kgo.MetadataMaxAge(c.Refresh),
		kgo.MetadataMinAge(min(c.Refresh, 250*time.Millisecond)),
		kgo.BrokerMaxReadBytes(clampInt32(max(100<<20, 2*c.RecordMax+(32<<20)))),
	}
	switch {
	case c.Dial != nil:
		opts = append(opts, kgo.Dialer(c.Dial))
	case c.TLS != nil: // its reads are short, there is nothing to keep
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	default:
		opts = append(opts, kgo.Dialer(dial))
	}
	if c.SASL != nil {
		m, err := c.SASL.mechanism()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(m))
	}
	return opts, nil
}

const dialTimeout = 10 * time.Second // the default of the client

// dial connects as the client would by itself, and keeps the processor while it reads.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return sock.Keep(conn), nil
}

// More than this is never fetched or queued ahead, whatever the budget. One
// fetch is under way per broker, and it serves the partitions that were not
// full when it began: a partition's queue must outlast the fetch of the others
// and then its own. With 4 MiB, which one response fills (a record of 124 bytes
// counts 380 here), the workers waited a third of their time for records. Less
// does where workers are not faster than the fetch: sizes.
const (
	maxFetch = 8 << 20 // of one response
	maxPart  = 1 << 20 // of one partition in a response
	maxQueue = 8 << 20 // of one partition

	concurrentFetches = 4 // over all brokers
)

// maxWait is how long a broker may wait for records. A fetch that waits serves the partitions that were not full when it
// began; one that is taken up again meanwhile waits with it. So a partition that alone has a backlog, beside others that
// are quiet, passes at most what its queue holds in each such time: at half a second that was 700 records/s of small budgets.
const maxWait = 100 * time.Millisecond

// sizes are one response per broker of at most an eighth of the budget, before room narrows it.
func (c *Config) sizes() *sizes {
	perFetch := min(max(c.Budget/8, 256<<10), maxFetch)
	return newSizes(perFetch, min(perFetch, maxPart))
}

// fetchOptions bound what the client fetches ahead. A broker always returns at least one batch, however large, so no
// record is too large to be seen.
func (c *Config) fetchOptions(s *sizes) []kgo.Opt {
	perFetch, perPartition := s.now()
	return []kgo.Opt{
		kgo.Rack(c.Rack),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // where to go on is never the client's decision
		kgo.FetchMaxBytes(perFetch),
		kgo.FetchMaxPartitionBytes(perPartition),
		kgo.WithHooks(s),
		kgo.FetchMaxWait(maxWait),
		kgo.MaxConcurrentFetches(concurrentFetches),
		kgo.WithPools(&recordPool{}),
	}
}

func (c *Config) groupOptions(g groupHandler) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.ConsumerGroup(c.Group),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(g.assigned),
		kgo.OnPartitionsRevoked(g.revoked),
		kgo.OnPartitionsLost(g.lost),
		kgo.WithHooks(g),
	}
	if c.SessionTimeout > 0 {
		opts = append(opts, kgo.SessionTimeout(c.SessionTimeout))
	}
	if c.Pattern != nil {
		return append(opts, kgo.ConsumeRegex(), kgo.ConsumeTopics(wholeName(c.Pattern)))
	}
	return append(opts, kgo.ConsumeTopics(c.Topics...))
}

// wholeName makes an expression match whole names only.
func wholeName(re *regexp.Regexp) string { return `^(?:` + re.String() + `)$` }

// quiet holds back what the client says at level info, which is far more than state changes.
type quiet struct{ kgo.Logger }

// Level implements kgo.Logger.
func (q quiet) Level() kgo.LogLevel {
	if l := q.Logger.Level(); l >= kgo.LogLevelDebug || l < kgo.LogLevelWarn {
		return l
	}
	return kgo.LogLevelWarn
}

func clampInt32(n int64) int32 { return int32(min(n, 1<<31-1)) }

// TopicPartition names a topic partition of the cluster.
type TopicPartition struct {
	Topic  string
	Number int32
}

// Compare orders by topic, then number.
func (t TopicPartition) Compare(other TopicPartition) int {
	return cmp.Or(strings.Compare(t.Topic, other.Topic), cmp.Compare(t.Number, other.Number))
}

// String returns "topic[number]".
func (t TopicPartition) String() string { return ident.TopicPartition(t.Topic, t.Number) }

// Topic is what the cluster says about a topic.
type Topic struct {
	Name       string
	ID         ident.UUID // zero where the brokers have no topic ids
	Partitions []int32
	Retention  time.Duration // 0 unknown or unbounded
	Compacted  bool          // records may leave it one by one; false where that is not known
}

// Limits is what a partition holds: offsets from LogStart to StableEnd can be read, End is the high watermark.
type Limits struct {
	LogStart    int64
	StableEnd   int64
	LeaderEpoch int32
}
