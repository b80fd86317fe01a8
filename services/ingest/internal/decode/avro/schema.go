package avro

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

type kind uint8

const (
	kindNull kind = iota
	kindBoolean
	kindInt
	kindLong
	kindFloat
	kindDouble
	kindBytes
	kindString
	kindFixed
	kindEnum
	kindRecord
	kindArray
	kindMap
	kindUnion
)

var primitives = map[string]kind{
	"null": kindNull, "boolean": kindBoolean, "int": kindInt, "long": kindLong, "float": kindFloat,
	"double": kindDouble, "bytes": kindBytes, "string": kindString,
}

// typ is a type of a schema. Named types that contain themselves make it a graph.
type typ struct {
	kind     kind
	name     string // full name of a named type, else the word for the type
	logical  string // "" where it does not apply
	doc      string
	fields   []field // record
	items    *typ    // array, and the values of a map
	branches []*typ  // union
	symbols  [][]byte
	size     int // fixed
	// Of a decimal.
	precision, scale int
	least            int  // the fewest bytes a value can have
	nanos            bool // a timestamp whose nanoseconds are kept
	variant          bool // JSON is a variant instead of text
}

type field struct {
	name    string
	aliases []string
	doc     string
	typ     *typ
}

// Options choose between the alternatives of the mapping. The zero value is the
// default mapping.
type Options struct {
	// Nanos maps timestamps in nanoseconds to timestamptz_ns and timestamp_ns instead
	// of cutting them to microseconds. Only tables of format version 3 have the types.
	Nanos bool
	// Variant maps what has no fixed columns (a record inside itself) to variant
	// instead of JSON text. Only tables of format version 3 have the type.
	Variant bool
}

// Schema is a parsed Avro schema; safe for concurrent use.
type Schema struct {
	root *typ
	all  []*typ
}

// With sets the options. It must come before any other use of the schema.
func (s *Schema) With(o Options) *Schema {
	for _, t := range s.all {
		t.variant = o.Variant
		t.nanos = o.Nanos && (t.logical == "timestamp-nanos" || t.logical == "local-timestamp-nanos")
	}
	return s
}

// Name is the full name of the schema's type, or the word for it.
func (s *Schema) Name() string { return s.root.name }

// maxDigits is the largest precision that makes a number; beyond it are plain bytes.
const maxDigits = 1000

// maxNesting bounds the depth of a schema's text.
const maxNesting = 500

// Parse reads a schema in JSON. References are the texts of schemas whose named types
// it uses, each after those that it uses itself.
//
// It reads what the decoding of records needs and is lenient beyond that: schemas
// written years ago have defaults of the wrong type and names with letters that Avro
// does not allow, and their records are decoded all the same.
func Parse(text string, references ...string) (*Schema, error) {
	p := &parser{named: map[string]*typ{}}
	for i, ref := range references {
		if _, err := p.parse(ref); err != nil {
			return nil, fmt.Errorf("reading reference %d of the Avro schema: %w", i+1, err)
		}
	}
	root, err := p.parse(text)
	if err != nil {
		return nil, fmt.Errorf("reading the Avro schema: %w", err)
	}
	p.measure()
	return &Schema{root: root, all: p.all}, nil
}

type parser struct {
	named map[string]*typ
	all   []*typ
}

func (p *parser) parse(text string) (*typ, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		var word string // a bare word such as string, which some registries keep without quotes
		if _, known := primitives[strings.TrimSpace(text)]; !known {
			return nil, err
		}
		word = strings.TrimSpace(text)
		v = word
	} else if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more text behind the schema")
	}
	return p.read(v, "", 0)
}

func (p *parser) read(v any, space string, depth int) (*typ, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("it nests deeper than %d", maxNesting)
	}
	switch v := v.(type) {
	case string:
		return p.reference(v, space)
	case []any:
		return p.union(v, space, depth)
	case map[string]any:
		return p.object(v, space, depth)
	default:
		return nil, fmt.Errorf("%v is not a type", v)
	}
}

func (p *parser) add(t *typ) *typ {
	p.all = append(p.all, t)
	return t
}

func (p *parser) reference(name, space string) (*typ, error) {
	if k, primitive := primitives[name]; primitive {
		return p.add(&typ{kind: k, name: name}), nil
	}
	if space != "" && !strings.Contains(name, ".") {
		if t := p.named[space+"."+name]; t != nil {
			return t, nil
		}
	}
	if t := p.named[name]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("the type %q is neither defined before nor among the references", name)
}

func (p *parser) union(list []any, space string, depth int) (*typ, error) {
	t := p.add(&typ{kind: kindUnion, name: "union"})
	for _, v := range list {
		b, err := p.read(v, space, depth+1)
		if err != nil {
			return nil, err
		}
		if b.kind == kindUnion {
			return nil, errors.New("a union stands directly in a union")
		}
		t.branches = append(t.branches, b)
	}
	if len(t.branches) == 0 {
		return nil, errors.New("a union has no branch")
	}
	return t, nil
}

func (p *parser) object(o map[string]any, space string, depth int) (*typ, error) {
	word, isWord := o["type"].(string)
	if !isWord {
		if o["type"] == nil {
			return nil, errors.New("a type has no attribute \"type\"")
		}
		return p.read(o["type"], space, depth+1)
	}
	switch word {
	case "record", "error":
		return p.record(o, space, depth)
	case "enum":
		return p.enum(o, space)
	case "fixed":
		return p.fixed(o, space)
	case "array", "map":
		key, k := "items", kindArray
		if word == "map" {
			key, k = "values", kindMap
		}
		items, err := p.read(o[key], space, depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", key, word, err)
		}
		return p.add(&typ{kind: k, name: word, items: items}), nil
	}
	t, err := p.reference(word, space)
	if err != nil || t.kind > kindString {
		return t, err
	}
	t.setLogical(o)
	return t, nil
}

// define gives a named type its name; space is the namespace for what is inside.
func (p *parser) define(t *typ, o map[string]any, space string) (inner string, err error) {
	name := text(o, "name")
	if name == "" {
		return "", errors.New("a record, enum or fixed has no name")
	}
	if ns, given := o["namespace"].(string); given {
		space = ns
	}
	if at := strings.LastIndexByte(name, '.'); at >= 0 {
		space = name[:at]
	} else if space != "" {
		name = space + "." + name
	}
	if p.named[name] != nil {
		return "", fmt.Errorf("the type %s is defined twice", name)
	}
	t.name, t.doc = name, text(o, "doc")
	p.named[name] = p.add(t)
	return space, nil
}

func (p *parser) record(o map[string]any, space string, depth int) (*typ, error) {
	t := &typ{kind: kindRecord}
	space, err := p.define(t, o, space)
	if err != nil {
		return nil, err
	}
	list, ok := o["fields"].([]any)
	if !ok {
		return nil, fmt.Errorf("record %s has no list of fields", t.name)
	}
	seen := map[string]bool{}
	for _, v := range list {
		fo, _ := v.(map[string]any)
		f := field{name: text(fo, "name"), aliases: words(fo, "aliases"), doc: text(fo, "doc")}
		if f.name == "" || seen[f.name] {
			return nil, fmt.Errorf("record %s has a field without a name of its own: %q", t.name, f.name)
		}
		seen[f.name] = true
		if f.typ, err = p.read(fo["type"], space, depth+1); err != nil {
			return nil, fmt.Errorf("field %s of %s: %w", f.name, t.name, err)
		}
		t.fields = append(t.fields, f)
	}
	return t, nil
}

func (p *parser) enum(o map[string]any, space string) (*typ, error) {
	t := &typ{kind: kindEnum}
	if _, err := p.define(t, o, space); err != nil {
		return nil, err
	}
	for _, s := range words(o, "symbols") {
		t.symbols = append(t.symbols, []byte(s))
	}
	if len(t.symbols) == 0 {
		return nil, fmt.Errorf("enum %s has no symbols", t.name)
	}
	return t, nil
}

func (p *parser) fixed(o map[string]any, space string) (*typ, error) {
	t := &typ{kind: kindFixed}
	if _, err := p.define(t, o, space); err != nil {
		return nil, err
	}
	var ok bool
	if t.size, ok = whole(o, "size"); !ok || t.size < 0 || t.size > 1<<28 {
		return nil, fmt.Errorf("fixed %s has no size between 0 and 256 MiB", t.name)
	}
	t.setLogical(o)
	return t, nil
}

// setLogical takes the logical type in where it can stand on the type; one that is
// unknown or misplaced is ignored, as Avro wants it.
func (t *typ) setLogical(o map[string]any) {
	name := text(o, "logicalType")
	switch name {
	case "decimal":
		precision, ok := whole(o, "precision")
		scale, _ := whole(o, "scale")
		if !ok || precision < 1 || precision > maxDigits || scale < 0 || scale > precision || t.kind != kindBytes && t.kind != kindFixed {
			return
		}
		t.precision, t.scale = precision, scale
	case "date", "time-millis":
		if t.kind != kindInt {
			return
		}
	case "time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos",
		"local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos":
		if t.kind != kindLong {
			return
		}
	case "uuid":
		if t.kind != kindFixed || t.size != 16 { // on a string it changes nothing
			return
		}
	case "duration":
		if t.kind != kindFixed || t.size != 12 {
			return
		}
	default:
		return
	}
	t.logical = name
}

// measure finds the fewest bytes that a value of each type has, so that a count can
// be checked against the bytes that are left. Types stand after those that they are in,
// so one round from the end does nearly all; the number of rounds is bounded because a
// record that contains itself grows without end. Less than the truth does no harm.
func (p *parser) measure() {
	for changed, round := true, 0; changed && round < 20; round++ {
		changed = false
		for _, t := range slices.Backward(p.all) {
			was := t.least
			t.least = t.fewest()
			changed = changed || t.least != was
		}
	}
}

func (t *typ) fewest() int {
	switch t.kind {
	case kindNull:
		return 0
	case kindFloat:
		return 4
	case kindDouble:
		return 8
	case kindFixed:
		return t.size
	case kindRecord:
		n := 0
		for _, f := range t.fields {
			n = min(n+f.typ.least, 1<<20)
		}
		return n
	default:
		return 1
	}
}

func text(o map[string]any, key string) string {
	s, _ := o[key].(string)
	return s
}

func words(o map[string]any, key string) []string {
	list, _ := o[key].([]any)
	var out []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

func whole(o map[string]any, key string) (int, bool) {
	n, ok := o[key].(json.Number)
	if !ok {
		if s, isText := o[key].(string); isText { // as some generators write it
			n, ok = json.Number(s), bytes.ContainsAny([]byte(s), "0123456789")
		}
	}
	v, err := n.Int64()
	return int(v), ok && err == nil
}
