package cold

import (
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/schema"
)

// S1: a read that wants only what is newer than a file counts the file's rows, which are null there.
func TestOnlyColumnsThatAreNewerThanAFile(t *testing.T) {
	w := newWarehouse(t)
	w.append(w.ours(), rows(0, 0, 5)...)
	tx := w.tbl.NewTransaction()
	require.NoError(t, tx.UpdateSchema(true, false).AddColumn([]string{"later"}, iceberg.PrimitiveTypes.String, "", false, nil).
		AddColumn([]string{"nested"}, &iceberg.StructType{FieldList: []iceberg.NestedField{{ID: 100, Name: "x", Type: iceberg.PrimitiveTypes.Int32}}}, "", false, nil).Commit())
	_, err := tx.Commit(t.Context())
	require.NoError(t, err)
	w.reload()
	snap := w.append(w.ours(), rows(0, 5, 10)...) // a file that has it
	for _, names := range [][]string{{"later"}, {"nested"}, {"later", "nested"}} {
		target := &schema.Schema{}
		for _, name := range names {
			target.Columns = append(target.Columns, w.sch.Column(name))
		}
		n := int64(0)
		for rec, err := range New(Config{}, nil).Scan(t.Context(), readapi.ColdScan{
			Table: tableName, Location: w.tbl.MetadataLocation(), Snapshot: snap, Target: target,
		}) {
			require.NoError(t, err, "%v", names)
			require.Equal(t, len(names), int(rec.NumCols()))
			n += rec.NumRows()
			rec.Release()
		}
		require.EqualValues(t, 10, n, "%v", names)
	}
}
