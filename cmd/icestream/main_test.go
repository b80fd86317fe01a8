package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/cmd/icestream/internal/dev"
	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/testkit"
)

// icestream runs the command line and returns the exit code and both outputs.
func icestream(t *testing.T, args ...string) (code run.Code, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = execute(t.Context(), args, &o, &e)
	return code, o.String(), e.String()
}

// As fast as it goes, a run without end would leave the pipeline behind without bound.
func TestARunWithoutEndIsPacedUnlessTheUserChoosesTheRate(t *testing.T) {
	require.InDelta(t, 0, paced(dev.Options{}, false), 0)
	require.InDelta(t, 1000, paced(dev.Options{Follow: true}, false), 0)
	require.InDelta(t, 0, paced(dev.Options{Follow: true}, true), 0)
	require.InDelta(t, 50, paced(dev.Options{Follow: true, Rate: 50}, true), 0)
}

func TestWrongUsageEndsWithTwoAndSaysWhatIsRight(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"dv"}, "did you mean dev?; `icestream --help` lists all"},
		{[]string{"ofsets", "show", "a.b"}, "did you mean offsets?"},
		{[]string{"replay", "a.b"}, "did you mean icestream quarantine replay?"},
		{[]string{"schmea"}, "did you mean schema?"},
		{[]string{"frobnicate"}, `unknown command "frobnicate" for "icestream"; ` + "`icestream --help` lists all"},
		{[]string{"quarantine", "lst", "a.b"}, `not "lst"; did you mean list?`},
		{[]string{"dev", "--recods", "5"}, "icestream dev --help"},
		{[]string{"dev", "--plant", "rose"}, "lose, double, alter"},
		{[]string{"dev", "--no-generator"}, "--follow"},
		{[]string{"dev", "--config", "x.yaml"}, "--no-generator"},
		{[]string{"dev", "--config", "x.yaml", "--no-generator", "--follow", "--plant", "lose"}, "--plant needs the generator"},
		{[]string{"dev", "--follow", "--records", "500"}, "--records and --follow do not go together"},
		{[]string{"dev", "--follow", "--plant", "lose"}, "--plant and --follow do not go together"},
		{[]string{"dev", "--records", "0"}, "want at least one; --follow"},
		{[]string{"dev", "--records", "-5"}, "want at least one; --follow"},
		{[]string{"dev", "--rate", "-1"}, "--rate -1"},
		{[]string{"dev", "--kafka-port", "70000"}, "--kafka-port 70000: want a port up to 65535"},
		{[]string{"dev", "--metrics-port", "-1"}, "--metrics-port -1"},
		{[]string{"dev", "-o", "yaml"}, "text, json"},
		{[]string{"read"}, "wants one TABLE, got none"},
		{[]string{"read", "a.b", "c.d"}, "wants one TABLE"},
		{[]string{"read", "a.b", "--limit", "-1"}, "--limit"},
		{[]string{"quarantine", "show", "a.b", "--limit", "-1"}, "--limit"},
		{[]string{"read", "a.b", "-o", "yaml"}, "table, json, csv, arrow"},
		{[]string{"read", "a.b", "--at", "then"}, "--at"},
		{[]string{"read", "a.b", "--part", "warm"}, "hot or cold"},
		{[]string{"tables", "a.b"}, "takes no argument"},
		{[]string{"tables", "-o", "csv"}, "table, json"},
		{[]string{"pipeline"}, "pause or resume"},
		{[]string{"pipeline", "stop", "-c", "x.yaml"}, "pause or resume"},
		{[]string{"journal"}, "dump"},
		{[]string{"validate", "-c", "x.yaml", "--set", "novalue"}, "path=value"},
		{[]string{"tables", "-c", "x.yaml", "--dir", "run"}, "two installations"},
	} {
		code, _, errs := icestream(t, c.args...)
		require.Equal(t, run.CannotTell, code, "%v: %s", c.args, errs)
		require.Contains(t, errs, c.says, "%v", c.args)
	}
}

func TestAConfigurationIsNeededAndEveryMistakeIsPrinted(t *testing.T) {
	for _, args := range [][]string{{"validate"}, {"validate", "show"}, {"check"}, {"run"}, {"audit", "a.b"}} {
		t.Setenv("ICESTREAM_CONFIG", "")
		code, _, errs := icestream(t, args...)
		require.Equal(t, run.BadConfig, code, "%v", args)
		require.Contains(t, errs, "-c FILE", "%v", args)
	}
	path := filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(path, []byte("deploymnt: x\nlimits: { hot.bytes: 5 }\ncatalog: { type: glue }\n"), 0o600))
	code, _, errs := icestream(t, "validate", "-c", path)
	require.Equal(t, run.BadConfig, code)
	require.Contains(t, errs, `bad.yaml:1:1: deploymnt: is an unknown key, did you mean "deployment"?`)
	require.Contains(t, errs, "bad.yaml:2:22: limits.hot.bytes")
	require.Contains(t, errs, "catalog.type")
}

// What passes validate is what run starts with.
func TestValidateFindsWhatTheServicesWouldRefuseAndWarnsOfWhatIsMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write(`pipelines: [{name: a, topics: [a], table: n.a, format: json, columns: "id lng", properties: {s3.region: x}}]`)
	code, _, errs := icestream(t, "validate", "-c", path)
	require.Equal(t, run.BadConfig, code)
	require.Contains(t, errs, `x.yaml:1:71: pipelines[0].columns: reading the columns "id lng"`)
	require.Contains(t, errs, "pipelines[0].properties: s3.region is a setting of the catalog")

	write("node: {log_level: info}\n")
	code, out, errs := icestream(t, "validate", "-c", path)
	require.Equal(t, run.OK, code, errs)
	require.Contains(t, out, "it has no pipelines")
	require.Contains(t, errs, "warning: "+path+": catalog.uri: is not set")
	code, _, errs = icestream(t, "plan", "-c", path)
	require.Equal(t, run.BadConfig, code, errs)
	require.Contains(t, errs, "pipelines: is empty")
}

// G12: a secret is never printed.
func TestTheShownConfigurationHoldsNoSecrets(t *testing.T) {
	t.Setenv("REGISTRY_LOGIN", "me:env-secret")
	path := filepath.Join(t.TempDir(), "icestream.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
kafka: { bootstrap.servers: "b:1", security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: bob, sasl.password: word-secret }
registry: { url: "http://r:1", basic.auth.user.info: "${env:REGISTRY_LOGIN}" }
catalog: { uri: "http://c:1", warehouse: "s3://l/", credential: "id:cred-secret", properties: { s3.secret-access-key: key-secret } }
pipelines: [{ name: orders, topics: [orders], table: shop.orders }]
`), 0o600))
	code, out, errs := icestream(t, "validate", "show", "-c", path)
	require.Equal(t, run.OK, code, errs)
	require.Contains(t, out, "bob")
	require.NotContains(t, out+errs, "-secret\n")
	for _, secret := range []string{"word-secret", "env-secret", "cred-secret", "key-secret"} {
		require.NotContains(t, out+errs, secret)
	}
}

// nowhere is an address at which nothing listens.
func nowhere(t *testing.T) string {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	return ln.Addr().String()
}

func TestNothingRunningIsSaidInWords(t *testing.T) {
	at := nowhere(t)
	for _, args := range [][]string{{"tables"}, {"describe", "a.b"}, {"read", "a.b"}, {"tail", "a.b"}, {"commit", "a.b"}, {"renew", "a.b"}, {"pipeline", "pause", "p"}} {
		code, _, errs := icestream(t, append(args, "--addr", at)...)
		require.Equal(t, run.Dependency, code, "%v", args)
		require.Contains(t, errs, "nothing answers at "+at, "%v", args)
	}
	socket := config.SocketAddress(testkit.SocketPath(t))
	code, _, errs := icestream(t, "tables", "--addr", socket)
	require.Equal(t, run.Dependency, code)
	require.Contains(t, errs, "nothing answers at "+socket)
	require.Contains(t, errs, "no such file")
}

func TestStatusOfNothingIsOneAnswerOfFourServices(t *testing.T) {
	dir := t.TempDir()
	at, socket := nowhere(t), config.SocketAddress(testkit.SocketPath(t))
	text := fmt.Sprintf("discovery: { ingest: %q, buffer: %q, committer: %q, readstate: %q }\n"+
		"kafka: { bootstrap.servers: \"b:1\" }\nregistry: { url: \"http://r:1\" }\ncatalog: { uri: \"http://c:1\", warehouse: \"file:///w\" }\n"+
		"pipelines: [{ name: orders, topics: [orders], table: shop.orders }]\n", at, socket, at, socket)
	require.NoError(t, os.WriteFile(filepath.Join(dir, dev.ConfigFile), []byte(text), 0o600))
	code, out, errs := icestream(t, "status", "--dir", dir, "-o", "json")
	require.Equal(t, run.Violated, code, errs)
	var services []map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &services))
	require.Len(t, services, 4)
	require.Contains(t, out, "nothing is running in "+dir)
	require.Contains(t, out, "--no-generator --config FILE", "the generator was never here: what goes on are pipelines of the user")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ledger"), nil, 0o600))
	_, out, _ = icestream(t, "status", "--dir", dir)
	require.Contains(t, out, "icestream dev --dir "+dir+" --keep --follow`")
}

func TestExitCodesFollowTheirTable(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, c := range []struct {
		ctx  context.Context //nolint:containedctx // a column of the table
		err  error
		want run.Code
	}{
		{t.Context(), fault.New(fault.UnknownTable, "x"), run.CannotTell},
		{t.Context(), fault.New(fault.SnapshotGone, "x"), run.CannotTell},
		{t.Context(), fault.New(fault.NotYet, "x"), run.CannotTell},
		{t.Context(), fmt.Errorf("doing: %w", fault.New(fault.Unavailable, "x")), run.Dependency},
		{t.Context(), fault.New(fault.Unauthorized, "x"), run.Dependency},
		{t.Context(), context.DeadlineExceeded, run.Dependency},
		{t.Context(), run.WithCode(run.Violated, fault.New(fault.Corrupt, "x")), run.Violated},
		{t.Context(), errors.New("what"), run.Internal},
		{stopped, context.Canceled, run.Interrupted},
		{stopped, errors.Join(context.Canceled, nil), run.Interrupted},
	} {
		require.Equal(t, c.want, exitCode(c.ctx, c.err), "%v", c.err)
	}
}

func TestJoinedErrorsAreOneLineEachAndLoseNoWords(t *testing.T) {
	a, b := fault.New(fault.Corrupt, "rows differ"), fault.New(fault.UnknownTable, "no table")
	require.Equal(t, "rows differ [CORRUPT]\nno table [UNKNOWN_TABLE]", describe(run.WithCode(run.Violated, errors.Join(a, b))))
	require.Contains(t, describe(fmt.Errorf("opening the lake: %w", errors.Join(a, b))), "opening the lake")
	require.Contains(t, describe(fmt.Errorf("both %w and %w", a, b)), "both")
}

func TestDescribePrintsColumnsAtEveryDepth(t *testing.T) {
	s := &schema.Schema{Columns: []*schema.Node{
		{Name: "id", Type: schema.Of(schema.Long), Required: true},
		{Name: "place", Type: schema.Of(schema.Struct), Kids: []*schema.Node{{Name: "lat", Type: schema.Of(schema.Double)}}},
	}}
	s.AssignIDs()
	text, err := json.Marshal(s)
	require.NoError(t, err)
	var out bytes.Buffer
	cmd := describeCommand()
	cmd.SetOut(&out)
	require.NoError(t, printColumns(cmd, text))
	for _, line := range []string{"id ", "long ", "required", "place.lat", "double"} {
		require.Contains(t, out.String(), line)
	}
}

func TestVersionTellsWhatTheBinaryWasMadeOf(t *testing.T) {
	code, out, _ := icestream(t, "version", "-o", "json")
	require.Zero(t, code)
	var b boot.Build
	require.NoError(t, json.Unmarshal([]byte(out), &b))
	require.Equal(t, boot.ThisBuild(), b)
	code, out, _ = icestream(t, "version")
	require.Zero(t, code)
	require.Regexp(t, `^icestream \S+\nrevision  .+\ntime      .+\ngo        `+regexp.QuoteMeta(b.Go)+`\nplatform  `+b.Platform+`\n$`, out)
}
