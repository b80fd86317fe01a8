package orders

import (
	"encoding/binary"
	"strconv"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"
)

// Outcome is what the pipeline must do with a record.
type Outcome uint8

// The outcomes of a record. The zero value means that nothing is known of an offset.
const (
	OutcomeUnknown    Outcome = iota
	OutcomeRow                // a row of the table
	OutcomeQuarantine         // a row of the quarantine table
	OutcomeSkip               // neither: a tombstone
	outcomes
)

// String names the outcome.
func (o Outcome) String() string {
	if o >= outcomes {
		return "outcome " + strconv.Itoa(int(o))
	}
	return [...]string{"unknown", "row", "quarantine", "skip"}[o]
}

// Poison is what is wrong with a record that was made so on purpose.
type Poison uint8

// The kinds of poison.
const (
	PoisonNone            Poison = iota
	PoisonTruncated              // the message ends inside a field
	PoisonUnknownSchemaID        // framed with an id that no registry gave
	PoisonUnframed               // no frame: JSON text
	PoisonShort                  // shorter than a frame
	PoisonBadIndex               // a message index that the schema does not have
	PoisonInvalidUTF8            // a string that is not UTF-8
	PoisonInvalidNanos           // a timestamp with more nanos than a second has
	poisons
)

// String names the kind.
func (p Poison) String() string {
	if p >= poisons {
		return "poison " + strconv.Itoa(int(p))
	}
	return [...]string{"none", "truncated", "unknown-schema-id", "unframed", "short", "bad-index", "invalid-utf8", "invalid-nanos"}[p]
}

// Expect is what must become of a record.
type Expect struct {
	Outcome Outcome
	// Checksum of the row, or of a quarantined record's raw value (HashValue); 0 for a skipped record.
	Checksum uint64
}

// Record is one generated record. Key and Value are valid until the generator's next call; Value is nil for a tombstone.
type Record struct {
	Key, Value []byte
	// Spread is equal for the records of one customer; modulo the number of partitions it names the partition.
	Spread uint64
	Expect Expect
	Poison Poison
}

// Config of a generator. Two generators of the same Config make the same records.
type Config struct {
	// Seed chooses the orders.
	Seed uint64
	// SchemaID is the id under which Schema() is registered; it goes into every frame.
	SchemaID uint32
	// PoisonEvery makes about one record in so many poison, of all kinds; 0 makes none.
	PoisonEvery int
	// TombstoneEvery makes about one record in so many a tombstone; 0 makes none.
	TombstoneEvery int
}

// Generator makes records by their index. It is not safe for concurrent use.
type Generator struct {
	cfg   Config
	vocab *vocabulary
	order order
	key   []byte
	value []byte
	canon []byte
}

// NewGenerator returns a generator.
func NewGenerator(cfg Config) *Generator { return &Generator{cfg: cfg, vocab: newVocabulary()} }

// Make fills rec with the record of this index. Every index has its record whatever was made before, so a run can go on
// where an earlier one ended.
func (g *Generator) Make(index uint64, rec *Record) {
	d := &dice{state: mix(g.cfg.Seed) ^ mix(index*0x9e3779b97f4a7c15+1)}
	g.order.fill(d, g.vocab, index)
	g.key = strconv.AppendUint(append(g.key[:0], "customer-"...), g.order.customer.id, 10)
	*rec = Record{Key: g.key, Spread: mix(g.order.customer.id)}
	switch {
	case g.cfg.TombstoneEvery > 0 && d.oneIn(g.cfg.TombstoneEvery):
		rec.Expect.Outcome = OutcomeSkip
		return
	case g.cfg.PoisonEvery > 0 && d.oneIn(g.cfg.PoisonEvery):
		rec.Poison = Poison(1 + d.below(int(poisons)-1))
		rec.Value = g.poison(d, rec.Poison)
		rec.Expect = Expect{OutcomeQuarantine, HashValue(rec.Value)}
		return
	}
	g.value = g.order.appendWire(appendFrame(g.value[:0], g.cfg.SchemaID, messageIndex))
	g.canon = g.order.appendCanon(g.canon[:0])
	rec.Value = g.value
	rec.Expect = Expect{OutcomeRow, xxh3.Hash(g.canon)}
}

// HashValue is the checksum of a quarantined record: xxh3-64 of its raw value.
func HashValue(value []byte) uint64 { return xxh3.Hash(value) }

// appendFrame appends magic byte, schema id and message index list.
func appendFrame(b []byte, schemaID uint32, index int64) []byte {
	b = binary.BigEndian.AppendUint32(append(b, 0), schemaID)
	b = protowire.AppendVarint(b, protowire.EncodeZigZag(1))
	return protowire.AppendVarint(b, protowire.EncodeZigZag(index))
}

func (g *Generator) poison(d *dice, kind Poison) []byte {
	schemaID, index := g.cfg.SchemaID, int64(messageIndex)
	switch kind {
	case PoisonUnframed:
		g.value = append(append(append(g.value[:0], `{"order_id":"`...), g.order.id...), `"}`...)
		return g.value
	case PoisonShort:
		g.value = append(g.value[:0], 0, 0, byte(d.next()))
		return g.value
	case PoisonUnknownSchemaID:
		schemaID += 1_000_000
	case PoisonBadIndex:
		index = 99
	case PoisonInvalidUTF8:
		g.order.id = append(g.order.id, 0xff, 0xfe)
	case PoisonInvalidNanos:
		g.order.placed.nanos = 1_000_000_000 + int32(d.below(1000))
	default: // cut below, or whole
	}
	g.value = g.order.appendWire(appendFrame(g.value[:0], schemaID, index))
	if kind == PoisonTruncated {
		g.value = g.value[:len(g.value)-1-d.below(4)]
	}
	return g.value
}
