package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFormatsAndKeysAreChecked(t *testing.T) {
	const head = "kafka: {bootstrap.servers: \"b:1\"}\ncatalog: {uri: \"http://c:1\"}\npipelines:\n  - {name: a, topics: [a], table: n.a, "
	for settings, want := range map[string]string{
		"format: xml":                                              "did you mean",
		"format: avro, columns: \"id long\"":                       "declares columns though the format is avro",
		"format: json, columns: \"id long\"":                       "",
		"format: json_schema, schema: {framing: none}":             "must name the schema of values without a frame",
		"format: json, schema: {framing: none}":                    "",
		"format: json, schema: {framing: none, id: 7}":             "names a schema though values of format json have none",
		"format: raw, key: decode":                                 "decodes keys, but the format raw has nothing to decode",
		"format: raw, key: decode, key_format: avro":               "",
		"format: raw, key_format: avro":                            "keys are not decoded (key: none)",
		"key: decode, key_schema: {framing: none}":                 "must name the schema of keys without a frame",
		"key: decode, key_schema: {framing: none, subject: a-key}": "",
		"key: decode, key_schema: {subject: a-key}":                "names a schema though every key carries its own",
		"key: raw, key_schema: {framing: none, id: 3}":             "names a schema though keys are not decoded by one",
		"key: decode, key_schema: {framing: none, id: -3}":         "negative",
		"unknown_fields: keep":                                     "",
		"unknown_fields: drop":                                     `"drop" is not known`,
		"format: avro, unknown_fields: skip":                       "",
		"timestamp: nanos, format_version: 3":                      "",
		"timestamp: nanos":                                         "pipelines[0].timestamp: is nanos, for which tables of format version 2 have no type, set format_version: 3",
		"json: variant":                                            "pipelines[0].json: is variant, a type that tables of format version 2 do not have, set format_version: 3",
		"json: variant, format_version: 3":                         "",
		"format_version: 4":                                        `"4" is not known`,
		"format_version: 3":                                        "",
		"properties: {format-version: 3}":                          "format-version is 3 and format_version 2, say it once",
		"format_version: 3, properties: {format-version: 3}":       "",
		"format: avro, unknown_fields: keep":                       "keeps records with unknown fields, which only Protobuf has, not the format avro",
	} {
		text := head + settings + "}\n"
		if want == "" {
			parse(t, text)
			continue
		}
		found := strings.Join(problems(t, text), "\n")
		if want == "did you mean" { // no word is near
			want = `"xml" is not known`
		}
		require.Contains(t, found, want, settings)
	}
}

func TestWhatDecidesAboutRowsIsPartOfTheRevision(t *testing.T) { // G5
	const text = "kafka: {bootstrap.servers: \"b:1\"}\ncatalog: {uri: \"http://c:1\"}\npipelines:\n" +
		"  - {name: a, topics: [a], table: n.a, format: json, columns: \"id long\", key: decode, key_format: avro, key_schema: {framing: none, id: 3}}\n"
	c := parse(t, text)
	require.Equal(t, "avro", c.Pipelines[0].DecodesKeyAs())
	for _, change := range [][2]string{{"id long", "id int"}, {"key_format: avro", "key_format: protobuf"}, {"id: 3", "id: 4"}, {"framing: none, id: 3", "framing: confluent"}} {
		other := parse(t, strings.Replace(text, change[0], change[1], 1))
		require.NotEqual(t, c.Revision(&c.Pipelines[0], "1"), other.Revision(&other.Pipelines[0], "1"), change[0])
	}
	p := c.Pipelines[0]
	require.Equal(t, "skip", p.UnknownFields)
	p.UnknownFields = "keep"
	require.NotEqual(t, c.Revision(&c.Pipelines[0], "1"), c.Revision(&p, "1"))
}

// Version 2 is what tables are made with unless the pipeline says otherwise, and the option decides what rows are (G5).
func TestFormatVersionTwoIsTheDefault(t *testing.T) {
	c := parse(t, "kafka: {bootstrap.servers: \"b:1\"}\ncatalog: {uri: \"http://c:1\"}\ndefaults: {properties: {a: b}}\npipelines:\n"+
		"  - {name: a, topics: [a], table: n.a}\n  - {name: b, topics: [b], table: n.b, format_version: 3, timestamp: nanos}\n")
	require.Equal(t, map[string]string{"a": "b", "format-version": "2"}, c.Pipelines[0].TableProperties())
	require.Equal(t, "micros", c.Pipelines[0].Timestamp)
	require.Equal(t, map[string]string{"a": "b", "format-version": "3"}, c.Pipelines[1].TableProperties())
	p := c.Pipelines[1]
	p.Timestamp = "micros"
	require.NotEqual(t, c.Revision(&c.Pipelines[1], "1"), c.Revision(&p, "1"))
	p = c.Pipelines[1]
	p.FormatVersion = 2
	require.Equal(t, c.Revision(&c.Pipelines[1], "1"), c.Revision(&p, "1"), "it decides about new tables alone")
}

func TestFormatsWithSchemasNeedARegistry(t *testing.T) {
	for settings, needs := range map[string]bool{
		"format: avro": true, "format: json_schema": true, "format: json": false, "format: string": false,
		"format: json, key: decode": false, "format: json, key: decode, key_format: avro": true,
	} {
		c := parse(t, "kafka: {bootstrap.servers: \"b:1\"}\npipelines: [{name: a, topics: [a], table: n.a, "+settings+"}]\n")
		err := c.Require(Ingest)
		if needs {
			require.ErrorContains(t, err, "registry.url", settings)
		} else {
			require.NoError(t, err, settings)
		}
	}
}
