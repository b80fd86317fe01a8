package orders

import (
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The wire form of orders.proto, written by hand into one buffer: as any Protobuf library writes it, so plain scalars at
// their default are left out. Field order and map order are legal but not the usual ones in places, on purpose.

const (
	wireVarint = protowire.VarintType
	wireBytes  = protowire.BytesType
)

// putUvarint is inlined for the common case of one byte; this is the generator's hottest place.
func putUvarint(b []byte, v uint64) []byte {
	if v < 0x80 {
		return append(b, byte(v))
	}
	return protowire.AppendVarint(b, v)
}

func putTag(b []byte, field protowire.Number, kind protowire.Type) []byte {
	return putUvarint(b, uint64(field)<<3|uint64(kind))
}

// open starts a nested message and returns where it begins; shut writes its length in front of it.
func open(b []byte, field protowire.Number) ([]byte, int) {
	b = append(putTag(b, field, wireBytes), 0)
	return b, len(b)
}

func shut(b []byte, from int) []byte {
	size := len(b) - from
	if size < 0x80 {
		b[from-1] = byte(size)
		return b
	}
	extra := protowire.SizeVarint(uint64(size)) - 1
	for range extra {
		b = append(b, 0)
	}
	copy(b[from+extra:], b[from:from+size])
	protowire.AppendVarint(b[:from-1], uint64(size))
	return b
}

func putText[T string | []byte](b []byte, field protowire.Number, v T) []byte {
	if len(v) == 0 {
		return b
	}
	return putTextAlways(b, field, v)
}

func putTextAlways[T string | []byte](b []byte, field protowire.Number, v T) []byte {
	b = putUvarint(putTag(b, field, wireBytes), uint64(len(v)))
	return append(b, v...)
}

func putVarint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return putVarintAlways(b, field, v)
}

func putVarintAlways(b []byte, field protowire.Number, v uint64) []byte {
	return putUvarint(putTag(b, field, wireVarint), v)
}

func putDouble(b []byte, field protowire.Number, v float64) []byte {
	return protowire.AppendFixed64(putTag(b, field, protowire.Fixed64Type), math.Float64bits(v))
}

func putMoney(b []byte, field protowire.Number, m money) []byte {
	b, at := open(b, field)
	b = putText(b, 1, m.currency)
	b = putVarint(b, 2, uint64(m.units))
	b = putVarint(b, 3, uint64(int64(m.nanos)))
	return shut(b, at)
}

// putSeconds writes a Timestamp or a Duration: they have the same fields.
func putSeconds(b []byte, field protowire.Number, seconds int64, nanos int32) []byte {
	b, at := open(b, field)
	b = putVarint(b, 1, uint64(seconds))
	b = putVarint(b, 2, uint64(int64(nanos)))
	return shut(b, at)
}

// putPairs writes a map backwards; readers must not lean on the order.
func putPairs(b []byte, field protowire.Number, pairs []pair) []byte {
	for _, p := range slices.Backward(pairs) {
		var at int
		b, at = open(b, field)
		b = putTextAlways(b, 1, p.key)
		b = putTextAlways(b, 2, p.value)
		b = shut(b, at)
	}
	return b
}

// appendWire appends the message. Its last field, total, is always there and never empty: the truncated poison cuts it.
func (o *order) appendWire(b []byte) []byte {
	b = putText(b, 1, o.id)
	b = putVarint(b, 2, o.number)
	b = putVarint(b, 3, uint64(o.status))
	b = putSeconds(b, 4, o.placed.seconds, o.placed.nanos)
	if o.shipped != (stamp{}) {
		b = putSeconds(b, 5, o.shipped.seconds, o.shipped.nanos)
	}
	b = o.customer.appendWire(b)
	for i := range o.items {
		b = o.items[i].appendWire(b)
	}
	if len(o.labels) > 0 && o.number%64 == 0 { // the same key again: the later entry counts
		b = putPairs(b, 8, []pair{{o.labels[0].key, "overwritten"}})
	}
	b = putPairs(b, 8, o.labels)
	for i := range o.fees {
		var at int
		b, at = open(b, 9)
		b = putMoney(putTextAlways(b, 1, o.fees[i].key), 2, o.fees[i].amount)
		b = shut(b, at)
	}
	b = o.appendWirePayment(b)
	b = o.appendWireOptionals(b)
	b = putSeconds(b, 18, o.handling/1e9, int32(o.handling%1e9))
	b = putText(b, 19, o.signature)
	b = o.appendWireShelves(b)
	if o.weight != 0 || math.Signbit(o.weight) {
		b = putDouble(b, 21, o.weight)
	}
	if o.discount != 0 {
		b = protowire.AppendFixed32(putTag(b, 22, protowire.Fixed32Type), math.Float32bits(o.discount))
	}
	if o.express {
		b = putVarint(b, 23, 1)
	}
	if o.trace != 0 {
		b = protowire.AppendFixed64(putTag(b, 24, protowire.Fixed64Type), o.trace)
	}
	return putMoney(b, 25, o.total)
}

func (c *customer) appendWire(b []byte) []byte {
	if !c.present {
		return b
	}
	b, at := open(b, 6)
	b = putVarint(b, 1, c.id)
	b = putText(putText(b, 2, c.name), 3, c.email)
	if c.street != "" {
		var inner int
		b, inner = open(b, 4)
		b = putText(putText(b, 1, c.street), 2, c.city)
		b = putText(putText(b, 3, c.postcode), 4, c.country)
		if c.located {
			b = putDouble(putDouble(b, 5, c.latitude), 6, c.longitude)
		}
		b = shut(b, inner)
	}
	if c.newsletter != unset {
		var inner int
		b, inner = open(b, 5)
		b = putVarint(b, 1, uint64(c.newsletter-no))
		b = shut(b, inner)
	}
	return shut(b, at)
}

func (it *item) appendWire(b []byte) []byte {
	b, at := open(b, 7)
	b = putText(putText(b, 1, it.sku), 2, it.title)
	b = putVarint(b, 3, uint64(it.quantity))
	b = putMoney(b, 4, it.price)
	for _, tag := range it.tags {
		b = putTextAlways(b, 5, tag)
	}
	b = putPairs(b, 6, it.attributes)
	return shut(b, at)
}

func (o *order) appendWirePayment(b []byte) []byte {
	var at int
	switch o.payment {
	case payCard:
		b, at = open(b, 10)
		b = putText(putText(b, 1, o.cardBrand), 2, o.cardLast)
		if o.cardExpires != 0 {
			b = protowire.AppendFixed32(putTag(b, 3, protowire.Fixed32Type), o.cardExpires)
		}
		b = shut(b, at)
	case payTransfer:
		b, at = open(b, 11)
		b = putText(b, 1, o.iban)
		b = putVarint(b, 2, protowire.EncodeZigZag(o.balance))
		b = shut(b, at)
	case payVoucher:
		b = putTextAlways(b, 12, o.voucher)
	case payCash:
		b, at = open(b, 13)
		b = shut(b, at)
	default: // unset
	}
	return b
}

func (o *order) appendWireOptionals(b []byte) []byte {
	if o.hasNote {
		b = putTextAlways(b, 14, o.note)
	}
	if o.hasPriority {
		b = putVarintAlways(b, 15, uint64(int64(o.priority)))
	}
	var at int
	if o.hasCoupon {
		b, at = open(b, 16)
		b = shut(putText(b, 1, o.coupon), at)
	}
	if o.hasPoints {
		b, at = open(b, 17)
		b = shut(putVarint(b, 1, uint64(o.points)), at)
	}
	return b
}

// appendWireShelves writes the numbers packed, but for odd orders one by one: both are legal.
func (o *order) appendWireShelves(b []byte) []byte {
	if len(o.shelves) == 0 {
		return b
	}
	if o.number%2 == 1 {
		for _, s := range o.shelves {
			b = putVarintAlways(b, 20, protowire.EncodeZigZag(int64(s)))
		}
		return b
	}
	b, at := open(b, 20)
	for _, s := range o.shelves {
		b = putUvarint(b, protowire.EncodeZigZag(int64(s)))
	}
	return shut(b, at)
}
