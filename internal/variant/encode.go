package variant

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// Encoder turns JSON texts into variants. Its buffers are used again for the next
// text.
type Encoder struct {
	text    []byte
	at      int
	out     []byte
	meta    []byte
	ids     map[string]int
	names   []string
	members []member // of the objects and arrays that are open
	scratch []byte   // the last string with escapes
}

// member is a value inside an object or array: the id of its key, and where it
// begins behind its first sibling.
type member struct{ id, at int }

// JSON encodes a text. The text must be JSON, as a check before has found; of one
// that is not it may make anything, but it does not read beyond it. The result is
// valid until the next call.
//
// Whole numbers of 64 bits become the smallest integer, others without an exponent
// and of up to 38 digits a decimal of exactly the digits written, all else a double.
func (e *Encoder) JSON(text []byte) (metadata, value []byte, err error) {
	e.text, e.at, e.out, e.members = text, 0, e.out[:0], e.members[:0]
	clear(e.ids)
	e.names = e.names[:0]
	if e.ids == nil {
		e.ids = map[string]int{}
	}
	err = e.value(MaxDepth)
	e.text = nil
	if err != nil {
		return nil, nil, err
	}
	return e.dictionary(), e.out, nil
}

// dictionary lists the keys in the order in which they were met.
func (e *Encoder) dictionary() []byte {
	total := 0
	for _, n := range e.names {
		total += len(n)
	}
	size := width(max(total, len(e.names)))
	b := append(e.meta[:0], byte(version|(size-1)<<6))
	b = appendUint(b, len(e.names), size)
	end := 0
	b = appendUint(b, end, size)
	for _, n := range e.names {
		end += len(n)
		b = appendUint(b, end, size)
	}
	for _, n := range e.names {
		b = append(b, n...)
	}
	e.meta = b
	return b
}

// next is the next byte that is no white space, 0 at the end.
func (e *Encoder) next() byte {
	for ; e.at < len(e.text); e.at++ {
		switch c := e.text[e.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (e *Encoder) value(depth int) error {
	switch c := e.next(); c {
	case '{', '[':
		if depth == 0 {
			return ErrDepth
		}
		e.at++
		if c == '{' {
			return e.object(depth - 1)
		}
		return e.array(depth - 1)
	case '"':
		s, err := e.str()
		if err != nil {
			return err
		}
		e.putString(s)
		return nil
	case 't':
		return e.word("true", typeTrue)
	case 'f':
		return e.word("false", typeFalse)
	case 'n':
		return e.word("null", typeNull)
	default:
		return e.number()
	}
}

func (e *Encoder) word(w string, t byte) error {
	if !bytes.HasPrefix(e.text[e.at:], []byte(w)) {
		return ErrSyntax
	}
	e.at += len(w)
	e.out = append(e.out, t<<2)
	return nil
}

// list reads up to the closing bracket. each reads one member.
func (e *Encoder) list(closing byte, each func() error) error {
	if e.next() == closing {
		e.at++
		return nil
	}
	for {
		if err := each(); err != nil {
			return err
		}
		switch e.next() {
		case ',':
			e.at++
		case closing:
			e.at++
			return nil
		default:
			return ErrSyntax
		}
	}
}

func (e *Encoder) object(depth int) error {
	start, first := len(e.out), len(e.members)
	err := e.list('}', func() error {
		if e.next() != '"' {
			return ErrSyntax
		}
		key, err := e.str()
		if err != nil {
			return err
		}
		id := e.id(key)
		if e.next() != ':' {
			return ErrSyntax
		}
		e.at++
		e.members = append(e.members, member{id, len(e.out) - start})
		return e.value(depth)
	})
	if err != nil {
		return err
	}
	fields := e.members[first:]
	slices.SortFunc(fields, func(a, b member) int { return cmpNames(e.names[a.id], e.names[b.id]) })
	highest := 0
	for i, f := range fields {
		if i > 0 && f.id == fields[i-1].id {
			return ErrDuplicateKey
		}
		highest = max(highest, f.id)
	}
	body, ids := len(e.out)-start, width(highest)
	offsets := width(body)
	large := len(fields) > smallCount
	head := e.open(start, byte((offsets-1)|(ids-1)<<2|bit(large)<<4)<<2|basicObject, len(fields), large, len(fields)*ids+(len(fields)+1)*offsets)
	for _, f := range fields {
		head = appendUint(head, f.id, ids)
	}
	for _, f := range fields {
		head = appendUint(head, f.at, offsets)
	}
	appendUint(head, body, offsets)
	e.members = e.members[:first]
	return nil
}

func (e *Encoder) array(depth int) error {
	start, first := len(e.out), len(e.members)
	err := e.list(']', func() error {
		e.members = append(e.members, member{at: len(e.out) - start})
		return e.value(depth)
	})
	if err != nil {
		return err
	}
	items := e.members[first:]
	body := len(e.out) - start
	offsets := width(body)
	large := len(items) > smallCount
	head := e.open(start, byte((offsets-1)|bit(large)<<2)<<2|basicArray, len(items), large, (len(items)+1)*offsets)
	for _, m := range items {
		head = appendUint(head, m.at, offsets)
	}
	appendUint(head, body, offsets)
	e.members = e.members[:first]
	return nil
}

// open makes room before the members that were written from start on, and writes
// the first byte and the count. What follows, of that many bytes, goes into the
// slice that it returns.
func (e *Encoder) open(start int, first byte, count int, large bool, bytes int) []byte {
	countSize := 1
	if large {
		countSize = 4
	}
	body, room := len(e.out)-start, 1+countSize+bytes
	e.out = slices.Grow(e.out, room)[:len(e.out)+room]
	copy(e.out[start+room:], e.out[start:start+body])
	head := append(e.out[start:start:start+room], first)
	return appendUint(head, count, countSize)
}

func bit(set bool) int {
	if set {
		return 1
	}
	return 0
}

func cmpNames(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

func (e *Encoder) id(key []byte) int {
	if id, known := e.ids[string(key)]; known {
		return id
	}
	name := string(key)
	id := len(e.names)
	e.names = append(e.names, name)
	e.ids[name] = id
	return id
}

func (e *Encoder) putString(s []byte) {
	if len(s) <= maxShort {
		e.out = append(e.out, byte(len(s)<<2|basicShort))
	} else {
		e.out = append(e.out, typeString<<2)
		e.out = appendUint(e.out, len(s), 4)
	}
	e.out = append(e.out, s...)
}

// str reads the string whose opening quote is next. It is a part of the text, or of
// e.scratch.
func (e *Encoder) str() ([]byte, error) {
	e.at++
	end := bytes.IndexAny(e.text[e.at:], `"\`)
	if end < 0 {
		return nil, ErrSyntax
	}
	s := e.text[e.at : e.at+end]
	e.at += end
	if e.text[e.at] == '"' {
		e.at++
		return s, nil
	}
	out := append(e.scratch[:0], s...)
	for e.at < len(e.text) {
		c := e.text[e.at]
		e.at++
		switch {
		case c == '"':
			e.scratch = out
			return out, nil
		case c != '\\':
			out = append(out, c)
		case e.at == len(e.text):
		default:
			c = e.text[e.at]
			e.at++
			if c == 'u' {
				out = utf8.AppendRune(out, e.unicode())
				continue
			}
			if at := strings.IndexByte("bfnrt", c); at >= 0 {
				c = "\b\f\n\r\t"[at]
			}
			out = append(out, c)
		}
	}
	return nil, ErrSyntax
}

// unicode reads the digits behind \u, and a second half that follows. What follows a
// half without its other stays.
func (e *Encoder) unicode() rune {
	r := e.hex4()
	if at := e.at; utf16.IsSurrogate(r) && bytes.HasPrefix(e.text[at:], []byte(`\u`)) {
		e.at += 2
		if whole := utf16.DecodeRune(r, e.hex4()); whole != utf8.RuneError {
			return whole
		}
		e.at = at
	}
	return r
}

func (e *Encoder) hex4() rune {
	if len(e.text)-e.at < 4 {
		e.at = len(e.text)
		return utf8.RuneError
	}
	n, err := strconv.ParseUint(string(e.text[e.at:e.at+4]), 16, 16)
	e.at += 4
	if err != nil {
		return utf8.RuneError
	}
	return rune(n)
}

const maxDigits = 38

func (e *Encoder) number() error {
	from := e.at
	digits, point, exponent := 0, -1, false
loop:
	for ; e.at < len(e.text); e.at++ {
		switch c := e.text[e.at]; {
		case c >= '0' && c <= '9':
			digits++
		case c == '.':
			point = digits
		case c == 'e' || c == 'E':
			exponent = true
		case c == '-' || c == '+':
		default:
			break loop
		}
	}
	// The text is only read.
	s := unsafe.String(unsafe.SliceData(e.text[from:e.at]), e.at-from)
	if s == "" {
		return ErrSyntax
	}
	if point < 0 && !exponent && s != "-0" {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			e.putInt(n)
			return nil
		}
	}
	if !exponent && digits <= maxDigits && s != "-0" && e.decimal(s, digits, point) {
		return nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return ErrRange
	}
	e.out = binary.LittleEndian.AppendUint64(append(e.out, typeDouble<<2), math.Float64bits(f))
	return nil
}

func (e *Encoder) putInt(n int64) {
	switch {
	case n == int64(int8(n)):
		e.out = append(e.out, typeInt8<<2, byte(n))
	case n == int64(int16(n)):
		e.out = binary.LittleEndian.AppendUint16(append(e.out, typeInt16<<2), uint16(n))
	case n == int64(int32(n)):
		e.out = binary.LittleEndian.AppendUint32(append(e.out, typeInt32<<2), uint32(n))
	default:
		e.out = binary.LittleEndian.AppendUint64(append(e.out, typeInt64<<2), uint64(n))
	}
}

// decimal writes a number of so many digits, with a point behind so many of them or
// none. It writes nothing for -0.0, whose sign a decimal does not have.
func (e *Encoder) decimal(s string, digits, point int) bool {
	scale := 0
	plain := s
	if point >= 0 {
		scale = digits - point
		at := len(s) - scale - 1
		plain = s[:at] + s[at+1:]
	}
	if digits <= 18 {
		n, err := strconv.ParseInt(plain, 10, 64)
		if err != nil || n == 0 && s[0] == '-' {
			return false
		}
		if digits <= 9 {
			e.out = binary.LittleEndian.AppendUint32(append(e.out, typeDecimal4<<2, byte(scale)), uint32(int32(n)))
			return true
		}
		e.out = binary.LittleEndian.AppendUint64(append(e.out, typeDecimal8<<2, byte(scale)), uint64(n))
		return true
	}
	n, fine := new(big.Int).SetString(plain, 10)
	if !fine || n.Sign() == 0 && s[0] == '-' {
		return false
	}
	var wide [16]byte
	negative := n.Sign() < 0
	if negative { // two's complement
		n.Add(n, new(big.Int).Lsh(big.NewInt(1), 128))
	}
	n.FillBytes(wide[:])
	slices.Reverse(wide[:])
	e.out = append(append(e.out, typeDecimal16<<2, byte(scale)), wide[:]...)
	return true
}
