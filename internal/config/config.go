// Package config reads icestream.yaml, the one file that every service and the CLI share.
//
// It is strict: an unknown key, a value without its unit or a reference that does not resolve is an error that names
// file, line and column and says what to do, and all of them are reported at once. Values come, in ascending
// precedence, from defaults, the file, ICESTREAM_… environment variables and flags. Secrets are of type Secret and
// are never printed.
//
// The table of settings (settings.go) is the single source: parsing, defaults, environment names, redaction and the
// reference page docs/reference/config.md are all made from it.
package config

import (
	"slices"
	"time"
)

// Config is a whole configuration. It is read-only after Load; copies share maps and slices.
type Config struct {
	// Deployment names this installation; it is part of the owner key in every table.
	Deployment string
	Node       Node
	Services   Services
	Discovery  Discovery
	Limits     Limits
	Reads      Reads
	Kafka      Kafka
	Registry   Registry
	Catalog    Catalog
	// Defaults are what pipelines that do not say otherwise use. Load has already applied them to Pipelines.
	Defaults  Options
	Pipelines []Pipeline

	// where remembers the places of settings for problems found later; references the texts of `${…}` by path;
	// overruled the paths of values that flags took the place of.
	where      map[string]place
	file       string
	references map[string]string
	overruled  map[string]bool
}

// Node describes the machine that a service runs on.
type Node struct {
	DataDir   string // journal, spill and schema cache live under it
	Metrics   string // listen address of /metrics, /healthz, /readyz and /debug/pprof; empty: no such server
	LogLevel  string // debug, info, warn, error
	LogFormat string // json, text
}

// Services holds what each service needs for itself.
type Services struct {
	Ingest, Buffer, Committer, Readstate Service
}

// Service is the part of one service.
type Service struct {
	Listen string // host:port of its gRPC server, or its socket (Socket)
}

// Discovery says how services find each other.
type Discovery struct {
	Type                                 string // static
	Ingest, Buffer, Committer, Readstate string // host:port, or a socket (Socket)
}

// Limits are the budgets in bytes. Every queue is bounded by one of them.
type Limits struct {
	HotBytes       Size // hot rows of one buffer or readstate process
	IngestBytes    Size // fetched and not yet acknowledged, per ingest process
	CommitterBytes Size // open files and held batches of one committer process
	BatchBytes     Size // one append
	RecordMax      Size // key, value and headers of one Kafka record
	SpillBytes     Size // local Arrow files of one process
}

// MaxMessage is the greatest gRPC message on every hop: a row may be larger than its record, by a factor of four at
// the most, plus the frame around it.
func (l Limits) MaxMessage() int { return int(4*l.RecordMax + 1<<20) }

// Reads bounds what readers may ask for.
type Reads struct {
	MaxLease time.Duration // longest lease; nothing that was reported within it is expired
}

// Kafka is the connection to the brokers, in the words that Kafka clients share.
type Kafka struct {
	BootstrapServers []string // host:port
	GroupID          string   // prefix: each pipeline is the group <group.id>.<pipeline>
	ClientID         string
	ClientRack       string
	SecurityProtocol string // PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL
	SASLMechanism    string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
	SASLUsername     string
	SASLPassword     Secret
	TLS              TLS
	// VerifyHostname is ssl.endpoint.identification.algorithm: "https" (the default) or "none".
	VerifyHostname string
	SessionTimeout time.Duration
}

// UsesTLS reports whether the security protocol encrypts.
func (k Kafka) UsesTLS() bool { return k.SecurityProtocol == "SSL" || k.SecurityProtocol == "SASL_SSL" }

// UsesSASL reports whether the security protocol authenticates by SASL.
func (k Kafka) UsesSASL() bool {
	return k.SecurityProtocol == "SASL_PLAINTEXT" || k.SecurityProtocol == "SASL_SSL"
}

// TLS names the PEM files of a client.
type TLS struct {
	CAFile   string // trusted certificates; empty: those of the system
	CertFile string // own certificate, with KeyFile; empty: none
	KeyFile  string
}

// Registry is the connection to a Confluent-compatible schema registry.
type Registry struct {
	URLs        []string // tried in turn
	UserInfo    Secret   // basic.auth.user.info: user:password
	BearerToken Secret
	TLS         TLS
	Timeout     time.Duration // of one request
	Overrides   Properties    // schema id or GUID → file with its schema
}

// Catalog is the connection to the Iceberg catalog.
type Catalog struct {
	Type       string // rest, sql; glue, hive with the build tag cloud
	Name       string // the catalog's name in an SQL catalog
	URI        string
	Warehouse  string
	Credential Secret     // OAuth2 client credentials: id:secret
	Token      Secret     // bearer token
	Properties Properties // passed to the catalog client and the file IO, such as s3.endpoint
}

// Options are the settings of a pipeline that `defaults` may give for all.
type Options struct {
	Format     string // protobuf, avro, json, json_schema, string, raw
	Key        string // none, raw, string, decode
	KeyFormat  string // of decoded keys; empty: that of values
	Start      Start
	Tombstones string // skip, row
	OnInvalid  string // quarantine, stop, skip
	Flood      Flood
	OnDataLoss string // stop, continue
	OnRename   string // keep, rename
	Enum       string // string, int
	Oneof      string // members, case
	TimeOfDay  string // long, time
	Timestamp  string // micros, nanos
	JSON       string // string, variant
	Metadata   []string
	// FormatVersion of the Iceberg table format of new tables: 2, 3.
	FormatVersion int
	Partition     Partition
	Sort          Sort
	Commit        Commit
	Properties    Properties // Iceberg table properties set when the table is created
}

// Lsn reports whether the table carries the column _lsn.
func (o Options) Lsn() bool { return slices.Contains(o.Metadata, "lsn") }

// KafkaColumn reports whether the table carries the column _kafka.
func (o Options) KafkaColumn() bool { return slices.Contains(o.Metadata, "kafka") }

// Commit says when the committer cuts: at whichever bound is reached first.
type Commit struct {
	Interval time.Duration
	FileSize Size  // target size of one data file
	Rows     int64 // 0: no bound
	Bytes    Size  // encoded bytes in all open files of the table; 0: no bound
}

// Pipeline feeds topics into tables.
type Pipeline struct {
	// Name is the identity of the state kept in the table; it is never changed.
	Name    string
	Topics  []string // exact names; or
	Pattern string   // an RE2 expression that matches whole names
	Table   string   // namespace.table, with {topic} where each topic has its own
	Message string   // full name of the Protobuf message where the schema has several
	Schema  SchemaRef
	// KeySchema fixes the schema of decoded keys without a frame.
	KeySchema SchemaRef
	Columns   string // of format json
	// UnknownFields of Protobuf records: skip, or keep the record in the column _raw.
	UnknownFields string
	Options
}

// DecodesKeyAs is the format by which keys are decoded, empty where they are not.
func (p *Pipeline) DecodesKeyAs() string {
	switch {
	case p.Key != "decode":
		return ""
	case p.KeyFormat != "":
		return p.KeyFormat
	default:
		return p.Format
	}
}

// Registered reports whether records of a format have their schemas in the registry.
func Registered(format string) bool {
	return format == "protobuf" || format == "avro" || format == "json_schema"
}

// SchemaRef fixes the schema of records without a frame.
type SchemaRef struct {
	Framing string // confluent, confluent-unsigned, none
	Context string // of the registry in which ids count; "" for the default one
	Subject string // with Version; or
	Version int    // 0: the latest
	ID      int
}

// Default returns the configuration that an empty file stands for.
func Default() *Config {
	listen := func(port string) Service { return Service{Listen: ":" + port} }
	return &Config{
		Deployment: "default",
		Node:       Node{DataDir: "./data", Metrics: ":9464", LogLevel: "info", LogFormat: "json"},
		Services: Services{
			Buffer: listen("7401"), Committer: listen("7402"), Readstate: listen("7403"), Ingest: listen("7404"),
		},
		Discovery: Discovery{
			Type: "static", Buffer: "127.0.0.1:7401", Committer: "127.0.0.1:7402", Readstate: "127.0.0.1:7403",
			Ingest: "127.0.0.1:7404",
		},
		Limits: Limits{
			HotBytes: 512 << 20, IngestBytes: 256 << 20, CommitterBytes: 512 << 20, BatchBytes: 1 << 20,
			RecordMax: 32 << 20, SpillBytes: 8 << 30,
		},
		Reads:    Reads{MaxLease: 15 * time.Minute},
		Kafka:    Kafka{GroupID: "icestream", ClientID: "icestream", SecurityProtocol: "PLAINTEXT", VerifyHostname: "https", SessionTimeout: 45 * time.Second},
		Registry: Registry{Timeout: 10 * time.Second},
		Catalog:  Catalog{Type: "rest", Name: "icestream"},
		Defaults: Options{
			Format: "protobuf", Key: "none", Start: Start{Mode: "earliest"}, Tombstones: "skip", OnInvalid: "quarantine",
			Flood:      Flood{Share: 50, Window: 1000},
			OnDataLoss: "stop", OnRename: "keep", Enum: "string", Oneof: "members", TimeOfDay: "long", Timestamp: "micros", JSON: "string", Metadata: []string{"lsn", "kafka"},
			FormatVersion: 2,
			Commit:        Commit{Interval: time.Minute, FileSize: 128 << 20},
		},
	}
}
