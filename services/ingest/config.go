// Package ingest is the service that brings Kafka records into table logs: it consumes, decodes, maps, decides about
// bad records, and commits offsets after tables hold them. It has no access to the catalog or to object storage.
package ingest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/services/ingest/internal/decode/avro"
	"github.com/icestream/icestream/services/ingest/internal/decode/jsonrec"
	"github.com/icestream/icestream/services/ingest/internal/decode/proto"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
	"github.com/icestream/icestream/services/ingest/internal/pipeline"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// DefaultDrain bounds the orderly end when Config does not say.
const DefaultDrain = 30 * time.Second

// Config of the service.
type Config struct {
	// Settings is the whole configuration; ingest takes the sections it needs.
	Settings *config.Config
	// Instance names this process, for people; empty means the host name.
	Instance string
	// Version of the build.
	Version string
	// Drain bounds the orderly end; 0 means DefaultDrain.
	Drain time.Duration
	// Refresh is how often topics are looked up; 0 means 10 s.
	Refresh time.Duration
}

func (c *Config) normal() error {
	if c.Settings == nil {
		return errors.New("making the ingest service: no configuration was given")
	}
	if err := c.Settings.Require(config.Ingest); err != nil {
		return err
	}
	if err := Validate(c.Settings); err != nil {
		return err
	}
	if c.Drain <= 0 {
		c.Drain = DefaultDrain
	}
	if c.Instance == "" {
		c.Instance, _ = os.Hostname() // only for people: an empty name does no harm
	}
	return nil
}

// sourceConfig is the Kafka side of a pipeline.
func (c *Config) sourceConfig(p *config.Pipeline, budget int64, log *slog.Logger) (source.Config, error) {
	k := c.Settings.Kafka
	out := source.Config{
		Brokers: k.BootstrapServers, ClientID: k.ClientID, Rack: k.ClientRack, Group: c.Settings.GroupID(p),
		SessionTimeout: k.SessionTimeout, Topics: p.Topics, Budget: budget, RecordMax: int64(c.Settings.Limits.RecordMax),
		Refresh: c.Refresh, Log: log,
	}
	if p.Pattern != "" {
		re, err := regexp.Compile(p.Pattern)
		if err != nil {
			return out, fmt.Errorf("reading the pattern of pipeline %s: %w", p.Name, err)
		}
		out.Pattern = re
	}
	if k.UsesTLS() {
		t, err := tlsConfig(k.TLS, k.VerifyHostname != "none")
		if err != nil {
			return out, fmt.Errorf("setting up TLS to Kafka: %w", err)
		}
		out.TLS = t
	}
	if k.UsesSASL() {
		out.SASL = &source.SASL{Mechanism: k.SASLMechanism, User: k.SASLUsername, Password: k.SASLPassword.Reveal()}
	}
	return out, nil
}

// newRegistry makes the client of the schema registry, nil when no pipeline needs one.
func (c *Config) newRegistry() (*registry.Client, error) {
	r := c.Settings.Registry
	if len(r.URLs) == 0 {
		return nil, nil
	}
	cfg := registry.Config{
		URLs: r.URLs, BearerToken: r.BearerToken.Reveal(), Timeout: r.Timeout,
		CacheDir: filepath.Join(c.Settings.Node.DataDir, "schemas"), Overrides: r.Overrides.Reveal(),
	}
	cfg.User, cfg.Password, _ = strings.Cut(r.UserInfo.Reveal(), ":")
	if r.TLS != (config.TLS{}) {
		t, err := tlsConfig(r.TLS, true)
		if err != nil {
			return nil, fmt.Errorf("setting up TLS to the schema registry: %w", err)
		}
		cfg.TLS = t
	}
	client, err := registry.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("making the client of the schema registry: %w", err)
	}
	return client, nil
}

// codec is the record format of a pipeline.
func codec(p *config.Pipeline, schemas *registry.Client) (pipeline.Codec, error) {
	c, err := codecOf(p.Format, p.Schema, p, schemas)
	if err != nil {
		return nil, fmt.Errorf("making pipeline %s: %w", p.Name, err)
	}
	return c, nil
}

// keyCodec is the format of the keys of a pipeline, nil where they are no column.
func keyCodec(p *config.Pipeline, schemas *registry.Client) (pipeline.Codec, error) {
	format := p.Key
	if decoded := p.DecodesKeyAs(); decoded != "" {
		format = decoded
	}
	if format == "" || format == "none" {
		return nil, nil
	}
	bare := *p // message and columns are those of values
	bare.Message, bare.Columns, bare.UnknownFields = "", "", ""
	bare.KeySchema.Context = p.Schema.Context
	c, err := codecOf(format, bare.KeySchema, &bare, schemas)
	if err != nil {
		return nil, fmt.Errorf("making pipeline %s: the key: %w", p.Name, err)
	}
	return c, nil
}

func codecOf(format string, ref config.SchemaRef, p *config.Pipeline, schemas *registry.Client) (pipeline.Codec, error) {
	switch format {
	case "raw":
		return pipeline.Raw{}, nil
	case "string":
		return pipeline.Text{}, nil
	case "json":
		return declared(p)
	}
	if !config.Registered(format) {
		return nil, fmt.Errorf("this build cannot decode format %q: use protobuf, avro, json, json_schema, string or raw", format)
	}
	if schemas == nil {
		return nil, fmt.Errorf("format %s needs registry.url", format)
	}
	origin := pipeline.Origin{Context: ref.Context}
	if ref.Framing == "none" {
		if ref.ID == 0 && ref.Subject == "" {
			return nil, errors.New("framing: none needs an id or a subject, the one schema of the records")
		}
		origin.Unframed, origin.FixedID, origin.Subject, origin.Version = true, int32(ref.ID), ref.Subject, ref.Version
	}
	switch format {
	case "avro":
		return pipeline.NewAvro(schemas, origin, avro.Options{Nanos: p.Timestamp == "nanos", Variant: p.JSON == "variant"}), nil
	case "json_schema":
		return pipeline.NewJSONSchema(schemas, origin, jsonOptions(p)), nil
	}
	return &pipeline.Protobuf{
		Schemas: schemas, Message: p.Message, Origin: origin, UnsignedPath: ref.Framing == "confluent-unsigned",
		Options: proto.Options{
			EnumAsInt: p.Enum == "int", OneofCase: p.Oneof == "case", TimeOfDayAsTime: p.TimeOfDay == "time",
			TimestampNanos: p.Timestamp == "nanos", Variant: p.JSON == "variant", NoteUnknown: p.UnknownFields == "keep",
		},
	}, nil
}

// declared is the format of JSON whose columns the pipeline declares, which may be of types that its tables do not have.
func declared(p *config.Pipeline) (pipeline.Codec, error) {
	c, err := pipeline.NewJSON(p.Columns, jsonOptions(p))
	if err != nil {
		return nil, err
	}
	if lacks := c.Needs(p.FormatVersion); len(lacks) > 0 {
		r := lacks[0]
		return nil, fmt.Errorf("column %s has type %s, for which tables of format version %d have no type: set format_version: 3, or declare another type", r.Path, r.CandidateType, p.FormatVersion)
	}
	return c, nil
}

func jsonOptions(p *config.Pipeline) jsonrec.Options {
	return jsonrec.Options{Nanos: p.Timestamp == "nanos", Variant: p.JSON == "variant"}
}

// decoderVersion is part of a pipeline's revision: it changes whenever a record may become another row.
func decoderVersion() string {
	return fmt.Sprintf("%d/%d/%d", proto.Version, avro.Version, jsonrec.Version)
}

// decoderOf is decoderVersion with the schemas that the operator supplies, where the pipeline has a use for them.
func decoderOf(p *config.Pipeline, schemas *registry.Client) string {
	version := decoderVersion()
	if schemas == nil || schemas.Overrides() == "" || p.Format != "protobuf" && p.DecodesKeyAs() != "protobuf" {
		return version
	}
	return version + "/" + schemas.Overrides()
}

// tlsConfig reads the PEM files of a client. Without verifyHost the certificate must still come from a trusted
// authority; only the name in it is not compared.
func tlsConfig(t config.TLS, verifyHost bool) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading trusted certificates: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading trusted certificates: %s holds no certificate in PEM form", t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("reading the client's certificate %s and key %s: %w", t.CertFile, t.KeyFile, err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	if !verifyHost {
		roots := out.RootCAs
		out.InsecureSkipVerify = true // replaced by the check below
		out.VerifyConnection = func(cs tls.ConnectionState) error {
			opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
			for _, c := range cs.PeerCertificates[1:] {
				opts.Intermediates.AddCert(c)
			}
			_, err := cs.PeerCertificates[0].Verify(opts)
			return err
		}
	}
	return out, nil
}
