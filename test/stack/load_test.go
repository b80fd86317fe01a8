package stack

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/devpeers/orders"
)

// load is a producer of orders that runs beside a scenario.
type load struct {
	*orders.Producer
	w      *world
	ledger *orders.Ledger
	stop   context.CancelFunc
	ended  chan error
}

// produce starts a producer of orders; records 0 runs until halt. The topic must exist or gets so many partitions.
func (w *world) produce(topic string, partitions int, records uint64, rate float64) *load {
	w.t.Helper()
	require.NoError(w.t, w.kafka.EnsureTopic(topic, partitions))
	l := &load{w: w, ledger: orders.NewLedger(), ended: make(chan error, 1)}
	l.begin(topic, partitions, records, rate)
	return l
}

func (l *load) begin(topic string, partitions int, records uint64, rate float64) {
	w := l.w
	w.t.Helper()
	id := w.register(topic+"-value", orders.Schema())
	p, err := orders.NewProducer(orders.ProducerConfig{
		Brokers: []string{local(w.ports.kafka)}, Topic: topic, Partitions: int32(partitions), Ledger: l.ledger,
		Generator: orders.NewGenerator(orders.Config{Seed: 7, SchemaID: id, PoisonEvery: 500, TombstoneEvery: 700}),
		First:     uint64(l.ledger.Total()), Records: records, Rate: rate,
	})
	require.NoError(w.t, err)
	l.Producer = p
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	w.t.Cleanup(cancel)
	go func() { l.ended <- p.Run(ctx) }()
}

// wait waits for the end of a producer that ends by itself.
func (l *load) wait() {
	l.w.t.Helper()
	select {
	case err := <-l.ended:
		require.NoError(l.w.t, err)
	case <-time.After(patience):
		require.Fail(l.w.t, "the producer does not end")
	}
}

// halt ends a producer, with everything sent acknowledged.
func (l *load) halt() {
	l.w.t.Helper()
	l.stop()
	l.wait()
}
