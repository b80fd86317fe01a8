package schema

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
)

// Keys of Arrow field metadata.
const (
	// FieldIDKey holds the Iceberg field id, as the Parquet writer expects it.
	FieldIDKey = "PARQUET:field_id"
	// DocKey holds the column's doc text.
	DocKey = "doc"
	// typeKey marks a fixed-size binary field of 16 bytes as an Iceberg uuid.
	// Arrow's own uuid extension type would drag a Parquet package into every
	// process, so only the writer of files uses it.
	// In the same way it marks a struct of two binaries as a variant.
	typeKey     = "icestream.type"
	typeUUID    = "uuid"
	typeVariant = "variant"
)

// The parts of a variant, in the order in which ours have them.
const (
	VariantMetadata = "metadata"
	VariantValue    = "value"
)

var variantStorage = arrow.StructOf(
	arrow.Field{Name: VariantMetadata, Type: arrow.BinaryTypes.Binary}, arrow.Field{Name: VariantValue, Type: arrow.BinaryTypes.Binary},
)

// variantExtensions are the names of Arrow's variant, now and before it was canonical.
var variantExtensions = []string{"arrow.parquet.variant", "parquet.variant"}

const utc = "UTC"

// Arrow is the schema in Arrow's words. Field ids stand in the field metadata at
// every depth, lists have a child "element", maps the children "key" and "value"
// in a struct "key_value" ("entries" in memory), instants are microseconds in UTC,
// and a uuid is a fixed-size binary of 16 bytes. Numbers are not part of it.
func (s *Schema) Arrow() *arrow.Schema {
	fields := make([]arrow.Field, len(s.Columns))
	for i, c := range s.Columns {
		fields[i] = c.ArrowField()
	}
	return arrow.NewSchema(fields, nil)
}

// ArrowField is one column, with everything below it, in Arrow's words.
func (n *Node) ArrowField() arrow.Field {
	var keys, values []string
	if n.FieldID != 0 {
		keys, values = append(keys, FieldIDKey), append(values, strconv.Itoa(int(n.FieldID)))
	}
	if n.Doc != "" {
		keys, values = append(keys, DocKey), append(values, n.Doc)
	}
	if n.Type.Kind == UUID {
		keys, values = append(keys, typeKey), append(values, typeUUID)
	}
	if n.Type.Kind == Variant {
		keys, values = append(keys, typeKey), append(values, typeVariant)
	}
	f := arrow.Field{Name: n.Name, Type: n.arrowType(), Nullable: !n.Required}
	if len(keys) > 0 {
		f.Metadata = arrow.NewMetadata(keys, values)
	}
	return f
}

// IsUUID reports whether a field that ArrowField made is a uuid, which Arrow sees
// as 16 bytes.
func IsUUID(f arrow.Field) bool {
	v, ok := f.Metadata.GetValue(typeKey)
	return ok && v == typeUUID
}

// IsVariant reports whether a field that ArrowField made is a variant, which Arrow
// sees as a struct of metadata and value.
func IsVariant(f arrow.Field) bool {
	v, ok := f.Metadata.GetValue(typeKey)
	return ok && v == typeVariant && arrow.TypeEqual(f.Type, variantStorage)
}

func (n *Node) arrowType() arrow.DataType {
	switch n.Type.Kind {
	case Boolean:
		return arrow.FixedWidthTypes.Boolean
	case Int:
		return arrow.PrimitiveTypes.Int32
	case Long:
		return arrow.PrimitiveTypes.Int64
	case Float:
		return arrow.PrimitiveTypes.Float32
	case Double:
		return arrow.PrimitiveTypes.Float64
	case Decimal:
		return &arrow.Decimal128Type{Precision: n.Type.Precision, Scale: n.Type.Scale}
	case Date:
		return arrow.FixedWidthTypes.Date32
	case Time:
		return arrow.FixedWidthTypes.Time64us
	case TimestampTZ:
		return &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: utc}
	case Timestamp:
		return &arrow.TimestampType{Unit: arrow.Microsecond}
	case TimestampTZNano:
		return &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: utc}
	case TimestampNano:
		return &arrow.TimestampType{Unit: arrow.Nanosecond}
	case String:
		return arrow.BinaryTypes.String
	case UUID:
		return &arrow.FixedSizeBinaryType{ByteWidth: 16}
	case Binary:
		return arrow.BinaryTypes.Binary
	case Fixed:
		return &arrow.FixedSizeBinaryType{ByteWidth: int(n.Type.Length)}
	case Variant:
		return variantStorage
	case Struct:
		fields := make([]arrow.Field, len(n.Kids))
		for i, k := range n.Kids {
			fields[i] = k.ArrowField()
		}
		return arrow.StructOf(fields...)
	case List:
		return arrow.ListOfField(n.Kids[0].ArrowField())
	case Map:
		return arrow.MapOfFields(n.Kids[0].ArrowField(), n.Kids[1].ArrowField())
	case Invalid:
	}
	return arrow.Null
}

// FromArrow reads an Arrow schema. It accepts what Arrow writes and also the
// large variants of strings, binaries and lists, and fails with the path of the
// first column whose type no Iceberg table of ours can hold.
func FromArrow(in *arrow.Schema) (*Schema, error) {
	s := &Schema{}
	for _, f := range in.Fields() {
		n, err := fromField(f, f.Name)
		if err != nil {
			return nil, fmt.Errorf("reading Arrow schema: column %s: %w", f.Name, err)
		}
		s.Columns = append(s.Columns, n)
	}
	return s, nil
}

func fromField(f arrow.Field, name string) (*Node, error) {
	n := &Node{Name: name, Required: !f.Nullable}
	if v, ok := f.Metadata.GetValue(FieldIDKey); ok {
		id, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("field id %q of %s is not a number", v, name)
		}
		n.FieldID = int32(id)
	}
	n.Doc, _ = f.Metadata.GetValue(DocKey)
	if err := fillType(n, f); err != nil {
		return nil, err
	}
	return n, nil
}

func fillType(n *Node, f arrow.Field) error {
	switch t := f.Type.(type) {
	case *arrow.StructType:
		if IsVariant(f) {
			n.Type = Of(Variant)
			return nil
		}
		n.Type = Of(Struct)
		for _, kf := range t.Fields() {
			k, err := fromField(kf, kf.Name)
			if err != nil {
				return fmt.Errorf("field %s: %w", kf.Name, err)
			}
			n.Kids = append(n.Kids, k)
		}
		return nil
	case *arrow.MapType:
		n.Type = Of(Map)
		if err := addKid(n, t.KeyField(), KeyName); err != nil {
			return err
		}
		return addKid(n, t.ItemField(), ValueName)
	case arrow.ListLikeType:
		n.Type = Of(List)
		return addKid(n, t.ElemField(), ElementName)
	case arrow.ExtensionType:
		switch name := t.ExtensionName(); {
		case name == "arrow.uuid":
			n.Type = Of(UUID)
			return nil
		case slices.Contains(variantExtensions, name):
			n.Type = Of(Variant)
			return nil
		}
	}
	var ok bool
	if n.Type, ok = primitiveFromArrow(f); !ok {
		return fmt.Errorf("the Arrow type %s has no counterpart in an Iceberg table of Icestream", f.Type)
	}
	return nil
}

// addKid appends the child with the name that Iceberg gives it.
func addKid(n *Node, f arrow.Field, name string) error {
	k, err := fromField(f, name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	n.Kids = append(n.Kids, k)
	return nil
}

func primitiveFromArrow(f arrow.Field) (Type, bool) {
	switch t := f.Type.(type) {
	case *arrow.BooleanType:
		return Of(Boolean), true
	case *arrow.Int32Type:
		return Of(Int), true
	case *arrow.Int64Type:
		return Of(Long), true
	case *arrow.Float32Type:
		return Of(Float), true
	case *arrow.Float64Type:
		return Of(Double), true
	case *arrow.Date32Type:
		return Of(Date), true
	case *arrow.StringType, *arrow.LargeStringType:
		return Of(String), true
	case *arrow.BinaryType, *arrow.LargeBinaryType:
		return Of(Binary), true
	case *arrow.Decimal128Type:
		return DecimalOf(t.Precision, t.Scale), t.Scale >= 0
	case *arrow.Time64Type:
		return Of(Time), t.Unit == arrow.Microsecond
	case *arrow.TimestampType:
		return timestampFromArrow(t)
	case *arrow.FixedSizeBinaryType:
		if v, ok := f.Metadata.GetValue(typeKey); ok && v == typeUUID && t.ByteWidth == 16 {
			return Of(UUID), true
		}
		return Type{Kind: Fixed, Length: int32(t.ByteWidth)}, t.ByteWidth > 0
	}
	return Type{}, false
}

func timestampFromArrow(t *arrow.TimestampType) (Type, bool) {
	zoned := t.TimeZone != ""
	switch t.Unit {
	case arrow.Microsecond:
		if zoned {
			return Of(TimestampTZ), true
		}
		return Of(Timestamp), true
	case arrow.Nanosecond:
		if zoned {
			return Of(TimestampTZNano), true
		}
		return Of(TimestampNano), true
	default:
		return Type{}, false
	}
}
