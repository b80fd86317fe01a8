package lake

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/apache/iceberg-go/table"
)

// A catalog answers with the whole metadata of a table, hundreds of kilobytes that take tens
// of milliseconds to decode, and mostly with what is here already: nobody else writes, or the
// commit that is looked for is the one that was sent. A metadata file never changes under its
// name (Iceberg spec, "Table Metadata and Snapshots"), so the name, which catalogs write in
// front, is enough.

// freshFor is how long a table that was decoded stands for its name. The answer carries more
// than metadata: credentials of the storage, which end, mostly after an hour.
const freshFor = 5 * time.Minute

// nameFront is where the name is looked for in an answer.
const nameFront = 2 << 10

// drained is how much of an answer that is not wanted is read, so that its connection can be
// used again.
const drained = 64 << 20

type hereKey struct{}

// recognised is the error of a load whose answer names a table that is here.
type recognised struct{ tbl *table.Table }

func (recognised) Error() string { return "the catalog names metadata that is known" }

// load asks the catalog for the table, and reports whether it was decoded.
func (t *Table) load(ctx context.Context) (tbl *table.Table, decoded bool, err error) {
	t.mu.Lock()
	var here []*table.Table
	if time.Since(t.decoded) < freshFor {
		here = slices.DeleteFunc([]*table.Table{t.tbl, t.answered}, func(tbl *table.Table) bool { return tbl == nil })
	}
	t.mu.Unlock()
	tbl, err = t.cat.LoadTable(context.WithValue(ctx, hereKey{}, here), t.ident)
	if k, ok := errors.AsType[recognised](err); ok {
		return k.tbl, false, nil
	}
	return tbl, true, err
}

// loaded takes note of a table that was loaded, and of how its files are reached, which only
// an answer that was decoded tells.
func (t *Table) loaded(tbl *table.Table, decoded bool, head Head) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tbl, t.head, t.answered = tbl, head, nil
	if decoded {
		t.decoded, t.reach = time.Now(), tbl.FS
	}
}

// distrust has the next load decoded, after an error of the storage: credentials that came
// with the table may have been taken back.
func (t *Table) distrust() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.decoded = time.Time{}
}

// answer keeps what a commit was answered with. Only the catalog's next answer says that it
// is the table.
func (t *Table) answer(meta table.Metadata, location string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered = table.New(t.ident, meta, location, t.reach, t.cat) // not its own FS, which would keep every table before alive
}

// recognise returns recognised where an answer names a table that the request's context has. Else
// the answer is as it was.
func recognise(r *http.Request, res *http.Response) error {
	here, _ := r.Context().Value(hereKey{}).([]*table.Table)
	if len(here) == 0 || r.Method != http.MethodGet || res.StatusCode != http.StatusOK {
		return nil
	}
	body := bufio.NewReaderSize(res.Body, nameFront)
	front, _ := body.Peek(nameFront) // an error comes again with what is read
	location := metadataLocation(front)
	if i := slices.IndexFunc(here, func(tbl *table.Table) bool { return location != "" && tbl.MetadataLocation() == location }); i >= 0 {
		_, _ = io.CopyN(io.Discard, body, drained)
		_ = res.Body.Close()
		return recognised{here[i]}
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{body, res.Body}
	return nil
}

// metadataLocation reads the name of the metadata where an answer begins with it; "" where it
// does not.
func metadataLocation(front []byte) string {
	d := json.NewDecoder(bytes.NewReader(front))
	for _, want := range []json.Token{json.Delim('{'), "metadata-location"} {
		if got, err := d.Token(); err != nil || got != want {
			return ""
		}
	}
	location, _ := d.Token()
	s, _ := location.(string)
	return s
}
