package orders

// kind is how a column's values are written in canonical form.
type kind uint8

const (
	kindInt kind = iota
	kindTime
	kindBool
	kindFloat
	kindText
	kindDecimal
	kindStruct
	kindList
	kindMap
)

func (k kind) String() string {
	return [...]string{"int", "timestamp", "boolean", "float", "string or binary", "decimal", "struct", "list", "map"}[k]
}

// column is one mapped column. A list has one child, its element; a map has two, key and value.
type column struct {
	name     string
	kind     kind
	children []column
}

func leaf(name string, k kind) column { return column{name: name, kind: k} }

func group(name string, fields ...column) column { return column{name, kindStruct, fields} }

func listOf(name string, element column) column { return column{name, kindList, []column{element}} }

func mapOf(name string, value column) column {
	return column{name, kindMap, []column{leaf("key", kindText), value}}
}

func moneyColumn(name string) column {
	return group(name, leaf("currency", kindText), leaf("units", kindInt), leaf("nanos", kindInt))
}

// rowColumns are the mapped columns of orders.proto, in its order.
func rowColumns() []column {
	address := group("address", leaf("street", kindText), leaf("city", kindText), leaf("postcode", kindText),
		leaf("country", kindText), leaf("latitude", kindFloat), leaf("longitude", kindFloat))
	item := group("element", leaf("sku", kindText), leaf("title", kindText), leaf("quantity", kindInt),
		moneyColumn("price"), listOf("tags", leaf("element", kindText)), mapOf("attributes", leaf("value", kindText)))
	return []column{
		leaf("order_id", kindText), leaf("number", kindDecimal), leaf("status", kindText),
		leaf("placed_at", kindTime), leaf("shipped_at", kindTime),
		group("customer", leaf("id", kindDecimal), leaf("name", kindText), leaf("email", kindText), address,
			leaf("newsletter", kindBool)),
		listOf("items", item), mapOf("labels", leaf("value", kindText)), mapOf("fees", moneyColumn("value")),
		group("card", leaf("brand", kindText), leaf("last_four", kindText), leaf("expires", kindInt)),
		group("transfer", leaf("iban", kindText), leaf("balance_after", kindInt)),
		leaf("voucher", kindText), group("cash", leaf("present", kindBool)),
		leaf("note", kindText), leaf("priority", kindInt), leaf("coupon", kindText), leaf("loyalty_points", kindInt),
		leaf("handling_time", kindInt), leaf("signature", kindText), listOf("shelves", leaf("element", kindInt)),
		leaf("weight_kg", kindFloat), leaf("discount", kindFloat), leaf("express", kindBool),
		leaf("trace_id", kindDecimal), moneyColumn("total"),
	}
}
