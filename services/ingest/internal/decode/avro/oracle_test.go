package avro

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	oracle "github.com/twmb/avro"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/variant"
)

// gen makes random schemas and random records of them. The records are judged by a
// library that is not ours.
type gen struct {
	r     *rand.Rand
	names int
	named []string // records that are being defined, for recursion
}

func (g *gen) name(prefix string) string {
	g.names++
	return fmt.Sprintf("%s%d", prefix, g.names)
}

type object = map[string]any

func (g *gen) scalar() any {
	return []any{
		"boolean", "int", "long", "float", "double", "string", "bytes",
		object{"type": "int", "logicalType": "date"},
		object{"type": "int", "logicalType": "time-millis"},
		object{"type": "long", "logicalType": "time-micros"},
		object{"type": "long", "logicalType": "timestamp-millis"},
		object{"type": "long", "logicalType": "timestamp-micros"},
		object{"type": "long", "logicalType": "timestamp-nanos"},
		object{"type": "long", "logicalType": "local-timestamp-micros"},
		object{"type": "string", "logicalType": "uuid"},
		object{"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
		object{"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 5},
		object{"type": "fixed", "name": g.name("F"), "size": 8, "logicalType": "decimal", "precision": 10, "scale": 2},
		object{"type": "fixed", "name": g.name("F"), "size": 16, "logicalType": "uuid"},
		object{"type": "fixed", "name": g.name("F"), "size": 12, "logicalType": "duration"},
		object{"type": "fixed", "name": g.name("F"), "size": 1 + g.r.IntN(5)},
		object{"type": "enum", "name": g.name("E"), "symbols": []string{"RED", "GREEN", "BLUE"}},
	}[g.r.IntN(22)]
}

func (g *gen) typ(depth int) any {
	if depth <= 0 {
		return g.scalar()
	}
	switch g.r.IntN(10) {
	case 0:
		return object{"type": "array", "items": g.typ(depth - 1)}
	case 1:
		return object{"type": "map", "values": g.typ(depth - 1)}
	case 2:
		return g.record(depth - 1)
	case 3:
		return []any{"null", g.notUnion(depth - 1)}
	case 4:
		if len(g.named) > 0 && g.r.IntN(2) == 0 {
			self := g.named[g.r.IntN(len(g.named))]
			return []any{[]any{"null", self}, object{"type": "array", "items": self}}[g.r.IntN(2)]
		}
		return []any{"null", "string", "long", object{"type": "array", "items": g.typ(depth - 1)}, g.record(depth - 1)}
	case 5:
		return []any{"int", "null", "long"}
	default:
		return g.scalar()
	}
}

func (g *gen) notUnion(depth int) any {
	for {
		if t := g.typ(depth); t != nil {
			if _, union := t.([]any); !union {
				return t
			}
		}
	}
}

func (g *gen) record(depth int) object {
	name := g.name("R")
	g.named = append(g.named, name)
	var fields []object
	for range 1 + g.r.IntN(5) {
		fields = append(fields, object{"name": g.name("f"), "type": g.typ(depth)})
	}
	g.named = g.named[:len(g.named)-1]
	return object{"type": "record", "name": name, "fields": fields}
}

func long(dst []byte, x int64) []byte { return binary.AppendVarint(dst, x) }

var texts = []string{"", "a", "hello", "grüße", "a\"b\\c\n", strings.Repeat("long text ", 20)}

// encode appends a random value of the type.
func (g *gen) encode(dst []byte, t *typ, depth int) []byte {
	n := g.r.Int64() >> g.r.IntN(64)
	if g.r.IntN(2) == 0 {
		n = -n
	}
	switch t.kind {
	case kindNull:
		return dst
	case kindBoolean:
		return append(dst, byte(g.r.IntN(2)))
	case kindInt:
		switch t.logical {
		case "date":
			n %= 700_000
		case "time-millis":
			n = g.r.Int64N(86_400_000)
		}
		return long(dst, int64(int32(n)))
	case kindLong:
		if t.logical == "time-micros" {
			n = g.r.Int64N(86_400_000_000)
		} else if t.logical != "" {
			n %= 60_000_000_000_000
		}
		return long(dst, n)
	case kindFloat:
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits([]float32{0, 1.5, -3e20, float32(n)}[g.r.IntN(4)]))
	case kindDouble:
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits([]float64{0, 1.5, -3e200, float64(n)}[g.r.IntN(4)]))
	case kindString:
		s := texts[g.r.IntN(len(texts))]
		return append(long(dst, int64(len(s))), s...)
	case kindBytes:
		b := make([]byte, g.r.IntN(6))
		for i := range b {
			b[i] = byte(g.r.IntN(256))
		}
		if t.logical == "decimal" && len(b) == 0 {
			b = []byte{0}
		}
		return append(long(dst, int64(len(b))), b...)
	case kindFixed:
		for i := range t.size {
			x := byte(g.r.IntN(256))
			if t.logical == "decimal" && i < t.size-4 {
				x = 0
			}
			dst = append(dst, x)
		}
		return dst
	case kindEnum:
		return long(dst, g.r.Int64N(int64(len(t.symbols))))
	case kindRecord:
		for _, f := range t.fields {
			dst = g.encode(dst, f.typ, depth-1)
		}
		return dst
	case kindUnion:
		at := g.r.IntN(len(t.branches))
		for i, b := range t.branches {
			if depth <= 0 && b.kind == kindNull {
				at = i
			}
		}
		return g.encode(long(dst, int64(at)), t.branches[at], depth-1)
	default:
		return g.many(dst, t, depth)
	}
}

func (g *gen) many(dst []byte, t *typ, depth int) []byte {
	if depth > 0 {
		for range g.r.IntN(3) {
			count := 1 + g.r.IntN(4)
			var block []byte
			for range count {
				if t.kind == kindMap {
					s := texts[1+g.r.IntN(3)]
					block = append(long(block, int64(len(s))), s...)
				}
				block = g.encode(block, t.items, depth-1)
			}
			if g.r.IntN(2) == 0 {
				dst = long(dst, int64(count))
			} else {
				dst = long(long(dst, -int64(count)), int64(len(block)))
			}
			dst = append(dst, block...)
		}
	}
	return long(dst, 0)
}

// want turns what the oracle decoded into what the row must hold.
func want(t testing.TB, ty *typ, v any, in inside) any {
	switch ty.shape(in) {
	case shapeNull:
		return nil
	case shapeJSON:
		if v == nil { // a union
			return nil
		}
		text, err := json.Marshal(plain(t, ty, v))
		require.NoError(t, err)
		return "json " + string(text)
	case shapeOptional, shapeUnion:
		if v == nil {
			switch o := ty.only(); {
			case o != nil && o.shape(in) == shapeArray:
				return []any{}
			case o != nil && o.shape(in) == shapeMap:
				return object{}
			}
			return nil
		}
		branch, x := tagged(t, ty, v)
		if ty.only() != nil {
			w := want(t, branch, x, in)
			if i, small := w.(int32); small && ty.only().kind == kindLong {
				return int64(i)
			}
			return w
		}
		out := object{}
		for _, b := range ty.branches {
			switch {
			case b == branch:
				out[b.short()] = want(t, b, x, in)
			case b.kind == kindArray:
				out[b.short()] = []any{}
			case b.kind == kindMap:
				out[b.short()] = object{}
			case b.kind != kindNull:
				out[b.short()] = nil
			}
		}
		return out
	case shapeRecord:
		in = in.push(ty)
		out := object{}
		for _, f := range ty.fields {
			out[f.name] = want(t, f.typ, v.(object)[f.name], in)
		}
		return out
	case shapeArray:
		out := []any{}
		for _, x := range v.([]any) {
			out = append(out, want(t, ty.items, x, in))
		}
		return out
	case shapeMap:
		out := object{}
		for k, x := range v.(object) {
			out[k] = want(t, ty.items, x, in.push(ty))
		}
		return out
	case shapeDuration:
		d := v.(oracle.Duration)
		return object{"months": int64(d.Months), "days": int64(d.Days), "millis": int64(d.Milliseconds)}
	default:
		return wantScalar(ty, v)
	}
}

func wantScalar(ty *typ, v any) any {
	switch v := v.(type) {
	case time.Time:
		if ty.logical == "date" {
			return v.Unix() / 86400 * 1
		}
		if ty.nanos {
			return v.UnixNano()
		}
		return v.UnixMicro()
	case time.Duration:
		return v.Microseconds()
	case *big.Rat:
		return v.FloatString(ty.scale)
	case [16]byte:
		return fmt.Sprintf("%x-%x-%x-%x-%x", v[:4], v[4:6], v[6:8], v[8:10], v[10:])
	case []byte:
		return string(v)
	default:
		return v
	}
}

// tagged finds the branch of a union value, which the oracle wraps with its name.
func tagged(t testing.TB, ty *typ, v any) (*typ, any) {
	m := v.(object)
	require.Len(t, m, 1)
	for name, x := range m {
		for _, b := range ty.branches {
			if b.name == name {
				return b, x
			}
		}
		t.Fatalf("no branch %s", name)
	}
	return nil, nil
}

// plain is the value as our JSON writes it.
func plain(t testing.TB, ty *typ, v any) any {
	switch ty.kind {
	case kindUnion:
		if v == nil {
			return nil
		}
		b, x := tagged(t, ty, v)
		return plain(t, b, x)
	case kindRecord:
		out := object{}
		for _, f := range ty.fields {
			out[f.name] = plain(t, f.typ, v.(object)[f.name])
		}
		return out
	case kindArray:
		out := []any{}
		for _, x := range v.([]any) {
			out = append(out, plain(t, ty.items, x))
		}
		return out
	case kindMap:
		out := object{}
		for k, x := range v.(object) {
			out[k] = plain(t, ty.items, x)
		}
		return out
	default:
	}
	switch v := v.(type) {
	case float32:
		return plainFloat(float64(v), v)
	case float64:
		return plainFloat(v, v)
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case oracle.Duration:
		var b [12]byte
		binary.LittleEndian.PutUint32(b[:], v.Months)
		binary.LittleEndian.PutUint32(b[4:], v.Days)
		binary.LittleEndian.PutUint32(b[8:], v.Milliseconds)
		return base64.StdEncoding.EncodeToString(b[:])
	case time.Duration:
		if ty.logical == "time-millis" {
			return v.Milliseconds()
		}
		return v.Microseconds()
	case time.Time:
		switch {
		case ty.logical == "date":
			return v.Unix() / 86400
		case strings.HasSuffix(ty.logical, "millis"):
			return v.UnixMilli()
		case strings.HasSuffix(ty.logical, "nanos"):
			return v.UnixNano()
		}
		return v.UnixMicro()
	}
	return wantScalar(ty, v)
}

// plainFloat is a number, but for what JSON has no numbers for.
func plainFloat(x float64, number any) any {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 1):
		return "Infinity"
	case math.IsInf(x, -1):
		return "-Infinity"
	default:
		return number
	}
}

// got reads a cell back, structs by the sources of their columns.
func got(t testing.TB, n *schema.Node, a arrow.Array, row int) any {
	if a.IsNull(row) {
		return nil
	}
	switch a := a.(type) {
	case *array.Struct:
		if n.Type.Kind == schema.Variant {
			text, err := variant.JSON(nil, a.Field(0).(*array.Binary).Value(row), a.Field(1).(*array.Binary).Value(row))
			require.NoError(t, err)
			return string(text)
		}
		out := object{}
		for i, k := range n.Kids {
			if name := k.Source; name != "" {
				out[name[strings.LastIndexByte(name, '.')+1:]] = got(t, k, a.Field(i), row)
			} else {
				out[k.Name] = got(t, k, a.Field(i), row)
			}
		}
		return out
	case *array.Map:
		from, to := a.ValueOffsets(row)
		out := object{}
		for i := from; i < to; i++ {
			key := a.Keys().(*array.String).Value(int(i))
			require.NotContains(t, out, key, "a key twice")
			out[key] = got(t, n.Kids[1], a.Items(), int(i))
		}
		return out
	case *array.List:
		from, to := a.ValueOffsets(row)
		out := []any{}
		for i := from; i < to; i++ {
			out = append(out, got(t, n.Kids[0], a.ListValues(), int(i)))
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
		return a.Value(row)
	case *array.Binary:
		return string(a.Value(row))
	case *array.Decimal128:
		return a.Value(row).ToString(n.Type.Scale)
	default:
		t.Fatalf("no reading of %T", a)
		return nil
	}
}

// same compares a wanted with a decoded value; JSON texts by meaning.
func same(t testing.TB, want, got any, path string) {
	switch w := want.(type) {
	case object:
		g, ok := got.(object)
		require.True(t, ok, "%s: %v instead of %v", path, got, want)
		require.Len(t, g, len(w), path)
		for k := range w {
			same(t, w[k], g[k], path+"."+k)
		}
	case []any:
		g, ok := got.([]any)
		require.True(t, ok, "%s: %v instead of %v", path, got, want)
		require.Len(t, g, len(w), path)
		for i := range w {
			same(t, w[i], g[i], fmt.Sprintf("%s[%d]", path, i))
		}
	case string:
		if text, isJSON := strings.CutPrefix(w, "json "); isJSON {
			require.JSONEq(t, text, got.(string), path)
			return
		}
		require.Equal(t, want, got, path)
	case float64:
		require.Equal(t, math.Float64bits(w), math.Float64bits(got.(float64)), path)
	case float32:
		require.Equal(t, math.Float32bits(w), math.Float32bits(got.(float32)), path)
	default:
		require.Equal(t, want, got, path)
	}
}
