// Package spelling changes tables into what other engines write with the same
// meaning. It is for tests alone.
package spelling

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// Lower has the manifests of the current snapshot of a table in local files spell
// the formats of all files as the specification and DuckDB do, "parquet". The
// library that wrote them spells them "PARQUET".
func Lower(t testing.TB, tbl *table.Table) {
	t.Helper()
	files, err := tbl.FS(t.Context())
	must(t, err)
	manifests, err := tbl.CurrentSnapshot().Manifests(files)
	must(t, err)
	for _, m := range manifests {
		var entries []iceberg.ManifestEntry
		for e, err := range m.Entries(files, false) {
			must(t, err)
			// The library builds no file with such a format, so it is put into one.
			format := reflect.ValueOf(e.DataFile()).Elem().FieldByName("Format")
			format.SetString(strings.ToLower(format.String()))
			entries = append(entries, e)
		}
		var out bytes.Buffer
		w, err := iceberg.NewManifestWriter(m.Version(), &out, *tbl.Metadata().PartitionSpecByID(int(m.PartitionSpecID())), tbl.Schema(), m.SnapshotID(),
			iceberg.WithManifestWriterContent(m.ManifestContent()))
		must(t, err)
		for _, e := range entries {
			switch e.Status() {
			case iceberg.EntryStatusADDED:
				must(t, w.Add(e))
			case iceberg.EntryStatusDELETED:
				must(t, w.Delete(e))
			default:
				must(t, w.Existing(e))
			}
		}
		must(t, w.Close())
		must(t, os.WriteFile(strings.TrimPrefix(m.FilePath(), "file://"), out.Bytes(), 0o600))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("spelling formats as others do: %v", err)
	}
}
