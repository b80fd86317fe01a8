package lake

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// Keys of the snapshot summary.
const (
	prefix         = "icestream."
	keyFormat      = prefix + "format"
	keyWriterEpoch = prefix + "writer-epoch"
	keyLogEpoch    = prefix + "log-epoch"
	keyLSN         = prefix + "lsn"
	keyCommitID    = prefix + "commit-id"
	keyKind        = prefix + "kind"

	partOwner      = "owner"
	partOffsets    = "offsets"
	partRows       = "rows"
	partQuarantine = "quarantine"
	partWatermark  = "watermark"
	partLost       = "lost"
)

// packAbove is the length from which a value is compressed; packed marks one
// that is. No JSON text begins with it.
//
// The outbox is compressed from its third entry on. Commits under pressure leave
// up to sixteen entries pending, some 250 bytes each, and every snapshot names
// those of its time for as long as it is kept: they were more than half of the
// metadata, which each commit reads and writes several times.
const (
	packAbove       = 4 << 10
	packOutboxAbove = 512
	packed          = "zstd:"
	packWindow      = 256 << 10 // longer values only get a little longer
	unpackLimit     = 64 << 20
)

// isStateKey tells the keys of a pipeline's state from others of the summary.
func isStateKey(key string) bool {
	name, ours := strings.CutPrefix(key, prefix)
	dot := strings.LastIndexByte(name, '.')
	return ours && dot > 0 && slices.Contains([]string{partOwner, partOffsets, partRows, partQuarantine, partWatermark, partLost}, name[dot+1:])
}

// encodeState writes s as summary keys.
func encodeState(s State) (map[string]string, error) {
	keys := map[string]string{
		keyFormat:      strconv.Itoa(Format),
		keyWriterEpoch: strconv.FormatInt(int64(s.WriterEpoch), 10),
		keyLogEpoch:    strconv.FormatInt(int64(s.LogEpoch), 10),
		keyLSN:         fmt.Sprintf("%d,%d,%d", s.LSN.Start, s.LSN.Next, s.LSN.Reserved),
		keyCommitID:    s.CommitID.String(),
	}
	for name, p := range s.Pipelines {
		if err := encodePipeline(keys, name, p); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func encodePipeline(keys map[string]string, name string, p *Pipeline) error {
	at := func(part string) string { return prefix + name + "." + part }
	keys[at(partOwner)] = p.Owner
	if !p.Watermark.IsZero() {
		keys[at(partWatermark)] = p.Watermark.UTC().Format(time.RFC3339Nano)
	}
	values := map[string]any{partOffsets: offsetsOf(p), partRows: rowsOf(p)}
	if len(p.Pending) > 0 {
		values[partQuarantine] = pendingOf(p.Pending)
	}
	if len(p.Lost) > 0 {
		values[partLost] = lostOf(p)
	}
	for part, v := range values {
		text, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("writing %s: %w", at(part), err)
		}
		above := packAbove
		if part == partQuarantine {
			above = packOutboxAbove
		}
		if keys[at(part)], err = packFrom(above, string(text)); err != nil {
			return fmt.Errorf("writing %s: %w", at(part), err)
		}
	}
	return nil
}

// decodeState reads summary keys. Keys of others are ignored; ok is false when
// the keys are not ours at all.
func decodeState(keys map[string]string) (s State, ok bool, err error) {
	if keys[keyFormat] == "" || keys[keyCommitID] == "" {
		return State{}, false, nil
	}
	if s.Format, err = strconv.Atoi(keys[keyFormat]); err != nil || s.Format < 1 {
		return State{}, true, fault.New(fault.Corrupt, "reading %s: %q is not a version", keyFormat, keys[keyFormat])
	}
	if s.Format > Format {
		return State{}, true, fault.New(fault.Unsupported,
			"reading the table's state: it has format %d, this build reads up to %d: use a release of Icestream that knows format %d",
			s.Format, Format, s.Format)
	}
	if err := decodeNumbers(&s, keys); err != nil {
		return State{}, true, err
	}
	s.Pipelines = map[string]*Pipeline{}
	for key := range keys {
		name, ours := strings.CutPrefix(key, prefix)
		name, offsets := strings.CutSuffix(name, "."+partOffsets)
		if !ours || !offsets {
			continue
		}
		p, err := decodePipeline(keys, name)
		if err != nil {
			return State{}, true, err
		}
		s.Pipelines[name] = p
	}
	return s, true, nil
}

func decodeNumbers(s *State, keys map[string]string) error {
	var we, le int64
	for key, into := range map[string]*int64{keyWriterEpoch: &we, keyLogEpoch: &le} {
		n, err := strconv.ParseInt(keys[key], 10, 64)
		if err != nil {
			return fault.New(fault.Corrupt, "reading %s: %q is not a number", key, keys[key])
		}
		*into = n
	}
	s.WriterEpoch, s.LogEpoch = ident.WriterEpoch(we), ident.LogEpoch(le)
	if _, err := fmt.Sscanf(keys[keyLSN], "%d,%d,%d", &s.LSN.Start, &s.LSN.Next, &s.LSN.Reserved); err != nil {
		return fault.New(fault.Corrupt, "reading %s: %q is not start,next,reserved", keyLSN, keys[keyLSN])
	}
	id, err := ident.ParseUUID(keys[keyCommitID])
	if err != nil {
		return fault.New(fault.Corrupt, "reading %s: %w", keyCommitID, err)
	}
	s.CommitID = id
	return nil
}

func decodePipeline(keys map[string]string, name string) (*Pipeline, error) {
	at := func(part string) string { return prefix + name + "." + part }
	p := &Pipeline{
		Owner: keys[at(partOwner)], Positions: ident.Positions{},
		First: map[ident.Partition]int64{}, Totals: map[ident.Partition]Totals{},
	}
	var topics map[string]topicOffsets
	var rows rowsJSON
	var pending []pendingJSON
	var lost []lostJSON
	for part, into := range map[string]any{partOffsets: &topics, partRows: &rows, partQuarantine: &pending, partLost: &lost} {
		if keys[at(part)] == "" {
			continue
		}
		text, err := unpack(keys[at(part)])
		if err == nil {
			err = json.Unmarshal([]byte(text), into)
		}
		if err != nil {
			return nil, fault.New(fault.Corrupt, "reading %s: %w", at(part), err)
		}
	}
	if w := keys[at(partWatermark)]; w != "" {
		t, err := time.Parse(time.RFC3339Nano, w)
		if err != nil {
			return nil, fault.New(fault.Corrupt, "reading %s: %w", at(partWatermark), err)
		}
		p.Watermark = t
	}
	if err := readOffsets(p, name, topics); err != nil {
		return nil, err
	}
	if err := readRows(p, name, topics, rows); err != nil {
		return nil, err
	}
	if err := readLost(p, name, topics, lost); err != nil {
		return nil, err
	}
	for _, e := range pending {
		p.Pending = append(p.Pending, PendingQuarantine{CommitID: e.Commit, Sequence: e.Sequence, Files: e.files(), Replayed: e.replayed(name)})
	}
	return p, nil
}

// topicOffsets is a topic of the offsets key. A partition is
// [start, first, next, leader epoch].
type topicOffsets struct {
	ID         ident.UUID         `json:"id"`
	Partitions map[int32][4]int64 `json:"partitions"`
}

// rowsJSON is the rows key. Totals have the topic names of the offsets key.
type rowsJSON struct {
	Commit totalsJSON                      `json:"commit"`
	Totals map[string]map[int32]totalsJSON `json:"totals"`
}

type totalsJSON struct {
	Rows        int64            `json:"rows"`
	Quarantined int64            `json:"quarantined,omitempty"`
	Skipped     map[string]int64 `json:"skipped,omitempty"`
}

type pendingJSON struct {
	Commit   ident.UUID     `json:"commit"`
	Sequence int64          `json:"sequence"`
	Files    []fileJSON     `json:"files,omitempty"`
	Replayed []replayedJSON `json:"replayed,omitempty"`
}

// replayedJSON are offsets of one topic partition: [first, next).
type replayedJSON struct {
	Topic     string     `json:"topic"`
	ID        ident.UUID `json:"id"`
	Partition int32      `json:"partition"`
	Offsets   [][2]int64 `json:"offsets"`
}

type fileJSON struct {
	Path  string `json:"path"`
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"`
}

func (e pendingJSON) files() []QuarantineFile {
	out := make([]QuarantineFile, len(e.Files))
	for i, f := range e.Files {
		out[i] = QuarantineFile(f)
	}
	return out
}

func (e pendingJSON) replayed(pipeline string) map[ident.Partition][]ident.Range {
	if len(e.Replayed) == 0 {
		return nil
	}
	out := make(map[ident.Partition][]ident.Range, len(e.Replayed))
	for _, r := range e.Replayed {
		part := ident.Partition{Pipeline: pipeline, Topic: r.Topic, TopicID: r.ID, Number: r.Partition}
		for _, o := range r.Offsets {
			out[part] = append(out[part], ident.Range{First: o[0], Next: o[1]})
		}
	}
	return out
}

func pendingOf(in []PendingQuarantine) []pendingJSON {
	out := make([]pendingJSON, len(in))
	for i, e := range in {
		out[i] = pendingJSON{Commit: e.CommitID, Sequence: e.Sequence, Replayed: replayedOf(e.Replayed)}
		for _, f := range e.Files {
			out[i].Files = append(out[i].Files, fileJSON(f))
		}
	}
	return out
}

func replayedOf(in map[ident.Partition][]ident.Range) []replayedJSON {
	var out []replayedJSON
	for _, part := range slices.SortedFunc(maps.Keys(in), ident.Partition.Compare) {
		r := replayedJSON{Topic: part.Topic, ID: part.TopicID, Partition: part.Number}
		for _, o := range in[part] {
			r.Offsets = append(r.Offsets, [2]int64{o.First, o.Next})
		}
		out = append(out, r)
	}
	return out
}

// topicKeys names the topics of a pipeline. A topic has its name; where one was
// made again and an older id is still remembered, all but the first id in order
// have "#<id>" added, which no topic name can contain.
func topicKeys(positions ident.Positions) map[ident.Partition]string {
	first := map[string]ident.UUID{}
	out := make(map[ident.Partition]string, len(positions))
	for _, part := range positions.Vector().Partitions() {
		id, seen := first[part.Topic]
		if !seen {
			first[part.Topic], id = part.TopicID, part.TopicID
		}
		out[part] = part.Topic
		if id != part.TopicID {
			out[part] = part.Topic + "#" + part.TopicID.String()
		}
	}
	return out
}

func offsetsOf(p *Pipeline) map[string]topicOffsets {
	out := map[string]topicOffsets{}
	for part, key := range topicKeys(p.Positions) {
		t, ok := out[key]
		if !ok {
			t = topicOffsets{ID: part.TopicID, Partitions: map[int32][4]int64{}}
			out[key] = t
		}
		pos := p.Positions[part]
		first, advanced := p.First[part]
		if !advanced {
			first = pos.Next
		}
		t.Partitions[part.Number] = [4]int64{pos.Start, first, pos.Next, int64(pos.LeaderEpoch)}
	}
	return out
}

func readOffsets(p *Pipeline, name string, topics map[string]topicOffsets) error {
	for key, t := range topics {
		topic, _, _ := strings.Cut(key, "#")
		for number, v := range t.Partitions {
			part := ident.Partition{Pipeline: name, Topic: topic, TopicID: t.ID, Number: number}
			if v[0] > v[1] || v[1] > v[2] {
				return fault.New(fault.Corrupt, "reading the offsets of %s: [start, first, next] = %v is not in order", part, v[:3])
			}
			p.Positions[part] = ident.Position{Start: v[0], Next: v[2], LeaderEpoch: int32(v[3])}
			if v[1] < v[2] {
				p.First[part] = v[1]
			}
		}
	}
	return nil
}

func rowsOf(p *Pipeline) rowsJSON {
	out := rowsJSON{Commit: totalsOf(p.Delta), Totals: map[string]map[int32]totalsJSON{}}
	for part, key := range topicKeys(p.Positions) {
		if out.Totals[key] == nil {
			out.Totals[key] = map[int32]totalsJSON{}
		}
		out.Totals[key][part.Number] = totalsOf(p.Totals[part])
	}
	return out
}

func readRows(p *Pipeline, name string, topics map[string]topicOffsets, rows rowsJSON) error {
	var err error
	if p.Delta, err = rows.Commit.totals(); err != nil {
		return err
	}
	for key, parts := range rows.Totals {
		topic, _, _ := strings.Cut(key, "#")
		for number, v := range parts {
			part := ident.Partition{Pipeline: name, Topic: topic, TopicID: topics[key].ID, Number: number}
			if p.Totals[part], err = v.totals(); err != nil {
				return err
			}
		}
	}
	return nil
}

func totalsOf(t Totals) totalsJSON {
	out := totalsJSON{Rows: t.Rows, Quarantined: t.Quarantined}
	for r, n := range t.Skipped {
		if n == 0 {
			continue
		}
		if out.Skipped == nil {
			out.Skipped = map[string]int64{}
		}
		out.Skipped[r.String()] = n
	}
	return out
}

func (t totalsJSON) totals() (Totals, error) {
	out := Totals{Rows: t.Rows, Quarantined: t.Quarantined}
	for name, n := range t.Skipped {
		r := event.ParseSkipReason(name)
		if r == event.SkipUnspecified {
			return Totals{}, fault.New(fault.Unsupported, "reading the row counts: %q is no reason this build knows: use a newer release", name)
		}
		if out.Skipped == nil {
			out.Skipped = map[event.SkipReason]int64{}
		}
		out.Skipped[r] = n
	}
	return out, nil
}

// mark is the high-water mark: the copy of a state in a table property.
type mark struct {
	Snapshot int64             `json:"snapshot"`
	Sequence int64             `json:"sequence"`
	Keys     map[string]string `json:"keys"`
}

// propertyMark is the table property that holds it.
const propertyMark = prefix + "state"

func encodeMark(m mark) (string, error) {
	plain := maps.Clone(m.Keys)
	for k, v := range plain {
		text, err := unpack(v)
		if err != nil {
			return "", err
		}
		plain[k] = text
	}
	m.Keys = plain
	text, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	return pack(string(text))
}

func decodeMark(v string) (mark, State, error) {
	var m mark
	text, err := unpack(v)
	if err == nil {
		err = json.Unmarshal([]byte(text), &m)
	}
	if err != nil {
		return mark{}, State{}, fault.New(fault.Corrupt, "reading table property %s: %w", propertyMark, err)
	}
	s, ok, err := decodeState(m.Keys)
	if err != nil {
		return mark{}, State{}, err
	}
	if !ok {
		return mark{}, State{}, fault.New(fault.Corrupt, "reading table property %s: it holds no state", propertyMark)
	}
	return m, s, nil
}

// pack compresses a long text.
func pack(text string) (string, error) { return packFrom(packAbove, text) }

// packFrom compresses a text that is longer than above.
func packFrom(above int, text string) (string, error) {
	if len(text) <= above {
		return text, nil
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(packWindow))
	if err != nil {
		return "", err
	}
	out := packed + base64.StdEncoding.EncodeToString(enc.EncodeAll([]byte(text), nil))
	return out, enc.Close()
}

// unpack undoes pack.
func unpack(v string) (string, error) {
	body, ok := strings.CutPrefix(v, packed)
	if !ok {
		return v, nil
	}
	raw, err := base64.StdEncoding.DecodeString(body)
	if err != nil {
		return "", err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(unpackLimit))
	if err != nil {
		return "", err
	}
	defer dec.Close()
	text, err := dec.DecodeAll(raw, nil)
	return string(text), err
}
