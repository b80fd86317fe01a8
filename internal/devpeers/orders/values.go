package orders

import (
	"math"
	"strconv"
)

// order holds the values of one record. Slices and buffers are reused by the next one.
type order struct {
	id       []byte
	number   uint64
	status   int32
	placed   stamp
	shipped  stamp // zero: not shipped yet
	customer customer
	items    []item
	labels   []pair // ascending by canonical key, keys unique
	fees     []fee  // ascending by canonical key, keys unique

	payment     payment
	cardBrand   string
	cardLast    string
	cardExpires uint32
	iban        []byte
	balance     int64
	voucher     string

	hasNote, hasPriority, hasCoupon, hasPoints bool
	note, coupon                               string
	priority                                   int32
	points                                     int64

	handling  int64 // nanoseconds
	signature []byte
	shelves   []int32
	weight    float64
	discount  float32
	express   bool
	trace     uint64
	total     money
}

type stamp struct {
	seconds int64
	nanos   int32
}

type money struct {
	currency string
	units    int64
	nanos    int32
}

type pair struct{ key, value string }

type fee struct {
	key    string
	amount money
}

// tristate is a wrapped boolean.
type tristate uint8

const (
	unset tristate = iota
	no
	yes
)

type customer struct {
	present                         bool
	id                              uint64
	name, email                     string
	street, city, postcode, country string // no street: no address
	located                         bool
	latitude, longitude             float64
	newsletter                      tristate
}

type item struct {
	sku        string
	title      string
	quantity   uint32
	price      money
	tags       []string
	attributes []pair
}

type payment uint8

const (
	payNone payment = iota
	payCard
	payTransfer
	payVoucher
	payCash
	payKinds
)

// unknownStatus is a number that orders.proto does not name: a newer producer's value.
const unknownStatus = 17

func statusText(number int32) string {
	names := [...]string{"STATUS_UNSPECIFIED", "STATUS_PLACED", "STATUS_PAID", "STATUS_SHIPPED", "STATUS_DELIVERED", "STATUS_CANCELLED"}
	if int(number) < len(names) {
		return names[number]
	}
	return strconv.Itoa(int(number))
}

// dice is a splitmix64 sequence: fast, and the same for a seed everywhere.
type dice struct{ state uint64 }

func mix(z uint64) uint64 {
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

func (d *dice) next() uint64 {
	d.state += 0x9e3779b97f4a7c15
	return mix(d.state)
}

// below returns a number in [0, n).
func (d *dice) below(n int) int { return int((d.next() >> 32) * uint64(n) >> 32) }

func (d *dice) oneIn(n int) bool { return d.below(n) == 0 }

func pick[T any](d *dice, from []T) T { return from[d.below(len(from))] }

// vocabulary is what orders are made of. Keys stand in canonical order: shorter first, then by bytes.
type vocabulary struct {
	names, emails, streets, cities, postcodes, countries []string
	skus, titles, tags, notes, coupons, currencies       []string
	labelKeys, labelValues, attributeKeys, attributes    []string
	feeKeys, brands, lastFours                           []string
}

func newVocabulary() *vocabulary {
	v := &vocabulary{
		streets:       []string{"Hauptstraße 12", "5th Avenue 700", "Rue de la Paix 3", "Via Roma 44", "さくら通り 8", "Calle Mayor 21"},
		cities:        []string{"Berlin", "New York", "Paris", "Roma", "東京", "Málaga", "København", "Łódź"},
		countries:     []string{"DE", "US", "FR", "IT", "JP", "ES", "DK", "PL"},
		titles:        []string{"Espresso cups, set of 6", "Trail running shoes", "Noise-cancelling headphones", "Oak desk 160×80", "Chef's knife 20 cm", "Rain jacket", "Board game “Harbour”"},
		tags:          []string{"new", "sale", "bulky", "fragile", "öko", "last-one"},
		notes:         []string{"", "Please leave at the door.", "Bitte klingeln – 3. Stock 🙂", "Gift: no invoice in the parcel", "配達前に電話してください"},
		coupons:       []string{"", "WELCOME10", "SPRING", "LOYAL-2"},
		currencies:    []string{"EUR", "USD", "GBP", "JPY"},
		labelKeys:     []string{"", "app", "locale", "source", "channel", "campaign", "experiment"},
		labelValues:   []string{"", "web", "ios", "android", "store-14", "newsletter", "a/b:42"},
		attributeKeys: []string{"size", "color", "größe", "material", "warranty"},
		attributes:    []string{"XL", "blue", "oak", "2 years", "stainless steel", ""},
		feeKeys:       []string{"duty", "express", "packing", "shipping"},
		brands:        []string{"VISA", "MASTERCARD", "AMEX", ""},
	}
	first := []string{"Ada", "Grace", "Linus", "Zoë", "Jürgen", "Chloé", "Yuki", "Olu", "Inés", "Søren"}
	last := []string{"Meyer", "Smith", "García", "Rossi", "Tanaka", "Nowak", "Dubois", "Okafor"}
	for i, f := range first {
		for j, l := range last {
			v.names = append(v.names, f+" "+l)
			v.emails = append(v.emails, "customer-"+strconv.Itoa(i*len(last)+j)+"@example.com")
		}
	}
	for i := range 200 {
		v.skus = append(v.skus, "SKU-"+strconv.Itoa(10_000+i*37))
		v.postcodes = append(v.postcodes, strconv.Itoa(10_000+i*401))
		v.lastFours = append(v.lastFours, strconv.Itoa(1_000+i*43))
	}
	return v
}

// baseTime is when the first order was placed: fixed, so that a seed always means the same rows.
const baseTime = 1_790_000_000

// fill draws the values of the order with this number.
func (o *order) fill(d *dice, v *vocabulary, number uint64) {
	o.id = strconv.AppendUint(append(o.id[:0], "ord-"...), 1_000_000_000_000+number, 10)
	o.number = number
	o.status = int32(d.below(6))
	if d.oneIn(200) {
		o.status = unknownStatus
	}
	o.placed = stamp{baseTime + int64(number/50), int32(d.below(1_000_000_000))}
	o.shipped = stamp{}
	if o.status == 3 || o.status == 4 {
		o.shipped = stamp{o.placed.seconds + int64(d.below(500_000)), int32(d.below(1000)) * 1_000_000}
	}
	o.customer.fill(d, v)
	o.total = money{currency: pick(d, v.currencies)}
	o.items = o.items[:0]
	for range 1 + d.below(3) {
		if len(o.items) < cap(o.items) {
			o.items = o.items[:len(o.items)+1] // keeps the slices inside
		} else {
			o.items = append(o.items, item{})
		}
		it := &o.items[len(o.items)-1]
		it.fill(d, v, o.total.currency)
		o.total.units += it.price.units * int64(it.quantity)
	}
	o.total.nanos = int32(d.below(100)) * 10_000_000
	if d.oneIn(50) { // a refund
		o.total.units, o.total.nanos = -o.total.units, -o.total.nanos
	}
	o.labels = subset(o.labels[:0], d, v.labelKeys, v.labelValues)
	o.fillFees(d, v)
	o.fillPayment(d, v)
	o.fillRest(d, v)
}

func (c *customer) fill(d *dice, v *vocabulary) {
	who := d.below(len(v.names))
	*c = customer{present: !d.oneIn(64), id: uint64(who), name: v.names[who], email: v.emails[who]}
	if d.oneIn(1000) {
		c.id = math.MaxUint64 - uint64(who) // above the range of a signed 64-bit number
	}
	if !d.oneIn(8) {
		c.street, c.city, c.postcode, c.country = pick(d, v.streets), pick(d, v.cities), pick(d, v.postcodes), pick(d, v.countries)
		c.located = d.oneIn(2)
		c.latitude, c.longitude = float64(d.below(18_000_000))/1e5-90, float64(d.below(36_000_000))/1e5-180
	}
	c.newsletter = tristate(d.below(3))
}

func (it *item) fill(d *dice, v *vocabulary, currency string) {
	it.sku, it.title = pick(d, v.skus), pick(d, v.titles)
	it.quantity = uint32(d.below(5))
	it.price = money{currency, int64(d.below(300)), int32(d.below(100)) * 10_000_000}
	it.tags = it.tags[:0]
	for range d.below(4) {
		it.tags = append(it.tags, pick(d, v.tags))
	}
	it.attributes = subset(it.attributes[:0], d, v.attributeKeys, v.attributes)
}

// subset draws some of the keys, in their order, with random values.
func subset(into []pair, d *dice, keys, values []string) []pair {
	bits := d.next()
	bits &= d.next() // a quarter of them
	for i, key := range keys {
		if bits>>i&1 == 1 {
			into = append(into, pair{key, pick(d, values)})
		}
	}
	return into
}

func (o *order) fillFees(d *dice, v *vocabulary) {
	o.fees = o.fees[:0]
	bits := d.next()
	bits &= d.next()
	for i, key := range v.feeKeys {
		if bits>>i&1 == 1 {
			o.fees = append(o.fees, fee{key, money{o.total.currency, int64(d.below(20)), int32(d.below(2)) * 500_000_000}})
		}
	}
}

func (o *order) fillPayment(d *dice, v *vocabulary) {
	o.payment = payment(d.below(int(payKinds)))
	switch o.payment {
	case payCard:
		o.cardBrand, o.cardLast, o.cardExpires = pick(d, v.brands), pick(d, v.lastFours), uint32(d.next())
	case payTransfer:
		o.iban = strconv.AppendUint(append(o.iban[:0], "DE89"...), d.next()>>1, 10)
		o.balance = int64(d.next()) >> 20
	case payVoucher:
		o.voucher = pick(d, v.coupons) // also set and empty
	default: // nothing, or cash, which has no fields
	}
}

func (o *order) fillRest(d *dice, v *vocabulary) {
	bits := d.next()
	o.hasNote, o.hasPriority, o.hasCoupon, o.hasPoints = bits&3 == 0, bits&4 == 0, bits&8 == 0, bits&16 == 0
	o.express = bits&32 == 0
	o.note, o.coupon = pick(d, v.notes), pick(d, v.coupons)
	o.priority, o.points = int32(d.below(7))-3, int64(d.below(5000))-1000
	o.handling = int64(d.below(90_000_000)) * 1_001_000 // up to a day, with odd nanoseconds
	if d.oneIn(20) {
		o.handling = -o.handling
	}
	o.signature = o.signature[:0]
	for range d.below(4) {
		s := d.next()
		o.signature = append(o.signature, byte(s), byte(s>>8), byte(s>>16), byte(s>>24), byte(s>>32), byte(s>>40), byte(s>>48), byte(s>>56))
	}
	o.shelves = o.shelves[:0]
	for range d.below(5) {
		o.shelves = append(o.shelves, int32(d.below(2000))-1000)
	}
	o.weight = float64(d.below(100_000)) / 1000
	switch d.below(500) {
	case 0:
		o.weight = math.NaN()
	case 1:
		o.weight = math.Inf(1)
	case 2:
		o.weight = math.Copysign(0, -1)
	}
	o.discount = float32(d.below(100)) / 100
	o.trace = d.next()
}
