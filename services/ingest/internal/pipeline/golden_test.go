package pipeline

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/services/ingest/internal/decode/avro"
	"github.com/icestream/icestream/services/ingest/internal/decode/jsonrec"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// golden is what another producer library made of records, and what it meant: test/e2e/peers/formats.py says how.
type golden struct {
	ID            int    `json:"id"`
	GUID          string `json:"guid"`
	Schema        string `json:"schema"`
	Reference     string `json:"reference"`
	ReferenceName string `json:"reference_name"`
	Records       []struct {
		Prefixed string          `json:"prefixed"`
		Bare     string          `json:"bare"`
		Headers  [][2]string     `json:"headers"`
		Row      json.RawMessage `json:"row"`
	} `json:"records"`
}

// serve is a registry that holds one schema and its reference.
func (g *golden) serve(t *testing.T, kind string) *registry.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/schemas/ids/" + strconv.Itoa(g.ID), "/schemas/guids/" + g.GUID:
			_ = json.NewEncoder(w).Encode(map[string]any{"schema": g.Schema, "schemaType": kind, "references": []any{
				map[string]any{"name": g.ReferenceName, "subject": "reference", "version": 1},
			}})
		case "/subjects/reference/versions/1":
			_ = json.NewEncoder(w).Encode(map[string]any{"schema": g.Reference, "schemaType": kind})
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	c, err := registry.New(registry.Config{URLs: []string{server.URL}})
	require.NoError(t, err)
	return c
}

func exact(t *testing.T, text string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	return v
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// F1, F2, F4, F9: frames made by confluent-kafka, in the prefix form and in the header form with a GUID, with a schema
// that refers to another one, have the values that the producer meant.
func TestGoldenFramesOfOtherFormats(t *testing.T) {
	raw, err := os.ReadFile("testdata/golden_formats.json")
	require.NoError(t, err)
	var all struct {
		Avro  golden `json:"avro"`
		Typed golden `json:"json_schema"`
	}
	require.NoError(t, json.Unmarshal(raw, &all))
	for name, c := range map[string]struct {
		golden *golden
		codec  Codec
	}{
		"avro":        {&all.Avro, NewAvro(all.Avro.serve(t, "AVRO"), Origin{}, avro.Options{})},
		"json_schema": {&all.Typed, NewJSONSchema(all.Typed.serve(t, "JSON"), Origin{}, jsonrec.Options{})},
	} {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, c.golden.Records)
			for _, r := range c.golden.Records {
				require.Equal(t, "__value_schema_id", r.Headers[0][0])
				for form, value := range map[string]string{"prefix": r.Prefixed, "header": r.Bare} {
					var header []byte
					if form == "header" {
						header = unhex(t, r.Headers[0][1])
					}
					f, err := c.codec.Split(unhex(t, value), header)
					require.NoError(t, err)
					src, err := c.codec.Source(t.Context(), &f)
					require.NoError(t, err)
					rows, target := rowsOf(t, src)
					require.NoError(t, rows.Append(f.Payload))
					got := map[string]any{}
					for i, a := range rows.Finish() {
						if b, ok := a.(*array.Binary); ok && !b.IsNull(0) {
							got[target.Columns[i].Name] = base64.StdEncoding.EncodeToString(b.Value(0)) // of an empty one Arrow makes null
						} else if !a.IsNull(0) {
							got[target.Columns[i].Name] = a.GetOneForMarshal(0)
						}
					}
					text, err := json.Marshal(got)
					require.NoError(t, err)
					require.Equal(t, exact(t, string(r.Row)), exact(t, string(text)), form)
				}
			}
		})
	}
}
