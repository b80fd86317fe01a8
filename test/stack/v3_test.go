package stack

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/stretchr/testify/require"
	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/variant"
	"github.com/icestream/icestream/services/committer"
)

const version3Text = `deployment: test
defaults: { commit: { interval: 1h }, format_version: 3, timestamp: nanos }
pipelines:
  - { name: events, topics: [events], table: shop.events, partition: "day(at)", sort: at }
  - { name: sensed, topics: [sensed], table: shop.sensed, format: avro }
  - { name: said, topics: [said], table: shop.said, format: json, columns: "at timestamptz_ns, here timestamp_ns" }
  - { name: plain, topics: [plain], table: shop.plain, format_version: 2, timestamp: micros }
`

const (
	eventProto = `syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message Event { string id = 1; google.protobuf.Timestamp at = 2; repeated google.protobuf.Timestamp more = 3; }`
	sensedAvro = `{"type":"record","name":"shop.Sensed","fields":[{"name":"at","type":{"type":"long","logicalType":"timestamp-nanos"}},
 {"name":"here","type":["null",{"type":"long","logicalType":"local-timestamp-nanos"}]},{"name":"coarse","type":{"type":"long","logicalType":"timestamp-micros"}}]}`
)

// event is a record of eventProto in the frame of its schema.
func event(schemaID uint32, id string, at time.Time, more ...time.Time) []byte {
	stamp := func(b []byte, field protowire.Number, t time.Time) []byte {
		v := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(t.Unix()))
		v = protowire.AppendVarint(protowire.AppendTag(v, 2, protowire.VarintType), uint64(t.Nanosecond()))
		return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
	}
	b := append(binary.BigEndian.AppendUint32([]byte{0}, schemaID), 0)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), id)
	b = stamp(b, 2, at)
	for _, t := range more {
		b = stamp(b, 3, t)
	}
	return b
}

// Tables of format version 3 with nanoseconds: the rows are the same while they are hot, in the files, in a union of
// both and after a restart; what nanoseconds do not reach is in quarantine by its name; the audit proves it; and a
// pipeline that does not ask for it has a table of version 2 with microseconds (G1, G3, G4, G8; issue 4 point 3).
func TestNanosecondsOnTablesOfFormatVersionThree(t *testing.T) {
	w := newWorld(t, version3Text)
	id, plain, sensed := w.register("events-value", eventProto), w.register("plain-value", eventProto), w.registerAs("AVRO", "sensed-value", sensedAvro)
	at := time.Date(2024, 2, 29, 12, 34, 56, 123456789, time.UTC)
	reading, err := avro.MustParse(sensedAvro).Encode(map[string]any{"at": at, "here": at.Add(1), "coarse": at})
	require.NoError(t, err)
	records := func(round int) map[string][][]byte {
		day := at.AddDate(0, 0, round)
		name := fmt.Sprint(round)
		return map[string][][]byte{
			"events": {
				event(id, "a"+name, day, at.Add(1), at.Add(-1)), event(id, "b"+name, day.Add(1)),
				event(id, "far"+name, time.Date(2262, 4, 11, 23, 47, 16, 854775808, time.UTC)),
			},
			"plain":  {event(plain, "a"+name, day)},
			"sensed": {prefixed(sensed, reading)},
			"said":   {[]byte(`{"at":"2024-02-29T12:34:56.123456789Z","here":"1969-12-31T23:59:59.999999999"}`), []byte(`{"at":"0001-01-01T00:00:00Z"}`)},
		}
	}
	want := func(round int) map[string][]string {
		day := at.AddDate(0, 0, round).Format("2006-01-02")
		return map[string][]string{
			"events": {
				fmt.Sprintf(`{"at":"%sT12:34:56.123456789Z","id":"a%d","more":["2024-02-29T12:34:56.12345679Z","2024-02-29T12:34:56.123456788Z"]}`, day, round),
				fmt.Sprintf(`{"at":"%sT12:34:56.12345679Z","id":"b%d","more":[]}`, day, round),
			},
			"plain":  {fmt.Sprintf(`{"at":"%sT12:34:56.123456Z","id":"a%d","more":[]}`, day, round)},
			"sensed": {`{"at":"2024-02-29T12:34:56.123456789Z","coarse":"2024-02-29T12:34:56.123456Z","here":"2024-02-29T12:34:56.12345679"}`},
			"said":   {`{"at":"2024-02-29T12:34:56.123456789Z","here":"1969-12-31T23:59:59.999999999"}`},
		}
	}
	cl := w.client()
	send := func(round int) {
		for topic, sent := range records(round) {
			for _, v := range sent {
				require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: v}).FirstErr())
			}
		}
	}
	topics := []string{"events", "plain", "sensed", "said"}
	for _, topic := range topics {
		require.NoError(t, w.kafka.EnsureTopic(topic, 1))
	}
	send(0)
	w.start()
	expected := map[string][]string{}
	for round := range 2 {
		if round > 0 {
			w.stop()
			w.start()
			send(round)
		}
		for topic, rows := range want(round) {
			w.eventually(func() error { // before any commit of theirs
				var hot []string
				if err := readHot(t.Context(), w.dial(discovery.Readstate), "shop."+topic, lines(&hot)); err != nil {
					return err
				}
				if strings.Join(hot, "\n") != strings.Join(rows, "\n") {
					return fmt.Errorf("hot rows of %s are %v, not %v", topic, hot, rows)
				}
				return nil
			})
			expected[topic] = append(expected[topic], rows...)
		}
		for _, topic := range topics {
			table := "shop." + topic
			w.settle(table, topic)
			var cold, both []string
			require.NoError(t, w.catalog.Scan(t.Context(), strings.Split(table, "."), lines(&cold)))
			require.ElementsMatch(t, expected[topic], cold, "files of %s", table)
			require.NoError(t, union(t.Context(), w.dial(discovery.Readstate), table, nil, lines(&both)))
			require.ElementsMatch(t, expected[topic], both, "union of %s", table)
			w.audit(table)
		}
	}
	for topic, version := range map[string]int{"events": 3, "sensed": 3, "said": 3, "plain": 2} {
		require.Equal(t, version, w.schemaOf("shop."+topic).FormatVersion, topic)
	}
	for topic, count := range map[string]int{"events": 2, "said": 2} {
		err := committer.ShowQuarantine(t.Context(), w.settings, "shop."+topic, committer.QuarantineFilter{}, 0, func(r committer.QuarantinedRecord) error {
			count--
			require.Equal(t, "invalid_timestamp_range", r.Reason)
			require.Contains(t, r.Error, "2262-04-11")
			return nil
		})
		require.NoError(t, err)
		require.Zero(t, count, "quarantined records of %s", topic)
	}
}

// format_version is for new tables: a table of version 2 refuses nanoseconds, by name and with the way out, and nothing
// is acknowledged; without the option the same records land (G10).
func TestATableOfVersionTwoRefusesNanoseconds(t *testing.T) {
	const text = "deployment: test\ndefaults: { commit: { interval: 1s } }\npipelines:\n  - { name: visits, topics: [visits], table: shop.visits"
	w := newWorld(t, text+", format_version: 3, timestamp: nanos }\n")
	w.visitsTable()
	id := w.register("visits-value", strings.ReplaceAll(eventProto, " at ", " seen "))
	require.NoError(t, w.kafka.EnsureTopic("visits", 1))
	w.send(w.client(), 0, event(id, "late", time.Unix(5, 6)))
	w.start()
	w.red(discovery.Ingest, "format version 2", "timestamptz_ns", "format version 3")
	report := w.planVisits()
	require.True(t, report.Breaking())
	w.stop()
	w.configure(text + " }\n")
	w.start()
	w.settle("shop.visits", "visits")
	w.audit("shop.visits")
}

const (
	freeV1 = `syntax = "proto3"; package shop; message Free { string id = 1; }`
	freeV2 = `syntax = "proto3"; package shop; import "google/protobuf/struct.proto";
message Free { string id = 1; google.protobuf.Struct free = 2; Free self = 3; repeated google.protobuf.Value list = 4; }`
)

func (w *world) freeRecord(schemaID uint32, id string, free map[string]any) []byte {
	w.t.Helper()
	b := append(binary.BigEndian.AppendUint32([]byte{0}, schemaID), 0)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), id)
	if free == nil {
		return b
	}
	s, err := structpb.NewStruct(free)
	require.NoError(w.t, err)
	raw, err := proto.Marshal(s)
	require.NoError(w.t, err)
	b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), raw)
	inner := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "in "+id)
	b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), inner)
	v, err := proto.Marshal(structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewNullValue(), structpb.NewStringValue(id)}}))
	require.NoError(w.t, err)
	return protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), v)
}

// isNull tells a null from the variant null, which Arrow's variants do not.
func isNull(a arrow.Array, row int) bool {
	if v, ok := a.(*extensions.VariantArray); ok {
		a = v.Storage()
	}
	return a.IsNull(row)
}

// shown is a value as JSON; variants, as files and as our batches have them, are what they hold.
func shown(a arrow.Array, row int) (any, error) {
	if isNull(a, row) {
		return nil, nil
	}
	text := func(metadata, value []byte) (any, error) {
		out, err := variant.JSON(nil, metadata, value)
		return json.RawMessage(out), err
	}
	switch a := a.(type) {
	case *extensions.VariantArray:
		parts := a.Storage().(*array.Struct)
		at := func(name string) []byte {
			i, _ := parts.DataType().(*arrow.StructType).FieldIdx(name)
			return parts.Field(i).(*array.Binary).Value(row)
		}
		return text(at(schema.VariantMetadata), at(schema.VariantValue))
	case *array.Struct:
		if t := a.DataType().(*arrow.StructType); t.NumFields() == 2 && t.Field(0).Name == schema.VariantMetadata {
			return text(a.Field(0).(*array.Binary).Value(row), a.Field(1).(*array.Binary).Value(row))
		}
	case *array.List:
		from, to := a.ValueOffsets(row)
		out := []any{}
		for i := int(from); i < int(to); i++ {
			v, err := shown(a.ListValues(), i)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	}
	return a.GetOneForMarshal(row), nil
}

// values are rows as JSON without the metadata columns and without nulls.
func values(out *[]string) func(arrow.RecordBatch) error {
	return func(rec arrow.RecordBatch) error {
		for i := range int(rec.NumRows()) {
			row := map[string]any{}
			for c, f := range rec.Schema().Fields() {
				if f.Name == "_lsn" || f.Name == "_kafka" || isNull(rec.Column(c), i) {
					continue
				}
				v, err := shown(rec.Column(c), i)
				if err != nil {
					return err
				}
				row[f.Name] = v
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

// What has no fixed columns is a variant by option: columns added to a table that has rows, the same values while they
// are hot, in the files, in a union of both, and after a restart; the audit proves it (G1, G3, G4, G10; issue 4 point 3).
func TestVariantsOnTablesOfFormatVersionThree(t *testing.T) {
	w := newWorld(t, "deployment: test\ndefaults: { commit: { interval: 1h }, format_version: 3, json: variant }\npipelines:\n"+
		"  - { name: free, topics: [free], table: shop.free }\n  - { name: text, topics: [text], table: shop.text, format: json }\n")
	v1 := w.register("free-value", freeV1)
	v2 := w.register("free-value", freeV2)
	for _, topic := range []string{"free", "text"} {
		require.NoError(t, w.kafka.EnsureTopic(topic, 1))
	}
	cl := w.client()
	send := func(topic string, records ...[]byte) {
		t.Helper()
		for _, v := range records {
			require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: v}).FirstErr())
		}
	}
	send("free", w.freeRecord(v1, "old", nil))
	w.start()
	w.settle("shop.free", "free")
	require.Nil(t, w.schemaOf("shop.free").Schema.Column("free"))

	expected := map[string][]string{"free": {`{"id":"old"}`}}
	wide := map[string]any{"n": -1.5, "big": 1e100, "deep": []any{map[string]any{"x": nil, "ok": true}}, "": "grüße"}
	for round := range 2 {
		if round > 0 {
			w.stop()
			w.start()
		}
		id := fmt.Sprint("r", round)
		send("free", w.freeRecord(v2, id, wide), w.freeRecord(v1, "older "+id, nil), w.freeRecord(v2, "e"+id, map[string]any{}))
		send("text", []byte(` {"a": [1, 2.50, "x"]} `), []byte(`{"a":1,"a":2}`), []byte(`null`))
		hot := map[string][]string{
			"free": {
				fmt.Sprintf(`{"free":{"":"grüße","big":1e+100,"deep":[{"ok":true,"x":null}],"n":-1.5},"id":"%s","list":["[null,\"%s\"]"],"self":{"id":"in %s"}}`, id, id, id),
				fmt.Sprintf(`{"id":"older %s"%s}`, id, []string{"", `,"list":[]`}[round]), // agreed on before, and after the list was known
				fmt.Sprintf(`{"free":{},"id":"e%s","list":["[null,\"e%s\"]"],"self":{"id":"in e%s"}}`, id, id, id),
			},
			"text": {`{"value":{"a":[1,2.50,"x"]}}`, `{"value":null}`},
		}
		for topic, rows := range hot {
			w.eventually(func() error {
				var got []string
				if err := readHot(t.Context(), w.dial(discovery.Readstate), "shop."+topic, values(&got)); err != nil {
					return err
				}
				if strings.Join(got, "\n") != strings.Join(rows, "\n") {
					return fmt.Errorf("hot rows of %s are %v, not %v", topic, got, rows)
				}
				return nil
			})
			expected[topic] = append(expected[topic], rows...)
		}
		for topic := range hot {
			table := "shop." + topic
			w.settle(table, topic)
			var cold, both []string
			require.NoError(t, w.catalog.Scan(t.Context(), strings.Split(table, "."), values(&cold)))
			require.ElementsMatch(t, expected[topic], cold, "files of %s", table)
			require.NoError(t, union(t.Context(), w.dial(discovery.Readstate), table, nil, values(&both)))
			require.ElementsMatch(t, expected[topic], both, "union of %s", table)
			w.audit(table)
		}
	}
	require.Equal(t, "variant", w.schemaOf("shop.free").Schema.Column("free").Type.String())
	bad := 0
	require.NoError(t, committer.ShowQuarantine(t.Context(), w.settings, "shop.text", committer.QuarantineFilter{}, 0, func(r committer.QuarantinedRecord) error {
		bad++
		require.Equal(t, "duplicate_key", r.Reason)
		return nil
	}))
	require.Equal(t, 2, bad)
}
