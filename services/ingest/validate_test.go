package ingest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
)

// What ingest would refuse only when it starts is found before, all at once and each with its place.
func TestValidateFindsEveryFaultThatOnlyIngestCanTell(t *testing.T) {
	dir := t.TempDir()
	pem, proto, good := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "lost.proto"), filepath.Join(dir, "good.proto")
	require.NoError(t, os.WriteFile(pem, []byte("no certificate"), 0o600))
	require.NoError(t, os.WriteFile(proto, []byte(`syntax = "proto3"; message A {`), 0o600))
	require.NoError(t, os.WriteFile(good, []byte(`syntax = "proto3"; message A {}`), 0o600))
	text := `kafka: {bootstrap.servers: "b:1", security.protocol: SSL, ssl.ca.location: ` + pem + `}
registry: {url: "http://r:1", ssl.ca.location: ` + pem + `, overrides: {17: ` + proto + `, 18: ` + good + `}}
pipelines:
  - {name: a, topics: [a], table: n.a}
  - name: b
    topics: [b]
    table: n.b
    format: json
    columns: "id lng"
  - {name: c, topics: [c], table: n.c, format: json, columns: "id long, id int"}
  - {name: d, topics: [d], table: n.d, format: json, columns: "v variant"}
  - {name: e, topics: [e], table: n.e, format: json, columns: "id long"}
`
	c, _, err := config.Parse("x.yaml", []byte(text), nil, nil)
	require.NoError(t, err)
	var faults config.Errors
	require.ErrorAs(t, Validate(c), &faults)
	require.Len(t, faults, 6)
	for i, want := range []string{
		"x.yaml:1:8: kafka.ssl: reading trusted certificates",
		"x.yaml:2:11: registry.ssl: reading trusted certificates",
		": registry.overrides.17: reading override of schema id 17",
		`x.yaml:9:14: pipelines[1].columns: reading the columns "id lng": column id: "lng" is not a type`,
		`"id" is declared twice`,
		"pipelines[3].columns: column v has type variant",
	} {
		require.Contains(t, faults[i].String(), want)
	}
	cfg := Config{Settings: c}
	require.ErrorAs(t, cfg.normal(), &faults, "the service says it with the same words")
}
