package near

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheNearestNameIsMeantAndNothingWhereNoneIsNear(t *testing.T) {
	tables := []string{"shop.orders", "shop.payments", "web.clicks"}
	for word, want := range map[string]string{
		"shop.order": "shop.orders", "Shop.Orders": "shop.orders", "shop.paymnts": "shop.payments", "other.things": "", "": "",
		"shop.a": "", "web.orders": "", "shop.orderz": "shop.orders", "click": "", "web.clocks": "web.clicks",
	} {
		require.Equal(t, want, Name(word, tables), word)
	}
	require.Empty(t, Name("acme.nope", []string{"acme.wide", "acme.big", "acme.ed"}), "of four letters three differ")
	require.Equal(t, "acme.big", Name("acme.bog", []string{"acme.wide", "acme.big", "acme.ed"}))
	require.Equal(t, "; did you mean shop.orders?", Table("shop.oders", tables))
	require.Empty(t, Table("something.else", tables))
}

func TestAQuarantineTableIsNamedByItsMainTable(t *testing.T) {
	for _, known := range [][]string{nil, {"shop.orders"}, {"shop.orders__quarantines"}} {
		require.Contains(t, Table("shop.orders__quarantine", known), "is the quarantine table of shop.orders: say shop.orders")
	}
	require.Empty(t, Table("shop.__quarantine", nil), "of no table")
}
