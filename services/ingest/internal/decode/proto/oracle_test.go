package proto

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"google.golang.org/protobuf/encoding/protojson"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/variant"
)

// The oracle: the mapping rules once more, written against dynamicpb's reflection
// and plain Go values, with nothing in common with the decoder. Values are nil,
// bool, int64, float32, float64, string, []byte, *big.Int, time.Time (UTC), []any,
// fields (struct) and map[any]any (map).

type fields map[string]any

// notARow is panicked by the oracle for a message that is no valid row.
type notARow string

// mapper is the oracle with the options of a pipeline.
type mapper struct{ opts Options }

func oracleRow(m protoreflect.Message) fields { return mapper{}.row(m, nil) }

// row maps a message that stands inside the types above.
func (o mapper) row(m protoreflect.Message, above []protoreflect.FullName) fields {
	out := fields{}
	md := m.Descriptor()
	above = append(slices.Clip(above), md.FullName())
	if md.Fields().Len() == 0 {
		out["present"] = true
	}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		name := string(fd.Name())
		switch {
		case fd.IsMap():
			entries := map[any]any{}
			m.Get(fd).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries[key(o.value(fd.MapKey(), k.Value(), above))] = o.value(fd.MapValue(), v, append(slices.Clip(above), "map"))
				return true
			})
			out[name] = entries
		case fd.IsList():
			list := []any{}
			for j := range m.Get(fd).List().Len() {
				list = append(list, o.value(fd, m.Get(fd).List().Get(j), above))
			}
			out[name] = list
		case fd.HasPresence() && !m.Has(fd):
			out[name] = nil
		default:
			out[name] = o.value(fd, m.Get(fd), above)
		}
	}
	for i := range md.Oneofs().Len() {
		oneof := md.Oneofs().Get(i)
		if !o.opts.OneofCase || oneof.IsSynthetic() {
			continue
		}
		out[string(oneof.Name())] = nil
		if fd := m.WhichOneof(oneof); fd != nil {
			out[string(oneof.Name())] = string(fd.Name())
		}
	}
	return out
}

// key makes a value usable as a Go map key.
func key(v any) any {
	if n, isBig := v.(*big.Int); isBig {
		return n.String()
	}
	return v
}

func (o mapper) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, above []protoreflect.FullName) any {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return v.Bool()
	case protoreflect.EnumKind:
		if o.opts.EnumAsInt {
			return int64(v.Enum())
		}
		if known := fd.Enum().Values().ByNumber(v.Enum()); known != nil {
			return string(known.Name())
		}
		return fmt.Sprint(int32(v.Enum()))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind,
		protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return v.Int()
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return int64(v.Uint())
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return new(big.Int).SetUint64(v.Uint())
	case protoreflect.FloatKind:
		return float32(v.Float())
	case protoreflect.DoubleKind:
		return v.Float()
	case protoreflect.StringKind:
		if !utf8.ValidString(v.String()) {
			panic(notARow("utf-8"))
		}
		return v.String()
	case protoreflect.BytesKind:
		return v.Bytes()
	case protoreflect.MessageKind, protoreflect.GroupKind:
	}
	m := v.Message()
	get := func(n protoreflect.FieldNumber) protoreflect.Value { return m.Get(m.Descriptor().Fields().ByNumber(n)) }
	full := string(m.Descriptor().FullName())
	switch {
	case full == "google.protobuf.Timestamp":
		s, n := get(1).Int(), get(2).Int()
		if n < 0 || n >= 1e9 || s < time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix() || s >= time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).Unix() {
			panic(notARow("timestamp"))
		}
		if o.opts.TimestampNanos {
			if total := new(big.Int).Add(new(big.Int).Mul(big.NewInt(s), big.NewInt(1e9)), big.NewInt(n)); !total.IsInt64() {
				panic(notARow("timestamp in nanoseconds"))
			}
			return time.Unix(s, n).UTC()
		}
		return time.Unix(s, n).UTC().Truncate(time.Microsecond)
	case full == "google.protobuf.Duration":
		s, n := get(1).Int(), get(2).Int()
		total := new(big.Int).Add(new(big.Int).Mul(big.NewInt(s), big.NewInt(1e9)), big.NewInt(n))
		if n <= -1e9 || n >= 1e9 || s > 0 && n < 0 || s < 0 && n > 0 || !total.IsInt64() {
			panic(notARow("duration"))
		}
		return total.Int64()
	case slices.Contains([]string{"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"}, full),
		slices.Contains(above, m.Descriptor().FullName()), countMaps(above) > 8:
		if o.opts.Variant && !fd.IsList() && !fd.ContainingMessage().IsMapEntry() {
			return variantText([]byte(oracleJSON(m)))
		}
		return oracleJSON(m)
	case full == "google.type.Date":
		y, mo, d := get(1).Int(), get(2).Int(), get(3).Int()
		if y == 0 && mo == 0 && d == 0 {
			return nil
		}
		t, err := time.Parse(time.DateOnly, fmt.Sprintf("%04d-%02d-%02d", y, mo, d))
		if err != nil || y == 0 {
			panic(notARow("date"))
		}
		return t.Format(time.DateOnly)
	case full == "google.type.TimeOfDay":
		h, mi, s, n := get(1).Int(), get(2).Int(), get(3).Int(), get(4).Int()
		micros := h*3600e6 + mi*60e6 + s*1e6 + n/1000
		if min(h, mi, s, n) < 0 || h > 24 || mi > 59 || s > 60 || n > 999999999 || h == 24 && micros > 86400e6 {
			panic(notARow("time of day"))
		}
		if o.opts.TimeOfDayAsTime && micros >= 86400e6 {
			panic(notARow("time of day"))
		}
		return micros
	case full == "google.type.Decimal":
		return o.value(m.Descriptor().Fields().ByNumber(1), get(1), above)
	case full == "confluent.type.Decimal":
		return oracleDecimal(get(1).Bytes(), get(3).Int())
	case full == "google.protobuf.FieldMask":
		var paths []string
		for i := range get(1).List().Len() {
			paths = append(paths, get(1).List().Get(i).String())
		}
		return strings.Join(paths, ",")
	case strings.HasPrefix(full, "google.protobuf.") && strings.HasSuffix(full, "Value"):
		return o.value(m.Descriptor().Fields().ByNumber(1), get(1), above)
	}
	return o.row(m, above)
}

func countMaps(above []protoreflect.FullName) (n int) {
	for _, name := range above {
		if name == "map" {
			n++
		}
	}
	return n
}

// oracleJSON is canonical JSON, with the extensions that the schema itself has.
// variantText is the value of a JSON text in a form that compares: numbers by what they are, keys in order.
func variantText(text []byte) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	out, err := json.Marshal(exact(v))
	if err != nil {
		panic(err)
	}
	return "variant " + string(out)
}

func exact(v any) any {
	switch v := v.(type) {
	case json.Number:
		r, ok := new(big.Rat).SetString(v.String())
		if !ok {
			panic(v)
		}
		return "number " + r.RatString()
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = exact(v[k])
		}
	}
	return v
}

func oracleJSON(m protoreflect.Message) string {
	known := &protoregistry.Types{}
	for i := range m.Descriptor().ParentFile().Extensions().Len() {
		if err := known.RegisterExtension(dynamicpb.NewExtensionType(m.Descriptor().ParentFile().Extensions().Get(i))); err != nil {
			panic(err)
		}
	}
	if known.NumExtensions() > 0 {
		raw, err := protobuf.MarshalOptions{AllowPartial: true}.Marshal(m.Interface())
		again := dynamicpb.NewMessage(m.Descriptor())
		if err != nil || (protobuf.UnmarshalOptions{Resolver: known}).Unmarshal(raw, again) != nil {
			panic(notARow("json"))
		}
		m = again
	}
	text, err := protojson.Marshal(m.Interface())
	var compact bytes.Buffer
	if err != nil || json.Compact(&compact, text) != nil {
		panic(notARow("json"))
	}
	return compact.String()
}

// oracleDecimal is the text of a decimal without a known scale.
func oracleDecimal(unscaled []byte, scale int64) string {
	if scale < -1000 || scale > 1000 || len(unscaled) > 1000 {
		panic(notARow("decimal"))
	}
	n := new(big.Int)
	for i, b := range unscaled {
		if i == 0 {
			n.SetInt64(int64(int8(b)))
			continue
		}
		n.Add(n.Mul(n, big.NewInt(256)), big.NewInt(int64(b)))
	}
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(max(scale, -scale)), nil)
	if scale <= 0 {
		return n.Mul(n, power).String()
	}
	return new(big.Rat).SetFrac(n, power).FloatString(int(scale))
}

// arrowRow reads a row back from the decoder's arrays, into the same values.
func arrowRow(names []string, columns []arrow.Array, row int) fields {
	out := fields{}
	for i, c := range columns {
		out[names[i]] = arrowValue(c, row)
	}
	return out
}

func arrowValue(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch a := a.(type) {
	case *array.Boolean:
		return a.Value(i)
	case *array.Int32:
		return int64(a.Value(i))
	case *array.Int64:
		return a.Value(i)
	case *array.Float32:
		return a.Value(i)
	case *array.Float64:
		return a.Value(i)
	case *array.String:
		return a.Value(i)
	case *array.Binary:
		return append([]byte{}, a.Value(i)...)
	case *array.Decimal128:
		return a.Value(i).BigInt()
	case *array.Date32:
		return a.Value(i).ToTime().Format(time.DateOnly)
	case *array.Time64:
		return int64(a.Value(i))
	case *array.Timestamp:
		return a.Value(i).ToTime(a.DataType().(*arrow.TimestampType).Unit)
	case *array.Map:
		out := map[any]any{}
		from, to := a.ValueOffsets(i)
		for j := from; j < to; j++ {
			k := key(arrowValue(a.Keys(), int(j)))
			if _, doubled := out[k]; doubled {
				panic(fmt.Sprintf("key %v is in the map twice", k))
			}
			out[k] = arrowValue(a.Items(), int(j))
		}
		return out
	case *array.List:
		out := []any{}
		from, to := a.ValueOffsets(i)
		for j := from; j < to; j++ {
			out = append(out, arrowValue(a.ListValues(), int(j)))
		}
		return out
	case *array.Struct:
		if schema.IsVariant(arrow.Field{Type: a.DataType(), Metadata: arrow.NewMetadata([]string{"icestream.type"}, []string{"variant"})}) {
			text, err := variant.JSON(nil, a.Field(0).(*array.Binary).Value(i), a.Field(1).(*array.Binary).Value(i))
			if err != nil {
				panic(err)
			}
			return variantText(text)
		}
		out := fields{}
		for j, f := range a.DataType().(*arrow.StructType).Fields() {
			out[f.Name] = arrowValue(a.Field(j), i)
		}
		return out
	}
	panic(fmt.Sprintf("no reader for %T", a))
}
