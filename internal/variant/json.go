package variant

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
)

// JSON appends a variant as JSON text, keys in their order of bytes. What JSON has
// no word for is a string: dates and times as RFC 3339 has them, bytes in base64,
// infinities and NaN by name. The bytes may be anybody's: malformed ones are an
// error.
func JSON(dst, metadata, value []byte) ([]byte, error) {
	r := reader{}
	if err := r.dictionary(metadata); err != nil {
		return dst, err
	}
	r.dst = dst
	err := r.value(value, MaxDepth)
	return r.dst, err
}

// mostText bounds the text: values that share their bytes with each other can stand
// for more than any memory holds.
const mostText = 256 << 20

type reader struct {
	dst   []byte
	names [][]byte
}

func readUint(b []byte, at, size int) (int, bool) {
	if at < 0 || size > len(b)-at {
		return 0, false
	}
	n := 0
	for i := range size {
		n |= int(b[at+i]) << (8 * i)
	}
	return n, true
}

func (r *reader) dictionary(b []byte) error {
	if len(b) == 0 || b[0]&0xf != version {
		return errMalformed
	}
	size := int(b[0]>>6) + 1
	count, ok := readUint(b, 1, size)
	if !ok || count > len(b) {
		return errMalformed
	}
	texts := 1 + size*(count+2)
	r.names = make([][]byte, count)
	for i := range count {
		from, ok1 := readUint(b, 1+size*(i+1), size)
		to, ok2 := readUint(b, 1+size*(i+2), size)
		if !ok1 || !ok2 || from > to || texts+to > len(b) {
			return errMalformed
		}
		r.names[i] = b[texts+from : texts+to]
	}
	return nil
}

func (r *reader) value(b []byte, depth int) error {
	if len(b) == 0 || len(r.dst) > mostText {
		return errMalformed
	}
	if depth == 0 {
		return ErrDepth
	}
	head := int(b[0] >> 2)
	switch b[0] & 3 {
	case basicShort:
		if head > len(b)-1 {
			return errMalformed
		}
		return r.text(b[1 : 1+head])
	case basicObject:
		return r.many(b, head&3+1, head>>2&3+1, head>>4&1 == 1, depth)
	case basicArray:
		return r.many(b, head&3+1, 0, head>>2&1 == 1, depth)
	default:
		return r.primitive(head, b[1:])
	}
}

// many reads an object, or with no size for ids an array.
func (r *reader) many(b []byte, offsets, ids int, large bool, depth int) error {
	countSize := 1
	if large {
		countSize = 4
	}
	count, ok := readUint(b, 1, countSize)
	if !ok || count > len(b) {
		return errMalformed
	}
	at := 1 + countSize
	table := at + count*ids
	body := table + (count+1)*offsets
	if body > len(b) {
		return errMalformed
	}
	brackets := "[]"
	if ids > 0 {
		brackets = "{}"
	}
	r.dst = append(r.dst, brackets[0])
	for i := range count {
		if i > 0 {
			r.dst = append(r.dst, ',')
		}
		if ids > 0 {
			id, _ := readUint(b, at+i*ids, ids)
			if id >= len(r.names) {
				return errMalformed
			}
			if err := r.text(r.names[id]); err != nil {
				return err
			}
			r.dst = append(r.dst, ':')
		}
		from, _ := readUint(b, table+i*offsets, offsets)
		if from > len(b)-body {
			return errMalformed
		}
		if err := r.value(b[body+from:], depth-1); err != nil {
			return err
		}
	}
	r.dst = append(r.dst, brackets[1])
	return nil
}

func (r *reader) text(s []byte) error {
	quoted, err := json.Marshal(string(s))
	r.dst = append(r.dst, quoted...)
	return err
}

// sizes of the primitives, those with a length of their own apart.
var sizes = [...]int{
	typeInt8: 1, typeInt16: 2, typeInt32: 4, typeInt64: 8, typeDouble: 8, typeDecimal4: 5, typeDecimal8: 9, typeDecimal16: 17,
	typeDate: 4, typeTimestampTZ: 8, typeTimestamp: 8, typeFloat: 4, typeBinary: 4, typeString: 4, typeTime: 8,
	typeTimestampTZNanos: 8, typeTimestampNanos: 8, typeUUID: 16,
}

func (r *reader) primitive(t int, b []byte) error {
	if t >= len(sizes) || len(b) < sizes[t] {
		return errMalformed
	}
	switch t {
	case typeNull:
		r.dst = append(r.dst, "null"...)
	case typeTrue:
		r.dst = append(r.dst, "true"...)
	case typeFalse:
		r.dst = append(r.dst, "false"...)
	case typeInt8, typeInt16, typeInt32, typeInt64:
		r.dst = strconv.AppendInt(r.dst, signed(b[:sizes[t]]), 10)
	case typeDouble:
		return r.float(math.Float64frombits(binary.LittleEndian.Uint64(b)), 64)
	case typeFloat:
		return r.float(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 32)
	case typeDecimal4, typeDecimal8, typeDecimal16:
		return r.decimal(b[1:sizes[t]], int(b[0]))
	case typeBinary, typeString:
		n, _ := readUint(b, 0, 4)
		if n > len(b)-4 {
			return errMalformed
		}
		if t == typeString {
			return r.text(b[4 : 4+n])
		}
		return r.text(base64.StdEncoding.AppendEncode(nil, b[4:4+n]))
	case typeUUID:
		return r.text(fmt.Appendf(nil, "%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16]))
	default:
		return r.text([]byte(moment(t, signed(b[:sizes[t]]))))
	}
	return nil
}

func signed(b []byte) int64 {
	n := int64(int8(b[len(b)-1]))
	for i := len(b) - 2; i >= 0; i-- {
		n = n<<8 | int64(b[i])
	}
	return n
}

func moment(t int, n int64) string {
	const local = "2006-01-02T15:04:05.999999999"
	switch t {
	case typeDate:
		return time.Unix(n*86400, 0).UTC().Format(time.DateOnly)
	case typeTime:
		return time.UnixMicro(n).UTC().Format("15:04:05.999999")
	case typeTimestampTZ:
		return time.UnixMicro(n).UTC().Format(time.RFC3339Nano)
	case typeTimestamp:
		return time.UnixMicro(n).UTC().Format(local)
	case typeTimestampTZNanos:
		return time.Unix(0, n).UTC().Format(time.RFC3339Nano)
	default:
		return time.Unix(0, n).UTC().Format(local)
	}
}

func (r *reader) float(f float64, bits int) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return r.text([]byte(strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+")))
	}
	r.dst = strconv.AppendFloat(r.dst, f, 'g', -1, bits)
	return nil
}

func (r *reader) decimal(b []byte, scale int) error {
	if scale > maxDigits {
		return errMalformed
	}
	big16 := slices.Clone(b)
	slices.Reverse(big16)
	n := new(big.Int).SetBytes(big16)
	if big16[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(big16))))
	}
	if n.Sign() < 0 {
		r.dst = append(r.dst, '-')
		n.Neg(n)
	}
	digits := n.String()
	if short := scale + 1 - len(digits); short > 0 {
		digits = strings.Repeat("0", short) + digits
	}
	r.dst = append(r.dst, digits[:len(digits)-scale]...)
	if scale > 0 {
		r.dst = append(append(r.dst, '.'), digits[len(digits)-scale:]...)
	}
	return nil
}
