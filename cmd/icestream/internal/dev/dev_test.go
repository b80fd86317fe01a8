package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/devpeers"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
)

func TestAFolderWithOtherFilesIsNeverCleared(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "thesis.txt")
	require.NoError(t, os.WriteFile(precious, nil, 0o600))
	_, err := prepareFolder(dir, false)
	require.ErrorContains(t, err, "--dir")
	require.FileExists(t, precious)
}

func TestTheNextRunClearsItsOwnFolderUnlessToldToKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	lock, err := prepareFolder(dir, false)
	require.NoError(t, err)
	left := filepath.Join(dir, "kafka", "log")
	require.NoError(t, os.MkdirAll(left, 0o755))
	require.NoError(t, lock.Close())

	lock, err = prepareFolder(dir, true)
	require.NoError(t, err)
	require.DirExists(t, left)
	require.NoError(t, lock.Close())

	lock, err = prepareFolder(dir, false)
	require.NoError(t, err)
	require.NoDirExists(t, left)
	require.FileExists(t, filepath.Join(dir, markerFile))
	require.NoError(t, lock.Close())
}

func TestTheFolderOfARunningRunIsLeftAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	lock, err := prepareFolder(dir, false)
	require.NoError(t, err)
	left := filepath.Join(dir, "catalog.db")
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	for _, keep := range []bool{false, true} {
		_, err = prepareFolder(dir, keep)
		require.ErrorContains(t, err, "another `icestream dev` is running")
		require.FileExists(t, left)
	}
	require.NoError(t, lock.Close())
}

// A folder that cannot be used is a wrong --dir, not a fault of ours, and nothing is made.
func TestAFolderThatCannotBeUsedNamesTheFlag(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	spaced := filepath.Join(t.TempDir(), "my run")
	for dir, why := range map[string]string{file: "not a directory", filepath.Join(file, "x"): "not a directory", spaced: "cannot hold a warehouse"} {
		err := Run(t.Context(), Options{Dir: dir, Records: 1, Out: io.Discard})
		require.ErrorContains(t, err, why)
		require.ErrorContains(t, err, "name another folder with --dir")
		require.Equal(t, fault.InvalidArgument, fault.ReasonOf(err))
	}
	require.NoDirExists(t, spaced)
}

func TestATakenPortNamesItsFlag(t *testing.T) {
	ln, err := devpeers.Listen(0)
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	port := ln.Addr().(*net.TCPAddr).Port
	for flag, ports := range map[string]Ports{
		"--kafka-port": {Kafka: port}, "--registry-port": {Registry: port}, "--catalog-port": {Catalog: port}, "--metrics-port": {Metrics: port},
		"--ingest-port": {Ingest: port}, "--buffer-port": {Buffer: port}, "--committer-port": {Committer: port}, "--readstate-port": {Readstate: port},
	} {
		err := Run(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "run"), Records: 1, Ports: ports, Out: io.Discard})
		require.ErrorContains(t, err, flag)
	}
}

// A program takes the addresses from the first line, whatever is odd about the
// settings.
func TestWarningsComeBehindTheEndpoints(t *testing.T) {
	t.Setenv("ICESTREAM_KAFKA_BOOTSTRP_SERVERS", "elsewhere:1")
	path := filepath.Join(t.TempDir(), "my.yaml")
	require.NoError(t, os.WriteFile(path, []byte("pipelines: [{ name: p, topics: [p], table: a.p }]\n"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	out := &stopper{word: "ICESTREAM_KAFKA_BOOTSTRP_SERVERS", stop: cancel}
	require.NoError(t, Run(ctx, Options{Dir: filepath.Join(t.TempDir(), "run"), Config: path, NoGenerator: true, Follow: true, JSON: true, Out: out}))
	lines := strings.Split(out.String(), "\n")
	require.Contains(t, lines[0], `"event":"started"`)
	require.Contains(t, lines[1], `"event":"warning"`)
}

// Whoever tries a configuration of real peers must not take the run for one on them.
func TestAddressesOfTheUsersFileThatAreNotUsedAreNamed(t *testing.T) {
	const pipelines = "pipelines: [{ name: p, topics: [p], table: a.p }]\n"
	for text, named := range map[string]string{
		"":                            "",
		"kafka: { group.id: mine }\n": "",
		"kafka: { bootstrap.servers: b:9092 }\ncatalog: { uri: \"http://c:8181\" }\n": "kafka, catalog are not used",
		"registry: { url: \"http://r:8081\" }\n":                                      "registry are not used",
		"catalog: { uri: \"\", type: sql }\n":                                         "",
		"services: { buffer: { listen: \"unix:///run/b.sock\" } }\n":                  "services are not used",
	} {
		path := filepath.Join(t.TempDir(), "my.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text+pipelines), 0o600))
		overrides := append(addresses("k:9092", "http://dev:8081", "http://dev:8181", "file:///wh"), config.Override{Path: "services.buffer.listen", Value: ":7409"})
		c, _, err := config.Load(path, nil, overrides)
		require.NoError(t, err)
		warnings := ownPeers(path, c)
		if named == "" {
			require.Empty(t, warnings)
			continue
		}
		require.Len(t, warnings, 1)
		require.Equal(t, path+": the addresses of "+named+": dev has its own", fmt.Sprint(warnings[0]))
	}
}

// The services answer late at the start, and their answer is older than what is produced.
func TestWhatIsProducedAndNotVisibleIsLagAndNeverFresh(t *testing.T) {
	for name, c := range map[string]struct {
		at    Stats
		age   *float64
		lag   int64
		fresh *float64
	}{
		"nothing yet":                       {at: Stats{}},
		"nothing visible":                   {at: Stats{Produced: 3000}, lag: 3000},
		"rows of earlier runs only":         {at: Stats{Produced: 237_232, Visible: 200_000}, lag: 37_232},
		"the last answer is too good":       {at: Stats{Produced: 20, Visible: 10, HotFreshness: new(0.0)}, lag: 10},
		"behind, and how old is known":      {at: Stats{Produced: 20, Visible: 10}, age: new(0.5), lag: 10, fresh: new(0.5)},
		"the broker has more than was told": {at: Stats{Produced: 10, Visible: 10, Lag: 4}, age: new(0.5), lag: 4, fresh: new(0.5)},
		"everything":                        {at: Stats{Produced: 10, Visible: 10}, age: new(60.0), fresh: new(0.0)},
		"more than the ledger knows":        {at: Stats{Produced: 8, Visible: 10}, age: new(60.0), fresh: new(0.0)},
	} {
		c.at.judge(c.age)
		require.Equal(t, c.lag, c.at.Lag, name)
		require.Equal(t, c.fresh, c.at.HotFreshness, name)
	}
}

func TestTheFirstHotRowIsOneOfThisRun(t *testing.T) {
	at := func(visible ...int64) []*readstatev1.PartitionStatus {
		var out []*readstatev1.PartitionStatus
		for n, v := range visible {
			out = append(out, &readstatev1.PartitionStatus{Partition: &typesv1.Partition{Topic: topic, Number: int32(n)}, Visible: v})
		}
		return out
	}
	require.False(t, beyond([]int64{0, 0}, nil))
	require.False(t, beyond([]int64{0, 0}, at(0, 0)))
	require.True(t, beyond([]int64{0, 0}, at(0, 1)))
	require.False(t, beyond([]int64{40, 30}, at(40, 30)), "rows of earlier runs, kept")
	require.False(t, beyond([]int64{40, 30}, at(10, 30)), "rows of earlier runs, still being recovered")
	require.True(t, beyond([]int64{40, 30}, at(40, 31)))
}

// A random moment rarely falls into a run of a second; its rows are read while they are hot all the same.
func TestAShortRunIsReadFromBeforeItsEnd(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "run"), Records: 3, JSON: true, Out: &out, firstRead: time.Minute}))
	var last struct {
		Event string `json:"event"`
		Reads int64  `json:"reads_checked"`
	}
	for line := range strings.Lines(out.String()) {
		require.NoError(t, json.Unmarshal([]byte(line), &last))
		if last.Event == "verified" {
			require.Positive(t, last.Reads, "%s", line)
			return
		}
	}
	t.Fatalf("the run verified nothing:\n%s", &out)
}

// A run whose table belongs to another deployment can land nothing, and says early why, and again at its end.
func TestARunThatGetsNowhereSaysWhatIsNotReady(t *testing.T) {
	dir, path := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "other.yaml")
	require.NoError(t, Run(t.Context(), Options{Dir: dir, Records: 1, Out: io.Discard}))
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(pipelinesText, "deployment: dev", "deployment: other", 1)), 0o600))
	var out bytes.Buffer
	err := Run(t.Context(), Options{Dir: dir, Keep: true, Config: path, Records: 1, Out: &out, settle: quietTime + 2*time.Second, firstRead: 1})
	const why = `pipeline "orders" of this table belongs to dev/`
	require.ErrorContains(t, err, "not ready are")
	require.ErrorContains(t, err, why)
	require.Equal(t, 1, strings.Count(out.String(), "waiting: ingest/pipeline/orders: orders["), "%s", &out)
	require.Contains(t, out.String(), why)
}

func TestAStallIsToldWhenNothingMovedForLongAndOnce(t *testing.T) {
	began, waiting := time.Now(), []string{"a: b"}
	s := stall{since: began}
	at := func(after time.Duration, committed int64) []string {
		return s.tell(began.Add(after), Stats{Committed: committed}, waiting)
	}
	require.Empty(t, at(quietTime-1, 0))
	require.Empty(t, at(quietTime, 1), "it moved")
	require.Equal(t, waiting, at(2*quietTime, 1))
	require.Empty(t, at(3*quietTime, 1), "it is said already")
	waiting = []string{"a: c"}
	require.Equal(t, waiting, at(3*quietTime, 1), "another reason")
	waiting = []string{"a: d"}
	require.Empty(t, at(4*quietTime-1, 1), "a reason that changes again and again")
	require.Empty(t, at(3*quietTime, 2))
	require.Equal(t, waiting, at(4*quietTime, 2), "it got nowhere again")
}

// stopper calls stop when the word is written.
type stopper struct {
	bytes.Buffer

	word string
	stop func()
}

func (s *stopper) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(s.word)) {
		s.stop()
	}
	return s.Buffer.Write(b)
}

func TestAProgramGetsOneObjectALine(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, true, nil)
	v.say("started", "two\nlines", map[string]any{"kafka": "127.0.0.1:9092"})
	v.stats(Stats{Elapsed: 1500 * time.Millisecond, Produced: 7})
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	require.Len(t, lines, 2)
	var first, second map[string]any
	require.NoError(t, json.Unmarshal(lines[0], &first))
	require.NoError(t, json.Unmarshal(lines[1], &second))
	require.Equal(t, "127.0.0.1:9092", first["kafka"])
	require.InDelta(t, 1.5, second["seconds"], 1e-9)
	require.InDelta(t, 7, second["produced"], 1e-9)
	require.Nil(t, second["committed_freshness_seconds"], "nothing is committed yet, so nothing is fresh")
}

func TestPlainLinesComeEverySoOften(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, false, nil)
	for i := range 10 {
		v.stats(Stats{Elapsed: time.Duration(i+1) * 500 * time.Millisecond, Produced: 1_234_567})
	}
	require.Equal(t, 3, bytes.Count(out.Bytes(), []byte("\n")), "%s", out.String())
	require.Contains(t, out.String(), "produced 1,234,567")
}

// A line that wraps cannot be taken away again, and the screen would fill up.
func TestLiveLinesFitTheTerminal(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, false, func() int { return 40 })
	s := Stats{Produced: 1_234_567_890, Hot: 1_000_000, Committed: 123_456_789, Quarantined: 1000, HotFreshness: new(0.25)}
	v.stats(s)
	for line := range strings.SplitSeq(out.String(), "\n") {
		require.LessOrEqual(t, len([]rune(line)), 39)
	}
	out.Reset()
	v.stats(s)
	require.Contains(t, out.String(), "\r\x1b[2A\x1b[J", "the three lines of before are taken away")
	out.Reset()
	v.say("x", "an event", nil)
	v.stats(s)
	require.Contains(t, out.String(), "an event\n")
	require.Equal(t, 1, strings.Count(out.String(), "\x1b[J"), "an event stays on the screen")
}

func TestOwnTablesAreSaidOnceUntilTheyChange(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, false, nil)
	waiting := []string{"ingest/pipeline/a: the topic does not exist"}
	v.tables(time.Second, nil, waiting)
	v.tables(2*time.Second, nil, waiting)
	v.tables(3*time.Second, []TableStats{{Table: "a.b", HotRows: 5, State: "serving"}}, nil)
	require.Equal(t, "   1.0s  waiting: ingest/pipeline/a: the topic does not exist\n   3.0s  a.b: 5 hot rows · snapshot 0 · serving\n", out.String())
}

// A run whose records are not all in tables must not end as if they were.
func TestAnOwnRunSaysWhatOfTheProducedIsInNoTable(t *testing.T) {
	path, dir := filepath.Join(t.TempDir(), "my.yaml"), filepath.Join(t.TempDir(), "run")
	require.NoError(t, os.WriteFile(path, []byte(`
pipelines:
  - { name: plain, topics: [orders], table: a.plain, format: raw }
  - { name: strict, topics: [orders], table: a.strict, message: shop.NoSuchMessage }
  - { name: pattern, pattern: "orde.*", table: a.pattern, message: shop.NoSuchMessage }
  - { name: none, topics: [other], table: a.other }
`), 0o600))
	require.NoError(t, Run(t.Context(), Options{Dir: dir, Records: 40, Out: io.Discard}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &stopper{word: `ingest/pipeline/strict: orders[`, stop: cancel}
	err := Run(ctx, Options{Dir: dir, Keep: true, Config: path, NoGenerator: true, Follow: true, JSON: true, Out: out})
	require.Equal(t, run.CannotTell, run.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "] of pipeline pattern: ")
	require.Contains(t, out.String(), "of pipeline strict: ")
	require.NotContains(t, err.Error(), "pipeline plain")
	require.Contains(t, out.String(), `"event":"left"`)
	require.Contains(t, out.String(), `"exit_code":2`)
}

// A run that was killed leaves records in Kafka whose ledger was in memory: the next one cannot verify them, and says so at once.
func TestRecordsThatTheLedgerDoesNotKnowAreCounted(t *testing.T) {
	require.Zero(t, unknown(nil, nil))
	require.Zero(t, unknown([]int64{3, 0}, map[int32]int64{0: 3}))
	require.Zero(t, unknown([]int64{3, 5}, map[int32]int64{0: 3, 1: 6}))
	require.Equal(t, int64(7), unknown([]int64{5, 5}, map[int32]int64{0: 3}))
}
