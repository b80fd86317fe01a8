package stack

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protowire"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer"
	"github.com/icestream/icestream/services/ingest"
)

const visitsText = `deployment: test
defaults: { commit: { interval: 1s } }
pipelines:
  - { name: visits, topics: [visits], table: shop.visits, on_rename: rename }
`

const (
	visitV1 = `syntax = "proto3"; package shop;
message Visit { string id = 1; int64 units = 2; Detail detail = 3; }
message Detail { string x = 1; int32 y = 2; string z = 3; }`
	visitV2 = `syntax = "proto3"; package shop;
message Visit { string key = 1; int64 units = 2; Detail detail = 3; string who = 4; }
message Detail { string x = 1; int32 y = 2; string z = 3; string more = 4; }`
)

// visitsTable is a table as another tool makes it: required columns, and types that no decoder of ours gives.
func (w *world) visitsTable() {
	w.t.Helper()
	ctx := w.t.Context()
	cat, err := rest.NewCatalog(ctx, "other", "http://"+local(w.ports.catalog))
	require.NoError(w.t, err)
	require.NoError(w.t, cat.CreateNamespace(ctx, []string{"shop"}, nil))
	p := iceberg.PrimitiveTypes
	tbl, err := cat.CreateTable(ctx, []string{"shop", "visits"}, iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "id", Type: p.String, Required: true},
		iceberg.NestedField{ID: 2, Name: "units", Type: p.Int32, Required: true},
		iceberg.NestedField{ID: 3, Name: "who", Type: p.UUID},
		iceberg.NestedField{ID: 4, Name: "at", Type: p.Time, Required: true},
		iceberg.NestedField{ID: 5, Name: "code", Type: iceberg.FixedTypeOf(4)},
		iceberg.NestedField{ID: 6, Name: "ts", Type: p.Timestamp},
		iceberg.NestedField{ID: 7, Name: "price", Type: iceberg.DecimalTypeOf(12, 2)},
		iceberg.NestedField{ID: 8, Name: "detail", Type: &iceberg.StructType{FieldList: []iceberg.NestedField{
			{ID: 9, Name: "x", Type: p.String, Required: true}, {ID: 10, Name: "y", Type: p.Int64},
		}}},
	))
	require.NoError(w.t, err)
	sch, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
	require.NoError(w.t, err)
	b := array.NewRecordBuilder(memory.DefaultAllocator, sch)
	require.NoError(w.t, b.UnmarshalJSON([]byte(`{"id":"theirs","units":5,"at":"10:11:12","price":"7.50","detail":{"x":"x","y":7}}`)))
	rec := b.NewRecordBatch()
	rd, err := array.NewRecordReader(sch, []arrow.RecordBatch{rec})
	require.NoError(w.t, err)
	_, err = tbl.Append(ctx, rd, nil)
	require.NoError(w.t, err)
}

// visit is a record in the frame of a schema.
func visit(schemaID uint32, id string, units uint64, who string) []byte {
	detail := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "x")
	b := append(binary.BigEndian.AppendUint32([]byte{0}, schemaID), 0)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), id)
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), units)
	b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), detail)
	if who != "" {
		b = protowire.AppendString(protowire.AppendTag(b, 4, protowire.BytesType), who)
	}
	return b
}

func (w *world) send(cl *kgo.Client, partition int32, values ...[]byte) {
	w.t.Helper()
	for _, v := range values {
		require.NoError(w.t, cl.ProduceSync(w.t.Context(), &kgo.Record{Topic: "visits", Partition: partition, Value: v}).FirstErr())
	}
}

// visits are the rows that a reader sees, id to the columns named.
func (w *world) visits(columns ...string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	out := map[string]string{}
	err := union(ctx, w.dial(discovery.Readstate), "shop.visits", nil, func(rec arrow.RecordBatch) error {
		for i := range int(rec.NumRows()) {
			id, line := "", ""
			for c, f := range rec.Schema().Fields() {
				for _, name := range columns {
					if f.Name == name {
						line += name + "=" + rec.Column(c).ValueStr(i) + " "
					}
				}
				if f.Name == "id" || f.Name == "key" {
					id = rec.Column(c).ValueStr(i)
				}
			}
			if _, twice := out[id]; twice {
				return fmt.Errorf("row %s twice", id)
			}
			out[id] = line
		}
		return nil
	})
	return out, err
}

func (w *world) schemaOf(name string) *committer.TableSchema {
	w.t.Helper()
	s, err := committer.ReadSchema(w.t.Context(), w.settings, name, w.log)
	require.NoError(w.t, err)
	return s
}

func (w *world) planVisits() *ingest.PlanReport {
	w.t.Helper()
	r, err := ingest.Plan(w.t.Context(), w.settings, ingest.PlanOptions{Sample: 100, Table: func(ctx context.Context, pipeline, name string) (ingest.PlanTable, error) {
		s, err := committer.ReadSchema(ctx, w.settings, name, w.log)
		if err != nil {
			return ingest.PlanTable{}, err
		}
		return ingest.PlanTable{
			Exists: true, Schema: s.Schema, Numbers: s.Numbers[pipeline], Decisions: s.Decisions[pipeline], Newest: s.Newest[pipeline], Pinned: s.Pinned,
			FormatVersion: s.FormatVersion,
		}, nil
	}})
	require.NoError(w.t, err)
	require.Empty(w.t, r.Unknown)
	return r
}

// A table that another tool made keeps its types; a schema that does not fit stops only the partition that brings it,
// until an operator decides; the decision outlives every service; all rows land once, old and new writers interleaved
// (G1, G9, G10; cases S4, S5, S10; issue 4 points 7 and 8).
func TestATableOfAnotherToolKeepsItsTypesWhileSchemasChange(t *testing.T) {
	w := newWorld(t, visitsText)
	w.visitsTable()
	require.NoError(t, w.kafka.EnsureTopic("visits", 2))
	cl := w.client()
	v1 := w.register("visits-value", visitV1)
	w.send(cl, 0, visit(v1, "a0", 1, ""), visit(v1, "a1", 1<<40, ""))
	w.send(cl, 1, visit(v1, "b0", 3, ""))
	w.start()
	w.settle("shop.visits", "visits")
	s := w.schemaOf("shop.visits")
	types := map[string]string{}
	s.Schema.Walk(func(path string, n *schema.Node) { types[path] = n.Type.String(); require.False(t, n.Required, path) })
	for path, want := range map[string]string{
		"id": "string", "units": "long", "who": "uuid", "at": "time", "code": "fixed[4]", "ts": "timestamp", "price": "decimal(12,2)",
		"detail.x": "string", "detail.y": "long", "detail.z": "string",
	} {
		require.Equal(t, want, types[path], path)
	}
	require.EqualValues(t, 2, s.Schema.Column("units").FieldID)

	v2 := w.register("visits-value", visitV2)
	w.send(cl, 1, visit(v1, "b1", 4, ""), visit(v2, "b2", 5, "me"), visit(v1, "b3", 6, ""), visit(v2, "b4", 7, "you"))
	r := w.planVisits()
	require.Equal(t, run.Violated, r.Code())
	require.EqualValues(t, 2, r.Samples[1].Waiting)
	w.said(discovery.Ingest, "ingest/pipeline/visits", "column who (field 4) is uuid in the table and string in the source", "icestream schema accept")
	w.send(cl, 0, visit(v1, "a2", 8, ""))
	w.eventually(func() error {
		rows, err := w.visits("units")
		if err == nil && (rows["a2"] == "" || rows["b1"] == "" || rows["b2"] != "" || rows["b3"] != "") {
			err = fmt.Errorf("rows %v", rows)
		}
		return err
	})

	admin := committerv1.NewAdminServiceClient(w.dial(discovery.Committer))
	waiting, err := admin.ListSchemaRefusals(t.Context(), &committerv1.ListSchemaRefusalsRequest{Table: "shop.visits"})
	require.NoError(t, err)
	require.Len(t, waiting.GetRefused(), 1)
	require.Equal(t, "4", waiting.GetRefused()[0].GetRefusals()[0].GetField())
	w.stop(discovery.Ingest) // whoever waits need not run
	decide := &committerv1.DecideSchemaRequest{Table: "shop.visits", Action: committerv1.SchemaAction_SCHEMA_ACTION_ACCEPT, Column: "who"}
	d, err := admin.DecideSchema(t.Context(), decide)
	require.NoError(t, err)
	require.Len(t, d.GetDecisions(), 1)
	require.False(t, d.GetAlready())
	w.restart(discovery.Committer)
	w.restart(discovery.Buffer)
	w.start(discovery.Ingest)
	w.ready()
	w.settle("shop.visits", "visits")
	w.eventually(func() error {
		d, err = committerv1.NewAdminServiceClient(w.dial(discovery.Committer)).DecideSchema(t.Context(), decide)
		return err
	})
	require.True(t, d.GetAlready(), "remembered by the table")

	s = w.schemaOf("shop.visits")
	require.EqualValues(t, 1, s.Schema.Column("key").FieldID, "renamed, and the same column")
	require.Equal(t, schema.UUID, s.Schema.Column("who").Type.Kind)
	require.Equal(t, schema.String, s.Schema.Column("who_2").Type.Kind)
	require.NotNil(t, s.Schema.Column("detail").Kid("more"))
	var causes []string
	for _, c := range s.History {
		causes = append(causes, c.Cause)
	}
	require.Equal(t, "the table was made", causes[0])
	require.Contains(t, causes, fmt.Sprintf("schema id %d, message shop.Visit", v2))
	rows := map[string]string{}
	w.eventually(func() (err error) {
		rows, err = w.visits("units", "who_2", "price")
		return err
	})
	require.ElementsMatch(t, []string{"theirs", "a0", "a1", "a2", "b0", "b1", "b2", "b3", "b4"}, keys(rows))
	require.Equal(t, "units=1099511627776 price=(null) who_2=(null) ", rows["a1"])
	require.Equal(t, "units=5 price=(null) who_2=me ", rows["b2"])
	require.Equal(t, "units=6 price=(null) who_2=(null) ", rows["b3"])
	require.Contains(t, rows["theirs"], "units=5 price=7.5")
	require.Equal(t, run.OK, w.planVisits().Code())
	w.audit("shop.visits")
	_, err = committer.ReadSchema(t.Context(), w.settings, "shop.nothing", w.log)
	require.True(t, committer.Missing(err))
	require.Equal(t, fault.UnknownTable, fault.ReasonOf(err))
}

func keys(m map[string]string) []string {
	var out []string
	for k := range maps.Keys(m) {
		out = append(out, k)
	}
	return out
}
