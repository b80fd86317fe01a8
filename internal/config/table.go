package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/icestream/icestream/internal/ident"
)

// topicWord is replaced by the topic in a pipeline's table.
const topicWord = "{topic}"

// Matches reports whether the pipeline reads the topic. A pattern has to match the whole name.
func (p *Pipeline) Matches(topic string) bool {
	if p.Pattern == "" {
		return slices.Contains(p.Topics, topic)
	}
	re, err := p.pattern()
	return err == nil && re.MatchString(topic)
}

func (p *Pipeline) pattern() (*regexp.Regexp, error) {
	return regexp.Compile("^(?:" + p.Pattern + ")$")
}

// AnchoredPattern returns the pipeline's pattern as an expression that matches whole names, "" where it has none.
func (p *Pipeline) AnchoredPattern() string {
	if p.Pattern == "" {
		return ""
	}
	return "^(?:" + p.Pattern + ")$"
}

// TopicTable returns the table (namespace.table) that the topic feeds, or an error for a topic whose table would
// have the name of a quarantine table.
func (p *Pipeline) TopicTable(topic string) (string, error) {
	table := strings.ReplaceAll(p.Table, topicWord, mapTopic(topic))
	if strings.HasSuffix(table, ident.QuarantineSuffix) {
		return "", fmt.Errorf("mapping topic %q of pipeline %q: the table %s would be taken for a quarantine table; give the topic a pipeline with a fixed table", topic, p.Name, table)
	}
	return table, nil
}

// TopicTables maps all topics of the pipeline. Two topics with one result of {topic} are refused, since neither
// could be told from the other in the table's name; topics of a pipeline with a fixed table share it on purpose.
// The result holds the topics without a fault; the error joins all faults.
func (p *Pipeline) TopicTables(topics []string) (map[string]string, error) {
	out := make(map[string]string, len(topics))
	owner := map[string]string{}
	var faults []error
	for _, topic := range slices.Sorted(slices.Values(topics)) {
		table, err := p.TopicTable(topic)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		first, taken := owner[table]
		if taken && first != topic && strings.Contains(p.Table, topicWord) {
			delete(out, first) // neither may write: which came first is chance
			faults = append(faults, fmt.Errorf("mapping topics %q and %q of pipeline %q: both give the table %s; give one of them a pipeline with a fixed table", first, topic, p.Name, table))
			continue
		}
		owner[table] = topic
		out[topic] = table
	}
	return out, errors.Join(faults...)
}

// mapTopic maps a topic to a part of a table's name: lower case, every character outside [a-z0-9_] as "_".
func mapTopic(topic string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '_':
			return r
		default:
			return '_'
		}
	}, topic)
}

// Revision is a hash of everything that decides what becomes of a record's bytes: the pipeline's mapping options,
// the greatest record, and the version of the decoder. Two equal revisions turn one record into the same row, the
// same skip or the same quarantine, which is what lets a buffer re-fill its journaled entries after a restart.
// Settings that only affect where and when rows are written are left out.
func (c *Config) Revision(p *Pipeline, decoderVersion string) uint64 {
	var b strings.Builder
	for _, part := range []struct{ key, value string }{
		{"decoder", decoderVersion},
		{"record.max", c.Limits.RecordMax.String()},
		{"format", p.Format},
		{"message", p.Message},
		{"framing", p.Schema.Framing},
		{"schema", fmt.Sprintf("%d/%d/%s/%s", p.Schema.ID, p.Schema.Version, p.Schema.Subject, p.Schema.Context)},
		{"key", p.Key},
		{"key_format", p.KeyFormat},
		{"key_schema", fmt.Sprintf("%s/%d/%d/%s", p.KeySchema.Framing, p.KeySchema.ID, p.KeySchema.Version, p.KeySchema.Subject)},
		{"columns", p.Columns},
		{"tombstones", p.Tombstones},
		{"on_invalid", p.OnInvalid},
		{"enum", p.Enum},
		{"oneof", p.Oneof},
		{"time_of_day", p.TimeOfDay},
		{"timestamp", p.Timestamp},
		{"json", p.JSON},
		{"unknown_fields", p.UnknownFields},
		{"metadata", strings.Join(slices.Sorted(slices.Values(p.Metadata)), ",")},
	} {
		fmt.Fprintf(&b, "%s=%q\n", part.key, part.value)
	}
	return xxh3.HashString(b.String())
}

// Pipeline returns the pipeline of that name, or nil.
func (c *Config) Pipeline(name string) *Pipeline {
	for i := range c.Pipelines {
		if c.Pipelines[i].Name == name {
			return &c.Pipelines[i]
		}
	}
	return nil
}

// PipelineNames returns the names of all pipelines in the order of the file.
func (c *Config) PipelineNames() []string {
	out := make([]string, len(c.Pipelines))
	for i := range c.Pipelines {
		out[i] = c.Pipelines[i].Name
	}
	return out
}

// GroupID returns the Kafka consumer group of a pipeline.
func (c *Config) GroupID(p *Pipeline) string { return c.Kafka.GroupID + "." + p.Name }

// PropertyNames returns the sorted keys of p.
func (p Properties) PropertyNames() []string { return slices.Sorted(maps.Keys(p)) }
