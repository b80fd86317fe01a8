package orders

import (
	"encoding/binary"
	"math"
	"strconv"
)

// The canonical form of the package comment, value by value. Each function appends and returns the buffer.

const (
	isNull    = 0
	isPresent = 1
)

func canonNull(b []byte) []byte { return append(b, isNull) }

func canonPresent(b []byte) []byte { return append(b, isPresent) }

func canonInt(b []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, isPresent), uint64(v))
}

func canonBool(b []byte, v bool) []byte {
	if v {
		return append(b, isPresent, 1)
	}
	return append(b, isPresent, 0)
}

func canonFloat(b []byte, v float64) []byte {
	bits := math.Float64bits(v)
	if v != v {
		bits = 0x7ff8000000000001
	}
	return binary.LittleEndian.AppendUint64(append(b, isPresent), bits)
}

func canonText[T string | []byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(append(b, isPresent), uint64(len(v))), v...)
}

func canonUint(b []byte, v uint64) []byte {
	var text [20]byte
	return canonText(b, strconv.AppendUint(text[:0], v, 10))
}

func canonCount(b []byte, n int) []byte {
	return binary.AppendUvarint(append(b, isPresent), uint64(n))
}

func canonMoney(b []byte, m money) []byte {
	b = canonText(canonPresent(b), m.currency)
	return canonInt(canonInt(b, m.units), int64(m.nanos))
}

// canonTime is microseconds, rounded down; valid nanos are never negative.
func canonTime(b []byte, t stamp) []byte { return canonInt(b, t.seconds*1e6+int64(t.nanos)/1000) }

func canonPairs(b []byte, pairs []pair) []byte {
	b = canonCount(b, len(pairs))
	for _, p := range pairs {
		b = canonText(canonText(b, p.key), p.value)
	}
	return b
}

// appendCanon appends the canonical form of the whole row.
func (o *order) appendCanon(b []byte) []byte {
	b = canonUint(canonText(b, o.id), o.number)
	b = canonText(b, statusText(o.status))
	b = canonTime(b, o.placed)
	if o.shipped == (stamp{}) {
		b = canonNull(b)
	} else {
		b = canonTime(b, o.shipped)
	}
	b = o.customer.appendCanon(b)
	b = canonCount(b, len(o.items))
	for i := range o.items {
		b = o.items[i].appendCanon(b)
	}
	b = canonPairs(b, o.labels)
	b = canonCount(b, len(o.fees))
	for _, f := range o.fees {
		b = canonMoney(canonText(b, f.key), f.amount)
	}
	b = o.appendCanonPayment(b)
	b = o.appendCanonOptionals(b)
	b = canonText(canonInt(b, o.handling), o.signature)
	b = canonCount(b, len(o.shelves))
	for _, s := range o.shelves {
		b = canonInt(b, int64(s))
	}
	b = canonFloat(canonFloat(b, o.weight), float64(o.discount))
	return canonMoney(canonUint(canonBool(b, o.express), o.trace), o.total)
}

func (c *customer) appendCanon(b []byte) []byte {
	if !c.present {
		return canonNull(b)
	}
	b = canonUint(canonPresent(b), c.id)
	b = canonText(canonText(b, c.name), c.email)
	if c.street == "" {
		b = canonNull(b)
	} else {
		b = canonText(canonText(canonPresent(b), c.street), c.city)
		b = canonText(canonText(b, c.postcode), c.country)
		if c.located {
			b = canonFloat(canonFloat(b, c.latitude), c.longitude)
		} else {
			b = canonNull(canonNull(b))
		}
	}
	if c.newsletter == unset {
		return canonNull(b)
	}
	return canonBool(b, c.newsletter == yes)
}

func (it *item) appendCanon(b []byte) []byte {
	b = canonText(canonText(canonPresent(b), it.sku), it.title)
	b = canonMoney(canonInt(b, int64(it.quantity)), it.price)
	b = canonCount(b, len(it.tags))
	for _, tag := range it.tags {
		b = canonText(b, tag)
	}
	return canonPairs(b, it.attributes)
}

func (o *order) appendCanonPayment(b []byte) []byte {
	if o.payment == payCard {
		b = canonText(canonText(canonPresent(b), o.cardBrand), o.cardLast)
		b = canonInt(b, int64(o.cardExpires))
	} else {
		b = canonNull(b)
	}
	if o.payment == payTransfer {
		b = canonInt(canonText(canonPresent(b), o.iban), o.balance)
	} else {
		b = canonNull(b)
	}
	if o.payment == payVoucher {
		b = canonText(b, o.voucher)
	} else {
		b = canonNull(b)
	}
	if o.payment == payCash {
		return canonBool(canonPresent(b), true)
	}
	return canonNull(b)
}

func (o *order) appendCanonOptionals(b []byte) []byte {
	if o.hasNote {
		b = canonText(b, o.note)
	} else {
		b = canonNull(b)
	}
	if o.hasPriority {
		b = canonInt(b, int64(o.priority))
	} else {
		b = canonNull(b)
	}
	if o.hasCoupon {
		b = canonText(b, o.coupon)
	} else {
		b = canonNull(b)
	}
	if o.hasPoints {
		return canonInt(b, o.points)
	}
	return canonNull(b)
}
