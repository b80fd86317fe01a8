package jsonrec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/icestream/icestream/internal/schema"
)

// maxNodes bounds the columns of one schema at all depths.
const maxNodes = 20000

// FromSchema is the shape of the records of a JSON Schema. References are the texts of
// the schemas that it uses, by the name by which $ref uses them.
func FromSchema(text string, references map[string]string) (*Shape, error) {
	root, err := parseDocument("", text)
	if err != nil {
		return nil, fmt.Errorf("reading the JSON Schema: %w", err)
	}
	r := &reader{docs: []*document{root}}
	for _, name := range slices.Sorted(maps.Keys(references)) {
		d, err := parseDocument(name, references[name])
		if err != nil {
			return nil, fmt.Errorf("reading the JSON Schema: reference %s: %w", name, err)
		}
		r.docs = append(r.docs, d)
	}
	t, err := r.read(place{root, root.root}, nil)
	if err != nil {
		return nil, fmt.Errorf("mapping the JSON Schema: %w", err)
	}
	name := "JSON Schema"
	if o, ok := root.root.(*object); ok && o.text("title") != "" {
		name += " " + o.text("title")
	}
	return &Shape{name: name, root: t.flattened(0)}, nil
}

// object is a JSON object that keeps the order of its keys: that of the columns.
type object struct {
	keys   []string
	values map[string]any
}

func (o *object) text(key string) string {
	s, _ := o.values[key].(string)
	return s
}

type document struct {
	name string // of the reference, "" for the schema itself
	id   string // its $id without a fragment
	text string
	root any
}

func parseDocument(name, text string) (*document, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	v, err := readValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more text behind the schema")
	}
	switch v := v.(type) {
	case bool:
		return &document{name: name, text: text, root: v}, nil
	case *object:
		id, _, _ := strings.Cut(v.text("$id"), "#")
		return &document{name: name, id: id, text: text, root: v}, nil
	}
	return nil, errors.New("it is neither an object nor a boolean")
}

const maxNesting = 500

func readValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("it nests deeper than %d", maxNesting)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		o := &object{values: map[string]any{}}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := readValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			k, _ := key.(string)
			if _, twice := o.values[k]; !twice {
				o.keys = append(o.keys, k)
			}
			o.values[k] = v
		}
		_, err := d.Token()
		return o, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := readValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	}
	return t, nil
}

// place is a schema inside a document.
type place struct {
	doc *document
	at  any
}

type reader struct {
	docs  []*document // the schema itself, then its references by name
	nodes int
}

// read maps the schema at a place. In are the referenced and object schemas around it;
// one inside itself is JSON text.
func (r *reader) read(p place, in []*object) (*typ, error) {
	o, ok := p.at.(*object)
	if !ok { // true, false: anything
		return anyJSON(), nil
	}
	if r.nodes++; r.nodes > maxNodes {
		return nil, fmt.Errorf("it expands to more than %d columns; its types refer to each other in too many ways", maxNodes)
	}
	if slices.Contains(in, o) {
		return anyJSON(), nil
	}
	in = append(slices.Clip(in), o)
	if ref := o.text("$ref"); ref != "" {
		to, err := r.resolve(p.doc, ref)
		if err != nil {
			return nil, err
		}
		return r.read(to, in)
	}
	for _, word := range []string{"oneOf", "anyOf"} {
		if list, given := o.values[word].([]any); given && len(list) > 0 && o.values["properties"] == nil {
			return r.choice(p.doc, list, in)
		}
	}
	if list, given := o.values["allOf"].([]any); given && len(list) > 0 {
		return r.all(p, o, list, in)
	}
	return r.plain(p, o, in)
}

// resolve finds what a $ref names: "#", "#/definitions/x", "name", "name#/...".
func (r *reader) resolve(doc *document, ref string) (place, error) {
	name, pointer, _ := strings.Cut(ref, "#")
	if name != "" {
		found, err := r.document(doc, name)
		if err != nil {
			return place{}, fmt.Errorf("$ref %q %w", ref, err)
		}
		doc = found
	}
	at := doc.root
	for step := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		if step == "" {
			continue
		}
		step = strings.NewReplacer("~1", "/", "~0", "~", "%25", "%", "%20", " ").Replace(step)
		switch v := at.(type) {
		case *object:
			at = v.values[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				at = nil
			} else {
				at = v[i]
			}
		default:
			at = nil
		}
		if at == nil {
			if anchored := findAnchor(doc.root, pointer); anchored != nil {
				return place{doc, anchored}, nil
			}
			return place{}, fmt.Errorf("$ref %q leads nowhere", ref)
		}
	}
	return place{doc, at}, nil
}

// findAnchor finds the schema that calls itself by $anchor, or by $id with a #.
func findAnchor(at any, name string) any {
	switch v := at.(type) {
	case *object:
		if v.text("$anchor") == name || v.text("$id") == "#"+name {
			return v
		}
		for _, k := range v.keys {
			if found := findAnchor(v.values[k], name); found != nil {
				return found
			}
		}
	case []any:
		for _, x := range v {
			if found := findAnchor(x, name); found != nil {
				return found
			}
		}
	}
	return nil
}

// choice maps oneOf and anyOf: one type if all alternatives but null agree on it.
func (r *reader) choice(doc *document, list []any, in []*object) (*typ, error) {
	var types []*typ
	for _, alternative := range list {
		t, err := r.read(place{doc, alternative}, in)
		if err != nil {
			return nil, err
		}
		types = append(types, t)
	}
	return common(types), nil
}

// common is the type that holds the values of all, JSON text where there is none.
func common(types []*typ) *typ {
	var one *typ
	for _, t := range types {
		switch {
		case t.kind == kindNull:
		case one == nil || wider(t, one):
			one = t
		case !same(one, t) && !wider(one, t):
			return anyJSON()
		}
	}
	if one == nil {
		return &typ{kind: kindNull}
	}
	return one
}

// wider reports whether a holds all numbers of b.
func wider(a, b *typ) bool {
	return a.kind == kindFloat && a.column.Kind == schema.Double && b.kind == kindInteger && b.column.Kind != schema.Decimal ||
		a.kind == kindInteger && b.kind == kindInteger && a.column.Kind == schema.Long && b.column.Kind == schema.Int
}

// all maps allOf: the properties of all parts together, or the one part that says what
// the type is.
func (r *reader) all(p place, o *object, list []any, in []*object) (*typ, error) {
	own := &object{values: map[string]any{}}
	for _, k := range o.keys {
		if k != "allOf" {
			own.keys = append(own.keys, k)
			own.values[k] = o.values[k]
		}
	}
	parts := make([]*typ, 0, len(list)+1)
	for _, part := range list {
		t, err := r.read(place{p.doc, part}, in)
		if err != nil {
			return nil, err
		}
		parts = append(parts, t)
	}
	if t, err := r.plain(place{p.doc, own}, own, in); err != nil {
		return nil, err
	} else {
		parts = append(parts, t)
	}
	return together(parts), nil
}

// together is the type that is all of the given ones. Those that are any JSON say
// nothing about it.
func together(parts []*typ) *typ {
	parts = slices.DeleteFunc(slices.Clone(parts), func(t *typ) bool { return t.kind == kindJSON })
	if len(parts) == 0 {
		return anyJSON()
	}
	merged := &typ{kind: kindStruct}
	types := map[string][]*typ{}
	for _, t := range parts {
		if t.kind != kindStruct {
			return common(parts)
		}
		for _, f := range t.fields {
			if types[f.name] == nil {
				merged.fields = append(merged.fields, f)
			}
			types[f.name] = append(types[f.name], f.typ)
		}
	}
	for i := range merged.fields {
		merged.fields[i].typ = together(types[merged.fields[i].name])
	}
	return merged
}

// plain maps a schema by its own words.
func (r *reader) plain(p place, o *object, in []*object) (*typ, error) {
	var words []string
	switch v := o.values["type"].(type) {
	case string:
		words = []string{v}
	case []any:
		for _, w := range v {
			if s, ok := w.(string); ok {
				words = append(words, s)
			}
		}
	default:
		words = o.implied()
	}
	var types []*typ
	for _, w := range words {
		t, err := r.word(p, o, w, in)
		if err != nil {
			return nil, err
		}
		types = append(types, t)
	}
	if len(types) == 0 {
		return anyJSON(), nil
	}
	return common(types), nil
}

// implied are the types of a schema that names none, by its values or properties.
func (o *object) implied() []string {
	values, _ := o.values["enum"].([]any)
	if v, given := o.values["const"]; given {
		values = []any{v}
	}
	var words []string
	for _, v := range values {
		word := "object"
		switch v := v.(type) {
		case nil:
			word = "null"
		case bool:
			word = "boolean"
		case string:
			word = "string"
		case json.Number:
			word = "number"
			if _, err := v.Int64(); err == nil {
				word = "integer"
			}
		case []any:
			word = "array"
		}
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	if len(values) == 0 && o.values["properties"] != nil {
		return []string{"object"}
	}
	return words
}

func (r *reader) word(p place, o *object, word string, in []*object) (*typ, error) {
	switch word {
	case "null":
		return &typ{kind: kindNull}, nil
	case "boolean":
		return scalar(kindBoolean, schema.Boolean), nil
	case "integer":
		return o.integer(), nil
	case "number":
		return o.number(), nil
	case "string":
		return o.string(), nil
	case "array":
		return r.array(p, o, in)
	case "object":
		return r.object(p, o, in)
	default:
		return nil, fmt.Errorf("%q is not a type of JSON Schema", word)
	}
}

// Titles by which Kafka Connect's converter marks its logical types.
const connectData = "org.apache.kafka.connect.data."

func (o *object) connect(name string) bool { return o.text("title") == connectData+name }

func (o *object) integer() *typ {
	small := o.text("connect.type") == "int8" || o.text("connect.type") == "int16" || o.text("connect.type") == "int32"
	switch {
	case o.connect("Date"):
		return scalar(kindEpochDays, schema.Date)
	case o.connect("Time"):
		return scalar(kindMillisOfDay, schema.Long)
	case o.connect("Timestamp"):
		return scalar(kindEpochMillis, schema.TimestampTZ)
	case small:
		return scalar(kindInteger, schema.Int)
	}
	for _, bound := range []string{"maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"} {
		n, ok := o.values[bound].(json.Number)
		if f, err := n.Float64(); ok && err == nil && (f > math.MaxInt64 || f < math.MinInt64) {
			if v, isInt := new(big.Int).SetString(n.String(), 10); !isInt || !v.IsInt64() {
				return &typ{kind: kindInteger, column: schema.DecimalOf(38, 0)}
			}
		}
	}
	return scalar(kindInteger, schema.Long)
}

func (o *object) number() *typ {
	switch {
	case o.connect("Decimal"):
		if t, ok := o.decimal(); ok {
			return &typ{kind: kindDecimal, column: t}
		}
	case o.text("connect.type") == "float32":
		return scalar(kindFloat, schema.Float)
	}
	return scalar(kindFloat, schema.Double)
}

// decimal is the type in the parameters of a Connect decimal.
func (o *object) decimal() (schema.Type, bool) {
	params, _ := o.values["connect.parameters"].(*object)
	if params == nil {
		return schema.Type{}, false
	}
	scale, err := strconv.ParseInt(params.text("scale"), 10, 32)
	if err != nil || scale < 0 || scale > 38 {
		return schema.Type{}, false
	}
	precision, err := strconv.ParseInt(params.text("connect.decimal.precision"), 10, 32)
	if err != nil || precision < scale || precision > 38 || precision < 1 {
		precision = 38
	}
	return schema.DecimalOf(int32(precision), int32(scale)), true
}

func (o *object) string() *typ {
	switch {
	case o.connect("Decimal"):
		if t, ok := o.decimal(); ok {
			return &typ{kind: kindDecimalBase64, column: t}
		}
	case o.text("connect.type") == "bytes", o.text("contentEncoding") == "base64":
		return scalar(kindBase64, schema.Binary)
	case o.text("format") == "date-time":
		return scalar(kindTimestamp, schema.TimestampTZ)
	case o.text("format") == "date":
		return scalar(kindDate, schema.Date)
	}
	return scalar(kindText, schema.String)
}

func (r *reader) array(p place, o *object, in []*object) (*typ, error) {
	items := o.values["items"]
	if _, tuple := items.([]any); tuple || items == nil || o.values["prefixItems"] != nil {
		return anyJSON(), nil
	}
	t, err := r.read(place{p.doc, items}, in)
	return &typ{kind: kindList, item: t}, err
}

func (r *reader) object(p place, o *object, in []*object) (*typ, error) {
	properties, _ := o.values["properties"].(*object)
	if properties == nil || len(properties.keys) == 0 {
		return r.free(p, o, properties, in)
	}
	t := &typ{kind: kindStruct}
	for _, key := range o.ordered(properties) {
		v, err := r.read(place{p.doc, properties.values[key]}, in)
		if err != nil {
			return nil, fmt.Errorf("property %s: %w", key, err)
		}
		f := field{name: key, typ: v}
		if d, ok := properties.values[key].(*object); ok {
			f.doc = d.text("description")
		}
		t.fields = append(t.fields, f)
	}
	return t, nil
}

// ordered are the keys by their connect.index, where all have one, else as they stand.
func (o *object) ordered(properties *object) []string {
	keys := slices.Clone(properties.keys)
	index := map[string]int64{}
	for _, k := range keys {
		if d, ok := properties.values[k].(*object); ok {
			if n, ok := d.values["connect.index"].(json.Number); ok {
				index[k], _ = n.Int64()
			}
		}
	}
	if len(index) == len(keys) {
		slices.SortStableFunc(keys, func(a, b string) int { return int(index[a] - index[b]) })
	}
	return keys
}

// free maps an object without properties: a map where all values have one type, an
// empty struct where nothing may stand in it, else text.
func (r *reader) free(p place, o, properties *object, in []*object) (*typ, error) {
	values := o.values["additionalProperties"]
	if patterns, ok := o.values["patternProperties"].(*object); ok && len(patterns.keys) == 1 && (values == nil || values == false) {
		values = patterns.values[patterns.keys[0]]
	}
	if _, typed := values.(*object); typed {
		t, err := r.read(place{p.doc, values}, in)
		return &typ{kind: kindMap, item: t}, err
	}
	if values == false || properties != nil && values == nil && o.text("connect.type") != "" {
		return &typ{kind: kindStruct}, nil
	}
	return anyJSON(), nil
}
