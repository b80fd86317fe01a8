package orders

import (
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// maxExamples is how many examples a report keeps of each fault.
const maxExamples = 5

// Example is one row that is not as the ledger says.
type Example struct {
	Partition int32
	Offset    int64
	// What is wrong, in words.
	What string
}

// String renders the example.
func (e Example) String() string {
	return fmt.Sprintf("partition %d offset %d: %s", e.Partition, e.Offset, e.What)
}

// Report is what a check found. Faults are counted per row; Examples hold the first few of each kind.
type Report struct {
	// Expected rows by the ledger, and rows seen.
	Expected, Seen int64
	// Missing rows, rows that came more than once, rows with another checksum, and rows that must not be there.
	Missing, Doubled, Altered, Unexpected int64
	Examples                              []Example
}

// OK tells whether the table is exactly what the ledger says.
func (r Report) OK() bool {
	return r.Missing+r.Doubled+r.Altered+r.Unexpected == 0 && r.Expected == r.Seen
}

// String renders the report in one line, and the examples in further ones.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d rows expected, %d seen: %d missing, %d doubled, %d altered, %d unexpected",
		r.Expected, r.Seen, r.Missing, r.Doubled, r.Altered, r.Unexpected)
	for _, e := range r.Examples {
		b.WriteString("\n  " + e.String())
	}
	return b.String()
}

// Check compares rows with the ledger, as multisets of (partition, offset, checksum). It is not safe for concurrent use;
// the ledger may grow meanwhile.
type Check struct {
	ledger *Ledger
	want   Outcome
	upTo   map[int32]int64
	seen   map[int32][]uint64 // one bit an offset
	report Report
	counts map[string]int
}

// NewCheck begins a check of all rows with this outcome (OutcomeRow for the table, OutcomeQuarantine for its quarantine
// table) below the vector: partition to next offset. A partition that the vector does not name must have no row. A nil
// vector means everything that is recorded now. For a vector taken from a read, call WaitFor first.
func (l *Ledger) NewCheck(want Outcome, upTo map[int32]int64) *Check {
	if upTo == nil {
		upTo = l.ends()
	}
	return &Check{ledger: l, want: want, upTo: upTo, seen: map[int32][]uint64{}, counts: map[string]int{}}
}

// Add notes one row of the table.
func (c *Check) Add(part int32, offset int64, checksum uint64) {
	c.ledger.mu.RLock()
	defer c.ledger.mu.RUnlock()
	c.add(part, offset, checksum)
}

func (c *Check) add(part int32, offset int64, checksum uint64) {
	c.report.Seen++
	if offset < 0 || offset >= c.upTo[part] {
		c.report.Unexpected++
		c.example(part, offset, fmt.Sprintf("lies at or above the end of the read, %d", c.upTo[part]))
		return
	}
	outcome, sum := OutcomeUnknown, uint64(0)
	if p := c.ledger.partitions[part]; p != nil {
		outcome, sum = p.at(offset)
	}
	switch {
	case outcome == OutcomeUnknown:
		c.report.Unexpected++
		c.example(part, offset, "was not produced by this generator")
	case outcome != c.want:
		c.report.Unexpected++
		c.example(part, offset, fmt.Sprintf("must have outcome %s, is here as %s", outcome, c.want))
	case !c.mark(part, offset):
		c.report.Doubled++
		c.example(part, offset, "came more than once")
	case sum != checksum:
		c.report.Altered++
		c.example(part, offset, fmt.Sprintf("has checksum %016x, produced was %016x", checksum, sum))
	}
}

// mark notes the offset as seen and tells whether it was new.
func (c *Check) mark(part int32, offset int64) bool {
	words := c.seen[part]
	if words == nil {
		words = make([]uint64, (c.upTo[part]+63)/64)
		c.seen[part] = words
	}
	bit := uint64(1) << (offset & 63)
	fresh := words[offset>>6]&bit == 0
	words[offset>>6] |= bit
	return fresh
}

// example keeps the first few of each kind; the kind is the text up to its first number.
func (c *Check) example(part int32, offset int64, what string) {
	kind, _, _ := strings.Cut(what, ",")
	if strings.HasPrefix(kind, "has checksum") {
		kind = "has checksum"
	}
	if c.counts[kind]++; c.counts[kind] <= maxExamples {
		c.report.Examples = append(c.report.Examples, Example{part, offset, what})
	}
}

// AddRows notes the rows of a batch of the table: their place comes from the struct column _kafka, their checksum from
// HashRows.
func (c *Check) AddRows(rec arrow.RecordBatch) error {
	sums, err := HashRows(rec)
	if err != nil {
		return err
	}
	kafka, err := columnNamed(rec, "_kafka")
	if err != nil {
		return err
	}
	place, ok := kafka.(*array.Struct)
	if !ok {
		return fmt.Errorf("checking rows: column _kafka has type %s, wanted is a struct", kafka.DataType())
	}
	fields := place.DataType().(*arrow.StructType)
	pi, hasPartition := fields.FieldIdx("partition")
	oi, hasOffset := fields.FieldIdx("offset")
	if !hasPartition || !hasOffset {
		return fmt.Errorf("checking rows: column _kafka is %s, wanted are its fields partition and offset", fields)
	}
	return c.addPlaced(place.Field(pi), place.Field(oi), sums)
}

// AddQuarantined notes the rows of a batch of the quarantine table: columns partition, offset and value.
func (c *Check) AddQuarantined(rec arrow.RecordBatch) error {
	partitions, err := columnNamed(rec, "partition")
	if err != nil {
		return err
	}
	offsets, err := columnNamed(rec, "offset")
	if err != nil {
		return err
	}
	values, err := columnNamed(rec, "value")
	if err != nil {
		return err
	}
	binary, ok := values.(valuer[[]byte])
	if !ok {
		return fmt.Errorf("checking quarantined rows: column value has type %s, wanted is binary", values.DataType())
	}
	sums := make([]uint64, rec.NumRows())
	for i := range sums {
		sums[i] = HashValue(binary.Value(i))
	}
	return c.addPlaced(partitions, offsets, sums)
}

func (c *Check) addPlaced(partitions, offsets arrow.Array, sums []uint64) error {
	part, okPart := partitions.(*array.Int32)
	offset, okOffset := offsets.(*array.Int64)
	if !okPart || !okOffset {
		return fmt.Errorf("checking rows: partition has type %s and offset %s, wanted are int and long",
			partitions.DataType(), offsets.DataType())
	}
	c.ledger.mu.RLock()
	defer c.ledger.mu.RUnlock()
	for i, sum := range sums {
		c.add(part.Value(i), offset.Value(i), sum)
	}
	return nil
}

func columnNamed(rec arrow.RecordBatch, name string) (arrow.Array, error) {
	at := rec.Schema().FieldIndices(name)
	if len(at) != 1 {
		return nil, fmt.Errorf("checking rows: the batch has %d columns named %q, wanted is one", len(at), name)
	}
	return rec.Column(at[0]), nil
}

// Finish counts what is missing and returns the report. The check takes no further rows.
func (c *Check) Finish() Report {
	c.ledger.mu.RLock()
	defer c.ledger.mu.RUnlock()
	for part, end := range c.upTo {
		p := c.ledger.partitions[part]
		if p == nil {
			continue
		}
		words := c.seen[part]
		for offset := range end {
			if outcome, _ := p.at(offset); outcome != c.want {
				continue
			}
			c.report.Expected++
			if words == nil || words[offset>>6]&(1<<(offset&63)) == 0 {
				c.report.Missing++
				c.example(part, offset, "is missing")
			}
		}
	}
	return c.report
}
