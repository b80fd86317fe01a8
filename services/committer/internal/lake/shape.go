package lake

import (
	"fmt"

	"github.com/apache/iceberg-go"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
)

// toIceberg is s in the library's words, with the given schema id.
func toIceberg(s *schema.Schema, id int) (*iceberg.Schema, error) {
	fields, err := toFields(s.Columns)
	if err != nil {
		return nil, err
	}
	return iceberg.NewSchema(id, fields...), nil
}

func toFields(nodes []*schema.Node) ([]iceberg.NestedField, error) {
	out := make([]iceberg.NestedField, len(nodes))
	for i, n := range nodes {
		t, err := toType(n)
		if err != nil {
			return nil, err
		}
		if n.FieldID <= 0 {
			return nil, fault.New(fault.Internal, "writing the schema: column %q has no field id", n.Name)
		}
		out[i] = iceberg.NestedField{ID: int(n.FieldID), Name: n.Name, Type: t, Required: n.Required, Doc: n.Doc}
	}
	return out, nil
}

var primitives = map[schema.Kind]iceberg.PrimitiveType{
	schema.Boolean: iceberg.PrimitiveTypes.Bool, schema.Int: iceberg.PrimitiveTypes.Int32, schema.Long: iceberg.PrimitiveTypes.Int64,
	schema.Float: iceberg.PrimitiveTypes.Float32, schema.Double: iceberg.PrimitiveTypes.Float64, schema.Date: iceberg.PrimitiveTypes.Date,
	schema.Time: iceberg.PrimitiveTypes.Time, schema.TimestampTZ: iceberg.PrimitiveTypes.TimestampTz,
	schema.Timestamp: iceberg.PrimitiveTypes.Timestamp, schema.TimestampTZNano: iceberg.PrimitiveTypes.TimestampTzNs,
	schema.TimestampNano: iceberg.PrimitiveTypes.TimestampNs, schema.String: iceberg.PrimitiveTypes.String,
	schema.UUID: iceberg.PrimitiveTypes.UUID, schema.Binary: iceberg.PrimitiveTypes.Binary,
}

func toType(n *schema.Node) (iceberg.Type, error) {
	if t, ok := primitives[n.Type.Kind]; ok {
		return t, nil
	}
	switch n.Type.Kind {
	case schema.Decimal:
		return iceberg.DecimalTypeOf(int(n.Type.Precision), int(n.Type.Scale)), nil
	case schema.Fixed:
		return iceberg.FixedTypeOf(int(n.Type.Length)), nil
	case schema.Variant:
		return iceberg.VariantType{}, nil
	case schema.Struct, schema.List, schema.Map:
		kids, err := toFields(n.Kids)
		if err != nil {
			return nil, err
		}
		return nested(n, kids)
	default:
		return nil, fault.New(fault.Internal, "writing the schema: column %q has kind %s", n.Name, n.Type.Kind)
	}
}

func nested(n *schema.Node, kids []iceberg.NestedField) (iceberg.Type, error) {
	switch {
	case n.Type.Kind == schema.Struct:
		return &iceberg.StructType{FieldList: kids}, nil
	case n.Type.Kind == schema.List && len(kids) == 1:
		return &iceberg.ListType{ElementID: kids[0].ID, Element: kids[0].Type, ElementRequired: kids[0].Required}, nil
	case n.Type.Kind == schema.Map && len(kids) == 2:
		return &iceberg.MapType{
			KeyID: kids[0].ID, KeyType: kids[0].Type,
			ValueID: kids[1].ID, ValueType: kids[1].Type, ValueRequired: kids[1].Required,
		}, nil
	default:
		return nil, fault.New(fault.Internal, "writing the schema: column %q of kind %s has %d children", n.Name, n.Type.Kind, len(kids))
	}
}

// fromIceberg reads a schema of the library. lastID is the table's last assigned
// field id.
func fromIceberg(s *iceberg.Schema, lastID int) (*schema.Schema, error) {
	out := &schema.Schema{LastID: int32(lastID)}
	for _, f := range s.Fields() {
		n, err := fromField(f)
		if err != nil {
			return nil, err
		}
		out.Columns = append(out.Columns, n)
	}
	return out, nil
}

func fromField(f iceberg.NestedField) (*schema.Node, error) {
	n := &schema.Node{Name: f.Name, FieldID: int32(f.ID), Required: f.Required, Doc: f.Doc}
	var kids []iceberg.NestedField
	switch t := f.Type.(type) {
	case *iceberg.StructType:
		n.Type, kids = schema.Of(schema.Struct), t.FieldList
	case *iceberg.ListType:
		n.Type = schema.Of(schema.List)
		kids = []iceberg.NestedField{{ID: t.ElementID, Name: schema.ElementName, Type: t.Element, Required: t.ElementRequired}}
	case *iceberg.MapType:
		n.Type = schema.Of(schema.Map)
		kids = []iceberg.NestedField{
			{ID: t.KeyID, Name: schema.KeyName, Type: t.KeyType, Required: true},
			{ID: t.ValueID, Name: schema.ValueName, Type: t.ValueType, Required: t.ValueRequired},
		}
	case iceberg.DecimalType:
		n.Type = schema.DecimalOf(int32(t.Precision()), int32(t.Scale()))
	case iceberg.VariantType:
		n.Type = schema.Of(schema.Variant)
	case iceberg.FixedType:
		n.Type = schema.Type{Kind: schema.Fixed, Length: int32(t.Len())}
	default:
		for kind, p := range primitives {
			if p.Equals(f.Type) {
				n.Type = schema.Of(kind)
			}
		}
		if n.Type.Kind == schema.Invalid {
			return nil, fault.New(fault.Unsupported,
				"reading the table's schema: column %q has type %s, which Icestream cannot write: drop the column or use another table", f.Name, f.Type)
		}
	}
	for _, k := range kids {
		kid, err := fromField(k)
		if err != nil {
			return nil, fmt.Errorf("in column %q: %w", f.Name, err)
		}
		n.Kids = append(n.Kids, kid)
	}
	return n, nil
}
