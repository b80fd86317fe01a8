package config

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/icestream/icestream/internal/ident"
)

// maxRecord keeps a gRPC message (four records and 1 MiB) below the 2 GiB that gRPC and Protobuf can carry.
const maxRecord Size = 256 << 20

// check reports everything that is wrong with values that parsed.
func (c *Config) check(r *report) {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`).MatchString(c.Deployment) {
		r.addf("deployment", "use up to 63 letters, digits, - and _", "%q is not a name", c.Deployment)
	}
	if c.Node.DataDir == "" {
		r.add("node.data_dir", "is empty", "name a folder")
	}
	c.checkAddresses(r)
	c.checkLimits(r)
	c.checkKafka(r)
	c.checkRegistry(r)
	c.checkCatalog(r)
	checkCommit(r, "defaults", c.Defaults.Commit)
	checkFlood(r, "defaults", c.Defaults.Flood)
	names := map[string]int{}
	for i := range c.Pipelines {
		c.checkPipeline(r, i, names)
	}
	c.checkShared(r)
}

// checkShared warns of pipelines that share a table which does not exist yet and would make it differently: the one that
// is first would decide, by chance.
func (c *Config) checkShared(r *report) {
	first := map[string]int{}
	for i := range c.Pipelines {
		p := &c.Pipelines[i]
		before, shared := first[p.Table]
		if strings.Contains(p.Table, topicWord) || !shared {
			first[p.Table] = i
			continue
		}
		other := &c.Pipelines[before]
		for _, s := range []struct {
			key  string
			same bool
		}{
			{"partition", slices.Equal(p.Partition, other.Partition)},
			{"sort", slices.Equal(p.Sort, other.Sort)},
			{"format_version", p.FormatVersion == other.FormatVersion},
			{"properties", maps.Equal(p.Properties.Reveal(), other.Properties.Reveal())},
		} {
			if !s.same {
				path := fmt.Sprintf("pipelines[%d].%s", i, s.key)
				r.warn(r.whereOf(path), path, fmt.Sprintf("differs from that of pipelines[%d], which writes %s too, so whichever is first would make the table", before, p.Table), "say the same in both")
			}
		}
	}
}

func (c *Config) checkAddresses(r *report) {
	listen := []struct {
		path, address string
		check         func(r *report, path, address string, dial bool) bool
	}{
		{"services.ingest.listen", c.Services.Ingest.Listen, checkService},
		{"services.buffer.listen", c.Services.Buffer.Listen, checkService},
		{"services.committer.listen", c.Services.Committer.Listen, checkService},
		{"services.readstate.listen", c.Services.Readstate.Listen, checkService},
		{"node.metrics", c.Node.Metrics, checkAddress},
	}
	taken := map[string]string{}
	for _, l := range listen {
		if l.path == "node.metrics" && l.address == "" {
			continue
		}
		if !l.check(r, l.path, l.address, false) {
			continue
		}
		if _, port, _ := net.SplitHostPort(l.address); port != "0" {
			if other, ok := taken[l.address]; ok {
				r.addf(l.path, "give each its own", "%s is also the address of %s", l.address, other)
			}
			taken[l.address] = l.path
		}
	}
	for _, d := range []struct{ path, address string }{
		{"discovery.ingest", c.Discovery.Ingest},
		{"discovery.buffer", c.Discovery.Buffer},
		{"discovery.committer", c.Discovery.Committer},
		{"discovery.readstate", c.Discovery.Readstate},
	} {
		checkService(r, d.path, d.address, true)
	}
}

// socketScheme begins the address of a socket of the machine; an absolute path follows.
const socketScheme = "unix://"

// longestSocket is what every system takes as the path of a socket.
const longestSocket = 103

// Socket returns the path of an address that is a socket of the machine, such as unix:///run/icestream/buffer.sock;
// ok is false for host:port.
func Socket(address string) (path string, ok bool) { return strings.CutPrefix(address, socketScheme) }

// SocketAddress is the address of the socket at an absolute path.
func SocketAddress(path string) string { return socketScheme + path }

// checkService reports the address of a service that is neither host:port nor a socket of the machine.
func checkService(r *report, path, address string, dial bool) bool {
	socket, ok := Socket(address)
	switch {
	case !ok && strings.Contains(address, "/"): // a socket without its scheme, or with another
		r.addf(path, "write host:port, or unix:///folder/name.sock", "%q is not an address", address)
		return false
	case !ok:
		return checkAddress(r, path, address, dial)
	case !filepath.IsAbs(socket) || filepath.Clean(socket) != socket || socket == "/":
		r.addf(path, "write unix:///folder/name.sock", "%q does not name a socket by its absolute path", address)
		return false
	case len(socket) > longestSocket:
		r.addf(path, fmt.Sprintf("systems take up to %d bytes", longestSocket), "the path of the socket %q is too long", address)
		return false
	}
	return true
}

// checkAddress reports an address that is not host:port; a host to dial must not be empty.
func checkAddress(r *report, path, address string, dial bool) bool {
	host, port, err := net.SplitHostPort(address)
	if n, perr := strconv.Atoi(port); err != nil || perr != nil || n < 0 || n > 65535 {
		r.addf(path, "write host:port, such as 127.0.0.1:7401", "%q is not an address", address)
		return false
	}
	if dial && host == "" {
		r.addf(path, "name the host that others reach it by", "%q has no host", address)
		return false
	}
	return true
}

func (c *Config) checkLimits(r *report) {
	l := c.Limits
	for _, v := range []struct {
		path  string
		value Size
		least Size
	}{
		{"limits.hot.bytes", l.HotBytes, 1 << 20},
		{"limits.ingest.bytes", l.IngestBytes, 1 << 20},
		{"limits.committer.bytes", l.CommitterBytes, 1 << 20},
		{"limits.batch.bytes", l.BatchBytes, 1 << 10},
		{"limits.record.max", l.RecordMax, 1 << 10},
	} {
		if v.value < v.least {
			r.addf(v.path, fmt.Sprintf("use at least %s", v.least), "%s is too small", v.value)
		}
	}
	if l.RecordMax > maxRecord {
		r.addf("limits.record.max", fmt.Sprintf("use at most %s: a gRPC message of four times that must stay below 2GiB", maxRecord), "%s is too large", l.RecordMax)
	}
	if l.BatchBytes > l.HotBytes || l.BatchBytes > l.IngestBytes {
		r.addf("limits.batch.bytes", "make it a small part of limits.ingest.bytes and limits.hot.bytes", "%s is more than a whole budget", l.BatchBytes)
	}
	if m := c.Reads.MaxLease; m < time.Second || m > 24*time.Hour {
		r.addf("reads.max_lease", "use 1s to 24h", "%s is out of range", formatDuration(m))
	}
}

func (c *Config) checkKafka(r *report) {
	k := c.Kafka
	for _, b := range k.BootstrapServers {
		checkAddress(r, "kafka.bootstrap.servers", b, true)
	}
	if k.GroupID == "" {
		r.add("kafka.group.id", "is empty", "name a prefix for consumer groups")
	}
	switch {
	case k.UsesSASL():
		if k.SASLMechanism == "" {
			r.add("kafka.sasl.mechanism", "is missing though security.protocol is "+k.SecurityProtocol, "set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
		}
		if k.SASLUsername == "" {
			r.add("kafka.sasl.username", "is missing though security.protocol is "+k.SecurityProtocol, "set it")
		}
		if !k.SASLPassword.IsSet() {
			r.add("kafka.sasl.password", "is missing though security.protocol is "+k.SecurityProtocol, "set it, best as ${env:…} or ${file:…}")
		}
	case k.SASLMechanism != "" || k.SASLUsername != "" || k.SASLPassword.IsSet():
		r.add("kafka.security.protocol", "is "+k.SecurityProtocol+" though sasl.… is set, so nobody would log in", "set SASL_SSL or SASL_PLAINTEXT")
	}
	if !k.UsesTLS() && k.TLS != (TLS{}) {
		r.add("kafka.security.protocol", "is "+k.SecurityProtocol+" though ssl.… is set, so nothing would be encrypted", "set SSL or SASL_SSL")
	}
	checkTLS(r, "kafka", k.TLS)
	if k.SessionTimeout < time.Second {
		r.addf("kafka.session.timeout", "use at least 1s", "%s is too short", formatDuration(k.SessionTimeout))
	}
}

// checkTLS reports files that cannot be read, since a client would say so only when it connects.
func checkTLS(r *report, section string, t TLS) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		r.add(section+".ssl.certificate.location", "and ssl.key.location belong together", "set both or none")
	}
	for _, f := range []struct{ key, path string }{
		{"ssl.ca.location", t.CAFile},
		{"ssl.certificate.location", t.CertFile},
		{"ssl.key.location", t.KeyFile},
	} {
		if f.path == "" {
			continue
		}
		if _, err := os.Stat(f.path); err != nil {
			r.add(section+"."+f.key, "cannot be read: "+err.Error(), "name a PEM file")
		}
	}
}

// overrideKey is a schema id or a GUID.
var overrideKey = regexp.MustCompile(`^([1-9][0-9]{0,9}|[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12})$`)

func (c *Config) checkRegistry(r *report) {
	for _, u := range c.Registry.URLs {
		checkURL(r, "registry.url", u, "basic.auth.user.info", "http", "https")
	}
	if info := c.Registry.UserInfo; info.IsSet() && !strings.Contains(info.Reveal(), ":") {
		r.add("registry.basic.auth.user.info", "has no colon", "write user:password")
	}
	if c.Registry.UserInfo.IsSet() && c.Registry.BearerToken.IsSet() {
		r.add("registry.bearer.auth.token", "and basic.auth.user.info exclude each other", "keep one")
	}
	checkTLS(r, "registry", c.Registry.TLS)
	for _, key := range c.Registry.Overrides.PropertyNames() {
		if !overrideKey.MatchString(key) {
			r.addf("registry.overrides", "use a schema id or GUID as the key", "%q is neither", key)
		}
		if _, err := os.Stat(c.Registry.Overrides.Get(key)); err != nil {
			r.add("registry.overrides."+key, "cannot be read: "+err.Error(), "name a file with the schema")
		}
	}
	if c.Registry.Timeout <= 0 {
		r.add("registry.timeout", "must be positive", "use 10s")
	}
}

// checkURL reports a URL that cannot be dialled or holds credentials, without repeating the latter.
func checkURL(r *report, path, text, credentials string, schemes ...string) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		r.add(path, "is not a URL", "write "+schemes[0]+"://host:port")
	case u.User != nil:
		r.add(path, "holds a user or password, which would be printed", "move it to "+credentials)
	case !slices.Contains(schemes, u.Scheme) || u.Host == "":
		r.addf(path, "write "+schemes[0]+"://host:port", "%q is not a URL that can be dialled", text)
	}
}

func (c *Config) checkCatalog(r *report) {
	k := c.Catalog
	needsCloud := func(path, what string) {
		if !cloudBuilt {
			r.add(path, what+" is not in this binary", "use a binary built with -tags cloud")
		}
	}
	switch k.Type {
	case "rest":
		if k.URI != "" {
			checkURL(r, "catalog.uri", k.URI, "catalog.credential or catalog.token", "http", "https")
		}
	case "sql":
		if scheme, _, server := strings.Cut(k.URI, "://"); server && scheme != "sqlite" && scheme != "file" {
			checkURL(r, "catalog.uri", k.URI, "catalog.credential", "postgres", "postgresql")
		}
	case "glue", "hive":
		needsCloud("catalog.type", "the catalog type "+k.Type)
	}
	if scheme, _, ok := strings.Cut(k.Warehouse, "://"); ok {
		switch scheme {
		case "file", "s3", "s3a", "s3n":
		case "gs", "abfs", "abfss", "wasb", "wasbs":
			needsCloud("catalog.warehouse", "the store "+scheme+"://")
		default:
			r.addf("catalog.warehouse", "use file, s3, or with -tags cloud gs, abfss", "the store %q is not known", scheme)
		}
	}
	if k.Credential.IsSet() && k.Token.IsSet() {
		r.add("catalog.token", "and catalog.credential exclude each other", "keep one")
	}
	if k.Credential.IsSet() && !strings.Contains(k.Credential.Reveal(), ":") {
		r.add("catalog.credential", "has no colon", "write id:secret")
	}
}

func checkCommit(r *report, path string, c Commit) {
	if c.Interval < 100*time.Millisecond || c.Interval > 24*time.Hour {
		r.addf(path+".commit.interval", "use 100ms to 24h", "%s is out of range", formatDuration(c.Interval))
	}
	if c.FileSize < 1<<20 || c.FileSize > 16<<30 {
		r.addf(path+".commit.file_size", "use 1MiB to 16GiB", "%s is out of range", c.FileSize)
	}
	if c.Rows < 0 {
		r.addf(path+".commit.rows", "use 0 for no bound", "%d is negative", c.Rows)
	}
	if c.Bytes != 0 && c.Bytes < 1<<20 {
		r.addf(path+".commit.bytes", "use at least 1MiB, or 0B for no bound", "%s is too small", c.Bytes)
	}
}

func (c *Config) checkPipeline(r *report, i int, names map[string]int) {
	p := &c.Pipelines[i]
	path := fmt.Sprintf("pipelines[%d]", i)
	// The name is a part of summary keys, icestream.<name>.offsets, and of the consumer group.
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`).MatchString(p.Name) {
		r.addf(path+".name", "use up to 63 of a-z, 0-9, - and _", "%q is not a name", p.Name)
	} else if first, ok := names[p.Name]; ok {
		r.addf(path+".name", "give each pipeline its own", "%q is also the name of pipelines[%d]", p.Name, first)
	} else {
		names[p.Name] = i
	}
	p.checkTopics(r, path)
	p.checkTable(r, path)
	p.checkFormats(r, path)
	if p.Message != "" && p.Format != "protobuf" {
		r.add(path+".message", "is only for format protobuf", "remove it")
	}
	if p.UnknownFields == "keep" && p.Format != "protobuf" {
		r.addf(path+".unknown_fields", "remove it, or set format: protobuf", "keeps records with unknown fields, which only Protobuf has, not the format %s", p.Format)
	}
	p.checkFormatVersion(r, path)
	if p.Schema.Framing == "none" && (p.Schema.ID == 0) == (p.Schema.Subject == "") && Registered(p.Format) {
		r.add(path+".schema", "must name the schema of values without a frame", "set either id or subject")
	}
	if p.Schema.Framing != "none" && (p.Schema.ID != 0 || p.Schema.Subject != "") {
		r.add(path+".schema", "names a schema though every value carries its own", "set framing: none, or remove it")
	}
	if p.Schema.Framing == "confluent-unsigned" && p.Format != "protobuf" {
		r.add(path+".schema.framing", "is only for format protobuf, whose frame has a message path", "use confluent")
	}
	if x := p.Schema.Context; x != "" && (!strings.HasPrefix(x, ".") || len(x) < 2 || strings.ContainsAny(x, ":/")) {
		r.addf(path+".schema.context", "write the context with its dot, such as .staging", "%q is not a context", x)
	}
	if p.Schema.ID < 0 || p.Schema.Version < 0 {
		r.add(path+".schema", "has a negative id or version", "use the registry's numbers")
	}
	if p.Commit != c.Defaults.Commit { // a fault of the defaults is reported once, at the defaults
		checkCommit(r, path, p.Commit)
	}
	if p.Flood != c.Defaults.Flood {
		checkFlood(r, path, p.Flood)
	}
}

// formatVersionProperty is Iceberg's own word for format_version.
const formatVersionProperty = "format-version"

// checkFormatVersion reports settings that the version of the table format does not allow.
func (p *Pipeline) checkFormatVersion(r *report, path string) {
	if v := p.Properties.Get(formatVersionProperty); v != "" && v != strconv.Itoa(p.FormatVersion) {
		r.addf(path+".properties", "say it once, as format_version", "%s is %s and format_version %d", formatVersionProperty, v, p.FormatVersion)
	}
	if p.Timestamp == "nanos" && p.FormatVersion < 3 {
		r.addf(path+".timestamp", "set format_version: 3, or timestamp: micros", "is nanos, for which tables of format version %d have no type", p.FormatVersion)
	}
	if p.JSON == "variant" && p.FormatVersion < 3 {
		r.addf(path+".json", "set format_version: 3, or json: string", "is variant, a type that tables of format version %d do not have", p.FormatVersion)
	}
}

// TableProperties are the properties that new tables of the pipeline are made with.
func (o Options) TableProperties() map[string]string {
	out := o.Properties.Reveal()
	if out == nil {
		out = map[string]string{}
	}
	out[formatVersionProperty] = strconv.Itoa(o.FormatVersion)
	return out
}

// checkFormats reports settings of one format that are given for another.
func (p *Pipeline) checkFormats(r *report, path string) {
	if p.Columns != "" && p.Format != "json" {
		r.addf(path+".columns", "set format: json, or remove it", "declares columns though the format is %s, which says them itself", p.Format)
	}
	if (p.Schema.ID != 0 || p.Schema.Subject != "" || p.Schema.Context != "") && !Registered(p.Format) {
		r.addf(path+".schema", "remove it", "names a schema though values of format %s have none", p.Format)
	}
	key := p.DecodesKeyAs()
	switch {
	case key == "" && p.KeyFormat != "":
		r.addf(path+".key_format", "set key: decode, or remove key_format", "is given though keys are not decoded (key: %s)", p.Key)
	case key == "raw" || key == "string":
		r.addf(path+".key", "set key_format: protobuf, avro, json or json_schema; or key: raw or string", "decodes keys, but the format %s has nothing to decode", key)
	}
	k := p.KeySchema
	switch {
	case (k.ID != 0 || k.Subject != "") && !Registered(key):
		r.add(path+".key_schema", "names a schema though keys are not decoded by one", "set key: decode and key_format, or remove it")
	case k.Framing == "none" && (k.ID == 0) == (k.Subject == "") && Registered(key):
		r.add(path+".key_schema", "must name the schema of keys without a frame", "set either id or subject")
	case k.Framing != "none" && (k.ID != 0 || k.Subject != ""):
		r.add(path+".key_schema", "names a schema though every key carries its own", "set framing: none, or remove it")
	case k.ID < 0 || k.Version < 0:
		r.add(path+".key_schema", "has a negative id or version", "use the registry's numbers")
	}
}

func (p *Pipeline) checkTopics(r *report, path string) {
	switch {
	case p.Pattern == "" && len(p.Topics) == 0:
		r.add(path, "reads no topic", "set topics or pattern")
	case p.Pattern != "" && len(p.Topics) > 0:
		r.add(path+".pattern", "and topics exclude each other", "keep one")
	case p.Pattern != "":
		if _, err := p.pattern(); err != nil {
			r.addf(path+".pattern", "write an RE2 expression", "is not a regular expression: %v", err)
		}
	}
	for i, topic := range p.Topics {
		if topic == "" || slices.Contains(p.Topics[:i], topic) {
			r.addf(path+".topics", "name each topic once", "%q is empty or listed twice", topic)
		}
	}
	if p.Start.Mode == "offsets" {
		for topic := range p.Start.Offsets {
			if !p.Matches(topic) {
				r.addf(path+".start", "name only topics of the pipeline", "has offsets for the topic %q, which it does not read", topic)
			}
		}
	}
}

func (p *Pipeline) checkTable(r *report, path string) {
	name := regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$`)
	if sample := strings.ReplaceAll(p.Table, topicWord, "t"); !name.MatchString(sample) {
		r.addf(path+".table", "write namespace.table with letters, digits, - and _, and {topic} for the topic", "%q is not the name of a table", p.Table)
		return
	}
	if strings.HasSuffix(p.Table, ident.QuarantineSuffix) {
		r.addf(path+".table", "choose another name", "%q ends in %s, which is kept for quarantine tables", p.Table, ident.QuarantineSuffix)
		return
	}
	if _, err := p.TopicTables(p.Topics); err != nil {
		for line := range strings.Lines(err.Error()) {
			r.add(path+".topics", strings.TrimSpace(line), "")
		}
	}
}

// Role is a service, for Require.
type Role string

// The services.
const (
	Ingest    Role = "ingest"
	Buffer    Role = "buffer"
	Committer Role = "committer"
	Readstate Role = "readstate"
)

// Require reports, as Errors, the settings without a default that the given services cannot do without. It is apart
// from Load because every service reads the same file, and `dev` brings its own peers.
func (c *Config) Require(roles ...Role) error {
	f := c.Faults()
	r := f.r
	if slices.Contains(roles, Ingest) {
		if len(c.Kafka.BootstrapServers) == 0 {
			r.add("kafka.bootstrap.servers", "is not set", "name the brokers, such as broker:9092")
		}
		needs := func(p Pipeline) bool { return Registered(p.Format) || Registered(p.DecodesKeyAs()) }
		if len(c.Registry.URLs) == 0 && slices.ContainsFunc(c.Pipelines, needs) {
			r.add("registry.url", "is not set though a pipeline reads protobuf, avro or json_schema", "name the schema registry, such as http://registry:8081")
		}
		if len(c.Pipelines) == 0 {
			r.add("pipelines", "is empty", "add a pipeline with name, topics and table")
		}
	}
	if slices.Contains(roles, Committer) {
		if c.Catalog.URI == "" && c.Catalog.Type != "glue" {
			r.add("catalog.uri", "is not set", "name the catalog, such as http://catalog:8181")
		}
		if c.Catalog.Warehouse == "" && c.Catalog.Type != "rest" {
			r.add("catalog.warehouse", "is not set", "say where tables are put, such as s3://lake/")
		}
	}
	return f.Err()
}
