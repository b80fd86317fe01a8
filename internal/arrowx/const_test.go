package arrowx

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
)

func TestConstantColumnsHoldTheValueInEveryRow(t *testing.T) {
	for _, s := range []string{"", "orders", "größe"} {
		for _, n := range []int{0, 1, 1000} {
			a := constString(s, n).(*array.String)
			require.NoError(t, a.ValidateFull())
			require.Equal(t, n, a.Len())
			require.Zero(t, a.NullN())
			for i := range n {
				require.Equal(t, s, a.Value(i))
			}
			i := constInt32(-7, n).(*array.Int32)
			require.Equal(t, n, i.Len())
			require.Zero(t, i.NullN())
			for _, v := range i.Int32Values() {
				require.Equal(t, int32(-7), v)
			}
		}
	}
}

func BenchmarkConstantColumns(b *testing.B) {
	for b.Loop() {
		constString("events", 6000).Release()
		constInt32(3, 6000).Release()
	}
}
