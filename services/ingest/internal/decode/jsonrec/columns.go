package jsonrec

import (
	"fmt"
	"strings"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// FromColumns is the shape that a text such as
//
//	id long, name string, at timestamptz, lines list<struct<sku string, units int>>
//
// declares: the keys of the record's object that become columns, and their types.
// Types are Iceberg's, of those that a JSON text can fill (variant holds any value), and
// json for any value as its text. Keys with other letters than A-Z, a-z, 0-9, _ and - stand in double quotes.
func FromColumns(text string) (*Shape, error) {
	p := &declared{rest: text}
	fields, err := p.fields("")
	if err == nil && p.rest != "" {
		err = fmt.Errorf("there is %q behind them", p.rest)
	}
	if err == nil && len(fields) == 0 {
		err = fmt.Errorf("there are none")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the columns %q: %w; write them as: id long, name string, lines list<struct<sku string, units int>>", text, err)
	}
	return &Shape{name: "the declared columns", root: &typ{kind: kindStruct, fields: fields}}, nil
}

type declared struct {
	rest  string
	depth int
	maps  int // around the type at hand
}

func (p *declared) space() { p.rest = strings.TrimLeft(p.rest, " \t\r\n") }

func (p *declared) take(mark string) bool {
	p.space()
	rest, found := strings.CutPrefix(p.rest, mark)
	if found {
		p.rest = rest
	}
	return found
}

func (p *declared) word() string {
	p.space()
	n := 0
	for n < len(p.rest) {
		if c := p.rest[n]; c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			break
		}
		n++
	}
	w := p.rest[:n]
	p.rest = p.rest[n:]
	return w
}

func (p *declared) name() (string, error) {
	if !p.take(`"`) {
		w := p.word()
		if w == "" {
			return "", fmt.Errorf("a name is missing before %q", p.rest)
		}
		return w, nil
	}
	name, rest, found := strings.Cut(p.rest, `"`)
	if !found {
		return "", fmt.Errorf("a name lacks its closing quote")
	}
	p.rest = rest
	return name, nil
}

// fields reads "name type, name type" up to the end mark or the end.
func (p *declared) fields(end string) ([]field, error) {
	var out []field
	for {
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		for _, f := range out {
			if f.name == name {
				return nil, fmt.Errorf("%q is declared twice", name)
			}
		}
		p.take(":")
		t, err := p.typ()
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", name, err)
		}
		out = append(out, field{name: name, typ: t})
		if !p.take(",") {
			break
		}
	}
	if p.space(); end != "" && !p.take(end) {
		return nil, fmt.Errorf("%q is missing", end)
	}
	return out, nil
}

const maxDeclaredDepth = 100

func (p *declared) typ() (*typ, error) {
	if p.depth++; p.depth > maxDeclaredDepth {
		return nil, fmt.Errorf("types nest deeper than %d", maxDeclaredDepth)
	}
	defer func() { p.depth-- }()
	word := strings.ToLower(p.word())
	if (word == "struct" || word == "list" || word == "map") && p.maps > cell.MaxMaps {
		return nil, fmt.Errorf("a %s inside more than %d maps is too much work to write: declare json there", word, cell.MaxMaps)
	}
	switch word {
	case "struct":
		if !p.take("<") {
			return nil, fmt.Errorf("write struct<name type, …>")
		}
		fields, err := p.fields(">")
		return &typ{kind: kindStruct, fields: fields}, err
	case "list":
		item, err := p.inner("list<type>")
		if err == nil {
			err = noVariant(item)
		}
		return &typ{kind: kindList, item: item}, err
	case "map":
		if !p.take("<") || strings.ToLower(p.word()) != "string" || !p.take(",") {
			return nil, fmt.Errorf("write map<string, type>: the keys of an object are text")
		}
		p.maps++
		item, err := p.typ()
		p.maps--
		if err == nil && !p.take(">") {
			err = fmt.Errorf("%q is missing", ">")
		}
		if err == nil {
			err = noVariant(item)
		}
		return &typ{kind: kindMap, item: item}, err
	case "decimal":
		body, rest, found := strings.Cut(p.rest, ")")
		t, err := schema.ParseType("decimal" + strings.TrimSpace(body) + ")")
		if !found || err != nil {
			return nil, fmt.Errorf("write decimal(precision, scale)")
		}
		p.rest = rest
		return &typ{kind: kindDecimal, column: t}, nil
	}
	if t := plain[word]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("%q is not a type: use boolean, int, long, float, double, decimal(p, s), date, timestamp, timestamptz, timestamp_ns, timestamptz_ns, string, uuid, binary (base64), json, variant, struct<…>, list<…> or map<string, …>", word)
}

// noVariant refuses what schema.TextInLists would change.
func noVariant(item *typ) error {
	if item.column.Kind == schema.Variant {
		return fmt.Errorf("a variant cannot be the element of a list or the value of a map: declare json there, or variant for the whole")
	}
	return nil
}

func (p *declared) inner(form string) (*typ, error) {
	if !p.take("<") {
		return nil, fmt.Errorf("write %s", form)
	}
	item, err := p.typ()
	if err == nil && !p.take(">") {
		err = fmt.Errorf("%q is missing", ">")
	}
	return item, err
}

var plain = map[string]*typ{
	"boolean": scalar(kindBoolean, schema.Boolean), "int": scalar(kindInteger, schema.Int), "long": scalar(kindInteger, schema.Long),
	"float": scalar(kindFloat, schema.Float), "double": scalar(kindFloat, schema.Double), "date": scalar(kindDate, schema.Date),
	"timestamptz": scalar(kindTimestamp, schema.TimestampTZ), "timestamp": scalar(kindTimestamp, schema.Timestamp),
	"timestamptz_ns": scalar(kindTimestamp, schema.TimestampTZNano), "timestamp_ns": scalar(kindTimestamp, schema.TimestampNano),
	"string": scalar(kindText, schema.String), "uuid": scalar(kindText, schema.String), "binary": scalar(kindBase64, schema.Binary),
	"json": anyJSON(), "variant": scalar(kindJSON, schema.Variant),
}
