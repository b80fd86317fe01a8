package cold

import (
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/schema"
)

// typed gives variants at top level the type that another writer has for them.
func typed(t *testing.T, s *arrow.Schema) *arrow.Schema {
	t.Helper()
	fields := s.Fields()
	changed := false
	for i, f := range fields {
		if schema.IsVariant(f) {
			v, err := extensions.NewVariantType(f.Type)
			require.NoError(t, err)
			fields[i].Type, changed = v, true
		}
	}
	if !changed {
		return s
	}
	return arrow.NewSchema(fields, nil)
}

// variantOf appends the offset of a row as a variant; that of every third row is null.
func variantOf(b *array.StructBuilder, r row) {
	if r.offset%3 == 2 {
		b.AppendNull()
		return
	}
	b.Append(true)
	b.FieldBuilder(0).(*array.BinaryBuilder).Append([]byte{1, 0, 0})
	b.FieldBuilder(1).(*array.BinaryBuilder).Append([]byte{3 << 2, byte(r.offset)})
}

// G3: nanoseconds and variants of a table of format version 3 come back as they were, through scans with and without
// bounds, windows and projections, in the shape that hot rows have.
func TestTypesOfFormatVersionThreeAreRead(t *testing.T) {
	w := newWarehouseOf(t, "3",
		&schema.Node{Name: "at", Type: schema.Of(schema.TimestampTZNano)}, &schema.Node{Name: "v", Type: schema.Of(schema.Variant)})
	require.Equal(t, "variant", w.sch.Column("v").Type.String())
	w.append(w.ours(), rows(0, 0, 5)...)
	snap := w.append(w.ours(), append(rows(0, 5, 12), rows(1, 0, 4)...)...)
	l := New(Config{}, nil)
	seen := 0
	check := func(rec arrow.RecordBatch) {
		t.Helper()
		require.True(t, rec.Schema().Field(rec.Schema().FieldIndices("v")[0]).Equal(w.sch.Column("v").ArrowField()), "as in a hot batch")
		at := rec.Column(rec.Schema().FieldIndices("at")[0]).(*array.Timestamp)
		v := rec.Column(rec.Schema().FieldIndices("v")[0]).(*array.Struct)
		p, err := positionOf(rec)
		require.NoError(t, err)
		for i := range int(rec.NumRows()) {
			o := p.offset.Value(i)
			require.EqualValues(t, o*1_000_000_007+1, at.Value(i))
			require.Equal(t, o%3 == 2, v.IsNull(i))
			if v.IsValid(i) {
				require.Equal(t, []byte{1, 0, 0}, v.Field(0).(*array.Binary).Value(i))
				require.Equal(t, []byte{3 << 2, byte(o)}, v.Field(1).(*array.Binary).Value(i))
			}
			seen++
		}
	}
	below := ident.Vector{part(0): 9, part(1): 3}
	for name, s := range map[string]readapi.ColdScan{
		"16 all":    {Target: w.sch},
		"12 bounds": {Target: w.sch, Below: below},
		"10 window": {Target: w.sch, Below: below, From: ident.Vector{part(0): 2}},
	} {
		seen = 0
		s.Table, s.Location, s.Snapshot = tableName, w.tbl.MetadataLocation(), snap
		if s.From != nil {
			got, err := l.Window(t.Context(), s)
			require.NoError(t, err, name)
			for _, r := range got {
				check(r.Rows)
				r.Rows.Release()
			}
		} else {
			for rec, err := range l.Scan(t.Context(), s) {
				require.NoError(t, err, name)
				check(rec)
				rec.Release()
			}
		}
		require.Equal(t, name[:2], fmt.Sprint(seen), name)
	}
}
