//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/stack"
	"github.com/icestream/icestream/test/bench/shapes"
)

// pipelineTimeout bounds one round; on a busy machine it is far from reached.
const pipelineTimeout = 2 * time.Minute

// runPipeline takes a full topic through the four services to a committed table.
// The clock runs from the first row in the log to the snapshot that holds the
// last one: joining the consumer group and creating the table come before it. It
// returns the data files of the table.
func runPipeline(t *testing.T, dir string, p *peers, s shapes.Shape, from topic, table, profile string) (measure, []string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	logs, err := os.Create(filepath.Join(dir, "icestream.log"))
	require.NoError(t, err)
	defer func() { _ = logs.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), pipelineTimeout)
	defer cancel()

	process, err := boot.Open(ctx, settings(t, dir, p, s, table), logs)
	require.NoError(t, err)
	begun := time.Now()
	m := newMeter(t, profile)
	services, err := stack.New(ctx, process)
	require.NoError(t, err)
	var out measure
	var files []string
	process.Group.AddTask("bench", func(ctx context.Context) error {
		defer process.Group.Stop()
		var err error
		out, files, err = drain(ctx, services.Addresses(), table, from, m, begun)
		return err
	})
	err = process.Group.Run(ctx)
	if err != nil {
		tail, _ := os.ReadFile(logs.Name())
		t.Logf("%s", tail[max(0, len(tail)-4000):])
	}
	require.NoError(t, err, "running the pipeline of %s", s.Name)
	for _, f := range files {
		info, err := os.Stat(f)
		require.NoError(t, err)
		out.bytes += info.Size()
	}
	return out, files
}

func settings(t *testing.T, dir string, p *peers, s shapes.Shape, table string) *config.Config {
	t.Helper()
	// A deployment of its own: otherwise the committer would open the tables of earlier rounds as well.
	name := strings.ReplaceAll(table, ".", "-")
	text := fmt.Sprintf(`deployment: %s
node: { data_dir: %q, metrics: "", log_level: warn }
services: { ingest: {listen: "127.0.0.1:0"}, buffer: {listen: "127.0.0.1:0"}, committer: {listen: "127.0.0.1:0"}, readstate: {listen: "127.0.0.1:0"} }
limits: { hot.bytes: %s }
kafka: { bootstrap.servers: %q, group.id: bench }
registry: { url: %q }
catalog: { type: rest, uri: %q, warehouse: %q }
pipelines:
  - name: %s
    topics: [%s]
    table: %s
    message: %s
`, name, dir, *hotBytes, p.Kafka, p.Registry, p.Catalog, p.Warehouse, name, s.Name, table, s.Message)
	c, _, err := config.Parse("bench", []byte(text), nil, nil)
	require.NoError(t, err)
	return c
}

// drain waits for the first row, the last row, and the commit of it.
func drain(ctx context.Context, at map[string]string, table string, from topic, m *meter, begun time.Time) (measure, []string, error) {
	limit := config.Default().Limits.MaxMessage()
	log, err := boot.Dial(at["buffer"], limit)
	if err != nil {
		return measure{}, nil, err
	}
	defer func() { _ = log.Close() }()
	lake, err := boot.Dial(at["committer"], limit)
	if err != nil {
		return measure{}, nil, err
	}
	defer func() { _ = lake.Close() }()
	reads, admin := readstatev1.NewReadStateServiceClient(log), committerv1.NewAdminServiceClient(lake)

	if err := seen(ctx, reads, table, 1); err != nil {
		return measure{}, nil, err
	}
	start := time.Since(begun)
	m.begin()
	if err := seen(ctx, reads, table, from.Ends); err != nil {
		return measure{}, nil, err
	}
	metadata, err := commitAll(ctx, admin, table, from.Ends)
	if err != nil {
		return measure{}, nil, err
	}
	out := m.end(from.records)
	out.start = start
	files, err := dataFiles(metadata)
	return out, files, err
}

// commitAll commits until the table covers everything, and returns the place of
// its metadata. What the log shows may still be on its way to the committer, so
// the first commit may hold a little less.
func commitAll(ctx context.Context, admin committerv1.AdminServiceClient, table string, want int64) (string, error) {
	for {
		call, cancel := context.WithTimeout(ctx, time.Minute)
		done, err := admin.CommitNow(call, &committerv1.CommitNowRequest{Table: table})
		cancel()
		if err != nil {
			return "", fmt.Errorf("committing %s: %w", table, err)
		}
		committed := int64(0)
		for _, p := range done.GetCommit().GetPositions() {
			committed += p.GetNext()
		}
		if committed >= want {
			return done.GetCommit().GetMetadataLocation(), nil
		}
	}
}

// seen waits until so many offsets are visible.
func seen(ctx context.Context, reads readstatev1.ReadStateServiceClient, table string, want int64) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		desc, err := reads.DescribeTable(call, &readstatev1.DescribeTableRequest{Table: table})
		cancel()
		visible := int64(0)
		for _, p := range desc.GetPartitions() {
			visible += p.GetVisible()
		}
		if err == nil && visible >= want {
			return nil
		}
		last = err
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d offsets of %s, %d are visible (last error %w): %w", want, table, visible, last, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// dataFiles lists the Parquet files of a table by the place of its metadata.
func dataFiles(metadata string) ([]string, error) {
	u, err := url.Parse(metadata)
	if err != nil {
		return nil, err
	}
	var files []string
	err = filepath.WalkDir(filepath.Dir(filepath.Dir(u.Path)), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".parquet") {
			files = append(files, path)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("looking for data files beside %s: there are none", metadata)
	}
	return files, err
}
