package lake

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/icestream/icestream/services/committer/internal/levels"
)

// integerDigits is the precision up to which Parquet stores a decimal as an
// integer; beyond it is a fixed-length byte array.
const integerDigits = 18

// writeLongDecimals appends decimals that are stored as bytes. It fails for one that has
// more digits than its type says: the library would write the lower ones. Decimals that
// become integers it checks itself.
func writeLongDecimals(ctx context.Context, to file.ColumnChunkWriter, l levels.Leaf, precision int32) error {
	a := l.Values.(*array.Decimal128)
	if !l.Dense {
		a = withNulls(a, l.Def, to.LevelInfo())
		defer a.Release()
	}
	for i, v := range a.Values() {
		if a.IsValid(i) && (v.Abs().Sign() < 0 || !v.FitsInPrecision(precision)) { // the least has no absolute value
			return fmt.Errorf("the decimal %s has more than %d digits", v.BigInt(), precision)
		}
	}
	return pqarrow.WriteArrowToColumn(ctx, to, a, l.Def, l.Rep, l.Nullable)
}

// withNulls is a leaf whose slots below nulls are null as well.
//
// pqarrow v18.8.0 takes the values of such a leaf as dense where it has no null of its
// own, although the slots of null parents are among them, so every value moves down by
// one for each null parent, silently.
func withNulls(a *array.Decimal128, def []int16, info file.LevelInfo) *array.Decimal128 {
	d := a.Data()
	bits := file.ValidityBitmapInputOutput{
		ReadUpperBound: int64(a.Len()), ValidBitsOffset: int64(d.Offset()),
		ValidBits: make([]byte, bitutil.BytesForBits(int64(d.Offset()+a.Len()))),
	}
	file.DefLevelsToBitmap(def, info, &bits)
	shown := array.NewData(d.DataType(), a.Len(), []*memory.Buffer{memory.NewBufferBytes(bits.ValidBits), d.Buffers()[1]}, nil, int(bits.NullCount), d.Offset())
	defer shown.Release()
	return array.NewDecimal128Data(shown)
}
