package proto

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// op is what the walk does with a field, chosen when the plan is made.
type op uint8

const (
	opVarint op = iota
	opFix8
	opFix4
	opString  // checked to be UTF-8
	opBytes   // taken as it is
	opMessage // struct
	opWrapper // message whose field 1 is the value
	opValue   // message that becomes one scalar, see conv
	opGroup   // one of the three above in group encoding, see inner
	opPacked
	opListVarint
	opListFix8
	opListFix4
	opListString
	opListPayload // list of any other length-delimited value, see inner
	opListGroup   // the same in group encoding
	opMap
)

// conv is how a value is stored.
type conv uint8

const (
	conv8           conv = iota // the 8 bytes as they are
	conv4                       // the low 4 bytes
	convZig8                    // zig-zag to 8 bytes
	convZig4                    // zig-zag to 4 bytes
	convBool                    // not zero
	convU4to8                   // unsigned 4 bytes to 8
	convU8to16                  // unsigned 8 bytes to decimal
	convEnum                    // name of an enum value
	convWide                    // by source and kind of the target, see field.wide
	convTime                    // the rest belong to opValue
	convNanos                   // the same in nanoseconds
	convDuration                //
	convDate                    //
	convDayTime                 //
	convDecimal                 //
	convDecimalText             //
	convText                    // google.type.Decimal
	convMask                    // field mask
	convJSON                    //
	convVariant                 // the same as a variant
)

// source is the type on the wire of a value that convWide widens.
type source uint8

const (
	srcInt4 source = iota
	srcInt8
	srcZig4
	srcZig8
	srcUint4
	srcUint8
	srcFloat
)

// field is one entry of a dispatch table, bound to the columns of one batch.
type field struct {
	op      op
	inner   op // what one value is, for lists and groups
	conv    conv
	src     source
	to16    bool // convWide: the target is a decimal
	scale   int32
	digits  int32 // precision of a decimal target
	num     protowire.Number
	col     *column.Column
	oneof   *oneof
	caseTag []byte // name of the member, where the oneof has a case column
	sub     *message
	enum    *enumNames
	json    *jsonText
	desc    protoreflect.FieldDescriptor
	value   *field // maps: the field of the value
	spread  int    // cells of an element of a list or map
	doubles []int  // maps: rows of this record that may hold a key twice
	// What opValue saw in this row before: occurrences of one field merge.
	seen, joined []byte
}

// oneof remembers which member holds the row.
type oneof struct {
	member   *field
	row      int
	caseName *column.Column
}

// message is the dispatch table of one message type at one place of the row.
// Tags below tableSize are looked up in the table, others in the map.
type message struct {
	table    []*field
	far      map[uint64]*field
	present  *column.Column
	required []*column.Column // columns of required fields
	nested   []*field         // fields below which required ones are
}

const tableSize = 8192

func (m *message) put(num protowire.Number, typ protowire.Type, f *field) {
	tag := protowire.EncodeTag(num, typ)
	if tag >= tableSize {
		if m.far == nil {
			m.far = map[uint64]*field{}
		}
		m.far[tag] = f
		return
	}
	for uint64(len(m.table)) <= tag {
		m.table = append(m.table, nil)
	}
	m.table[tag] = f
}

// Plan is how records of one message type are written to one target schema.
type Plan struct {
	md     protoreflect.MessageDescriptor
	target *schema.Schema
	opts   Options
}

// Compile makes a plan for records of type md written to a table of the target
// schema. Fields find their columns by number; a column that nothing feeds is null
// (a list or map empty); a column wider than its field is filled with the same
// value. It fails when a field has no column or one that cannot hold its values:
// then the target was not made by schema.Reconcile for this type.
func Compile(md protoreflect.MessageDescriptor, target *schema.Schema, opts Options) (*Plan, error) {
	p := &Plan{md: md, target: target.Clone(), opts: opts}
	if _, err := p.build(); err != nil {
		return nil, fmt.Errorf("compiling decoder for %s: %w", md.FullName(), err)
	}
	return p, nil
}

// Message is the type that the plan decodes.
func (p *Plan) Message() protoreflect.MessageDescriptor { return p.md }

// Target is the schema that the plan writes; it must not be changed.
func (p *Plan) Target() *schema.Schema { return p.target }

// NewBatch makes an empty batch. A batch is meant to be reused: see Batch.Reset.
func (p *Plan) NewBatch() *Batch {
	b, err := p.build()
	if err != nil {
		panic("proto: a plan that was built once cannot be built again: " + err.Error())
	}
	return b
}

// builder binds a plan to fresh columns.
type builder struct {
	opts    Options
	oneofs  []*oneof
	maps    []*field // inner maps before outer ones
	longest int      // longest name that an enum column can hold
}

func (p *Plan) build() (*Batch, error) {
	w := &builder{opts: p.opts, longest: 1}
	var columns []*column.Column
	nodes := p.target.Mapped()
	for _, n := range nodes {
		c, err := column.New(n.ArrowField().Type)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", n.Name, err)
		}
		columns = append(columns, c)
	}
	root, err := w.message(p.md, nodes, columns, nil)
	if err != nil {
		return nil, err
	}
	return &Batch{
		root: root, columns: columns, oneofs: w.oneofs, maps: w.maps,
		limit: min(1<<30, math.MaxInt32/w.longest), cells: cell.NewBudget(), dedupe: column.NewDedupe(),
	}, nil
}

// message binds the fields of a message type to the columns of its struct.
func (w *builder) message(md protoreflect.MessageDescriptor, nodes []*schema.Node, columns []*column.Column, above stack) (*message, error) {
	m := &message{}
	above = above.push(md.FullName())
	index := make(map[int32]int, len(nodes))
	for i, n := range nodes {
		switch n.Number {
		case 0:
			unfed(n, columns[i])
		case schema.PresenceNumber:
			m.present = columns[i]
		default:
			index[n.Number] = i
		}
	}
	oneofs := w.bindOneofs(md, index, columns)
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		at, found := index[int32(fd.Number())]
		if !found {
			return nil, fmt.Errorf("field %s has no column in the target schema", fd.FullName())
		}
		delete(index, int32(fd.Number()))
		f, err := w.field(m, fd, nodes[at], columns[at], above)
		if err != nil {
			return nil, err
		}
		if f.oneof = oneofs[fd.ContainingOneof()]; f.oneof != nil && f.oneof.caseName != nil {
			f.caseTag = []byte(fd.Name())
			w.longest = max(w.longest, len(f.caseTag))
		}
		w.noteRequired(m, fd, f)
	}
	for _, at := range index { // fed by another version of the type
		if nodes[at].Number > 0 {
			unfed(nodes[at], columns[at])
		}
	}
	return m, nil
}

// unfed prepares a column that this message type does not feed: it will be null,
// but lists and maps are empty, because engines disagree about null ones.
func unfed(n *schema.Node, c *column.Column) {
	if n.Type.Kind == schema.List || n.Type.Kind == schema.Map {
		c.AbsentIsZero()
	}
}

func (w *builder) bindOneofs(md protoreflect.MessageDescriptor, index map[int32]int, columns []*column.Column) map[protoreflect.OneofDescriptor]*oneof {
	out := map[protoreflect.OneofDescriptor]*oneof{}
	for i := range md.Oneofs().Len() {
		desc := md.Oneofs().Get(i)
		if desc.IsSynthetic() {
			continue
		}
		o := &oneof{row: -1}
		number := oneofNumber(desc)
		if at, found := index[number]; found {
			delete(index, number)
			if w.opts.OneofCase {
				o.caseName = columns[at]
			}
		}
		out[desc] = o
		w.oneofs = append(w.oneofs, o)
	}
	return out
}

// field binds one field and puts it into the table under every tag it can have.
func (w *builder) field(m *message, fd protoreflect.FieldDescriptor, n *schema.Node, c *column.Column, above stack) (*field, error) {
	switch {
	case fd.IsMap():
		return w.mapField(m, fd, n, c, above)
	case fd.IsList():
		return w.listField(m, fd, n, c, above)
	}
	f, err := w.single(fd, n, c, above)
	if err != nil {
		return nil, err
	}
	if !fd.HasPresence() {
		absentIsDefault(f, c, fd)
	}
	f.op = f.inner
	typ := wireType(fd)
	if typ == protowire.StartGroupType {
		f.op = opGroup
	}
	m.put(fd.Number(), typ, f)
	return f, nil
}

// absentIsDefault makes an absent value what Protobuf says it is.
func absentIsDefault(f *field, c *column.Column, fd protoreflect.FieldDescriptor) {
	if f.conv == convEnum && f.inner == opVarint {
		c.AbsentIs(f.enum.text(int32(fd.Default().Enum()), nil))
		return
	}
	c.AbsentIsZero()
}

func (w *builder) listField(m *message, fd protoreflect.FieldDescriptor, n *schema.Node, c *column.Column, above stack) (*field, error) {
	if n.Type.Kind != schema.List {
		return nil, mismatch(fd, n)
	}
	c.AbsentIsZero()
	c.Kid(0).AbsentIsZero()
	f, err := w.single(fd, n.Kids[0], c.Kid(0), above)
	if err != nil {
		return nil, err
	}
	f.col, f.spread = c, cell.Spread(c.Kid(0))
	typ := wireType(fd)
	switch f.inner {
	case opVarint:
		f.op = opListVarint
	case opFix8:
		f.op = opListFix8
	case opFix4:
		f.op = opListFix4
	case opString:
		f.op = opListString
	default:
		f.op = opListPayload
	}
	if typ == protowire.StartGroupType {
		f.op = opListGroup
	}
	m.put(fd.Number(), typ, f)
	if f.inner <= opFix4 {
		packed := *f
		packed.op = opPacked
		m.put(fd.Number(), protowire.BytesType, &packed)
	}
	return f, nil
}

// mapField treats an entry as a message whose fields 1 and 2 are the key and the
// value column.
func (w *builder) mapField(m *message, fd protoreflect.FieldDescriptor, n *schema.Node, c *column.Column, above stack) (*field, error) {
	if n.Type.Kind != schema.Map {
		return nil, mismatch(fd, n)
	}
	c.AbsentIsZero()
	key, err := w.single(fd.MapKey(), n.Kids[0], c.Kid(0), above)
	if err != nil {
		return nil, err
	}
	value, err := w.single(fd.MapValue(), n.Kids[1], c.Kid(1), above.push(insideMap))
	if err != nil {
		return nil, err
	}
	absentIsDefault(key, c.Kid(0), fd.MapKey())
	absentIsDefault(value, c.Kid(1), fd.MapValue())
	entry := &message{}
	key.op, value.op = key.inner, value.inner
	entry.put(1, wireType(fd.MapKey()), key)
	entry.put(2, wireType(fd.MapValue()), value)
	f := &field{op: opMap, num: fd.Number(), col: c, sub: entry, value: value, spread: cell.Spread(c.Kid(1)), desc: fd}
	m.put(fd.Number(), protowire.BytesType, f)
	w.maps = append(w.maps, f)
	return f, nil
}

// single binds one value of a field to the column that holds it. It sets inner,
// not op.
func (w *builder) single(fd protoreflect.FieldDescriptor, n *schema.Node, c *column.Column, above stack) (*field, error) {
	s, natural := classify(fd, above, w.opts)
	f := &field{num: fd.Number(), col: c, desc: fd, scale: n.Type.Scale, digits: n.Type.Precision}
	if s == shapeMessage || s == shapeEmpty {
		if n.Type.Kind != schema.Struct {
			return nil, mismatch(fd, n)
		}
		f.inner = opMessage
		kids := make([]*column.Column, c.Kids())
		for i := range kids {
			kids[i] = c.Kid(i)
		}
		var err error
		f.sub, err = w.message(fd.Message(), n.Kids, kids, above)
		return f, err
	}
	if !schema.CanHold(n.Type, natural) && (s != shapeJSON || n.Type.Kind != schema.String) {
		return nil, mismatch(fd, n)
	}
	return f, w.bindScalar(f, s, fd, n, c)
}

func (w *builder) bindScalar(f *field, s shape, fd protoreflect.FieldDescriptor, n *schema.Node, c *column.Column) error {
	f.inner = opValue
	switch s {
	case shapeScalar:
		bindPlain(f, fd, n.Type)
	case shapeEnumName:
		f.inner, f.conv, f.enum = opVarint, convEnum, newEnumNames(fd.Enum())
		w.longest = max(w.longest, f.enum.longest)
	case shapeWrapper:
		value := &field{num: 1, col: c, desc: fd.Message().Fields().ByNumber(1), scale: n.Type.Scale, digits: n.Type.Precision}
		bindPlain(value, value.desc, n.Type)
		value.op = value.inner
		f.inner, f.sub = opWrapper, &message{}
		f.sub.put(1, wireType(value.desc), value)
	case shapeTimestamp:
		f.conv = convTime
		if n.Type.Kind == schema.TimestampTZNano {
			f.conv = convNanos
		}
	case shapeDuration:
		f.conv = convDuration
	case shapeDate:
		f.conv = convDate
	case shapeTimeOfDay:
		f.conv = convDayTime
	case shapeDecimal:
		f.conv = convDecimal
	case shapeDecimalText:
		f.conv = convDecimalText
	case shapeGoogleDecimal:
		f.conv = convText
	case shapeFieldMask:
		f.conv = convMask
	case shapeJSON:
		f.conv, f.json = convJSON, newJSONText(fd.Message(), w.opts.NoteUnknown)
		if n.Type.Kind == schema.Variant {
			f.conv = convVariant
		}
	case shapeMessage, shapeEmpty:
		return errors.New("a struct is no scalar")
	}
	return nil
}

func mismatch(fd protoreflect.FieldDescriptor, n *schema.Node) error {
	return fmt.Errorf("field %s of kind %s cannot be written to column %s of type %s", fd.FullName(), fd.Kind(), n.Name, n.Type)
}

// noteRequired remembers where proto2 required fields are, so that messages
// without any are never looked at again.
func (w *builder) noteRequired(m *message, fd protoreflect.FieldDescriptor, f *field) {
	if fd.Cardinality() == protoreflect.Required {
		m.required = append(m.required, f.col)
	}
	sub := f.sub
	if f.op == opMap {
		sub = f.value.sub
	}
	if sub != nil && sub.needsCheck() {
		m.nested = append(m.nested, f)
	}
}

func (m *message) needsCheck() bool { return len(m.required) > 0 || len(m.nested) > 0 }
