//go:build bench

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/devpeers/kafka"
	"github.com/icestream/icestream/internal/devpeers/registry"
	"github.com/icestream/icestream/test/bench/shapes"
)

// peersEnv makes the test binary serve Kafka, registry and catalog in the folder
// it names: one line of JSON with the addresses, then one answer to each request
// on standard input, until that ends.
const peersEnv = "ICESTREAM_BENCH_PEERS"

// partitions of every topic.
const partitions = 4

// endpoints are the addresses of the peers.
type endpoints struct{ Kafka, Registry, Catalog, Warehouse string }

// order asks the peers for a topic of one shape.
type order struct {
	Shape   string
	Records int64
}

// topic is the answer: it holds all records of an order.
type topic struct {
	Name  string
	Bytes int64  // of all record values
	Ends  int64  // sum of the partitions' end offsets
	Error string // the order failed

	records int64
}

// peers is the process that serves them.
type peers struct {
	endpoints
	in  *json.Encoder
	out *json.Decoder
}

func startPeers(t *testing.T, dir string) *peers {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), peersEnv+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // the test's context ends it at the latest
	})
	p := &peers{in: json.NewEncoder(in), out: json.NewDecoder(out)}
	require.NoError(t, p.out.Decode(&p.endpoints), "the peers did not start")
	return p
}

// produce fills a topic and returns when all of it is acknowledged.
func (p *peers) produce(t *testing.T, shape string, n int64) topic {
	t.Helper()
	require.NoError(t, p.in.Encode(order{Shape: shape, Records: n}))
	out := topic{records: n}
	require.NoError(t, p.out.Decode(&out), "the peers ended")
	require.Empty(t, out.Error)
	return out
}

// servePeers is the peers' process.
func servePeers(dir string, in io.Reader, out io.Writer) (err error) {
	k, err := kafka.Start(kafka.Config{Dir: filepath.Join(dir, "kafka")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	r, err := registry.Start(registry.Config{File: filepath.Join(dir, "registry.json")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	ctx := context.Background()
	c, err := catalog.Start(ctx, catalog.Config{Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	answers := json.NewEncoder(out)
	if err := answers.Encode(endpoints{k.Addr(), r.URL(), c.URL(), c.Warehouse()}); err != nil {
		return err
	}
	for orders := json.NewDecoder(bufio.NewReader(in)); ; {
		var o order
		switch err := orders.Decode(&o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		done, err := fill(ctx, k, r.URL(), o)
		if err != nil {
			done.Error = err.Error()
		}
		if err := answers.Encode(done); err != nil {
			return err
		}
	}
}

// fill produces the records of an order, spread evenly, uncompressed: the cost of
// a codec is the producer's choice and no part of what is compared.
func fill(ctx context.Context, k *kafka.Broker, registryURL string, o order) (topic, error) {
	out := topic{Name: o.Shape}
	s, err := shapes.Find(o.Shape)
	if err != nil {
		return out, err
	}
	if err := k.EnsureTopic(out.Name, partitions); err != nil {
		return out, err
	}
	id, err := register(ctx, registryURL, out.Name+"-value", s.Proto)
	if err != nil {
		return out, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr()), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(200_000))
	if err != nil {
		return out, err
	}
	defer client.Close()
	failed := make(chan error, 1)
	maker, value := s.NewMaker(), []byte(nil)
	for n := range uint64(o.Records) {
		value = maker.AppendFramed(value[:0], id, n)
		out.Bytes += int64(len(value))
		r := &kgo.Record{Topic: out.Name, Partition: int32(n % partitions), Key: strconv.AppendUint(nil, n%50_000, 10), Value: bytes.Clone(value)}
		client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return out, err
	}
	for _, end := range k.EndOffsets(out.Name) {
		out.Ends += end
	}
	select {
	case err := <-failed:
		return out, fmt.Errorf("producing to topic %s: %w", out.Name, err)
	default:
		return out, nil
	}
}

// register puts a schema under a subject and returns its id.
func register(ctx context.Context, url, subject, text string) (uint32, error) {
	body, err := json.Marshal(map[string]string{"schemaType": "PROTOBUF", "schema": text})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/subjects/"+subject+"/versions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("registering the schema of %s: %w", subject, err)
	}
	defer func() { _ = res.Body.Close() }()
	var answer struct {
		ID      uint32 `json:"id"`
		Message string `json:"message"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != http.StatusOK {
		return 0, errors.Join(fmt.Errorf("registering the schema of %s: %s %s", subject, res.Status, answer.Message), err)
	}
	return answer.ID, nil
}
