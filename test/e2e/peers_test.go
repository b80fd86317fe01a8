//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/testkit"
)

var (
	records = flag.Int("records", 1_000_000, "good records per run")
	bad     = flag.Int("bad", 80, "bad records per run, of every kind")
	kills   = flag.Bool("kills", true, "kill -9 each service once while records flow")
	keepRun = flag.Bool("keep", false, "leave the peers running and the folder in place")
)

// peer runs one of the scripts in peers/ and returns the NAME=value lines.
func peer(t *testing.T, script string, args ...string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./peers/"+script, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, testWriter{t}
	require.NoError(t, cmd.Run(), "peers/%s %v", script, args)
	vars := map[string]string{}
	for line := range strings.Lines(out.String()) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			vars[k] = strings.Trim(v, "'\"")
		}
	}
	return vars
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	if text := strings.TrimSpace(strings.ReplaceAll(string(b), "\x1b[0m", "")); text != "" {
		w.t.Log(text)
	}
	return len(b), nil
}

// bed is a running set of peers.
type bed struct {
	dir                string
	kafka, secure      string
	ca, user, password string
	clientProps        string
	registry           string
	catalog, warehouse string
	s3                 map[string]string
	bin                string
}

func startBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{dir: t.TempDir()}
	if *keepRun {
		var err error
		b.dir, err = os.MkdirTemp("", "icestream-e2e-")
		require.NoError(t, err)
		t.Log("folder:", b.dir)
	}
	require.NoError(t, os.Setenv("TESTBED_RUN", filepath.Join(b.dir, "peers")))
	for _, s := range []string{"kafka", "registry", "s3", "catalog"} {
		peer(t, s, "install")
	}
	peer(t, "python", "-c", "pass") // installs the producer and the readers
	if !*keepRun {
		t.Cleanup(func() {
			for _, s := range []string{"catalog", "s3", "registry", "kafka"} {
				cmd := exec.Command("./peers/"+s, "wipe") //nolint:noctx // the test's context has ended
				_ = cmd.Run()
			}
		})
	}
	k := peer(t, "kafka", "up", "--secure")
	b.kafka, b.secure, b.ca = k["KAFKA_BOOTSTRAP"], k["KAFKA_SECURE_BOOTSTRAP"], k["KAFKA_CA"]
	b.user, b.password, b.clientProps = k["KAFKA_USER"], k["KAFKA_PASSWORD"], k["KAFKA_LIBRDKAFKA_PROPERTIES"]
	b.registry = peer(t, "registry", "up")["REGISTRY_URL"]
	b.s3 = peer(t, "s3", "up")
	for _, name := range []string{"S3_ENDPOINT", "S3_REGION", "S3_ACCESS_KEY", "S3_SECRET_KEY"} {
		require.NoError(t, os.Setenv(name, b.s3[name]))
	}
	c := peer(t, "catalog", "up", "s3://"+b.s3["S3_BUCKET"]+"/wh")
	b.catalog, b.warehouse = c["CATALOG_URI"], c["CATALOG_WAREHOUSE"]
	b.bin = filepath.Join(b.dir, "bin")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", b.bin+"/", "../../services/ingest/cmd/ingestd",
		"../../services/buffer/cmd/bufferd", "../../services/committer/cmd/committerd", "../../services/readstate/cmd/readstated", "../../cmd/icestream")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return b
}

// suite is one installation of Icestream: a configuration and four processes.
type suite struct {
	t       *testing.T
	bed     *bed
	config  string
	metrics map[string]int
	procs   map[string]*exec.Cmd
	logs    map[string]*os.File
}

var services = []string{"bufferd", "committerd", "ingestd", "readstated"}

// newSuite makes the configuration of a suite that reads a topic of one message type.
func (b *bed) newSuite(t *testing.T, name, topic, message string, secure bool) *suite {
	t.Helper()
	dir := filepath.Join(b.dir, name)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	s := &suite{
		t: t, bed: b, config: filepath.Join(dir, "icestream.yaml"),
		metrics: map[string]int{}, procs: map[string]*exec.Cmd{}, logs: map[string]*os.File{},
	}
	ports := map[string]int{}
	for _, svc := range services {
		ports[svc], s.metrics[svc] = testkit.FreePort(t), testkit.FreePort(t)
	}
	kafka := fmt.Sprintf("kafka: { bootstrap.servers: %q, group.id: e2e-%s }", b.kafka, name)
	if secure {
		kafka = fmt.Sprintf("kafka: { bootstrap.servers: %q, group.id: e2e-%s, security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512,"+
			" sasl.username: %q, sasl.password: \"${env:E2E_KAFKA_PASSWORD}\", ssl.ca.location: %q }", b.secure, name, b.user, b.ca)
	}
	require.NoError(t, os.Setenv("E2E_KAFKA_PASSWORD", b.password))
	text := fmt.Sprintf(`deployment: e2e
node: { data_dir: %q }
services: { ingest: {listen: "127.0.0.1:%d"}, buffer: {listen: "127.0.0.1:%d"}, committer: {listen: "127.0.0.1:%d"}, readstate: {listen: "127.0.0.1:%d"} }
discovery: { type: static, ingest: "127.0.0.1:%d", buffer: "127.0.0.1:%d", committer: "127.0.0.1:%d", readstate: "127.0.0.1:%d" }
%s
registry: { url: %q }
catalog:
  type: rest
  uri: %q
  warehouse: %q
  properties: { s3.endpoint: %q, s3.region: %q, s3.access-key-id: %q, s3.secret-access-key: %q }
defaults: { commit: { interval: 5s } }
pipelines:
  - name: orders
    topics: [%s]
    table: shop.%s
    message: %s
`, dir, ports["ingestd"], ports["bufferd"], ports["committerd"], ports["readstated"],
		ports["ingestd"], ports["bufferd"], ports["committerd"], ports["readstated"],
		kafka, b.registry, b.catalog, b.warehouse, b.s3["S3_ENDPOINT"], b.s3["S3_REGION"], b.s3["S3_ACCESS_KEY"], b.s3["S3_SECRET_KEY"],
		topic, strings.ReplaceAll(topic, "-", "_"), message)
	require.NoError(t, os.WriteFile(s.config, []byte(text), 0o600))
	t.Cleanup(s.stop)
	return s
}

// start starts one service; its log goes to a file that is shown on failure.
func (s *suite) start(svc string) {
	s.t.Helper()
	if s.logs[svc] == nil {
		f, err := os.Create(filepath.Join(filepath.Dir(s.config), svc+".log"))
		require.NoError(s.t, err)
		s.logs[svc] = f
	}
	cmd := exec.Command(filepath.Join(s.bed.bin, svc), "-config", s.config) //nolint:noctx // ended by signal
	cmd.Env = append(os.Environ(), "ICESTREAM_NODE_METRICS=127.0.0.1:"+strconv.Itoa(s.metrics[svc]))
	cmd.Stdout, cmd.Stderr = s.logs[svc], s.logs[svc]
	require.NoError(s.t, cmd.Start())
	s.procs[svc] = cmd
}

func (s *suite) startAll() {
	for _, svc := range services {
		s.start(svc)
	}
}

// kill9 kills a service and starts it again at once.
func (s *suite) kill9(svc string) {
	s.t.Helper()
	require.NoError(s.t, s.procs[svc].Process.Kill())
	_ = s.procs[svc].Wait()
	s.t.Logf("killed %s", svc)
	s.start(svc)
}

// stop ends all services in order and shows their logs when the test failed.
func (s *suite) stop() {
	for _, svc := range []string{"ingestd", "committerd", "readstated", "bufferd"} {
		cmd := s.procs[svc]
		if cmd == nil {
			continue
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			if err != nil {
				s.t.Errorf("%s ended with %v after SIGTERM", svc, err)
			}
		case <-time.After(90 * time.Second):
			_ = cmd.Process.Kill()
			s.t.Errorf("%s did not end within 90 s of SIGTERM", svc)
		}
	}
	for svc, f := range s.logs {
		if s.t.Failed() {
			b, _ := os.ReadFile(f.Name())
			s.t.Logf("---- %s\n%s", svc, b[max(0, len(b)-6000):])
		}
		_ = f.Close()
	}
}

func (s *suite) waitReady(within time.Duration) {
	s.t.Helper()
	for _, svc := range services {
		s.eventually(within, svc+" is ready", func() error {
			req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", s.metrics[svc]), nil)
			if err != nil {
				return err
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = res.Body.Close() }()
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", res.Status, body)
			}
			return nil
		})
	}
}

func (s *suite) eventually(within time.Duration, what string, check func() error) {
	s.t.Helper()
	deadline := time.Now().Add(within)
	var err error
	for time.Now().Before(deadline) {
		if err = check(); err == nil {
			return
		}
		select {
		case <-s.t.Context().Done():
			s.t.Fatalf("waiting until %s: %v", what, s.t.Context().Err())
		case <-time.After(300 * time.Millisecond):
		}
	}
	s.t.Fatalf("waited %v until %s: %v", within, what, err)
}

func (s *suite) icestream(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bed.bin, "icestream"), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("icestream %s: %w: %s%s", strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), nil
}

// description is what `icestream describe -o json` prints, as far as needed.
type description struct {
	Partitions []struct {
		Partition struct {
			Number int `json:"number"`
		} `json:"partition"`
		Committed string `json:"committed"`
	} `json:"partitions"`
}

// committedIs waits until the committed position of every partition is the end
// that the producer's manifest names.
func (s *suite) committedIs(table string, manifests []manifest, within time.Duration) {
	s.t.Helper()
	ends := map[int]int64{}
	for _, m := range manifests {
		for n, p := range m.Partitions {
			number, err := strconv.Atoi(n)
			require.NoError(s.t, err)
			ends[number] = max(ends[number], p.End)
		}
	}
	s.eventually(within, "everything is committed", func() error {
		out, err := s.icestream(s.t.Context(), "describe", "-c", s.config, table, "-o", "json")
		if err != nil {
			return err
		}
		var d description
		if err := json.Unmarshal([]byte(out), &d); err != nil {
			return fmt.Errorf("%w in %s", err, out)
		}
		got := map[int]int64{}
		for _, p := range d.Partitions {
			n, err := strconv.ParseInt(p.Committed, 10, 64)
			if err != nil {
				return err
			}
			got[p.Partition.Number] = n
		}
		for n, end := range ends {
			if got[n] != end {
				return fmt.Errorf("partition %d is committed to %d of %d", n, got[n], end)
			}
		}
		return nil
	})
}

type manifest struct {
	Rows       int64 `json:"rows"`
	Partitions map[string]struct {
		End int64 `json:"end_offset"`
	} `json:"partitions"`
}

// produce starts the third-party producer; wait returns its manifest.
func (b *bed) produce(t *testing.T, topic, file string, secure bool, args ...string) (wait func() manifest) {
	t.Helper()
	full := append([]string{"./peers/python", "peers/produce.py", "--topic", topic, "--registry", b.registry, "--manifest", file}, args...)
	if secure {
		full = append(full, "--bootstrap", b.secure, "--config", b.clientProps)
	} else {
		full = append(full, "--bootstrap", b.kafka)
	}
	cmd := exec.CommandContext(t.Context(), full[0], full[1:]...)
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = nil, &errs
	require.NoError(t, cmd.Start())
	return func() manifest {
		require.NoError(t, cmd.Wait(), "%s", errs.String())
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var m manifest
		require.NoError(t, json.Unmarshal(text, &m))
		return m
	}
}

// readers are the arguments with which a script reads a table.
func (b *bed) readers(table string) []string {
	return []string{
		"--catalog", b.catalog, "--warehouse", b.warehouse, "--table", table,
		"--s3", strings.Join([]string{b.s3["S3_ENDPOINT"], b.s3["S3_ACCESS_KEY"], b.s3["S3_SECRET_KEY"], b.s3["S3_REGION"]}, ","),
	}
}

// judge lets pyiceberg and DuckDB compare the table with the manifests.
func (b *bed) judge(t *testing.T, table string, manifests ...string) {
	t.Helper()
	args := slices.Concat([]string{"peers/verify.py"}, b.readers(table), manifests)
	out, err := exec.CommandContext(t.Context(), "./peers/python", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}

// G1, G2, G8, G11: a million records with every kind of poison, each service
// killed once, judged by readers that share no code with us.
func TestEveryRecordLandsOnceThoughEachServiceIsKilled(t *testing.T) {
	b := startBed(t)
	s := b.newSuite(t, "plain", "orders", "testbed.shop.v1.Order", false)
	file := filepath.Join(b.dir, "orders.json")
	wait := b.produce(t, "orders", file, false, "--count", strconv.Itoa(*records), "--fast", "--bad", strconv.Itoa(*bad))
	s.startAll()
	s.waitReady(90 * time.Second)
	if *kills {
		for _, svc := range services {
			before := s.committed("shop.orders")
			s.kill9(svc)
			s.eventually(3*time.Minute, "commits go on after the kill of "+svc, func() error {
				if now := s.committed("shop.orders"); now <= before && !s.done("shop.orders", file) {
					return fmt.Errorf("still %d committed", now)
				}
				return nil
			})
		}
	}
	m := wait()
	require.EqualValues(t, *records, m.Rows)
	s.committedIs("shop.orders", []manifest{m}, 10*time.Minute)
	out, err := s.icestream(t.Context(), "audit", "-c", s.config, "shop.orders")
	require.NoError(t, err)
	t.Log(out)
	b.judge(t, "shop.orders", file)
	t.Run("over SASL_SSL", func(t *testing.T) { secureRun(t, b) })
	t.Run("all types", func(t *testing.T) { allTypesRun(t, b) })
}

// committed is the sum of committed positions, 0 while nothing can be asked.
func (s *suite) committed(table string) int64 {
	out, err := s.icestream(s.t.Context(), "describe", "-c", s.config, table, "-o", "json")
	if err != nil {
		return 0
	}
	var d description
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		return 0
	}
	sum := int64(0)
	for _, p := range d.Partitions {
		n, _ := strconv.ParseInt(p.Committed, 10, 64)
		sum += n
	}
	return sum
}

// done reports whether the producer has ended and all its records are committed.
func (s *suite) done(table, file string) bool {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	var m manifest
	if json.Unmarshal(text, &m) != nil {
		return false
	}
	end := int64(0)
	for _, p := range m.Partitions {
		end += p.End
	}
	return s.committed(table) == end
}

// Every kind of field in every shape, made by confluent-kafka, read back by pyiceberg and DuckDB and compared value by
// value with what the producer meant.
func TestEveryTypeIsReadBackAsItWasMeant(t *testing.T) { allTypesRun(t, startBed(t)) }

func allTypesRun(t *testing.T, b *bed) {
	cmd := exec.CommandContext(t.Context(), "./peers/python", "peers/all_types.py", "produce", "--bootstrap", b.kafka, "--registry", b.registry, "--topic", "all-types")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, errs.String())
	var m manifest
	require.NoError(t, json.Unmarshal(out, &m))
	s := b.newSuite(t, "all", "all-types", "testbed.all.v1.All", false)
	s.startAll()
	s.waitReady(90 * time.Second)
	s.committedIs("shop.all_types", []manifest{m}, 3*time.Minute)
	args := append([]string{"peers/all_types.py", "judge"}, b.readers("shop.all_types")...)
	out, err = exec.CommandContext(t.Context(), "./peers/python", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}

func secureRun(t *testing.T, b *bed) {
	s := b.newSuite(t, "secure", "secure-orders", "testbed.shop.v1.Order", true)
	file := filepath.Join(b.dir, "secure.json")
	count := min(*records, 20_000)
	m := b.produce(t, "secure-orders", file, true, "--count", strconv.Itoa(count), "--transactional", "--bad", "8")()
	s.startAll()
	s.waitReady(90 * time.Second)
	s.committedIs("shop.secure_orders", []manifest{m}, 5*time.Minute)
	_, err := s.icestream(t.Context(), "audit", "-c", s.config, "shop.secure_orders")
	require.NoError(t, err)
	b.judge(t, "shop.secure_orders", file)
}
