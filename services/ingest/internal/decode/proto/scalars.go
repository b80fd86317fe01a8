package proto

import (
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/icestream/icestream/internal/schema"
)

// wireType is how one value of the field is encoded, packing apart.
func wireType(fd protoreflect.FieldDescriptor) protowire.Type {
	switch fd.Kind() {
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	default:
		return protowire.VarintType
	}
}

// bindPlain chooses how a scalar of the wire is read and stored in a column of
// the given type, which can hold it.
func bindPlain(f *field, fd protoreflect.FieldDescriptor, t schema.Type) {
	switch wireType(fd) {
	case protowire.Fixed64Type:
		f.inner = opFix8
	case protowire.Fixed32Type:
		f.inner = opFix4
	case protowire.BytesType:
		f.inner = opBytes
		if fd.Kind() == protoreflect.StringKind && (t.Kind == schema.String || enforcesUTF8(fd)) {
			f.inner = opString
		}
		return
	default:
		f.inner = opVarint
	}
	f.to16 = t.Kind == schema.Decimal
	f.conv = convWide
	switch fd.Kind() {
	case protoreflect.BoolKind:
		f.conv = convBool
	case protoreflect.Int32Kind, protoreflect.EnumKind, protoreflect.Sfixed32Kind:
		f.src = srcInt4
		direct(f, t, schema.Int, conv4)
	case protoreflect.Sint32Kind:
		f.src = srcZig4
		direct(f, t, schema.Int, convZig4)
	case protoreflect.Int64Kind, protoreflect.Sfixed64Kind:
		f.src = srcInt8
		direct(f, t, schema.Long, conv8)
	case protoreflect.Sint64Kind:
		f.src = srcZig8
		direct(f, t, schema.Long, convZig8)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		f.src = srcUint4
		direct(f, t, schema.Long, convU4to8)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		f.src = srcUint8
		direct(f, t, schema.Decimal, convU8to16)
	case protoreflect.FloatKind:
		f.src = srcFloat
		direct(f, t, schema.Float, conv4)
	default: // double
		f.conv = conv8
	}
}

func direct(f *field, t schema.Type, natural schema.Kind, c conv) {
	if t.Kind == natural {
		f.conv = c
	}
}

// enforcesUTF8 follows Google's parsers: proto3 always, editions by feature. A
// string that goes to a string column is checked in any case, because a reader of
// the table may fail on the whole file otherwise.
func enforcesUTF8(fd protoreflect.FieldDescriptor) bool {
	if fd.Syntax() == protoreflect.Editions {
		if e, can := fd.(interface{ EnforceUTF8() bool }); can {
			return e.EnforceUTF8()
		}
	}
	return fd.Syntax() == protoreflect.Proto3
}

// enumNames gives the text of enum numbers.
type enumNames struct {
	dense   [][]byte // by number, for the small ones
	far     map[int32][]byte
	longest int
}

const denseEnums = 256

func newEnumNames(ed protoreflect.EnumDescriptor) *enumNames {
	e := &enumNames{far: map[int32][]byte{}, longest: len("-2147483648")}
	values := ed.Values()
	for i := values.Len() - 1; i >= 0; i-- { // of aliases the first declared wins
		number, name := int32(values.Get(i).Number()), []byte(values.Get(i).Name())
		e.longest = max(e.longest, len(name))
		if number < 0 || number >= denseEnums {
			e.far[number] = name
			continue
		}
		for len(e.dense) <= int(number) {
			e.dense = append(e.dense, nil)
		}
		e.dense[number] = name
	}
	return e
}

// text is the name of the number, or the number itself in decimal, made in
// scratch, when the schema does not know it. The result must not be changed.
func (e *enumNames) text(number int32, scratch []byte) []byte {
	if number >= 0 && int(number) < len(e.dense) {
		if name := e.dense[number]; name != nil {
			return name
		}
	} else if name, found := e.far[number]; found {
		return name
	}
	return strconv.AppendInt(scratch[:0], int64(number), 10)
}
