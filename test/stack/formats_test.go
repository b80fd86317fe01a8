package stack

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/big"
	"net/http"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/stretchr/testify/require"
	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/discovery"
)

const formatsText = `deployment: test
defaults: { commit: { interval: 1s }, tombstones: row, key: string }
pipelines:
  - { name: avro, topics: [avro], table: shop.avro, format: avro, key: decode }
  - { name: typed, topics: [typed], table: shop.typed, format: json_schema }
  - { name: declared, topics: [declared], table: shop.declared, format: json, columns: "id long, at timestamptz, lines list<struct<sku string, n int>>, extra json" }
  - { name: text, topics: [text], table: shop.text, format: json, key: raw }
  - { name: plain, topics: [plain], table: shop.plain, format: string, key: none }
`

const (
	avroVisit = `{"type":"record","name":"shop.Visit","fields":[
 {"name":"id","type":"string"},{"name":"n","type":["null","long"]},{"name":"amount","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}},
 {"name":"at","type":{"type":"long","logicalType":"timestamp-millis"}},{"name":"day","type":{"type":"int","logicalType":"date"}},
 {"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","DONE"]}},{"name":"tags","type":{"type":"map","values":"int"}},
 {"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":[{"name":"sku","type":"string"},{"name":"raw","type":{"type":"fixed","name":"Raw","size":2}}]}}},
 {"name":"either","type":["null","string","double","Line"]},{"name":"tree","type":["null",{"type":"record","name":"Node","fields":[{"name":"v","type":"int"},{"name":"next","type":["null","Node"]}]}]}]}`
	avroVisitKey = `{"type":"record","name":"shop.VisitKey","fields":[{"name":"shop","type":"int"}]}`
	jsonVisit    = `{"type":"object","properties":{"id":{"type":"string"},"n":{"type":"integer"},"at":{"type":"string","format":"date-time"},
 "tags":{"type":"object","additionalProperties":{"type":"number"}},"free":{},"inner":{"type":"object","properties":{"ok":{"type":"boolean"}}}}}`
)

// registerAs puts a schema of any kind under a subject.
func (w *world) registerAs(kind, subject, text string) uint32 {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"schemaType": kind, "schema": text})
	require.NoError(w.t, err)
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "http://"+local(w.ports.registry)+"/subjects/"+subject+"/versions", bytes.NewReader(body))
	require.NoError(w.t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(w.t, err)
	defer func() { _ = res.Body.Close() }()
	var answer struct {
		ID      uint32 `json:"id"`
		Message string `json:"message"`
	}
	require.NoError(w.t, json.NewDecoder(res.Body).Decode(&answer))
	require.Equal(w.t, http.StatusOK, res.StatusCode, answer.Message)
	return answer.ID
}

func prefixed(id uint32, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, id), payload...)
}

// lines are rows as JSON without the metadata columns.
func lines(out *[]string) func(arrow.RecordBatch) error {
	return func(rec arrow.RecordBatch) error {
		for i := range int(rec.NumRows()) {
			row := map[string]any{}
			for c, f := range rec.Schema().Fields() {
				if f.Name != "_lsn" && f.Name != "_kafka" && !rec.Column(c).IsNull(i) {
					row[f.Name] = rec.Column(c).GetOneForMarshal(i)
				}
			}
			text, err := json.Marshal(row)
			if err != nil {
				return err
			}
			*out = append(*out, string(text))
		}
		return nil
	}
}

// Records of every format but Protobuf, their keys and tombstones become rows that the files and a union read show
// alike, bad ones are in quarantine, and the audit proves it (G1, G4, G8; issue 4 points 1, 6 and 10).
func TestEveryFormatBecomesRows(t *testing.T) {
	w := newWorld(t, formatsText)
	value, key := w.registerAs("AVRO", "avro-value", avroVisit), w.registerAs("AVRO", "avro-key", avroVisitKey)
	typed := w.registerAs("JSON", "typed-value", jsonVisit)
	visit, err := avro.MustParse(avroVisit).Encode(map[string]any{
		"id": "a", "n": int64(7), "amount": big.NewRat(25, 2), "at": int64(1_700_000_000_123), "day": int32(19782), "state": "DONE",
		"tags": map[string]any{"x": int32(1)}, "lines": []any{map[string]any{"sku": "s", "raw": []byte{1, 2}}}, "either": 1.5,
		"tree": map[string]any{"v": int32(1), "next": map[string]any{"v": int32(2), "next": nil}},
	})
	require.NoError(t, err)
	topics := map[string][]*kgo.Record{
		"avro": {
			{Key: prefixed(key, []byte{8}), Value: prefixed(value, visit)}, {Key: prefixed(key, []byte{10})}, {Value: prefixed(value, visit[:5])},
		},
		"typed": {
			{Key: []byte("k"), Value: prefixed(typed, []byte(`{"id":"j","n":9007199254740993,"at":"2024-02-29T12:34:56.5+01:00","tags":{"t":0.5},"free":[1,{"a":null}],"inner":{"ok":true}}`))},
			{Key: []byte("k"), Value: prefixed(typed, []byte(`{"n":1.5}`))},
		},
		"declared": {{Key: []byte("k"), Value: []byte(`{"id":1,"at":"2024-02-29T12:34:56Z","lines":[{"sku":"a","n":2}],"extra":{"x": 1},"more":2}`)}},
		"text":     {{Key: []byte{0xff}, Value: []byte(` {"a": 1}`)}, {Value: []byte(`{`)}},
		"plain":    {{Value: []byte("grüße")}, {Value: []byte{0xff}}},
	}
	cl := w.client()
	for topic, records := range topics {
		require.NoError(t, w.kafka.EnsureTopic(topic, 1))
		for _, r := range records {
			r.Topic = topic
		}
		require.NoError(t, cl.ProduceSync(t.Context(), records...).FirstErr())
	}
	w.start()
	want := map[string][]string{
		"avro": {
			`{"_key":{"shop":4},"amount":"12.5","at":"2023-11-14T22:13:20.123Z","day":"2024-02-29","either":{"Line":null,"double":1.5,"string":null},"id":"a","lines":[{"raw":"AQI=","sku":"s"}],"n":7,"state":"DONE","tags":[{"key":"x","value":1}],"tree":{"next":"{\"v\":2,\"next\":null}","v":1}}`,
			`{"_key":{"shop":5},"lines":[],"tags":[]}`,
		},
		"typed":    {`{"_key":"k","at":"2024-02-29T11:34:56.5Z","free":"[1,{\"a\":null}]","id":"j","inner":{"ok":true},"n":9007199254740993,"tags":[{"key":"t","value":0.5}]}`},
		"declared": {`{"_key":"k","at":"2024-02-29T12:34:56Z","extra":"{\"x\": 1}","id":1,"lines":[{"n":2,"sku":"a"}]}`},
		"text":     {`{"_key":"/w==","value":"{\"a\": 1}"}`},
		"plain":    {`{"value":"grüße"}`},
	}
	for topic, rows := range want {
		table := "shop." + topic
		w.settle(table, topic)
		var cold, both []string
		require.NoError(t, w.catalog.Scan(t.Context(), strings.Split(table, "."), lines(&cold)))
		require.Equal(t, rows, cold, "files of %s", table)
		w.replicated(table)
		require.NoError(t, union(t.Context(), w.dial(discovery.Readstate), table, nil, lines(&both)))
		require.Equal(t, rows, both, "union of %s", table)
		w.audit(table)
	}
}
