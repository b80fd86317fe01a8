//go:build synctests

package chaos

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kerr"
)

// kind is what was produced at an offset.
type kind byte

const (
	good      kind = 'g' // a row, always
	bad       kind = 'b' // in quarantine, or skipped where a revision of the settings said so
	tombstone kind = 't' // a row without values, or skipped, as the settings say
	aborted   kind = 'a' // part of a transaction that was aborted: never a row
)

// spot is an offset of a partition of the topic.
type spot struct {
	part   int32
	offset int64
}

// entry is what was produced.
type entry struct {
	kind kind
	id   int64
}

// row is a row of the table as a reader sees it. Rows of others have part -1.
type row struct {
	spot
	lsn int64
	id  int64
	v   string
}

// head is the state that the newest snapshot of a table says it has.
type head struct {
	snapshot, sequence int64
	writer, log        int64
	positions          [partitions]int64
	reserved           int64
	pending            int
	commit             string
	total              int64
}

// book is the oracle: it knows what was produced, and remembers what was seen. It is safe for concurrent use.
type book struct {
	w *world

	mu      sync.Mutex
	made    map[spot]entry
	ends    [partitions]int64
	nextID  int64
	foreign int64 // rows that others added
	now     head
	commits map[string]bool          // commit ids that landed
	names   map[int64]spot           // LSN to row (G5)
	inEpoch map[int64]map[spot]int64 // log epoch, row: LSN
	forEver map[spot]int64           // of committed rows
	tokens  []*token
	exact   int
	again   int
	refused map[string]int
}

func newBook(w *world) *book {
	return &book{
		w: w, made: map[spot]entry{}, commits: map[string]bool{}, names: map[int64]spot{}, inEpoch: map[int64]map[spot]int64{},
		forEver: map[spot]int64{}, refused: map[string]int{},
	}
}

func (b *book) record(part int32, offset int64, e entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made[spot{part, offset}] = e
	b.ends[part] = max(b.ends[part], offset+1)
}

// marked tells where a partition ends behind the marker of a transaction.
func (b *book) marked(part int32, end int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ends[part] = max(b.ends[part], end)
}

// produced is where the partitions end, the markers of transactions included: a log passes them too.
func (b *book) produced() [partitions]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ends
}

func (b *book) id() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nextID++
	return b.nextID
}

// landed looks at a commit that the catalog has applied: no position goes back, no commit lands twice, epochs grow
// (G1, G2, G5).
func (b *book) landed(answer []byte) {
	h, err := headOf(answer)
	if err != nil {
		b.w.violate("G1: a commit cannot be read: %w", err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.now
	if h.commit == "" && was.commit != "" { // others expired every snapshot of ours: the older metadata files still tell
		b.now.snapshot, b.now.sequence = h.snapshot, h.sequence
		return
	}
	if h.commit != "" && h.commit != was.commit {
		if b.commits[h.commit] {
			b.w.violate("G1: commit %s landed twice", h.commit)
		}
		b.commits[h.commit] = true
		b.w.say("landed: snapshot %d writer %d log %d positions %v pending %d", h.snapshot, h.writer, h.log, h.positions, h.pending)
	}
	for p := range h.positions {
		if h.positions[p] < was.positions[p] {
			b.w.violate("G1: partition %d of the table went back from %d to %d", p, was.positions[p], h.positions[p])
		}
	}
	if h.writer < was.writer || h.log < was.log || h.reserved < was.reserved {
		b.w.violate("G5: epochs went back: writer %d to %d, log %d to %d, reservation %d to %d", was.writer, h.writer, was.log, h.log, was.reserved, h.reserved)
	}
	b.now = h
}

// headOf reads the state of the newest snapshot that carries it, as docs/design.md section 4 says, out of the answer of
// the catalog, with none of the product's code and none of the library's.
func headOf(answer []byte) (head, error) {
	type snapshot struct {
		ID       int64             `json:"snapshot-id"`
		Parent   *int64            `json:"parent-snapshot-id"`
		Sequence int64             `json:"sequence-number"`
		Summary  map[string]string `json:"summary"`
	}
	var body struct {
		Metadata struct {
			Current   *int64     `json:"current-snapshot-id"`
			Snapshots []snapshot `json:"snapshots"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(answer, &body); err != nil {
		return head{}, err
	}
	var h head
	keys := map[string]string{}
	for id := body.Metadata.Current; id != nil && keys["icestream.commit-id"] == ""; {
		i := slices.IndexFunc(body.Metadata.Snapshots, func(s snapshot) bool { return s.ID == *id })
		if i < 0 {
			break
		}
		s := body.Metadata.Snapshots[i]
		if h.snapshot == 0 {
			h.snapshot, h.sequence = s.ID, s.Sequence
		}
		if s.Summary != nil {
			keys = s.Summary
		}
		id = s.Parent
	}
	return h, h.read(keys)
}

func (h *head) read(keys map[string]string) error {
	h.commit = keys["icestream.commit-id"]
	if h.commit == "" {
		return nil
	}
	var start, next int64
	_, err := fmt.Sscanf(keys["icestream.lsn"], "%d,%d,%d", &start, &next, &h.reserved)
	_, err2 := fmt.Sscan(keys["icestream.writer-epoch"], &h.writer)
	_, err3 := fmt.Sscan(keys["icestream.log-epoch"], &h.log)
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	if text := keys["icestream.orders.offsets"]; text != "" {
		var topics map[string]struct {
			Partitions map[int32][4]int64 `json:"partitions"`
		}
		if err := json.Unmarshal([]byte(text), &topics); err != nil {
			return err
		}
		for p, at := range topics[topic].Partitions {
			h.positions[p] = at[2]
		}
	}
	if text := keys["icestream.orders.quarantine"]; text != "" {
		var pending []json.RawMessage
		if err := unpack(text, &pending); err != nil {
			return err
		}
		h.pending = len(pending)
	}
	return nil
}

// unpack reads a value of the summary: JSON, or where that is long zstd and base64 behind a prefix.
func unpack(text string, out any) error {
	plain := []byte(text)
	if body, packed := strings.CutPrefix(text, "zstd:"); packed {
		raw, err := base64.StdEncoding.DecodeString(body)
		if err != nil {
			return err
		}
		dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return err
		}
		defer dec.Close()
		if plain, err = dec.DecodeAll(raw, nil); err != nil {
			return err
		}
	}
	return json.Unmarshal(plain, out)
}

// state of the table as the last landed commit left it.
func (b *book) state() head {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// group checks that the position of the consumer group is not ahead of the table (G2).
func (b *book) group(ctx context.Context) ([partitions]int64, error) {
	var out [partitions]int64
	got, err := b.w.admin.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range out {
		if o, ok := got.Lookup(topic, int32(p)); ok && o.At > 0 {
			out[p] = o.At
		}
		if out[p] > b.now.positions[p] {
			b.w.violate("G2: the group is at %d of partition %d, the table holds %d", out[p], p, b.now.positions[p])
		}
	}
	return out, nil
}

// collect reads rows out of a batch.
func collect(into *[]row) func(arrow.RecordBatch) error {
	return func(rec arrow.RecordBatch) error {
		lsns, ok1 := column[*array.Int64](rec, "_lsn")
		kafka, ok2 := column[*array.Struct](rec, "_kafka")
		ids, ok3 := column[*array.Int64](rec, "id")
		texts, _ := column[array.StringLike](rec, "v")
		if !ok1 || !ok2 {
			return fmt.Errorf("a batch has no columns _lsn and _kafka: %s", rec.Schema())
		}
		kind := kafka.DataType().(*arrow.StructType)
		pi, _ := kind.FieldIdx("partition")
		oi, _ := kind.FieldIdx("offset")
		for i := range int(rec.NumRows()) {
			r := row{spot: spot{part: -1}}
			if kafka.IsValid(i) && kafka.Field(oi).IsValid(i) {
				r.spot = spot{kafka.Field(pi).(*array.Int32).Value(i), kafka.Field(oi).(*array.Int64).Value(i)}
			}
			if lsns.IsValid(i) {
				r.lsn = lsns.Value(i)
			}
			if ok3 && ids.IsValid(i) {
				r.id = ids.Value(i)
			}
			if texts != nil && texts.IsValid(i) {
				r.v = strings.Clone(texts.Value(i))
			}
			*into = append(*into, r)
		}
		return nil
	}
}

func column[T arrow.Array](rec arrow.RecordBatch, name string) (T, bool) {
	var none T
	i := rec.Schema().FieldIndices(name)
	if len(i) == 0 {
		return none, false
	}
	c, ok := rec.Column(i[0]).(T)
	return c, ok
}

// exactly checks rows against what was produced: everything in [from, to) once, nothing else (G1, G4).
func (b *book) exactly(what string, rows []row, from, to [partitions]int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := map[spot]bool{}
	for _, r := range rows {
		if r.part < 0 {
			continue
		}
		if r.offset < from[r.part] || r.offset >= to[r.part] {
			return fmt.Errorf("%s: row %v is outside of %v to %v", what, r.spot, from, to)
		}
		if seen[r.spot] {
			return fmt.Errorf("%s: row %v is there twice", what, r.spot)
		}
		seen[r.spot] = true
		switch e := b.made[r.spot]; {
		case e.kind == good && (r.id != e.id || r.v != text(e.id)):
			return fmt.Errorf("%s: row %v is %d %q, produced was %d", what, r.spot, r.id, r.v, e.id)
		case e.kind == tombstone && r.id != 0, e.kind != good && e.kind != tombstone:
			return fmt.Errorf("%s: row %v was made of a record of kind %q", what, r.spot, e.kind)
		}
	}
	for s, e := range b.made {
		if e.kind == good && s.offset >= from[s.part] && s.offset < to[s.part] && !seen[s] {
			return fmt.Errorf("%s: row %v is missing; it goes from %v to %v", what, s, from, to)
		}
	}
	return nil
}

// named checks LSNs: an LSN names one row; within a log epoch, and once committed, a row has one (G5).
func (b *book) named(what string, rows []row, epoch int64, committed [partitions]int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range rows {
		if r.part < 0 {
			continue
		}
		if was, ok := b.names[r.lsn]; ok && was != r.spot {
			return fmt.Errorf("%s: LSN %d names %v and %v", what, r.lsn, was, r.spot)
		}
		b.names[r.lsn] = r.spot
		memory := b.forEver
		if was, hot := b.inEpoch[epoch][r.spot]; hot && was != r.lsn {
			return fmt.Errorf("%s: row %v has LSN %d, in the same log epoch %d it was seen with %d", what, r.spot, r.lsn, epoch, was)
		}
		if r.offset >= committed[r.part] {
			if b.inEpoch[epoch] == nil {
				b.inEpoch[epoch] = map[spot]int64{}
			}
			memory = b.inEpoch[epoch]
		}
		if was, ok := memory[r.spot]; ok && was != r.lsn {
			return fmt.Errorf("%s: row %v has LSN %d in log epoch %d, before it had %d", what, r.spot, r.lsn, epoch, was)
		}
		memory[r.spot] = r.lsn
	}
	return nil
}

// digest is a multiset of rows.
func digest(rows []row) map[row]int {
	out := map[row]int{}
	for _, r := range rows {
		out[r]++
	}
	return out
}

// differ names rows that two multisets do not share.
func differ(a, b map[row]int) string {
	var out []string
	for r, n := range a {
		if b[r] != n {
			out = append(out, fmt.Sprintf("%+v %d times, now %d", r, n, b[r]))
		}
	}
	for r, n := range b {
		if a[r] == 0 {
			out = append(out, fmt.Sprintf("%+v now %d times", r, n))
		}
	}
	slices.Sort(out)
	return strings.Join(out[:min(len(out), 5)], "; ")
}

func text(id int64) string { return fmt.Sprintf("value %d", id) }

// quarantined checks the quarantine table: each bad record once, unless it may have been skipped (G1, G8).
func (b *book) quarantined(spots []spot) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := map[spot]bool{}
	for _, s := range spots {
		if seen[s] {
			return fmt.Errorf("quarantine: record %v is there twice", s)
		}
		seen[s] = true
		if b.made[s].kind != bad {
			return fmt.Errorf("quarantine: record %v is of kind %q", s, b.made[s].kind)
		}
	}
	for s, e := range b.made {
		if e.kind == bad && !seen[s] && !b.w.plan.skips {
			return fmt.Errorf("quarantine: record %v is missing", s)
		}
	}
	return nil
}

func (b *book) summary() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	refused := slices.Sorted(maps.Keys(b.refused))
	return fmt.Sprintf("%d records, %d commits, %d exact reads, %d tokens again, refused %v", len(b.made), len(b.commits), b.exact, b.again, refused)
}
