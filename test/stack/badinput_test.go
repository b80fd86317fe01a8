package stack

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/file"
)

// said waits until a component of a service is not ready for a reason that holds all words.
func (w *world) said(r discovery.Role, component string, words ...string) {
	w.t.Helper()
	w.eventually(func() error {
		var why string
		for _, c := range w.nodes[r].health.Report("").Components {
			if c.Name == component && !c.Ready {
				why = c.Reason
			}
		}
		for _, word := range words {
			if !strings.Contains(why, word) {
				return fmt.Errorf("%s is not ready for %q; looked for %q in it", component, why, word)
			}
		}
		return nil
	})
}

// All peers are away at the start: the services start, say which address they wait for, and go on by themselves when
// the peers come (G11).
func TestPeersThatAreAwayAtTheStartAreNamedAndWaitedFor(t *testing.T) {
	w := newWorld(t, ordersText)
	w.redAfter = time.Second
	l := w.produce("orders", 4, 3000, 0)
	l.wait()
	w.stopKafka()
	w.stopRegistry()
	w.stopCatalog()
	w.start()
	w.said(discovery.Ingest, "ingest/pipeline/orders", local(w.ports.kafka))
	w.said(discovery.Committer, "committer/catalog", local(w.ports.catalog))
	w.startKafka()
	w.said(discovery.Ingest, "ingest/pipeline/orders", local(w.ports.catalog))
	w.startCatalog()
	w.said(discovery.Ingest, "ingest/pipeline/orders", local(w.ports.registry))
	w.startRegistry()
	w.ready()
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", l.ledger)
}

// Pipelines that cannot work, each in its own way, say what is wrong and what to do; the good one beside them is
// exact, and a bad one whose cause goes away goes on by itself (G8, G11).
func TestPipelinesThatCannotWorkSayWhyAndHarmNobody(t *testing.T) {
	w := newWorld(t, `deployment: test
defaults: { commit: { interval: 1s } }
pipelines:
  - { name: good, topics: [orders], table: shop.orders, message: shop.v1.Order }
  - { name: nomessage, topics: [nomessage], table: shop.nomessage, message: shop.v1.Ordre }
  - { name: notopic, topics: [nowhere], table: shop.nowhere, message: shop.v1.Order }
  - { name: collision, pattern: 'c[.-]d', table: 'shop.{topic}', message: shop.v1.Order }
  - { name: clash, topics: [clash], table: shop.clash, message: shop.v1.Order }
  - { name: connect, topics: [connect], table: shop.connect, message: shop.v1.Order }
  - { name: refused, topics: [refused], table: shop.refused, message: shop.v1.Order }
  - { name: empty, topics: [empty], table: shop.empty, message: shop.v1.Order }
`)
	proxy, refuse := refusingCatalog(t, "http://"+local(w.ports.catalog), "refused")
	w.settings.Catalog.URI = proxy
	good := w.produce("orders", 4, 3000, 0)
	var bad []*load
	for _, topic := range []string{"nomessage", "c.d", "c-d", "clash", "connect", "refused"} {
		bad = append(bad, w.produce(topic, 1, 200, 0))
	}
	require.NoError(t, w.kafka.EnsureTopic("empty", 2))
	for _, l := range append(bad, good) {
		l.wait()
	}
	w.foreignTable("clash", map[string]string{})
	w.foreignTable("connect", map[string]string{"kafka.connect.offsets.connect-control.connect-orders": `{"0":17}`})
	w.start()
	const at = "ingest/pipeline/"
	w.said(discovery.Ingest, at+"nomessage", "shop.v1.Ordre", "shop.v1.Order")
	w.said(discovery.Ingest, at+"notopic", "nowhere")
	w.said(discovery.Ingest, at+"collision", "c.d", "c-d", "shop.c_d")
	w.said(discovery.Ingest, at+"clash", "shop.clash", "order_id")
	w.said(discovery.Ingest, at+"connect", "shop.connect", "Kafka Connect")
	w.said(discovery.Ingest, at+"refused", "shop.refused", "no table may be called so")
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", good.ledger)
	for _, c := range w.nodes[discovery.Ingest].health.Report("").Components {
		if c.Name == at+"good" || c.Name == at+"empty" {
			require.True(t, c.Ready, "%s: %s", c.Name, c.Reason)
		}
		t.Logf("%s: %v %s", c.Name, c.Ready, c.Reason)
	}
	t.Logf("committer: %s", w.reasons(discovery.Committer))
	later := w.produce("nowhere", 2, 1000, 0)
	later.wait()
	w.settle("shop.nowhere", "nowhere")
	w.verify("shop.nowhere", later.ledger)
	refuse.Store(false)
	w.settle("shop.refused", "refused")
	w.verify("shop.refused", bad[5].ledger)
}

// refusingCatalog is a catalog that makes no table of that name while the switch is on.
func refusingCatalog(t *testing.T, real, name string) (address string, on *atomic.Bool) {
	target, err := url.Parse(real)
	require.NoError(t, err)
	forward := httputil.NewSingleHostReverseProxy(target)
	on = &atomic.Bool{}
	on.Store(true)
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if on.Load() && strings.HasSuffix(r.URL.Path, "/tables/"+name) {
			out.Header().Set("Content-Type", "application/json")
			out.WriteHeader(http.StatusNotFound)
			_, _ = out.Write([]byte(`{"error":{"message":"no such table","type":"NoSuchTableException","code":404}}`))
			return
		}
		if on.Load() && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/tables") {
			body, err := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if err == nil && bytes.Contains(body, []byte(`"`+name+`"`)) {
				out.Header().Set("Content-Type", "application/json")
				out.WriteHeader(http.StatusBadRequest)
				_, _ = out.Write([]byte(`{"error":{"message":"no table may be called so","type":"BadRequestException","code":400}}`))
				return
			}
		}
		forward.ServeHTTP(out, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, on
}

// foreignTable is a table in which another tool has written.
func (w *world) foreignTable(name string, summary map[string]string) {
	w.t.Helper()
	ctx := w.t.Context()
	cat, err := rest.NewCatalog(ctx, "other", "http://"+local(w.ports.catalog))
	require.NoError(w.t, err)
	if exists, err := cat.CheckNamespaceExists(ctx, []string{"shop"}); err == nil && !exists {
		require.NoError(w.t, cat.CreateNamespace(ctx, []string{"shop"}, nil))
	}
	tbl, err := cat.CreateTable(ctx, []string{"shop", name}, iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "order_id", Type: iceberg.PrimitiveTypes.Int32}))
	require.NoError(w.t, err)
	schema := arrow.NewSchema([]arrow.Field{{Name: "order_id", Type: arrow.PrimitiveTypes.Int32, Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	b.Field(0).(*array.Int32Builder).Append(5)
	rec := b.NewRecordBatch()
	rd, err := array.NewRecordReader(schema, []arrow.RecordBatch{rec})
	require.NoError(w.t, err)
	props := iceberg.Properties{}
	maps.Copy(props, summary)
	_, err = tbl.Append(ctx, rd, props)
	require.NoError(w.t, err)
}

// Wrong credentials are named as such, and right ones need only a restart: nothing was lost or skipped.
func TestWrongCredentialsAreNamed(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 4, 2000, 0)
	l.wait()
	target, err := url.Parse("http://" + local(w.ports.registry))
	require.NoError(t, err)
	forward := httputil.NewSingleHostReverseProxy(target)
	guarded := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if user, pass, ok := r.BasicAuth(); !ok || user != "reader" || pass != "right" {
			http.Error(out, `{"error_code":40101,"message":"unauthorized"}`, http.StatusUnauthorized)
			return
		}
		forward.ServeHTTP(out, r)
	}))
	t.Cleanup(guarded.Close)
	w.configure(ordersText, config.Override{Path: "registry.url", Value: guarded.URL},
		config.Override{Path: "registry.basic.auth.user.info", Value: "reader:wrongsecret"})
	w.start()
	w.said(discovery.Ingest, "ingest/pipeline/orders", guarded.URL, "credentials", "registry section")
	require.NotContains(t, w.reasons(discovery.Ingest), "wrongsecret")
	w.stop(discovery.Ingest)
	w.configure(ordersText, config.Override{Path: "registry.url", Value: guarded.URL},
		config.Override{Path: "registry.basic.auth.user.info", Value: "reader:right"})
	w.start(discovery.Ingest)
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", l.ledger)
}

func TestAWrongKafkaPasswordIsNamed(t *testing.T) {
	w := newWorld(t, ordersText)
	guarded, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "icestream", "right"), kfake.SeedTopics(1, "orders"))
	require.NoError(t, err)
	t.Cleanup(guarded.Close)
	with := func(password string) []config.Override {
		return []config.Override{
			{Path: "kafka.bootstrap.servers", Value: guarded.ListenAddrs()[0]},
			{Path: "kafka.security.protocol", Value: "SASL_PLAINTEXT"},
			{Path: "kafka.sasl.mechanism", Value: "PLAIN"},
			{Path: "kafka.sasl.username", Value: "icestream"},
			{Path: "kafka.sasl.password", Value: password},
		}
	}
	w.configure(ordersText, with("wrongsecret")...)
	w.start()
	w.said(discovery.Ingest, "ingest/pipeline/orders", "sasl.username", "sasl.password")
	require.NotContains(t, w.reasons(discovery.Ingest), "wrongsecret")
	w.stop(discovery.Ingest)
	w.configure(ordersText, with("right")...)
	w.start(discovery.Ingest)
	w.ready(discovery.Ingest)
}

// The disk of the journal is full: the buffer says so with the path, Kafka waits, and when there is room it goes on
// without a restart or, at worst, ends with a named reason and loses nothing.
func TestAFullDiskUnderTheJournalLosesNothing(t *testing.T) {
	w := newWorld(t, ordersText)
	full := &fullDisk{FS: file.OS{}}
	w.fs = full
	w.start()
	l := w.produce("orders", 4, 0, 3000)
	w.eventually(func() error {
		if seen, _ := w.visible("shop.orders", "orders"); seen < 1000 {
			return fmt.Errorf("%d rows are visible", seen)
		}
		return nil
	})
	full.on.Store(true)
	w.red(discovery.Buffer, filepath.Join(w.dir, "data"), "no space")
	w.pause(time.Second)
	full.on.Store(false)
	w.ready()
	l.halt()
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", l.ledger)
}

// fullDisk fails every write while it is on.
type fullDisk struct {
	file.FS
	on atomic.Bool
}

type fullFile struct {
	file.File
	d    *fullDisk
	name string
}

func (d *fullDisk) Create(name string) (file.File, error) {
	if d.on.Load() {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
	}
	f, err := d.FS.Create(name)
	return &fullFile{f, d, name}, err
}

func (d *fullDisk) Open(name string) (file.File, error) {
	f, err := d.FS.Open(name)
	return &fullFile{f, d, name}, err
}

func (f *fullFile) WriteAt(p []byte, at int64) (int, error) {
	if f.d.on.Load() {
		return 0, &os.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
	}
	return f.File.WriteAt(p, at)
}

// The warehouse takes no files for a while, as a full disk does: the committer says so with the path, and goes on.
func TestAWarehouseThatTakesNoFilesIsNamedAndWaitedFor(t *testing.T) {
	w := newWorld(t, ordersText)
	w.redAfter = time.Second
	w.start()
	l := w.produce("orders", 4, 0, 2000)
	w.eventually(func() error {
		have, err := w.committed("shop.orders", "orders")
		for _, n := range have {
			if n > 0 {
				return nil
			}
		}
		return fmt.Errorf("nothing committed yet: %w", err)
	})
	data := w.dataDir("shop", "orders")
	require.NoError(t, os.Rename(data, data+".away"))
	require.NoError(t, os.WriteFile(data, nil, 0o600))
	w.red(discovery.Committer, "shop.orders", data)
	t.Logf("committer: %s", w.reasons(discovery.Committer))
	require.NoError(t, os.Remove(data))
	require.NoError(t, os.Rename(data+".away", data))
	w.ready()
	l.halt()
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", l.ledger)
}
