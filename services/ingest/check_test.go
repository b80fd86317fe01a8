package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
)

// A broker that takes connections and never answers must not keep the registry from being asked.
func TestAPeerThatDoesNotAnswerKeepsNoOtherFromBeingChecked(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	mute, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = mute.Close() }()
	w.cfg.Kafka.BootstrapServers = []string{mute.Addr().String()}
	more := w.cfg.Pipelines[0]
	more.Name = "more"
	w.cfg.Pipelines = append(w.cfg.Pipelines, more)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	results := Check(ctx, w.cfg)
	require.Len(t, results, 3)
	require.Equal(t, "kafka, pipeline p", results[0].Peer)
	require.False(t, results[0].OK)
	require.Equal(t, "kafka, pipeline more", results[1].Peer)
	require.False(t, results[1].OK)
	require.Equal(t, "registry", results[2].Peer)
	require.NotContains(t, results[2].Detail, "deadline", "it was asked in time")
}

// Programs read log lines: a key that comes twice is lost or refused by them.
func TestALogLineNamesEachThingOnce(t *testing.T) {
	w := newWorld(t, ordersTopic+", on_invalid: stop", topic(1))
	logs := &lines{}
	w.log = slog.New(slog.NewJSONHandler(logs, nil))
	w.produce(0, orders(1, 0, 5)...)
	i := w.start()
	w.appended(0, 5)
	w.produce(0, []byte("no frame"))
	w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
	i.stop(t)
	text := logs.String()
	for _, word := range []string{"partition assigned", "append stream is up", "partition stopped", "partition given up"} {
		require.Contains(t, text, word)
	}
	for line := range strings.Lines(text) {
		seen := map[string]bool{}
		d := json.NewDecoder(strings.NewReader(line))
		_, err := d.Token()
		require.NoError(t, err)
		for d.More() {
			key, err := d.Token()
			require.NoError(t, err)
			require.False(t, seen[key.(string)], "%v comes twice: %s", key, line)
			seen[key.(string)] = true
			var value json.RawMessage
			require.NoError(t, d.Decode(&value))
		}
	}
}

// lines is a buffer that several may write to.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
