package proto

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// golden is what another producer library made of the all-types message, and what it
// meant: test/e2e/peers/all_types.py says how.
type golden struct {
	ID      int32  `json:"id"`
	GUID    string `json:"guid"`
	Schema  string `json:"schema"` // as the serializer registered it: a descriptor in base64
	Text    string `json:"text"`   // the source
	Records []struct {
		Prefixed string            `json:"prefixed"` // value in the prefix form
		Bare     string            `json:"bare"`     // value in the header form
		Headers  [][2]string       `json:"headers"`
		Row      map[string]string `json:"row"` // canonical text of each column
	} `json:"records"`
	Paths []struct {
		Message  string `json:"message"`
		Prefixed string `json:"prefixed"`
	} `json:"paths"`
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// F1, F2, F4, F10, P1, P2, P4, P7, P8, P10, P11, P13, P14, P16, P17: frames made by
// confluent-kafka for a message with every kind of field in every shape, in the prefix
// form and in the header form with a GUID, have the values that the producer meant,
// whether its schema is source or a serialized descriptor.
func TestGoldenFramesOfAnotherProducer(t *testing.T) {
	raw, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(raw, &g))
	for form, text := range map[string]string{"descriptor": g.Schema, "source": g.Text} {
		t.Run(form, func(t *testing.T) { g.check(t, text) })
	}
}

func (g *golden) check(t *testing.T, text string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != fmt.Sprintf("/schemas/ids/%d", g.ID) && r.URL.Path != "/schemas/guids/"+g.GUID {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"schemaType": "PROTOBUF", "schema": text})
	}))
	t.Cleanup(server.Close)
	client, err := registry.New(registry.Config{URLs: []string{server.URL}})
	require.NoError(t, err)
	find := func(value, header []byte) (string, *table, []byte) {
		f, err := frame.Parse(value, header, true)
		require.NoError(t, err)
		s, err := client.Schema(t.Context(), registry.Ref{ID: f.ID, GUID: f.GUID, ByGUID: f.Form == frame.HeaderGUID})
		require.NoError(t, err)
		md, err := s.Message(f.Path())
		require.NoError(t, err)
		return string(md.FullName()), newTableFor(t, md, targetOf(t, md, Options{}), Options{}), f.Payload
	}
	for _, p := range g.Paths {
		name, _, _ := find(unhex(t, p.Prefixed), nil)
		require.Equal(t, p.Message, name)
	}
	for i, r := range g.Records {
		require.Equal(t, frame.HeaderName, r.Headers[0][0])
		for _, form := range [][2][]byte{{unhex(t, r.Prefixed), nil}, {unhex(t, r.Bare), unhex(t, r.Headers[0][1])}} {
			name, tb, payload := find(form[0], form[1])
			require.Equal(t, "testbed.all.v1.All", name)
			require.NoError(t, tb.batch.Append(payload), "record %d", i)
			row := tb.rows()[0]
			require.Len(t, row, len(r.Row))
			for column, want := range r.Row {
				require.Equal(t, want, canonical(row[column]), "record %d, column %s", i, column)
			}
		}
	}
}

// canonical is the text of a value that all_types.py writes for it.
func canonical(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case *big.Int:
		return v.String()
	case time.Time:
		return strconv.FormatInt(v.UnixMicro(), 10)
	case float32:
		return canonical(float64(v))
	case float64:
		if math.IsNaN(v) {
			return "nan"
		}
		return fmt.Sprintf("%016x", math.Float64bits(v))
	case []byte:
		return "x" + hex.EncodeToString(v)
	case string:
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(v) // a string can always be encoded
		return strings.TrimSuffix(b.String(), "\n")
	case []any:
		var parts []string
		for _, x := range v {
			parts = append(parts, canonical(x))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case map[any]any:
		var parts []string
		for k, x := range v {
			parts = append(parts, canonicalKey(k)+"="+canonical(x))
		}
		slices.Sort(parts)
		return "[" + strings.Join(parts, ",") + "]"
	case fields:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, k+":"+canonical(v[k]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	default:
		panic(fmt.Sprintf("no text for a %T", v))
	}
}

// canonicalKey undoes what key does to unsigned 64-bit keys: no string key of the
// golden records is a number.
func canonicalKey(k any) string {
	if s, is := k.(string); is {
		if _, isNumber := new(big.Int).SetString(s, 10); isNumber {
			return s
		}
	}
	return canonical(k)
}
