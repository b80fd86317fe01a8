package lake

import (
	"fmt"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
)

func TestDecisionsAreRememberedWithTheTable(t *testing.T) { // issue 4 point 7
	b := newBench(t, Settings{})
	at := time.UnixMilli(1_700_000_000_000).UTC()
	d := schema.Decision{Action: schema.Accept, Field: "1", Source: "schema id 7", Column: "id", TableType: "long", SourceType: "string", At: at}
	e := b.Head().Evolution.With(Evolved{At: at, Pipeline: "p", Decision: d.String()})
	e.Decisions["p"] = []schema.Decision{d}
	e.Newest["p"] = 9
	c := b.change(KindSchema)
	c.Evolution = &e
	b.commit(c)
	again, err := b.lake.Load(t.Context(), tableName)
	require.NoError(t, err)
	require.Equal(t, e, again.Head().Evolution)
	require.Equal(t, b.Head().SchemaID, again.Head().SchemaID, "a decision alone changes no schema")
	b.commitRows(part(0), 3)
	require.Equal(t, e, b.reload().Evolution, "other commits carry it")
}

func TestTheLogOfChangesIsBounded(t *testing.T) {
	var e Evolution
	for i := range maxLog + 5 {
		e = e.With(Evolved{SchemaID: int32(i)})
	}
	require.Len(t, e.Log, maxLog)
	require.Equal(t, int32(maxLog+4), e.Log[maxLog-1].SchemaID)
	wide := Evolution{}.With(Evolved{Changes: make([]string, maxLines+7)})
	require.Len(t, wide.Log[0].Changes, maxLines+1)
	require.Equal(t, "and 7 more", wide.Log[0].Changes[maxLines])
	v, err := encodeEvolution(e)
	require.NoError(t, err)
	back, err := decodeEvolution(v)
	require.NoError(t, err)
	require.Len(t, back.Log, maxLog)
	_, err = decodeEvolution("{")
	require.ErrorContains(t, err, propertyEvolution)
}

func TestPastSchemasSayWhoseSnapshotBroughtThem(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 2)
	b.other().do(func(tx *table.Transaction) error {
		return tx.UpdateSchema(true, false).AddColumn([]string{"theirs"}, iceberg.PrimitiveTypes.String, "", false, nil).Commit()
	})
	b.reload()
	past := b.Schemas(t.Context())
	require.Len(t, past, 3, "made, ours, theirs")
	require.True(t, past[1].Ours)
	require.NotZero(t, past[1].SnapshotID)
	require.False(t, past[2].Ours)
	require.True(t, past[2].Current)
	require.NotNil(t, past[2].Schema.Column("theirs"))
}

// A table of another tool whose current schema is not its newest one, and whose rows have an identity.
func TestASchemaChangeKeepsWhatOtherToolsSaid(t *testing.T) { // S7
	l := newLake(t, t.TempDir())
	columns := &schema.Schema{Columns: columns()}
	for _, name := range []string{"pk", "pk2"} {
		columns.Columns = append(columns.Columns, &schema.Node{Name: name, Type: schema.Of(schema.Long), Required: true})
	}
	columns.AssignIDs()
	require.NoError(t, l.create(t.Context(), tableName, columns, nil))
	tbl, err := l.Load(t.Context(), tableName)
	require.NoError(t, err)
	b := &bench{TB: t, lake: l, Table: tbl}
	b.other().do(func(tx *table.Transaction) error {
		return tx.UpdateSchema(true, false).SetIdentifierField([][]string{{"pk"}, {"pk2"}}).Commit()
	})
	b.reload()
	require.Len(t, b.handle().Schema().IdentifierFieldIDs, 2)
	sch := b.Head().Schema.Clone()
	sch.Column("pk2").Required = false
	c := b.change(KindSchema)
	c.Schema = sch
	b.commit(c)
	pk := int(b.Head().Schema.Column("pk").FieldID)
	require.Equal(t, []int{pk}, b.handle().Schema().IdentifierFieldIDs, "only what must be there names a row")

	ids := map[int]bool{}
	for i := range 3 {
		sch = b.Head().Schema.Clone()
		sch.Columns = append(sch.Columns, &schema.Node{Name: fmt.Sprintf("c%d", i), Type: schema.Of(schema.Int)})
		sch.AssignIDs()
		c = b.change(KindSchema)
		c.Schema = sch
		b.commit(c)
		require.False(t, ids[int(b.Head().SchemaID)])
		ids[int(b.Head().SchemaID)] = true
	}
}
