package jsonrec

import (
	"unicode/utf16"
	"unicode/utf8"

	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// no notes why the record is refused; a negative index ends the walk.
func (b *Batch) no(f cell.Fail) int {
	if b.fail == cell.OK {
		b.fail = f
	}
	return -1
}

func (b *Batch) stored(f cell.Fail, i int) int {
	if f != cell.OK {
		return b.no(f)
	}
	return i
}

// space gives the index of the next byte that is no white space, negative at the end.
func (b *Batch) space(i int) int {
	for ; i < len(b.data); i++ {
		switch b.data[i] {
		case ' ', '\t', '\n', '\r':
		default:
			return i
		}
	}
	return b.no(cell.Truncated)
}

// literal checks a word at i and gives the index behind it.
func (b *Batch) literal(i int, word string) int {
	end := i + len(word)
	if end > len(b.data) {
		return b.no(cell.Truncated)
	}
	if string(b.data[i:end]) != word {
		return b.no(cell.Syntax)
	}
	return end
}

// number checks the number at i and gives the index behind it; whole says that it has
// neither fraction nor exponent.
func (b *Batch) number(i int) (end int, whole bool) {
	if end, whole = scan(b.data, i); end < 0 {
		return b.no(cell.Syntax), false
	}
	return end, whole
}

// scan finds the end of a number, negative if it is none.
func scan(d []byte, i int) (end int, whole bool) {
	if i < len(d) && d[i] == '-' {
		i++
	}
	first := i
	if i = digits(d, i); i == first || d[first] == '0' && i > first+1 {
		return -1, false
	}
	whole = true
	if i < len(d) && d[i] == '.' {
		whole = false
		from := i + 1
		if i = digits(d, from); i == from {
			return -1, false
		}
	}
	if i < len(d) && (d[i] == 'e' || d[i] == 'E') {
		whole = false
		from := i + 1
		if from < len(d) && (d[from] == '+' || d[from] == '-') {
			from++
		}
		if i = digits(d, from); i == from {
			return -1, false
		}
	}
	return i, whole
}

func digits(d []byte, i int) int {
	for i < len(d) && d[i]-'0' <= 9 {
		i++
	}
	return i
}

// text reads the string whose opening quote is at i. It is a part of the record, or of
// b.scratch where it holds escapes: valid until the next call.
func (b *Batch) text(i int) (s []byte, end int) {
	from := i + 1
	high := byte(0)
	for i = from; i < len(b.data); i++ {
		c := b.data[i]
		high |= c
		switch {
		case c == '"':
			s = b.data[from:i]
			if high >= 0x80 && !utf8.Valid(s) {
				return nil, b.no(cell.UTF8)
			}
			return s, i + 1
		case c == '\\':
			return b.escaped(from, i)
		case c < 0x20:
			return nil, b.no(cell.Syntax)
		}
	}
	return nil, b.no(cell.Truncated)
}

// escaped is the rest of text, from the first escape on.
func (b *Batch) escaped(from, i int) ([]byte, int) {
	out := append(b.scratch[:0], b.data[from:i]...)
	for i < len(b.data) {
		c := b.data[i]
		switch {
		case c == '"':
			b.scratch = out
			if !cell.ValidUTF8(out) {
				return nil, b.no(cell.UTF8)
			}
			return out, i + 1
		case c < 0x20:
			return nil, b.no(cell.Syntax)
		case c != '\\':
			out = append(out, c)
			i++
			continue
		}
		if i+1 >= len(b.data) {
			break
		}
		switch e := b.data[i+1]; e {
		case '"', '\\', '/':
			out = append(out, e)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, next := b.unicode(i)
			if next < 0 {
				return nil, next
			}
			out, i = utf8.AppendRune(out, r), next
			continue
		default:
			return nil, b.no(cell.Syntax)
		}
		i += 2
	}
	return nil, b.no(cell.Truncated)
}

// unicode reads \uXXXX at i, and its second half if it is a surrogate. Half a pair is
// no character.
func (b *Batch) unicode(i int) (rune, int) {
	r, i := b.hex4(i)
	if i < 0 || !utf16.IsSurrogate(r) {
		return r, i
	}
	if i+1 >= len(b.data) || b.data[i] != '\\' || b.data[i+1] != 'u' {
		return 0, b.no(cell.UTF8)
	}
	low, i := b.hex4(i)
	if i < 0 {
		return 0, i
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, b.no(cell.UTF8)
	}
	return r, i
}

func (b *Batch) hex4(i int) (rune, int) {
	if i+6 > len(b.data) {
		return 0, b.no(cell.Truncated)
	}
	r := rune(0)
	for _, c := range b.data[i+2 : i+6] {
		switch {
		case c-'0' <= 9:
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, b.no(cell.Syntax)
		}
	}
	return r, i + 6
}

// pass checks the value at i, which is no white space, and gives the index behind it.
func (b *Batch) pass(i, depth int) int {
	if i < 0 {
		return i
	}
	switch c := b.data[i]; c {
	case '"':
		_, i = b.text(i)
		return i
	case '{', '[':
		return b.passMany(i, depth)
	case 't':
		return b.literal(i, "true")
	case 'f':
		return b.literal(i, "false")
	case 'n':
		return b.literal(i, "null")
	default:
		i, _ = b.number(i)
		return i
	}
}

// passMany checks the object or array at i.
func (b *Batch) passMany(i, depth int) int {
	if depth--; depth < 0 {
		return b.no(cell.Depth)
	}
	object := b.data[i] == '{'
	for first := true; ; first = false {
		var done bool
		if i, done = b.enter(i, first); done || i < 0 {
			return i
		}
		if object {
			if _, i = b.key(i); i < 0 {
				return i
			}
		}
		if i = b.pass(i, depth); i < 0 {
			return i
		}
	}
}

// enter goes from the opening bracket (first) or the end of a member to the next
// member of an object or array, or behind its end.
func (b *Batch) enter(i int, first bool) (next int, done bool) {
	if first {
		closing := b.data[i] + 2 // { } and [ ] are two apart
		b.closing = append(b.closing, closing)
		if i = b.space(i + 1); i < 0 {
			return i, false
		}
		if b.data[i] == closing {
			b.closing = b.closing[:len(b.closing)-1]
			return i + 1, true
		}
		return i, false
	}
	if i = b.space(i); i < 0 {
		return i, false
	}
	switch b.data[i] {
	case ',':
		return b.space(i + 1), false
	case b.closing[len(b.closing)-1]:
		b.closing = b.closing[:len(b.closing)-1]
		return i + 1, true
	default:
		return b.no(cell.Syntax), false
	}
}

// key reads a member's key and goes to its value. The key is valid until the next
// text is read.
func (b *Batch) key(i int) (key []byte, next int) {
	if b.data[i] != '"' {
		return nil, b.no(cell.Syntax)
	}
	if key, i = b.text(i); i < 0 {
		return nil, i
	}
	if i = b.space(i); i < 0 {
		return nil, i
	}
	if b.data[i] != ':' {
		return nil, b.no(cell.Syntax)
	}
	return key, b.space(i + 1)
}
