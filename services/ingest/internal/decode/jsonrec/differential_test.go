package jsonrec

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/variant"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// gen makes random shapes and random records. encoding/json is the oracle.
type gen struct{ r *rand.Rand }

func (g *gen) pick(list ...string) string { return list[g.r.IntN(len(list))] }

// good picks one of the first n, now and then any.
func (g *gen) good(n int, list ...string) string {
	if g.r.IntN(12) > 0 {
		list = list[:n]
	}
	return g.pick(list...)
}

func (g *gen) columns(depth int) string {
	var out []string
	for i := range 1 + g.r.IntN(5) {
		out = append(out, fmt.Sprintf("c%d %s", i, g.typ(depth)))
	}
	return strings.Join(out, ", ")
}

func (g *gen) typ(depth int) string {
	if depth > 0 {
		switch g.r.IntN(6) {
		case 0:
			return "list<" + g.inside(depth-1) + ">"
		case 1:
			return "map<string, " + g.inside(depth-1) + ">"
		case 2:
			return "struct<" + g.columns(depth-1) + ">"
		}
	}
	return g.pick("boolean", "int", "long", "float", "double", "decimal(10, 2)", "decimal(38,3)", "date", "timestamptz", "timestamp", "timestamptz_ns", "timestamp_ns", "string", "binary", "json", "variant")
}

// inside is the type of the elements of a list or the values of a map.
func (g *gen) inside(depth int) string {
	if t := g.typ(depth); t != "variant" {
		return t
	}
	return "json"
}

// text is a random JSON text for a type; now and then of another type.
func (g *gen) text(t *typ, depth int) string {
	switch g.r.IntN(60) {
	case 0, 1:
		return "null"
	case 2:
		return g.free(2)
	}
	sp := g.pick("", "", "", " ", "\n\t")
	switch t.kind {
	case kindStruct:
		var members []string
		for _, f := range t.fields {
			if g.r.IntN(8) > 0 {
				members = append(members, sp+g.key(f.name)+sp+":"+sp+g.text(f.typ, depth-1))
			}
		}
		if g.r.IntN(8) == 0 {
			members = append(members, `"extra":`+g.free(2))
		}
		if g.r.IntN(3) == 0 {
			g.r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		}
		return "{" + strings.Join(members, ",") + sp + "}"
	case kindList:
		var items []string
		for range g.r.IntN(4) {
			items = append(items, sp+g.text(t.item, depth-1)+sp)
		}
		return "[" + strings.Join(items, ",") + "]"
	case kindMap:
		var members []string
		for i := range g.r.IntN(4) {
			members = append(members, fmt.Sprintf(`"k%d":%s`, i, g.text(t.item, depth-1)))
		}
		return "{" + strings.Join(members, ",") + "}"
	case kindBoolean:
		return g.pick("true", "false")
	case kindInteger:
		return g.good(4, "0", "-1", "7", strconv.Itoa(int(int32(g.r.Uint32()))), strconv.FormatInt(g.r.Int64(), 10), "-9223372036854775808", "9223372036854775808", "1.0", "2e3", "1.5", "12345e-2", "1200e-2")
	case kindFloat:
		return g.good(5, "0", "-0.0", "1.5", "1e10", "3.4e38", "1e300", "123456789.123456789", "1e400", strconv.FormatFloat(g.r.NormFloat64(), 'g', -1, 64))
	case kindDecimal:
		return g.good(3, "0", "1.25", "-99999999.99", "123.456", `"12.5"`, `"x"`, "1e3", "1e-2", strconv.FormatInt(g.r.Int64(), 10), "12345678901234567890.125", "100000000", "99999999999999999999999999999999999.999", "1e99")
	case kindDate:
		return g.good(3, `"2024-02-29"`, `"0001-01-01"`, `"9999-12-31"`, `"2023-02-29"`, `"2024-1-1"`, `"x"`)
	case kindTimestamp:
		if local(t) {
			return g.good(3, `"2024-02-29 12:34:56"`, `"2024-02-29T12:34:56.5"`, `"2016-12-31T23:59:60"`, `"2024-02-29T12:34:56Z"`, `"2016-12-31T23:58:60"`)
		}
		return g.good(5, `"2024-02-29T12:34:56Z"`, `"2016-12-31T23:59:60Z"`, `"1968-12-31T22:59:60.5-01:00"`, `"2024-02-29T12:34:56.123456789+02:30"`, `"2262-04-11T23:47:16.854775807Z"`, `"1969-12-31t23:59:59.9z"`, `"2024-02-29 12:34:56"`, `"2024-02-29T12:34:56.5"`, `"2024-02-29T24:00:00Z"`)
	case kindBase64:
		return g.good(3, `""`, `"YQ=="`, `"YWI"`, `"__8="`, `"+/8="`, `"?"`)
	case kindText:
		return g.string()
	default:
		return g.free(depth)
	}
}

func local(t *typ) bool {
	return t.column.Kind == schema.Timestamp || t.column.Kind == schema.TimestampNano
}

func (g *gen) key(name string) string {
	if g.r.IntN(10) == 0 {
		return fmt.Sprintf(`"\u%04x%s"`, name[0], name[1:])
	}
	return `"` + name + `"`
}

func (g *gen) string() string {
	return g.good(5, `""`, `"a"`, `"grüße"`, `"\"\\\/\b\f\n\r\t"`, `"\u00e9\ud83d\ude00"`, `"\ud800"`, `"long text, long enough for eight bytes at a time"`, `"\u0000"`, `"\x"`, "\"\xff\"")
}

func (g *gen) free(depth int) string {
	if depth <= 0 {
		return g.pick("1", "-1.5e7", "true", "null", `"s"`, `[]`, `{}`)
	}
	return g.good(3, "[1, "+g.free(depth-1)+"]", `{"a":`+g.free(depth-1)+`}`, g.string(), "01", "[1,]", `{"a":1,"a":2}`, "2")
}

type member = map[string]any

// rfc3339 is stricter than time.Parse.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)?$`)

// want turns the oracle's value into the wanted one; ok is false where the record must
// be refused.
func want(t *typ, v any) (out any, ok bool) {
	if v == nil {
		switch t.kind {
		case kindList:
			return []any{}, true
		case kindMap:
			return member{}, true
		default:
			return nil, true
		}
	}
	text, isText := v.(string)
	number, isNumber := v.(json.Number)
	switch t.kind {
	case kindJSON:
		if t.column.Kind == schema.Variant {
			return numbers(v)
		}
		return v, true
	case kindStruct:
		o, ok := v.(member)
		out := member{}
		for _, f := range t.fields {
			w, fine := want(f.typ, o[f.name])
			out[f.name], ok = w, ok && fine
		}
		return out, ok
	case kindList:
		l, ok := v.([]any)
		out := []any{}
		for _, x := range l {
			w, fine := want(t.item, x)
			out, ok = append(out, w), ok && fine
		}
		return out, ok
	case kindMap:
		o, ok := v.(member)
		out := member{}
		for k, x := range o {
			w, fine := want(t.item, x)
			out[k], ok = w, ok && fine
		}
		return out, ok
	case kindBoolean:
		_, ok := v.(bool)
		return v, ok
	case kindText:
		return text, isText
	case kindBase64:
		s := strings.TrimRight(text, "=")
		raw, err := base64.RawStdEncoding.Strict().DecodeString(s)
		if err != nil {
			raw, err = base64.RawURLEncoding.Strict().DecodeString(s)
		}
		return string(raw), isText && err == nil
	case kindDate:
		d, err := time.Parse("2006-01-02", text)
		return d.Unix() / 86400, isText && err == nil && d.Year() >= 1
	case kindTimestamp:
		layout := "2006-01-02T15:04:05.999999999Z07:00"
		if local(t) {
			layout = "2006-01-02T15:04:05.999999999"
		}
		usual, leap := strings.Replace(strings.ToUpper(text), " ", "T", 1), rfc3339.MatchString(text) && text[17:19] == "60"
		if leap {
			usual = usual[:17] + "59" + usual[19:]
		}
		d, err := time.Parse(layout, usual)
		if leap {
			d = d.Add(time.Second)
		}
		if h, m, s := d.UTC().Clock(); leap && h+m+s > 0 {
			return nil, false
		}
		y := d.UTC().Year()
		if t.column.Kind == schema.TimestampTZNano || t.column.Kind == schema.TimestampNano {
			n := new(big.Int).Add(new(big.Int).Mul(big.NewInt(d.Unix()), big.NewInt(1e9)), big.NewInt(int64(d.Nanosecond())))
			return n.Int64(), isText && err == nil && rfc3339.MatchString(text) && n.IsInt64()
		}
		return d.UnixMicro(), isText && err == nil && rfc3339.MatchString(text) && y >= 1 && y <= 9999
	case kindInteger:
		r, fine := new(big.Rat).SetString(number.String())
		if !isNumber || !fine || !r.IsInt() || !r.Num().IsInt64() {
			return nil, false
		}
		x := r.Num().Int64()
		if t.column.Kind == schema.Int {
			return int32(x), x == int64(int32(x))
		}
		return x, true
	case kindFloat:
		size := 64
		if t.column.Kind == schema.Float {
			size = 32
		}
		x, err := strconv.ParseFloat(number.String(), size)
		if size == 32 {
			return float32(x), isNumber && err == nil
		}
		return x, isNumber && err == nil
	default: // kindDecimal
		s := text
		if isNumber {
			s = number.String()
		}
		if !json.Valid([]byte(s)) {
			return nil, false
		}
		r, fine := new(big.Rat).SetString(s)
		if !fine {
			return nil, false
		}
		r.Mul(r, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(t.column.Scale)), nil)))
		most := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(t.column.Precision)), nil)
		if !r.IsInt() || r.Num().CmpAbs(most) >= 0 {
			return nil, false
		}
		return r.Num().String(), true
	}
}

func got(t testing.TB, ty *typ, a arrow.Array, row int) any {
	if a.IsNull(row) {
		return nil
	}
	switch a := a.(type) {
	case *array.Struct:
		if ty.kind == kindJSON {
			text, err := variant.JSON(nil, a.Field(0).(*array.Binary).Value(row), a.Field(1).(*array.Binary).Value(row))
			require.NoError(t, err)
			v, err := parseAny(string(text))
			require.NoError(t, err)
			v, _ = numbers(v)
			return v
		}
		out := member{}
		for i, f := range ty.fields {
			out[f.name] = got(t, f.typ, a.Field(i), row)
		}
		return out
	case *array.Map:
		from, to := a.ValueOffsets(row)
		out := member{}
		for i := int(from); i < int(to); i++ {
			out[a.Keys().(*array.String).Value(i)] = got(t, ty.item, a.Items(), i)
		}
		return out
	case *array.List:
		from, to := a.ValueOffsets(row)
		out := []any{}
		for i := int(from); i < int(to); i++ {
			out = append(out, got(t, ty.item, a.ListValues(), i))
		}
		return out
	case *array.Boolean:
		return a.Value(row)
	case *array.Int32:
		return a.Value(row)
	case *array.Int64:
		return a.Value(row)
	case *array.Float32:
		return a.Value(row)
	case *array.Float64:
		return a.Value(row)
	case *array.Date32:
		return int64(a.Value(row))
	case *array.Timestamp:
		return int64(a.Value(row))
	case *array.String:
		if ty.kind == kindJSON {
			v, err := parseAny(a.Value(row))
			require.NoError(t, err)
			return v
		}
		return a.Value(row)
	case *array.Binary:
		return string(a.Value(row))
	case *array.Decimal128:
		return a.Value(row).BigInt().String()
	}
	t.Fatalf("no reading of %T", a)
	return nil
}

// numbers is a value with its numbers as doubles, which all of them must fit.
func numbers(v any) (out any, ok bool) {
	ok = true
	each := func(x any) any {
		w, fine := numbers(x)
		ok = ok && fine
		return w
	}
	switch v := v.(type) {
	case json.Number:
		f, err := strconv.ParseFloat(v.String(), 64)
		return f, err == nil
	case []any:
		out := []any{}
		for _, x := range v {
			out = append(out, each(x))
		}
		return out, ok
	case member:
		out := member{}
		for k, x := range v {
			out[k] = each(x)
		}
		return out, ok
	default:
		return v, true
	}
}

func parseAny(text string) (any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// doubled reports whether an object of the next value has a key twice: then the oracle
// sees another value than we do.
func doubled(d *json.Decoder) bool {
	t, _ := d.Token()
	found := false
	switch t {
	case json.Delim('{'):
		seen := map[any]bool{}
		for d.More() {
			key, _ := d.Token()
			found = found || seen[key]
			seen[key] = true
			found = doubled(d) || found
		}
		_, _ = d.Token()
	case json.Delim('['):
		for d.More() {
			found = doubled(d) || found
		}
		_, _ = d.Token()
	}
	return found
}

type tool struct {
	shape *Shape
	batch *Batch
}

func newTool(t testing.TB, s *Shape) *tool {
	t.Helper()
	c, err := s.Candidate()
	require.NoError(t, err)
	target := schema.Evolve(&schema.Schema{}, c, nil, schema.Options{FormatVersion: 3})
	require.NoError(t, target.Schema.Validate())
	p, err := Compile(s, target.Schema)
	require.NoError(t, err)
	return &tool{s, p.NewBatch()}
}

// check decodes a text beside the oracle, with a good record before and after it.
func (x *tool) check(t testing.TB, payload, good []byte) (refused bool) {
	t.Helper()
	x.batch.Reset()
	require.NoError(t, x.batch.Append(good))
	err := x.batch.Append(payload)
	if err != nil {
		e, ok := errors.AsType[*cell.Error](err)
		require.True(t, ok, "%v", err)
		require.NoError(t, x.batch.Append(good))
		x.compare(t, good, good)
		v, oracleErr := parseAny(string(payload))
		if oracleErr == nil && json.Valid(payload) && utf8.Valid(payload) && !bytes.Contains(bytes.ToLower(payload), []byte(`\ud`)) && e.Reason != "duplicate_key" && !doubled(json.NewDecoder(bytes.NewReader(payload))) {
			_, ok := want(x.shape.root, v)
			require.False(t, ok && v != nil, "refused: %v: %s", err, payload)
		}
		return true
	}
	require.True(t, json.Valid(payload), "we take what is no JSON: %s", payload)
	require.NoError(t, x.batch.Append(good))
	x.compare(t, good, payload, good)
	return false
}

func (x *tool) compare(t testing.TB, payloads ...[]byte) {
	t.Helper()
	arrays := x.batch.Finish()
	require.Equal(t, len(payloads), x.batch.Rows())
	for _, a := range arrays {
		if full, can := a.(interface{ ValidateFull() error }); can {
			require.NoError(t, full.ValidateFull())
		}
	}
	for row, payload := range payloads {
		v, err := parseAny(string(payload))
		require.NoError(t, err)
		w, ok := want(x.shape.root, v)
		require.True(t, ok, "we take what must be refused: %s", payload)
		out := member{}
		for i, f := range x.shape.root.fields {
			out[f.name] = got(t, f.typ, arrays[i], row)
		}
		require.Equal(t, w, out, "%s", payload)
	}
}

func TestDecodingAgreesWithTheStandardLibrary(t *testing.T) { // P1: random shapes, legal and mutated texts
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	if n, err := strconv.Atoi(os.Getenv("ICESTREAM_DIFF_CASES")); err == nil {
		rounds = n / 80
	}
	refused, total := 0, 0
	for seed := range rounds {
		g := &gen{r: rand.New(rand.NewPCG(uint64(seed), 3))}
		s, err := FromColumns(g.columns(3))
		require.NoError(t, err)
		x := newTool(t, s)
		good := []byte("{}")
		for range 20 {
			if b := []byte(g.text(s.root, 4)); x.batch.Append(b) == nil {
				good = b
				break
			}
		}
		for range 40 {
			payload := []byte(g.text(s.root, 4))
			if x.check(t, payload, good) {
				refused++
			}
			total++
			for range 1 + g.r.IntN(2) {
				if len(payload) == 0 {
					break
				}
				switch at := g.r.IntN(len(payload)); g.r.IntN(4) {
				case 0:
					payload[at] ^= 1 << g.r.IntN(8)
				case 1:
					payload = payload[:at]
				case 2:
					payload[at] = `{}[],:"\ 0-.e`[g.r.IntN(13)]
				default:
					payload = append(payload[:at:at], payload[min(at+1, len(payload)):]...)
				}
			}
			x.check(t, payload, good)
		}
	}
	t.Logf("%d texts, %d refused", total, refused)
	require.Greater(t, refused, total/20)
	require.Less(t, refused, total*9/10)
}

func FuzzDecode(f *testing.F) {
	for seed := range uint64(40) {
		g := &gen{r: rand.New(rand.NewPCG(seed, 3))}
		if s, err := FromColumns(g.columns(3)); err == nil {
			f.Add(seed, []byte(g.text(s.root, 4)))
		}
	}
	f.Fuzz(func(t *testing.T, seed uint64, payload []byte) {
		g := &gen{r: rand.New(rand.NewPCG(seed, 3))}
		s, err := FromColumns(g.columns(3))
		require.NoError(t, err)
		newTool(t, s).check(t, payload, []byte("{}"))
	})
}
