package config

import (
	"slices"
	"strings"
)

// Field describes one setting: the row of the reference page.
type Field struct {
	// Path of the setting in the file, with sections separated by dots. Keys may contain dots themselves.
	Path string
	// Type in words: size, duration, list, one of its values, ...
	Type string
	// Default as it would be written, "" where there is none.
	Default string
	Doc     string
	Example string
	// Secret values are redacted wherever configuration is printed.
	Secret bool
	// Values that are allowed, for settings with a fixed choice.
	Values []string
	// Env is the environment variable that overrides it, "" for settings of pipelines.
	Env string
}

// setting ties a key to the Go field that holds it. Sections in key are separated by "/", since keys contain dots.
type setting[T any] struct {
	key     string
	at      func(*T) any // pointer to the value; its type says how to parse and print
	doc     string
	example string
	values  []string
}

func (s setting[T]) path() string { return strings.ReplaceAll(s.key, "/", ".") }

// settings is the table of everything outside of defaults and pipelines.
func settings() []setting[Config] {
	return slices.Concat(houseSettings(), kafkaSettings(), peerSettings())
}

func houseSettings() []setting[Config] {
	type s = setting[Config]
	return []s{
		{key: "deployment", at: func(c *Config) any { return &c.Deployment }, doc: "Name of this installation, part of the owner key in every table. Two deployments never write one table.", example: "prod"},
		{key: "node/data_dir", at: func(c *Config) any { return &c.Node.DataDir }, doc: "Folder for the journal and the schema cache.", example: "/var/lib/icestream"},
		{key: "node/metrics", at: func(c *Config) any { return &c.Node.Metrics }, doc: "Listen address of /metrics, /healthz, /readyz and /debug/pprof; an empty text switches it off.", example: "127.0.0.1:9464"},
		{key: "node/log_level", at: func(c *Config) any { return &c.Node.LogLevel }, doc: "Least level that is logged.", values: []string{"debug", "info", "warn", "error"}},
		{key: "node/log_format", at: func(c *Config) any { return &c.Node.LogFormat }, doc: "Form of log lines.", values: []string{"json", "text"}},
		{key: "services/ingest/listen", at: func(c *Config) any { return &c.Services.Ingest.Listen }, doc: "Listen address of the ingest service: host:port, or unix:///folder/name.sock where all that call it run on the same host."},
		{key: "services/buffer/listen", at: func(c *Config) any { return &c.Services.Buffer.Listen }, doc: "Listen address of the buffer service: host:port, or unix:///folder/name.sock where all that call it run on the same host."},
		{key: "services/committer/listen", at: func(c *Config) any { return &c.Services.Committer.Listen }, doc: "Listen address of the committer service: host:port, or unix:///folder/name.sock where all that call it run on the same host."},
		{key: "services/readstate/listen", at: func(c *Config) any { return &c.Services.Readstate.Listen }, doc: "Listen address of the readstate service: host:port, or unix:///folder/name.sock where all that call it run on the same host."},
		{key: "discovery/type", at: func(c *Config) any { return &c.Discovery.Type }, doc: "How services find each other: static addresses, one instance of each.", values: []string{"static"}},
		{key: "discovery/ingest", at: func(c *Config) any { return &c.Discovery.Ingest }, doc: "Address at which others reach ingest (replay of quarantined records): host:port, or the socket that it listens at."},
		{key: "discovery/buffer", at: func(c *Config) any { return &c.Discovery.Buffer }, doc: "Address at which others reach the buffer: host:port, or the socket that it listens at."},
		{key: "discovery/committer", at: func(c *Config) any { return &c.Discovery.Committer }, doc: "Address at which others reach the committer: host:port, or the socket that it listens at."},
		{key: "discovery/readstate", at: func(c *Config) any { return &c.Discovery.Readstate }, doc: "Address at which others reach readstate: host:port, or the socket that it listens at."},
		{key: "limits/hot.bytes", at: func(c *Config) any { return &c.Limits.HotBytes }, doc: "Hot rows in memory, per buffer and per readstate process. At the bound ingest waits, then Kafka."},
		{key: "limits/ingest.bytes", at: func(c *Config) any { return &c.Limits.IngestBytes }, doc: "Records fetched and not yet acknowledged, per ingest process; pipelines have equal shares. At the bound partitions are paused. A partition is read one batch ahead (128 KiB with its entry, more where batches are larger) however many there are: 1 MiB for each four of a pipeline is the least that holds."},
		{key: "limits/committer.bytes", at: func(c *Config) any { return &c.Limits.CommitterBytes }, doc: "Open Parquet writers and held batches, per committer process. At the bound a commit is cut."},
		{key: "limits/batch.bytes", at: func(c *Config) any { return &c.Limits.BatchBytes }, doc: "Target size of one append from ingest to the buffer."},
		{key: "limits/record.max", at: func(c *Config) any { return &c.Limits.RecordMax }, doc: "Greatest Kafka record (key, value, headers); larger ones are quarantined. gRPC messages may be four times as large plus 1MiB."},
		{key: "limits/spill.bytes", at: func(c *Config) any { return &c.Limits.SpillBytes }, doc: "Local spill files under node.data_dir, per process. Not used yet: nothing is spilled."},
		{key: "reads/max_lease", at: func(c *Config) any { return &c.Reads.MaxLease }, doc: "Longest lease of a read; what was reported within it is not expired."},
	}
}

func kafkaSettings() []setting[Config] {
	type s = setting[Config]
	return []s{
		{key: "kafka/bootstrap.servers", at: func(c *Config) any { return &c.Kafka.BootstrapServers }, doc: "Brokers to start from, host:port.", example: "broker-1:9092,broker-2:9092"},
		{key: "kafka/group.id", at: func(c *Config) any { return &c.Kafka.GroupID }, doc: "Prefix of consumer groups: each pipeline is the group <group.id>.<pipeline>."},
		{key: "kafka/client.id", at: func(c *Config) any { return &c.Kafka.ClientID }, doc: "Name shown in the brokers' logs and quotas."},
		{key: "kafka/client.rack", at: func(c *Config) any { return &c.Kafka.ClientRack }, doc: "Rack or zone, for fetching from the nearest replica."},
		{key: "kafka/security.protocol", at: func(c *Config) any { return &c.Kafka.SecurityProtocol }, doc: "Encryption and authentication of the connection.", values: []string{"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}},
		{key: "kafka/sasl.mechanism", at: func(c *Config) any { return &c.Kafka.SASLMechanism }, doc: "SASL mechanism.", values: []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}},
		{key: "kafka/sasl.username", at: func(c *Config) any { return &c.Kafka.SASLUsername }, doc: "SASL user."},
		{key: "kafka/sasl.password", at: func(c *Config) any { return &c.Kafka.SASLPassword }, doc: "SASL password.", example: "${env:KAFKA_PASSWORD}"},
		{key: "kafka/ssl.ca.location", at: func(c *Config) any { return &c.Kafka.TLS.CAFile }, doc: "PEM file of trusted certificates; those of the system where not given."},
		{key: "kafka/ssl.certificate.location", at: func(c *Config) any { return &c.Kafka.TLS.CertFile }, doc: "PEM file of the client's certificate."},
		{key: "kafka/ssl.key.location", at: func(c *Config) any { return &c.Kafka.TLS.KeyFile }, doc: "PEM file of the client's key."},
		{key: "kafka/ssl.endpoint.identification.algorithm", at: func(c *Config) any { return &c.Kafka.VerifyHostname }, doc: "Whether the broker's certificate must carry its host name.", values: []string{"https", "none"}},
		{key: "kafka/session.timeout", at: func(c *Config) any { return &c.Kafka.SessionTimeout }, doc: "Time after which a silent member is taken out of its group."},
	}
}

func peerSettings() []setting[Config] {
	type s = setting[Config]
	return []s{
		{key: "registry/url", at: func(c *Config) any { return &c.Registry.URLs }, doc: "Schema registry; several are tried in turn.", example: "https://registry:8081"},
		{key: "registry/basic.auth.user.info", at: func(c *Config) any { return &c.Registry.UserInfo }, doc: "user:password for the registry.", example: "${env:REGISTRY_USER_INFO}"},
		{key: "registry/bearer.auth.token", at: func(c *Config) any { return &c.Registry.BearerToken }, doc: "Bearer token for the registry.", example: "${file:/run/secrets/registry}"},
		{key: "registry/ssl.ca.location", at: func(c *Config) any { return &c.Registry.TLS.CAFile }, doc: "PEM file of trusted certificates; those of the system where not given."},
		{key: "registry/ssl.certificate.location", at: func(c *Config) any { return &c.Registry.TLS.CertFile }, doc: "PEM file of the client's certificate."},
		{key: "registry/ssl.key.location", at: func(c *Config) any { return &c.Registry.TLS.KeyFile }, doc: "PEM file of the client's key."},
		{key: "registry/timeout", at: func(c *Config) any { return &c.Registry.Timeout }, doc: "Deadline of one request to the registry."},
		{key: "registry/overrides", at: func(c *Config) any { return &c.Registry.Overrides }, doc: "Schemas that the registry lost or has wrong: id or GUID to a file with its source, or with a serialized descriptor in base64. Imports are looked for beside the file and in the folders above it.", example: "{\"17\": schemas/shop/v1/order.proto}"},
		{key: "catalog/type", at: func(c *Config) any { return &c.Catalog.Type }, doc: "Kind of Iceberg catalog. sql is the table layout of the JDBC catalog, on PostgreSQL or SQLite. glue and hive need a binary built with -tags cloud.", values: []string{"rest", "sql", "glue", "hive"}},
		{key: "catalog/name", at: func(c *Config) any { return &c.Catalog.Name }, doc: "Name of the catalog inside an SQL catalog's database."},
		{key: "catalog/uri", at: func(c *Config) any { return &c.Catalog.URI }, doc: "Address of the catalog; for sql the database, as postgres://host:5432/name or sqlite:///path/file.db.", example: "http://catalog:8181"},
		{key: "catalog/warehouse", at: func(c *Config) any { return &c.Catalog.Warehouse }, doc: "Where new tables are put: a location, or a warehouse's name for a REST catalog.", example: "s3://lake/"},
		{key: "catalog/credential", at: func(c *Config) any { return &c.Catalog.Credential }, doc: "OAuth2 client credentials, id:secret; for sql user:password of the database.", example: "${env:CATALOG_CREDENTIAL}"},
		{key: "catalog/token", at: func(c *Config) any { return &c.Catalog.Token }, doc: "Bearer token for the catalog.", example: "${file:/run/secrets/catalog}"},
		{key: "catalog/properties", at: func(c *Config) any { return &c.Catalog.Properties }, doc: "Words passed to the catalog client and the file IO unchanged.", example: "{s3.endpoint: \"http://minio:9000\", s3.region: us-east-1}"},
	}
}

// optionSettings are those that both `defaults` and each pipeline have.
func optionSettings() []setting[Options] {
	type s = setting[Options]
	return []s{
		{key: "format", at: func(o *Options) any { return &o.Format }, doc: "Format of record values. protobuf, avro and json_schema have their schemas in the registry; json is one column of checked text, or columns; string and raw take the value as it is.", values: []string{"protobuf", "avro", "json", "json_schema", "string", "raw"}},
		{key: "key", at: func(o *Options) any { return &o.Key }, doc: "What becomes of record keys as a column of its own, _key: none, their bytes, their text (UTF-8), or decoded as key_format says.", values: []string{"none", "raw", "string", "decode"}},
		{key: "key_format", at: func(o *Options) any { return &o.KeyFormat }, doc: "Format of keys with key: decode; that of values where not given.", values: []string{"protobuf", "avro", "json", "json_schema"}},
		{key: "start", at: func(o *Options) any { return &o.Start }, doc: "Where partitions begin that the table does not know yet: earliest, latest, group, {timestamp: T} or {offsets: {topic: {partition: offset}}}. Topics and partitions that appear later always begin at the earliest.", example: "{timestamp: 2026-01-01T00:00:00Z}"},
		{key: "tombstones", at: func(o *Options) any { return &o.Tombstones }, doc: "Records without a value: skip counts them, row keeps key and position in a row without values.", values: []string{"skip", "row"}},
		{key: "on_invalid", at: func(o *Options) any { return &o.OnInvalid }, doc: "Records that cannot be decoded: into the quarantine table, stop the partition, or skip and count.", values: []string{"quarantine", "stop", "skip"}},
		{key: "flood/share", at: func(o *Options) any { return &o.Flood.Share }, doc: "Share of bad records in a window above which a topic partition stops until the cause is mended or an operator lets it go on; off for never."},
		{key: "flood/window", at: func(o *Options) any { return &o.Flood.Window }, doc: "Records of the window of flood.share."},
		{key: "on_data_loss", at: func(o *Options) any { return &o.OnDataLoss }, doc: "When Kafka no longer holds records that were not read: stop the partition, or record the lost range and continue.", values: []string{"stop", "continue"}},
		{key: "on_rename", at: func(o *Options) any { return &o.OnRename }, doc: "When a newer schema renames a field: keep the column's name, so that no query breaks, or rename the column. Its values stay in either case.", values: []string{"keep", "rename"}},
		{key: "enum", at: func(o *Options) any { return &o.Enum }, doc: "Enums as the name of the value or as its number.", values: []string{"string", "int"}},
		{key: "oneof", at: func(o *Options) any { return &o.Oneof }, doc: "Protobuf oneofs as one column for each member, or with a string column more, named like the oneof, that holds the name of the member that is set.", values: []string{"members", "case"}},
		{key: "time_of_day", at: func(o *Options) any { return &o.TimeOfDay }, doc: "google.type.TimeOfDay as microseconds since midnight, or as a time, which makes the table unreadable in Spark.", values: []string{"long", "time"}},
		{key: "timestamp", at: func(o *Options) any { return &o.Timestamp }, doc: "Points in time that come with nanoseconds (google.protobuf.Timestamp, Avro timestamp-nanos and local-timestamp-nanos, date-time of a JSON Schema) as microseconds, or whole as nanoseconds, which need format_version: 3, reach the years 1677 to 2262 and make the table unreadable in engines that know no timestamp_ns, among them Spark and Trino.", values: []string{"micros", "nanos"}},
		{key: "json", at: func(o *Options) any { return &o.JSON }, doc: "Values without fixed columns (google.protobuf.Struct, Value and ListValue, types inside themselves, free parts of a JSON Schema, whole records of format json) as their JSON text, or as a variant, which needs format_version: 3 and which few engines read.", values: []string{"string", "variant"}},
		{key: "metadata", at: func(o *Options) any { return &o.Metadata }, doc: "Metadata columns: lsn (_lsn), kafka (_kafka).", values: []string{"lsn", "kafka"}, example: "[lsn, kafka]"},
		{key: "partition", at: func(o *Options) any { return &o.Partition }, doc: "Partition spec of new tables: columns, or year, month, day, hour, bucket(n, …), truncate(n, …) of them.", example: "\"day(created_at), bucket(16, customer_id)\""},
		{key: "sort", at: func(o *Options) any { return &o.Sort }, doc: "Sort order within data files.", example: "\"customer_id, created_at desc\""},
		{key: "commit/interval", at: func(o *Options) any { return &o.Commit.Interval }, doc: "Longest time between commits while rows wait."},
		{key: "commit/file_size", at: func(o *Options) any { return &o.Commit.FileSize }, doc: "Target size of a data file; a fuller one is closed and the next begun."},
		{key: "commit/rows", at: func(o *Options) any { return &o.Commit.Rows }, doc: "Rows after which a commit is cut; 0 for no bound."},
		{key: "commit/bytes", at: func(o *Options) any { return &o.Commit.Bytes }, doc: "Encoded bytes after which a commit is cut; 0B for no bound."},
		{key: "format_version", at: func(o *Options) any { return &o.FormatVersion }, doc: "Version of the Iceberg table format of new tables. 3 is for the types that 2 does not have; fewer engines read it.", values: []string{"2", "3"}},
		{key: "properties", at: func(o *Options) any { return &o.Properties }, doc: "Iceberg properties of new tables.", example: "{write.parquet.compression-codec: zstd}"},
	}
}

// pipelineSettings are those that only a pipeline has.
func pipelineSettings() []setting[Pipeline] {
	type s = setting[Pipeline]
	return []s{
		{key: "name", at: func(p *Pipeline) any { return &p.Name }, doc: "Identity of the state kept in the table; never renamed.", example: "orders"},
		{key: "topics", at: func(p *Pipeline) any { return &p.Topics }, doc: "Topics to read, by exact name.", example: "[orders]"},
		{key: "pattern", at: func(p *Pipeline) any { return &p.Pattern }, doc: "Topics to read, by a regular expression (RE2) that matches the whole name; instead of topics.", example: "\"shop\\\\..*\""},
		{key: "table", at: func(p *Pipeline) any { return &p.Table }, doc: "Table to write, namespace.table. {topic} stands for the topic in lower case with every character outside [a-z0-9_] as _.", example: "shop.{topic}"},
		{key: "message", at: func(p *Pipeline) any { return &p.Message }, doc: "Full name of the Protobuf message, where the schema has several and records do not say.", example: "shop.v1.Order"},
		{key: "columns", at: func(p *Pipeline) any { return &p.Columns }, doc: "Columns of format json: keys of the record's object with their types, boolean, int, long, float, double, decimal(p, s), date, timestamp, timestamptz, timestamp_ns and timestamptz_ns (with format_version: 3), string, binary (base64), json (any value as text), variant (any value, with format_version: 3), struct<…>, list<…>, map<string, …>. Without it the text is one column, value.", example: "\"id long, at timestamptz, lines list<struct<sku string, units int>>\""},
		{key: "unknown_fields", at: func(p *Pipeline) any { return &p.UnknownFields }, doc: "Fields of a Protobuf record that its schema does not have: skip counts them, keep puts the whole encoded record into a column more, _raw, which is null for records without such fields.", values: []string{"skip", "keep"}},
		{key: "schema/framing", at: func(p *Pipeline) any { return &p.Schema.Framing }, doc: "Whether values carry the Confluent frame with their schema id, or none and all have the schema named here. confluent-unsigned is the frame of serializers that write the message path in the deprecated form.", values: []string{"confluent", "confluent-unsigned", "none"}},
		{key: "schema/context", at: func(p *Pipeline) any { return &p.Schema.Context }, doc: "Context of the registry in which the ids of this pipeline's records count and its subjects are looked up; the default one where not given.", example: ".staging"},
		{key: "schema/subject", at: func(p *Pipeline) any { return &p.Schema.Subject }, doc: "Subject of the schema of values without a frame.", example: "orders-value"},
		{key: "schema/version", at: func(p *Pipeline) any { return &p.Schema.Version }, doc: "Version under schema.subject; 0 for the latest when the service starts."},
		{key: "schema/id", at: func(p *Pipeline) any { return &p.Schema.ID }, doc: "Registry id of the schema of values without a frame; instead of schema.subject."},
		{key: "key_schema/framing", at: func(p *Pipeline) any { return &p.KeySchema.Framing }, doc: "Whether keys that are decoded carry the Confluent frame, or none and all have the schema named here.", values: []string{"confluent", "none"}},
		{key: "key_schema/subject", at: func(p *Pipeline) any { return &p.KeySchema.Subject }, doc: "Subject of the schema of keys without a frame.", example: "orders-key"},
		{key: "key_schema/version", at: func(p *Pipeline) any { return &p.KeySchema.Version }, doc: "Version under key_schema.subject; 0 for the latest when the service starts."},
		{key: "key_schema/id", at: func(p *Pipeline) any { return &p.KeySchema.ID }, doc: "Registry id of the schema of keys without a frame; instead of key_schema.subject."},
	}
}

// refused are words that people bring from other tools, and what stands for them here.
func refused(path string) string {
	return map[string]string{
		"kafka.isolation.level":          "remove it: Icestream always reads committed records only",
		"kafka.enable.auto.commit":       "remove it: offsets are committed after the table commit",
		"kafka.auto.offset.reset":        "use pipelines[].start, which is applied once, and pipelines[].on_data_loss",
		"kafka.auto.commit.interval.ms":  "remove it: offsets are committed after the table commit",
		"kafka.session.timeout.ms":       "use session.timeout with a unit, such as 45s",
		"kafka.sasl.mechanisms":          "use sasl.mechanism",
		"kafka.sasl.jaas.config":         "use sasl.username and sasl.password",
		"kafka.ssl.truststore.location":  "use ssl.ca.location with a PEM file",
		"kafka.ssl.keystore.location":    "use ssl.certificate.location and ssl.key.location with PEM files",
		"kafka.fetch.max.bytes":          "remove it: fetch sizes follow limits.record.max and limits.ingest.bytes",
		"kafka.schema.registry.url":      "use registry.url",
		"registry.schema.registry.url":   "use url",
		"registry.bearer.token":          "use bearer.auth.token",
		"registry.auto.register.schemas": "remove it: Icestream only reads schemas",
	}[path]
}
