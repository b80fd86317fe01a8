package orders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Bounds of what is under way to the broker.
const (
	maxInFlight     = 20_000 // records
	deliveryTimeout = time.Minute
	arenaSize       = 256 << 10 // bytes
)

// ProducerConfig of a Producer.
type ProducerConfig struct {
	// Brokers are the bootstrap addresses.
	Brokers []string
	// Topic and its number of partitions; records of one customer share a partition.
	Topic      string
	Partitions int32
	// Generator makes the records; the producer owns it while it runs.
	Generator *Generator
	// Ledger gets every acknowledged record.
	Ledger *Ledger
	// First is the index of the first record: the number of records of earlier runs on the same topic.
	First uint64
	// Records ends the run after so many; 0 runs until the context ends.
	Records uint64
	// Rate bounds the records per second; 0 is as fast as the broker takes them.
	Rate float64
	// ClientOptions are added to the client's, for TLS or SASL.
	ClientOptions []kgo.Opt
	// Logger gets one line at the end; nil discards.
	Logger *slog.Logger
}

// Producer sends generated records to Kafka and notes each in the ledger when the broker has acknowledged it.
type Producer struct {
	cfg      ProducerConfig
	client   *kgo.Client
	inFlight chan struct{}
	sent     atomic.Uint64
	acked    atomic.Uint64
	failed   atomic.Pointer[error]
	arena    []byte
}

// NewProducer checks the configuration and makes the client; it does not dial yet.
func NewProducer(cfg ProducerConfig) (*Producer, error) {
	if cfg.Generator == nil || cfg.Ledger == nil || cfg.Topic == "" || cfg.Partitions < 1 {
		return nil, errors.New("making the order producer: generator, ledger, topic and a number of partitions are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	client, err := kgo.NewClient(slices.Concat([]kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(time.Millisecond), // a dev user looks at freshness
		kgo.MaxBufferedRecords(2 * maxInFlight),
		kgo.RecordDeliveryTimeout(deliveryTimeout),
	}, cfg.ClientOptions)...)
	if err != nil {
		return nil, fmt.Errorf("making the order producer: %w", err)
	}
	return &Producer{cfg: cfg, client: client, inFlight: make(chan struct{}, maxInFlight)}, nil
}

// Sent is the number of records given to the client so far.
func (p *Producer) Sent() uint64 { return p.sent.Load() }

// Acknowledged is the number of records that the broker has and the ledger knows.
func (p *Producer) Acknowledged() uint64 { return p.acked.Load() }

// Run produces until the number of records is reached or the context ends, which is no error. Either way it waits for the
// acknowledgement of everything sent, so that the ledger is complete. A record that could not be delivered ends the run
// with an error: it may or may not be in the topic, and the ledger cannot know. A producer runs once.
func (p *Producer) Run(ctx context.Context) error {
	defer p.client.Close()
	start := time.Now()
	for n := uint64(0); p.cfg.Records == 0 || n < p.cfg.Records; n++ {
		if p.failed.Load() != nil || !p.pace(ctx, start, n) {
			break
		}
		p.send(p.cfg.First + n)
	}
	// Sending goes on after the context has ended: a record taken back now could have reached the broker.
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*deliveryTimeout)
	defer cancel()
	err := p.client.Flush(flush)
	if failed := p.failed.Load(); failed != nil {
		err = *failed
	}
	if err != nil {
		return fmt.Errorf("producing to topic %s at %v after %d records: %w", p.cfg.Topic, p.cfg.Brokers, p.acked.Load(), err)
	}
	p.cfg.Logger.Info("all orders are produced", "topic", p.cfg.Topic, "records", p.acked.Load(), "took", time.Since(start))
	return p.cfg.Ledger.Err()
}

// pace waits for a free place and for the record's time; false when the context has ended.
func (p *Producer) pace(ctx context.Context, start time.Time, n uint64) bool {
	if p.cfg.Rate > 0 {
		due := start.Add(time.Duration(float64(n) / p.cfg.Rate * float64(time.Second)))
		if wait := time.Until(due); wait > time.Millisecond { // timers are no finer
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-ctx.Done():
				return false
			case <-timer.C:
			}
		}
	}
	select {
	case <-ctx.Done():
		return false
	case p.inFlight <- struct{}{}:
		return ctx.Err() == nil
	}
}

func (p *Producer) send(index uint64) {
	var rec Record
	p.cfg.Generator.Make(index, &rec)
	expect := rec.Expect
	out := &kgo.Record{
		Topic: p.cfg.Topic, Key: p.keep(rec.Key), Value: p.keep(rec.Value),
		Partition: int32(rec.Spread % uint64(p.cfg.Partitions)),
	}
	p.sent.Add(1)
	p.client.Produce(context.Background(), out, func(r *kgo.Record, err error) {
		if err != nil {
			err = fmt.Errorf("delivering record %d to partition %d: %w", index, out.Partition, err)
			p.failed.CompareAndSwap(nil, &err)
		} else {
			p.cfg.Ledger.Record(r.Partition, r.Offset, expect.Outcome, expect.Checksum)
			p.acked.Add(1)
		}
		<-p.inFlight
	})
}

// keep copies bytes that the generator will overwrite to where the client may hold them. nil stays nil: a tombstone.
func (p *Producer) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	if cap(p.arena)-len(p.arena) < len(b) {
		p.arena = make([]byte, 0, max(arenaSize, len(b)))
	}
	from := len(p.arena)
	p.arena = append(p.arena, b...)
	return p.arena[from:len(p.arena):len(p.arena)]
}
