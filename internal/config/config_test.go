package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the reference page")

// parse reads a configuration that has to be right.
func parse(t *testing.T, text string, env ...string) *Config {
	t.Helper()
	c, warnings, err := Parse("icestream.yaml", []byte(text), env, nil)
	require.NoError(t, err)
	require.Empty(t, warnings)
	return c
}

// problems reads a configuration that has to be wrong.
func problems(t *testing.T, text string, env ...string) []string {
	t.Helper()
	c, _, err := Parse("icestream.yaml", []byte(text), env, nil)
	require.Nil(t, c)
	var list Errors
	require.ErrorAs(t, err, &list)
	return strings.Split(list.Error(), "\n")
}

const example = `
deployment: prod
node:      { data_dir: ./data, metrics: ":9464" }    # journal, spill and schema cache live under data_dir
services:  { ingest: {listen: ":7404"}, buffer: {listen: ":7401"}, committer: {listen: ":7402"}, readstate: {listen: ":7403"} }
discovery: { type: static, buffer: "127.0.0.1:7401", committer: "127.0.0.1:7402", readstate: "127.0.0.1:7403" }
limits:    { hot.bytes: 512MiB, ingest.bytes: 256MiB, committer.bytes: 512MiB, batch.bytes: 1MiB, record.max: 32MiB, spill.bytes: 8GiB }
kafka:     { bootstrap.servers: "broker:9092", group.id: icestream }
registry:  { url: "http://registry:8081" }
catalog:   { type: rest, uri: "http://catalog:8181", warehouse: "s3://lake/", properties: {s3.endpoint: "http://s3:9000", s3.secret-access-key: hush} }
defaults:  { on_invalid: quarantine, on_data_loss: stop, commit: { interval: 2m, file_size: 128MiB } }
pipelines:
  - name: orders                    # identity of the state kept in the table; never renamed
    topics: [orders]
    table: shop.orders
    format: protobuf
    key: none
    start: earliest
    tombstones: skip
    partition: "day(created_at), bucket(16, customer_id)"
    sort: "customer_id, day(created_at) desc nulls first"
    metadata: [lsn, kafka]
    commit: { interval: 5s, rows: 1_000_000 }
  - name: rest
    pattern: "shop\\..*"
    table: shop.{topic}
    start: {timestamp: 2026-01-01T00:00:00Z}
  - name: fixed
    topics: x, y
    table: shop.fixed
    start: {offsets: {x: {0: 100, 3: 7}}}
    schema: {framing: none, subject: x-value, version: 3}
`

func TestTheExampleOfTheDesignParses(t *testing.T) {
	c := parse(t, example)
	require.Equal(t, "prod", c.Deployment)
	require.Equal(t, 512*Size(1<<20), c.Limits.HotBytes)
	require.Equal(t, 4*32<<20+1<<20, c.Limits.MaxMessage())
	require.Equal(t, []string{"broker:9092"}, c.Kafka.BootstrapServers)
	require.Equal(t, []string{"http://registry:8081"}, c.Registry.URLs)
	require.Equal(t, "hush", c.Catalog.Properties.Get("s3.secret-access-key"))
	require.Equal(t, []string{"orders", "rest", "fixed"}, c.PipelineNames())

	p := c.Pipeline("orders")
	require.Equal(t, Partition{{Name: "day", Column: "created_at"}, {Name: "bucket", Arg: 16, Column: "customer_id"}}, p.Partition)
	require.Equal(t, "customer_id, day(created_at) desc nulls first", p.Sort.String())
	require.Equal(t, Commit{Interval: 5 * time.Second, FileSize: 128 << 20, Rows: 1_000_000}, p.Commit)
	require.True(t, p.Lsn())
	require.True(t, p.KafkaColumn())
	require.Equal(t, "icestream.orders", c.GroupID(p))

	require.Equal(t, 2*time.Minute, c.Pipelines[1].Commit.Interval, "defaults apply to a pipeline that does not say otherwise")
	require.Equal(t, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), c.Pipelines[1].Start.At)
	require.Equal(t, map[string]map[int32]int64{"x": {0: 100, 3: 7}}, c.Pipelines[2].Start.Offsets)
	require.Equal(t, SchemaRef{Framing: "none", Subject: "x-value", Version: 3}, c.Pipelines[2].Schema)
	require.NoError(t, c.Validate())
	require.NoError(t, c.Require(Ingest, Buffer, Committer, Readstate))
}

func TestDefaultsParity(t *testing.T) {
	c := parse(t, "")
	require.Equal(t, string(Default().Redacted()), string(c.Redacted()))
	require.NoError(t, Default().Validate())
}

// TestPrintedConfigurationReadsBackTheSame holds redaction, printing and parsing of every type together.
func TestPrintedConfigurationReadsBackTheSame(t *testing.T) {
	c := parse(t, example)
	c.Catalog.Properties = Properties{}
	again := parse(t, string(c.Redacted()))
	require.Equal(t, string(c.Redacted()), string(again.Redacted()))
	require.Equal(t, c.Pipelines[0].Options, again.Pipelines[0].Options)
	require.Equal(t, c.Pipelines[2].Start, again.Pipelines[2].Start)
}

func TestEveryProblemIsReportedAtOnceWithItsPlace(t *testing.T) {
	got := problems(t, `limits:
  hot.byte: 64MiB
  record.max: 32
kafka:
  isolation.level: read_committed
  security.protcol: SSL
  security.protocol: SASL
pipelines:
  - name: Orders
    topics: [a]
    table: orders
    start: yesterday
    commit: {interval: 5}
  - name: b
    table: x.y__quarantine
    topics: []
`)
	require.Equal(t, []string{
		`icestream.yaml:2:3: limits.hot.byte: is an unknown key, did you mean "hot.bytes"?`,
		`icestream.yaml:3:15: limits.record.max: "32" is not a size: write a number with a unit, such as 64MiB`,
		`icestream.yaml:5:3: kafka.isolation.level: is not a setting of Icestream, remove it: Icestream always reads committed records only`,
		`icestream.yaml:6:3: kafka.security.protcol: is an unknown key, did you mean "security.protocol"?`,
		`icestream.yaml:7:22: kafka.security.protocol: "SASL" is not known, did you mean "SSL"?`,
		`icestream.yaml:9:11: pipelines[0].name: "Orders" is not a name, use up to 63 of a-z, 0-9, - and _`,
		`icestream.yaml:11:12: pipelines[0].table: "orders" is not the name of a table, write namespace.table with letters, digits, - and _, and {topic} for the topic`,
		`icestream.yaml:12:12: pipelines[0].start: "yesterday" is not a start, write earliest, latest, group, {timestamp: 2026-01-01T00:00:00Z} or {offsets: {topic: {0: 100}}}`,
		`icestream.yaml:13:24: pipelines[0].commit.interval: "5" is not a duration: write a number with a unit, such as 500ms, 30s, 5m, 2h or 7d`,
		`icestream.yaml:14:5: pipelines[1]: reads no topic, set topics or pattern`,
		`icestream.yaml:15:12: pipelines[1].table: "x.y__quarantine" ends in __quarantine, which is kept for quarantine tables, choose another name`,
	}, got)
}

func TestSingleProblems(t *testing.T) {
	pipeline := func(rest string) string { return "pipelines:\n- {name: a, topics: [t], table: n.t, " + rest + "}\n" }
	for name, test := range map[string]struct{ text, want string }{
		"yaml":              {"kafka: {", "icestream.yaml"},
		"documents":         {"deployment: a\n---\ndeployment: b\n", "several YAML documents"},
		"twice":             {"deployment: a\ndeployment: b\n", "2:1: deployment: is given twice"},
		"top level list":    {"- a\n", "must be a mapping"},
		"section scalar":    {"kafka: yes\n", "kafka: must be a mapping"},
		"empty value":       {"deployment:\n", "deployment: has no value"},
		"mapping for text":  {"deployment: {a: b}\n", "must be a single value"},
		"wrong section":     {"hot.bytes: 1MiB\n", "it belongs at limits.hot.bytes"},
		"wrong section 2":   {"node: {bootstrap.servers: 1}\n", "it belongs at kafka.bootstrap.servers"},
		"size unit":         {"limits: {hot.bytes: 5Mb2}\n", "is not a size"},
		"size range":        {"limits: {hot.bytes: 99999999TiB}\n", "out of range"},
		"record too large":  {"limits: {record.max: 1GiB}\n", "below 2GiB"},
		"batch over budget": {"limits: {batch.bytes: 1GiB}\n", "more than a whole budget"},
		"no env":            {"kafka: {sasl.password: \"${env:NOPE}\"}\n", "NOPE, which is not set"},
		"no regular file":   {"deployment: \"${file:/dev/null}\"\n", "not a regular file"},
		"no file":           {"kafka: {sasl.password: \"${file:nope}\"}\n", "cannot be read"},
		"bad reference":     {"deployment: \"${vault:x}\"\n", "unknown reference ${vault:x}"},
		"open reference":    {"deployment: \"${env:x\"\n", "closing brace"},
		"address":           {"services: {buffer: {listen: \"7401\"}}\n", "write host:port"},
		"same port":         {"services: {buffer: {listen: \":7402\"}}\n", "give each its own"},
		"same socket":       {"services: {buffer: {listen: \"unix:///a.sock\"}, ingest: {listen: \"unix:///a.sock\"}}\n", "give each its own"},
		"relative socket":   {"discovery: {buffer: \"unix://a.sock\"}\n", "by its absolute path"},
		"socket, bare":      {"discovery: {buffer: \"/run/b.sock\"}\n", "or unix:///folder/name.sock"},
		"socket, one slash": {"services: {buffer: {listen: \"unix:/run/b.sock\"}}\n", "or unix:///folder/name.sock"},
		"long socket":       {"discovery: {buffer: \"unix:///" + strings.Repeat("a", 103) + "\"}\n", "up to 103 bytes"},
		"metrics at socket": {"node: {metrics: \"unix:///a.sock\"}\n", "is not an address"},
		"dial without host": {"discovery: {buffer: \":7401\"}\n", "has no host"},
		"sasl incomplete":   {"kafka: {security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: u}\n", "kafka.sasl.password: is missing"},
		"sasl unused":       {"kafka: {sasl.username: u}\n", "nobody would log in"},
		"ssl unused":        {"kafka: {ssl.ca.location: /}\n", "nothing would be encrypted"},
		"ssl half":          {"kafka: {security.protocol: SSL, ssl.key.location: /}\n", "belong together"},
		"ssl no file":       {"kafka: {security.protocol: SSL, ssl.ca.location: /no/such/file.pem}\n", "no such file"},
		"url scheme":        {"registry: {url: \"registry:8081\"}\n", "write http://host:port"},
		"both logins":       {"registry: {basic.auth.user.info: \"a:b\", bearer.auth.token: c}\n", "exclude each other"},
		"catalog type":      {"catalog: {type: glu}\n", `did you mean "glue"?`},
		"store":             {"catalog: {warehouse: \"ftp://x\"}\n", `the store "ftp" is not known`},
		"no topics":         {"pipelines: [{name: a, table: n.t}]\n", "reads no topic"},
		"topics twice":      {pipeline("pattern: x"), "exclude each other"},
		"bad pattern":       {"pipelines: [{name: a, table: n.t, pattern: \"(\"}]\n", "is not a regular expression"},
		"same name":         {pipeline("key: raw") + "- {name: a, topics: [u], table: n.u}\n", "also the name of pipelines[0]"},
		"message":           {pipeline("format: raw, message: x.Y"), "only for format protobuf"},
		"no schema":         {pipeline("schema: {framing: none}"), "set either id or subject"},
		"needless schema":   {pipeline("schema: {id: 7}"), "every value carries its own"},
		"transform":         {pipeline("partition: \"bucket(x)\""), "needs a positive number"},
		"transform name":    {pipeline("partition: \"weekday(x)\""), "is not a transform"},
		"transform twice":   {pipeline("partition: \"x, x\""), "listed twice"},
		"metadata":          {pipeline("metadata: [lsn, kafkas]"), `did you mean "kafka"?`},
		"start topic":       {pipeline("start: {offsets: {u: {0: 1}}}"), "which it does not read"},
		"start time":        {pipeline("start: {timestamp: today}"), "is not a time"},
		"interval":          {pipeline("commit: {interval: 1ms}"), "out of range"},
		"collision":         {"pipelines: [{name: a, topics: [a.b, a-b], table: \"n.{topic}\"}]\n", "both give the table n.a_b"},
		"quarantine topic":  {"pipelines: [{name: a, topics: [a__quarantine], table: \"n.{topic}\"}]\n", "taken for a quarantine table"},
		"pipelines mapping": {"pipelines: {name: a}\n", "must be a list"},
		"lease":             {"reads: {max_lease: 48h}\n", "out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			got := problems(t, test.text)
			require.Contains(t, strings.Join(got, "\n"), test.want)
			require.Contains(t, got[0], "icestream.yaml")
		})
	}
}

func TestCloudTypesSayWhichBinaryHasThem(t *testing.T) {
	if cloudBuilt {
		t.Skip("built with the tag cloud")
	}
	require.Contains(t, problems(t, "catalog: {type: glue}\n")[0], "use a binary built with -tags cloud")
	require.Contains(t, problems(t, "catalog: {warehouse: \"gs://x\"}\n")[0], "use a binary built with -tags cloud")
}

func TestPrecedenceIsFlagsEnvironmentFileDefaults(t *testing.T) {
	file := []byte("limits: {hot.bytes: 1GiB, ingest.bytes: 1GiB, committer.bytes: 1GiB}\ncatalog: {properties: {a.region: file}}\n")
	c, _, err := Parse("icestream.yaml", file,
		[]string{"ICESTREAM_LIMITS_HOT_BYTES=2GiB", "ICESTREAM_LIMITS_INGEST_BYTES=2GiB", "ICESTREAM_CONFIG=x", "ICESTREAM_DEFAULTS_METADATA=kafka", "HOME=/"},
		[]Override{{Path: "limits.hot.bytes", Value: "3GiB", Flag: "--set"}, {Path: "catalog.properties.a.region", Value: "flag"}})
	require.NoError(t, err)
	require.Equal(t, Size(3<<30), c.Limits.HotBytes)
	require.Equal(t, Size(2<<30), c.Limits.IngestBytes)
	require.Equal(t, Size(1<<30), c.Limits.CommitterBytes)
	require.Equal(t, Size(8<<30), c.Limits.SpillBytes)
	require.Equal(t, "flag", c.Catalog.Properties.Get("a.region"))
	require.Equal(t, []string{"kafka"}, c.Defaults.Metadata)
}

func TestAFlagRemembersWhatItTookThePlaceOf(t *testing.T) {
	c, _, err := Parse("icestream.yaml", []byte("kafka: {bootstrap.servers: [a:1, b:2]}\ncatalog: {uri: \"\", warehouse: \"s3://a\"}\n"),
		[]string{"ICESTREAM_REGISTRY_URL=http://r:8081"},
		[]Override{
			{Path: "kafka.bootstrap.servers", Value: "k:9092"},
			{Path: "registry.url", Value: "http://k:8081"},
			{Path: "catalog.uri", Value: "http://k:8181"},
			{Path: "node.metrics", Value: "k:1"},
		})
	require.NoError(t, err)
	require.True(t, c.Overruled("kafka.bootstrap.servers"), "of the file")
	require.True(t, c.Overruled("registry.url"), "of the environment")
	require.False(t, c.Overruled("catalog.uri"), "it was empty")
	require.False(t, c.Overruled("catalog.warehouse"), "no flag")
	require.False(t, c.Overruled("node.metrics"), "a default")
}

func TestEnvironmentAndFlagProblemsNameThemselves(t *testing.T) {
	_, warnings, err := Parse("icestream.yaml", nil, []string{"ICESTREAM_LIMITS_HOT_BYTE=1GiB", "ICESTREAM_LIMITS_INGEST_BYTES=many"},
		[]Override{{Path: "limits.hot.byte", Value: "1GiB", Flag: "--set"}})
	require.ErrorContains(t, err, `environment variable ICESTREAM_LIMITS_INGEST_BYTES: limits.ingest.bytes: "many" is not a size`)
	require.ErrorContains(t, err, `flag --set: limits.hot.byte: is no setting that a flag can change, did you mean "limits.hot.bytes"?`)
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0].String(), "did you mean ICESTREAM_LIMITS_HOT_BYTES?")
}

func TestEnvironmentNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, f := range Fields() {
		if f.Env != "" {
			require.Empty(t, seen[f.Env], f.Path)
			seen[f.Env] = f.Path
		}
	}
	require.NotContains(t, seen, EnvFile)
}

func TestReferencesResolveRelativeToTheFile(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "password"), []byte("hush\n"), 0o600))
	file := filepath.Join(dir, "icestream.yaml")
	require.NoError(t, os.WriteFile(file, []byte(
		"deployment: \"a-${env:STAGE}\"\nkafka: {security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: \"x$${y}\", sasl.password: \"${file:password}\"}\n"), 0o600))
	c, _, err := Load(file, []string{"STAGE=prod"}, nil)
	require.NoError(t, err)
	require.Equal(t, "a-prod", c.Deployment)
	require.Equal(t, "x${y}", c.Kafka.SASLUsername)
	require.Equal(t, "hush", c.Kafka.SASLPassword.Reveal())
	require.Contains(t, string(c.Redacted()), "${env:STAGE}")
	_, err = Validate(filepath.Join(dir, "missing.yaml"), nil, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestASecretIsNeverPrinted (G12) tries every way in which a program prints a value.
func TestASecretIsNeverPrinted(t *testing.T) {
	const hush = "hush-4711"
	c := parse(t, fmt.Sprintf(`
kafka: {security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: u, sasl.password: "${env:PW}"}
registry: {basic.auth.user.info: "u:%[1]s"}
catalog: {credential: "id:%[1]s", properties: {s3.secret-access-key: %[1]s, adls.sas-token: %[1]s, s3.region: shown-region}}
`, hush), "PW="+hush)
	holder := struct {
		public  *Config
		private Config
	}{c, *c}
	asJSON, err := json.Marshal(c)
	require.NoError(t, err)
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil)} {
		slog.New(h).Info("config", "config", c, "kafka", c.Kafka, "password", c.Kafka.SASLPassword, "properties", c.Catalog.Properties)
	}
	printed := log.String() + string(asJSON) + string(c.Redacted())
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		printed += fmt.Sprintf(verb, c) + fmt.Sprintf(verb, *c) + fmt.Sprintf(verb, holder) + fmt.Sprintf(verb, c.Kafka.SASLPassword)
	}
	require.NotContains(t, printed, hush)
	require.NotContains(t, printed, fmt.Sprintf("%x", hush))
	require.Contains(t, printed, "shown-region")
	require.Contains(t, string(c.Redacted()), "${env:PW}")
	require.Equal(t, hush, c.Catalog.Properties.Reveal()["adls.sas-token"])
}

// TestProblemsDoNotRepeatSecrets (G12): neither a resolved reference nor a URL's password is in a message.
func TestProblemsDoNotRepeatSecrets(t *testing.T) {
	got := strings.Join(problems(t, "limits: {hot.bytes: \"${env:PW}\"}\nregistry: {url: \"http://u:hush@r\"}\ncatalog: {uri: \"http://u:hush@r\", type: \"${env:PW}\"}\n", "PW=hush"), "\n")
	require.NotContains(t, got, "hush")
	require.Contains(t, got, "move it to basic.auth.user.info")
	require.Contains(t, got, "${env:PW}")
}

func TestAliasesWorkAndCyclesEnd(t *testing.T) {
	c := parse(t, "limits: {hot.bytes: &m 64MiB, ingest.bytes: *m}\n")
	require.Equal(t, Size(64<<20), c.Limits.IngestBytes)
	problems(t, "kafka: &k {group.id: *k}\n")
	problems(t, "services: &s {ingest: *s}\n")
}

func TestReferencePageIsCurrent(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "config.md")
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, Reference(), 0o644))
	}
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(Reference()), string(page), "run: make generate")
	for _, f := range Fields() {
		require.NotEmpty(t, f.Doc, f.Path)
	}
}

func TestRequireNamesWhatAServiceLacks(t *testing.T) {
	c := parse(t, "pipelines: [{name: a, topics: [t], table: n.t}]\n")
	err := c.Require(Ingest, Committer)
	require.ErrorContains(t, err, "kafka.bootstrap.servers: is not set")
	require.ErrorContains(t, err, "registry.url: is not set though")
	require.ErrorContains(t, err, "catalog.uri: is not set")
	require.NoError(t, c.Require(Buffer, Readstate))
}

func TestAServiceReportsItsOwnFaultsWithTheirPlaces(t *testing.T) {
	f := parse(t, "pipelines:\n  - {name: a, topics: [t], table: n.t}\n  - {name: b, topics: [t], table: n.t2, format: json, columns: x}\n").Faults()
	require.NoError(t, f.Err())
	f.Add("pipelines[1].columns", "is no list of columns", "write one")
	f.Add("pipelines[0].properties", "is odd", "")
	require.EqualError(t, f.Err(), "icestream.yaml:2:5: pipelines[0].properties: is odd\nicestream.yaml:3:64: pipelines[1].columns: is no list of columns, write one")
}

func TestPipelinesThatWouldMakeOneTableDifferentlyAreWarnedOf(t *testing.T) {
	const text = `
defaults: {properties: {a: b}}
pipelines:
  - {name: a, topics: [a], table: n.t}
  - {name: b, topics: [b], table: n.t, partition: day(at), sort: at, format_version: 3, properties: {a: c}}
  - {name: c, topics: [c], table: n.t}
  - {name: d, topics: [d], table: "n.{topic}"}
  - {name: e, topics: [e], table: "n.{topic}", sort: at}
`
	_, warnings, err := Parse("x.yaml", []byte(text), nil, nil)
	require.NoError(t, err)
	require.Len(t, warnings, 4)
	for i, key := range []string{"partition", "sort", "format_version", "properties"} {
		require.Equal(t, "pipelines[1]."+key, warnings[i].Path)
		require.Contains(t, warnings[i].Where, "x.yaml:5:")
		require.Contains(t, warnings[i].What, "pipelines[0], which writes n.t too")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _, _ = Parse("f.yaml", data, nil, nil) })
}

func TestSchemaSettings(t *testing.T) {
	const text = `
kafka: {bootstrap.servers: "b:1"}
registry: {url: [http://a:1, http://b:2/contexts/.x], overrides: {17: config.go, 00010203-0405-0607-0809-0a0b0c0d0e0f: config.go}}
catalog: {type: rest, uri: "http://c:1"}
pipelines:
  - {name: a, topics: [a], table: n.a, oneof: case, time_of_day: time, schema: {framing: confluent-unsigned, context: .staging}}
  - {name: b, topics: [b], table: n.b}
`
	c := parse(t, text)
	require.Equal(t, "config.go", c.Registry.Overrides.Get("17"))
	require.Equal(t, []string{"case", "time"}, []string{c.Pipelines[0].Oneof, c.Pipelines[0].TimeOfDay})
	require.Equal(t, []string{"members", "long"}, []string{c.Pipelines[1].Oneof, c.Pipelines[1].TimeOfDay})
	for _, change := range [][2]string{{"oneof: case", "oneof: members"}, {"time_of_day: time", "time_of_day: long"}, {".staging", ".other"}, {"confluent-unsigned", "confluent"}} {
		other := parse(t, strings.Replace(text, change[0], change[1], 1))
		require.NotEqual(t, c.Revision(&c.Pipelines[0], "1"), other.Revision(&other.Pipelines[0], "1"), "%s decides what becomes of a record", change[0])
	}

	wrong := strings.NewReplacer("17: config.go", "17: nowhere.proto, x: config.go", ".staging", "staging", "name: b,", "name: b, format: avro, schema: {framing: confluent-unsigned},").Replace(text)
	found := strings.Join(problems(t, wrong), "\n")
	for _, want := range []string{"registry.overrides.17: cannot be read", `"x" is neither`, "pipelines[1].schema.framing: is only for format protobuf", `"staging" is not a context`} {
		require.Contains(t, found, want)
	}
}
