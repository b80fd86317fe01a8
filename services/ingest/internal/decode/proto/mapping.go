package proto

import (
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// shape is how one value of a field is mapped, its cardinality apart.
type shape uint8

const (
	shapeScalar        shape = iota
	shapeEnumName            // enum as string
	shapeMessage             // struct
	shapeEmpty               // struct{present}
	shapeWrapper             // nullable scalar
	shapeTimestamp           // timestamptz, or timestamptz_ns
	shapeDuration            // long nanoseconds
	shapeDate                // date
	shapeTimeOfDay           // long microseconds, or time
	shapeDecimal             // confluent decimal with known scale
	shapeDecimalText         // confluent decimal of unknown scale
	shapeGoogleDecimal       // google.type.Decimal: text already
	shapeFieldMask           // paths joined by commas
	shapeJSON                // recursion and the JSON-like well-known types
)

// stack holds the message types that enclose a field, outermost first, and a marker
// for each map.
type stack []protoreflect.FullName

// insideMap is the marker; no type has such a name.
const insideMap protoreflect.FullName = "{}"

func (s stack) has(name protoreflect.FullName) bool { return slices.Contains(s, name) }

// tooManyMaps reports whether more than cell.MaxMaps maps enclose the field.
func (s stack) tooManyMaps() bool {
	maps := 0
	for _, name := range s {
		if name == insideMap {
			maps++
		}
	}
	return maps > cell.MaxMaps
}

func (s stack) push(name protoreflect.FullName) stack { return append(slices.Clip(s), name) }

// classify says how one value of the field is mapped and, unless it is a struct,
// to which type.
func classify(fd protoreflect.FieldDescriptor, above stack, opts Options) (shape, schema.Type) {
	if md := fd.Message(); md != nil {
		return classifyMessage(fd, md, above, opts)
	}
	if fd.Kind() == protoreflect.EnumKind && !opts.EnumAsInt {
		return shapeEnumName, schema.Of(schema.String)
	}
	return shapeScalar, scalarType(fd.Kind())
}

func scalarType(k protoreflect.Kind) schema.Type {
	switch k {
	case protoreflect.BoolKind:
		return schema.Of(schema.Boolean)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind, protoreflect.EnumKind:
		return schema.Of(schema.Int)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind,
		protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return schema.Of(schema.Long)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return schema.DecimalOf(20, 0)
	case protoreflect.FloatKind:
		return schema.Of(schema.Float)
	case protoreflect.DoubleKind:
		return schema.Of(schema.Double)
	case protoreflect.StringKind:
		return schema.Of(schema.String)
	case protoreflect.BytesKind:
		return schema.Of(schema.Binary)
	default:
		return schema.Of(schema.Invalid) // messages and groups are no scalars
	}
}

func classifyMessage(fd protoreflect.FieldDescriptor, md protoreflect.MessageDescriptor, above stack, opts Options) (shape, schema.Type) {
	if s, t, known := classifyWellKnown(fd, md, opts); known {
		return s, t
	}
	switch {
	case above.has(md.FullName()), above.tooManyMaps():
		return shapeJSON, opts.anyType()
	case md.Fields().Len() == 0:
		return shapeEmpty, schema.Of(schema.Struct)
	default:
		return shapeMessage, schema.Of(schema.Struct)
	}
}

func classifyWellKnown(fd protoreflect.FieldDescriptor, md protoreflect.MessageDescriptor, opts Options) (shape, schema.Type, bool) {
	switch md.FullName() {
	case "google.protobuf.Timestamp":
		t := schema.Of(schema.TimestampTZ)
		if opts.TimestampNanos {
			t = schema.Of(schema.TimestampTZNano)
		}
		return shapeTimestamp, t, hasFields(md, protoreflect.Int64Kind, protoreflect.Int32Kind)
	case "google.protobuf.Duration":
		return shapeDuration, schema.Of(schema.Long), hasFields(md, protoreflect.Int64Kind, protoreflect.Int32Kind)
	case "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue":
		return shapeJSON, opts.anyType(), true
	case "google.protobuf.FieldMask":
		return shapeFieldMask, schema.Of(schema.String), hasFields(md, protoreflect.StringKind)
	case "google.protobuf.DoubleValue", "google.protobuf.FloatValue", "google.protobuf.Int64Value",
		"google.protobuf.UInt64Value", "google.protobuf.Int32Value", "google.protobuf.UInt32Value",
		"google.protobuf.BoolValue", "google.protobuf.StringValue", "google.protobuf.BytesValue":
		value := md.Fields().ByNumber(1)
		if value == nil || value.Message() != nil || value.IsList() {
			return 0, schema.Type{}, false
		}
		return shapeWrapper, scalarType(value.Kind()), true
	case "google.type.Date":
		i32 := protoreflect.Int32Kind
		return shapeDate, schema.Of(schema.Date), hasFields(md, i32, i32, i32)
	case "google.type.TimeOfDay":
		t := schema.Of(schema.Long)
		if opts.TimeOfDayAsTime {
			t = schema.Of(schema.Time)
		}
		i32 := protoreflect.Int32Kind
		return shapeTimeOfDay, t, hasFields(md, i32, i32, i32, i32)
	case "google.type.Decimal":
		return shapeGoogleDecimal, schema.Of(schema.String), hasFields(md, protoreflect.StringKind)
	case "confluent.type.Decimal":
		if !hasFields(md, protoreflect.BytesKind, protoreflect.Uint32Kind, protoreflect.Int32Kind) {
			return 0, schema.Type{}, false
		}
		if t, known := decimalParams(fd); known {
			return shapeDecimal, t, true
		}
		return shapeDecimalText, schema.Of(schema.String), true
	}
	return 0, schema.Type{}, false
}

// anyType is the type of a value that has no fixed columns.
func (o Options) anyType() schema.Type {
	if o.Variant {
		return schema.Of(schema.Variant)
	}
	return schema.Of(schema.String)
}

// hasFields guards against a message that only has the name of a well-known one:
// fields 1, 2, ... must have the given kinds.
func hasFields(md protoreflect.MessageDescriptor, kinds ...protoreflect.Kind) bool {
	for i, k := range kinds {
		fd := md.Fields().ByNumber(protoreflect.FieldNumber(i + 1))
		if fd == nil || fd.Kind() != k {
			return false
		}
	}
	return true
}

// Numbers of Confluent's field metadata: the extension of FieldOptions, and the
// map of parameters in it.
const (
	metaExtension = 1088
	metaParams    = 2
)

// decimalParams reads precision and scale from the field's Confluent metadata.
// The options are walked on the wire, so it does not matter whether the extension
// was known when the schema was compiled. Without a precision it is the widest.
func decimalParams(fd protoreflect.FieldDescriptor) (schema.Type, bool) {
	raw, err := protobuf.Marshal(fd.Options())
	if err != nil {
		return schema.Type{}, false
	}
	params := map[string]string{}
	eachBytes(raw, metaExtension, func(meta []byte) {
		eachBytes(meta, metaParams, func(entry []byte) {
			var key, value string
			eachBytes(entry, 1, func(b []byte) { key = string(b) })
			eachBytes(entry, 2, func(b []byte) { value = string(b) })
			params[key] = value
		})
	})
	scale, err := strconv.ParseInt(params["scale"], 10, 32)
	if err != nil || scale < 0 || scale > 38 {
		return schema.Type{}, false
	}
	precision, err := strconv.ParseInt(params["precision"], 10, 32)
	if err != nil || precision < 1 || precision > 38 {
		precision = 38
	}
	if precision < scale {
		return schema.Type{}, false
	}
	return schema.DecimalOf(int32(precision), int32(scale)), true
}

func eachBytes(b []byte, want protowire.Number, visit func([]byte)) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		if num == want && typ == protowire.BytesType {
			v, m := protowire.ConsumeBytes(b)
			if m < 0 {
				return
			}
			visit(v)
			b = b[m:]
			continue
		}
		m := protowire.ConsumeFieldValue(num, typ, b)
		if m < 0 {
			return
		}
		b = b[m:]
	}
}
