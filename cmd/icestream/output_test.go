package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
)

// rowsOf makes the Arrow IPC stream of two columns, one batch for each list of ids.
func rowsOf(t *testing.T, batches ...[]int64) []byte {
	t.Helper()
	s := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "note", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil)
	var out bytes.Buffer
	w := ipc.NewWriter(&out, ipc.WithSchema(s))
	for _, ids := range batches {
		b := array.NewRecordBuilder(memory.DefaultAllocator, s)
		for _, id := range ids {
			b.Field(0).(*array.Int64Builder).Append(id)
			if notes := b.Field(1).(*array.StringBuilder); id%2 == 0 {
				notes.AppendNull()
			} else {
				notes.Append("odd, \"ü\"\n")
			}
		}
		require.NoError(t, w.Write(b.NewRecordBatch()))
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

func printed(t *testing.T, format string, limit int64, streams ...[]byte) string {
	t.Helper()
	var out bytes.Buffer
	p := rowPrinter{format: format, limit: limit, out: &out}
	for _, s := range streams {
		require.NoError(t, p.print(bytes.NewReader(s)))
	}
	require.NoError(t, p.close())
	return out.String()
}

func TestTableHasOneHeadAndNoControlCharacters(t *testing.T) {
	got := printed(t, "table", 0, rowsOf(t, []int64{1, 2}, []int64{100}), rowsOf(t, []int64{3}))
	require.Equal(t, "id  note\n1   odd, \"ü\"·\n2   ∅\n100  ∅\n3    odd, \"ü\"·\n", got)
	require.Equal(t, "id  note\n", printed(t, "table", 0, rowsOf(t)), "no rows: still the columns")
}

func TestCSVHasOneHeadAndQuotes(t *testing.T) {
	got := printed(t, "csv", 0, rowsOf(t, []int64{1}), rowsOf(t, []int64{2}))
	lines, err := csv.NewReader(strings.NewReader(got)).ReadAll()
	require.NoError(t, err)
	require.Equal(t, [][]string{{"id", "note"}, {"1", "odd, \"ü\"\n"}, {"2", ""}}, lines)
}

func TestJSONIsOneObjectALineInTheOrderOfTheColumns(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(printed(t, "json", 0, rowsOf(t, []int64{1, 2}))), "\n")
	require.Len(t, lines, 2)
	require.Equal(t, `{"id":2,"note":null}`, lines[1])
	var row map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &row))
	require.Equal(t, "odd, \"ü\"\n", row["note"])
}

func TestArrowIsOneStreamHoweverManyCameIn(t *testing.T) {
	got := printed(t, "arrow", 0, rowsOf(t, []int64{1, 2}), rowsOf(t, []int64{3}))
	rd, err := ipc.NewReader(strings.NewReader(got))
	require.NoError(t, err)
	rows := int64(0)
	for rd.Next() {
		rows += rd.RecordBatch().NumRows()
	}
	require.NoError(t, rd.Err())
	require.EqualValues(t, 3, rows)
}

func TestTheLimitCutsInsideABatch(t *testing.T) {
	require.Equal(t, "id,note\n2,\n4,\n6,\n", printed(t, "csv", 3, rowsOf(t, []int64{2, 4}, []int64{6, 8})))
}

func TestSizesForPeopleAreShort(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 1612512: "1.5 MiB", 1 << 30: "1 GiB", 1 << 50: "1024.0 TiB"} {
		require.Equal(t, want, bytesForPeople(n))
	}
}
