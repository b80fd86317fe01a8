//go:build e2e

package e2e

import (
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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/testkit"
	"github.com/icestream/icestream/internal/testkit/faulty"
)

// peer runs one of the scripts in peers/ and returns the NAME=value lines.
func peer(t *testing.T, script string, args ...string) map[string]string {
	t.Helper()
	out := command(t, 20*time.Minute, testWriter{t}, fmt.Sprintf("peers/%s %v", script, args), "./peers/"+script, args...) // it may have to install
	vars := map[string]string{}
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			vars[k] = strings.Trim(v, "'\"")
		}
	}
	return vars
}

// python runs one of the Python scripts in peers/ and returns what it printed.
func python(t *testing.T, what string, args ...string) string {
	t.Helper()
	return command(t, 30*time.Minute, nil, what, "./peers/python", args...)
}

// command runs a program to its end, at most for a time, and returns what it printed; the failure of the test says for what
// it was run, and shows its errors if they have no writer.
func command(t *testing.T, within time.Duration, errs io.Writer, what, program string, args ...string) string {
	t.Helper()
	within = inTime(t, within)
	ctx, cancel := context.WithTimeoutCause(t.Context(), within, fmt.Errorf("it did not end within %v", within))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = 5 * time.Second // what it started may hold its output
	var out, said bytes.Buffer
	if errs == nil {
		errs = &said
	}
	cmd.Stdout, cmd.Stderr = &out, errs
	if err := cmd.Run(); err != nil {
		require.NoError(t, errors.Join(context.Cause(ctx), err), "%s: %s%s", what, &out, &said)
	}
	return out.String()
}

// inTime cuts a wait so that the test can say what it waited for, and stop everything, before its own time is over.
func inTime(t *testing.T, within time.Duration) time.Duration {
	if end, ok := t.Deadline(); ok {
		within = min(within, max(time.Until(end)-2*time.Minute, 0))
	}
	return within.Round(time.Second)
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

func startBed(t *testing.T, kafka ...string) *bed {
	t.Helper()
	b := &bed{dir: t.TempDir()}
	if *keepRun {
		var err error
		b.dir, err = os.MkdirTemp("", "icestream-e2e-") //nolint:usetesting // it is kept
		require.NoError(t, err)
		t.Log("folder:", b.dir)
	}
	t.Setenv("TESTBED_RUN", filepath.Join(b.dir, "peers"))
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
	port(t, "KAFKA_PORT")
	k := peer(t, "kafka", append([]string{"up", "--secure"}, kafka...)...)
	b.kafka, b.secure, b.ca = k["KAFKA_BOOTSTRAP"], k["KAFKA_SECURE_BOOTSTRAP"], k["KAFKA_CA"]
	b.user, b.password, b.clientProps = k["KAFKA_USER"], k["KAFKA_PASSWORD"], k["KAFKA_LIBRDKAFKA_PROPERTIES"]
	port(t, "REGISTRY_PORT")
	testkit.FreePort(t) // the one above it is its too
	b.registry = peer(t, "registry", "up")["REGISTRY_URL"]
	port(t, "S3_PORT")
	b.s3 = peer(t, "s3", "up")
	for _, name := range []string{"S3_ENDPOINT", "S3_REGION", "S3_ACCESS_KEY", "S3_SECRET_KEY"} {
		t.Setenv(name, b.s3[name])
	}
	port(t, "CATALOG_PORT")
	c := peer(t, "catalog", "up", "s3://"+b.s3["S3_BUCKET"]+"/wh")
	b.catalog, b.warehouse = c["CATALOG_URI"], c["CATALOG_WAREHOUSE"]
	b.bin = filepath.Join(b.dir, "bin")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", b.bin+"/", "../../services/ingest/cmd/ingestd",
		"../../services/buffer/cmd/bufferd", "../../services/committer/cmd/committerd", "../../services/readstate/cmd/readstated", "../../cmd/icestream")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return b
}

// port gives a peer a free port, so that runs side by side do not meet, unless the environment says one.
func port(t *testing.T, name string) {
	t.Helper()
	if os.Getenv(name) == "" {
		t.Setenv(name, strconv.Itoa(testkit.FreePort(t)))
	}
}

// suite is one installation of Icestream: a configuration and four processes.
type suite struct {
	t       *testing.T
	bed     *bed
	config  string
	ports   map[string]int
	metrics map[string]int
	procs   map[string]*exec.Cmd
	logs    map[string]*os.File
	links   map[string]*faulty.Link // before services, by name; empty without
}

// plan says what a suite reads and through what. Empty words mean what the bed has.
type plan struct {
	name, topic, message string
	format               string // more lines of the pipeline, instead of a message
	secure               bool
	linked               bool // buffer and committer are reached through links
	kafka, catalog, s3   string
	interval             string
	settings             string // more lines of the configuration
}

var services = []string{"bufferd", "committerd", "ingestd", "readstated"}

// newSuite makes the configuration of a suite that reads one topic into a table of its name.
func (b *bed) newSuite(t *testing.T, p plan) *suite {
	t.Helper()
	dir := filepath.Join(b.dir, p.name)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	s := &suite{
		t: t, bed: b, config: filepath.Join(dir, "icestream.yaml"),
		ports: map[string]int{}, metrics: map[string]int{}, procs: map[string]*exec.Cmd{}, logs: map[string]*os.File{}, links: map[string]*faulty.Link{},
	}
	at := map[string]string{}
	for _, svc := range services {
		s.ports[svc], s.metrics[svc] = testkit.FreePort(t), testkit.FreePort(t)
		at[svc] = fmt.Sprintf("127.0.0.1:%d", s.ports[svc])
		if p.linked && (svc == "bufferd" || svc == "committerd") {
			s.links[svc] = faulty.NewLink(t, "127.0.0.1:0", at[svc])
			at[svc] = s.links[svc].Address()
		}
	}
	kafka := fmt.Sprintf("bootstrap.servers: %q", or(p.kafka, b.kafka))
	if p.secure {
		kafka = fmt.Sprintf("bootstrap.servers: %q, security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512,"+
			" sasl.username: %q, sasl.password: \"${env:E2E_KAFKA_PASSWORD}\", ssl.ca.location: %q", b.secure, b.user, b.ca)
	}
	t.Setenv("E2E_KAFKA_PASSWORD", b.password)
	text := fmt.Sprintf(`deployment: e2e-%s
node: { data_dir: %q }
services: { ingest: {listen: "127.0.0.1:%d"}, buffer: {listen: "127.0.0.1:%d"}, committer: {listen: "127.0.0.1:%d"}, readstate: {listen: "127.0.0.1:%d"} }
discovery: { type: static, ingest: %q, buffer: %q, committer: %q, readstate: %q }
kafka: { group.id: e2e-%s, %s }
registry: { url: %q }
catalog:
  type: rest
  uri: %q
  warehouse: %q
  properties: { s3.endpoint: %q, s3.region: %q, s3.access-key-id: %q, s3.secret-access-key: %q }
defaults: { commit: { interval: %s } }
%spipelines:
  - name: orders
    topics: [%s]
    table: %s
%s
`, p.name, dir, s.ports["ingestd"], s.ports["bufferd"], s.ports["committerd"], s.ports["readstated"],
		at["ingestd"], at["bufferd"], at["committerd"], at["readstated"],
		p.name, kafka, b.registry, or(p.catalog, b.catalog), b.warehouse, or(p.s3, b.s3["S3_ENDPOINT"]), b.s3["S3_REGION"], b.s3["S3_ACCESS_KEY"], b.s3["S3_SECRET_KEY"],
		or(p.interval, "5s"), p.settings, p.topic, p.table(), or(p.format, "    message: "+p.message))
	require.NoError(t, os.WriteFile(s.config, []byte(text), 0o600))
	t.Cleanup(s.stop)
	return s
}

// table is where the records of the topic go.
func (p plan) table() string { return "shop." + strings.ReplaceAll(p.topic, "-", "_") }

func or(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

// start starts one service; its log goes to a file that is shown on failure.
func (s *suite) start(svc string) { s.run(svc, svc) }

// twin starts another process of a service, under a name of its own, that listens elsewhere.
func (s *suite) twin(svc, name string) {
	s.t.Helper()
	s.metrics[name] = testkit.FreePort(s.t)
	section := strings.ToUpper(strings.TrimSuffix(svc, "d"))
	s.run(svc, name, fmt.Sprintf("ICESTREAM_SERVICES_%s_LISTEN=127.0.0.1:%d", section, testkit.FreePort(s.t)))
}

func (s *suite) run(svc, name string, env ...string) {
	s.t.Helper()
	if s.logs[name] == nil {
		f, err := os.Create(filepath.Join(filepath.Dir(s.config), name+".log"))
		require.NoError(s.t, err)
		s.logs[name] = f
	}
	cmd := exec.Command(filepath.Join(s.bed.bin, svc), "-config", s.config) //nolint:noctx // ended by signal
	cmd.Env = append(append(os.Environ(), "ICESTREAM_NODE_METRICS=127.0.0.1:"+strconv.Itoa(s.metrics[name])), env...)
	cmd.Stdout, cmd.Stderr = s.logs[name], s.logs[name]
	require.NoError(s.t, cmd.Start())
	s.procs[name] = cmd
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

// signal sends a signal to a service; SIGSTOP freezes it, SIGCONT lets it go on.
func (s *suite) signal(svc string, sig syscall.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.procs[svc].Process.Signal(sig))
}

// stop ends all services in order and shows their logs when the test failed.
func (s *suite) stop() {
	for _, svc := range []string{"ingestd", "committerd", "second committerd", "readstated", "bufferd"} {
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
			status, says, err := s.readiness(svc)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("%d: %s", status, says)
			}
			return err
		})
	}
}

// readiness is what /readyz of a service answers.
func (s *suite) readiness(svc string) (status int, says string, _ error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", s.metrics[svc]), nil)
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
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

// production is a run of the third-party producer.
type production struct {
	t      *testing.T
	topic  string
	cmd    *exec.Cmd
	giveUp context.CancelCauseFunc
	gaveUp func() error // why, nil if not
	file   string
	errs   bytes.Buffer
}

// produce starts the third-party producer; its manifest is going to be in file.
func (b *bed) produce(t *testing.T, topic, file string, secure bool, args ...string) *production {
	t.Helper()
	full := append([]string{"./peers/python", "peers/produce.py", "--topic", topic, "--registry", b.registry, "--manifest", file}, args...)
	if secure {
		full = append(full, "--bootstrap", b.secure, "--config", b.clientProps)
	} else {
		full = append(full, "--bootstrap", b.kafka)
	}
	ctx, giveUp := context.WithCancelCause(t.Context())
	t.Cleanup(func() { giveUp(nil) })
	p := &production{t: t, topic: topic, file: file, cmd: exec.CommandContext(ctx, full[0], full[1:]...), giveUp: giveUp}
	p.gaveUp = func() error { return context.Cause(ctx) }
	p.cmd.Stdout, p.cmd.Stderr = nil, &p.errs
	require.NoError(t, p.cmd.Start())
	return p
}

// wait waits for the end of the producer and returns its manifest.
func (p *production) wait() manifest {
	p.t.Helper()
	return p.within(30 * time.Minute)
}

func (p *production) within(limit time.Duration) manifest {
	p.t.Helper()
	limit = inTime(p.t, limit)
	timer := time.AfterFunc(limit, func() {
		p.giveUp(fmt.Errorf("waited %v for the producer of topic %s to end and leave its manifest", limit, p.topic))
	})
	defer timer.Stop()
	if err := p.cmd.Wait(); err != nil {
		require.NoError(p.t, errors.Join(p.gaveUp(), err), "the producer of topic %s: %s", p.topic, &p.errs)
	}
	text, err := os.ReadFile(p.file)
	require.NoError(p.t, err)
	var m manifest
	require.NoError(p.t, json.Unmarshal(text, &m))
	return m
}

// halt ends the producer early, in order.
func (p *production) halt() manifest {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	return p.within(12 * time.Minute) // a full queue, and then what is in it, is given up after five each
}

// readers are the arguments with which a script reads a table.
func (b *bed) readers(table string) []string {
	return []string{
		"--catalog", b.catalog, "--warehouse", b.warehouse, "--table", table,
		"--s3", strings.Join([]string{b.s3["S3_ENDPOINT"], b.s3["S3_ACCESS_KEY"], b.s3["S3_SECRET_KEY"], b.s3["S3_REGION"]}, ","),
	}
}

// judge lets pyiceberg and DuckDB compare the table with manifests; args may have options before them.
func (b *bed) judge(t *testing.T, table string, args ...string) verdict {
	t.Helper()
	args = slices.Concat([]string{"peers/verify.py"}, b.readers(table), args)
	out := python(t, "the judgement of table "+table, args...)
	t.Log(out)
	var v verdict
	require.NoError(t, json.Unmarshal([]byte(out), &v))
	return v
}

// verdict is what the readers counted.
type verdict struct {
	Rows        int64 `json:"rows"`
	Lost        int64 `json:"lost"`
	Doubled     int64 `json:"doubled"`
	Quarantined int64 `json:"quarantined"`
}

// audit proves a table from itself, also while it is committed to.
func (s *suite) audit(table string, args ...string) string {
	s.t.Helper()
	out, err := s.icestream(s.t.Context(), append([]string{"audit", "-c", s.config, table}, args...)...)
	require.NoError(s.t, err, "%s", out)
	return out
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
