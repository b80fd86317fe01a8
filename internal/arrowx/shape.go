// Package arrowx is what Icestream does with Arrow: the two batch shapes of a
// table log, their encoding as IPC messages, the checks that make bytes from the
// network safe to read, and the step from a log entry to rows of the table.
//
// All functions are safe for concurrent use. Record batches follow Arrow's
// reference counting: what a function returns is the caller's to release.
package arrowx

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/schema"
)

// Names of the internal columns of a row batch.
const (
	OffsetColumn    = "offset"
	TimestampColumn = "timestamp"
	KeyColumn       = "key"
	ValueColumn     = "value"
	HeadersColumn   = "headers"
	SchemaIDColumn  = "schema_id"
	ReasonColumn    = "reason"
	ErrorColumn     = "error"
)

// HeaderType is list<struct<key: string, value: binary>>, the Kafka headers.
func HeaderType() *arrow.ListType {
	return arrow.ListOfField(arrow.Field{Name: "element", Nullable: true, Type: arrow.StructOf(
		arrow.Field{Name: KeyColumn, Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: ValueColumn, Type: arrow.BinaryTypes.Binary, Nullable: true},
	)})
}

// TimeType is a record time: microseconds in UTC.
func TimeType() *arrow.TimestampType {
	return &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}
}

// RowSchema is the shape of a row batch for target: its mapped columns in table
// order, then the column offset, and where the table carries _kafka also
// timestamp, key, headers and schema_id.
func RowSchema(target *schema.Schema) *arrow.Schema {
	mapped := target.Mapped()
	fields := make([]arrow.Field, 0, len(mapped)+5)
	for _, n := range mapped {
		fields = append(fields, n.ArrowField())
	}
	fields = append(fields, arrow.Field{Name: OffsetColumn, Type: arrow.PrimitiveTypes.Int64})
	if target.Column(schema.KafkaColumn) != nil {
		fields = append(fields,
			arrow.Field{Name: TimestampColumn, Type: TimeType(), Nullable: true},
			arrow.Field{Name: KeyColumn, Type: arrow.BinaryTypes.Binary, Nullable: true},
			arrow.Field{Name: HeadersColumn, Type: HeaderType(), Nullable: true},
			arrow.Field{Name: SchemaIDColumn, Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		)
	}
	return arrow.NewSchema(fields, nil)
}

// QuarantineSchema is the shape of a quarantine batch: offset, timestamp, key,
// value, headers, schema_id, reason, error.
func QuarantineSchema() *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{
		{Name: OffsetColumn, Type: arrow.PrimitiveTypes.Int64},
		{Name: TimestampColumn, Type: TimeType(), Nullable: true},
		{Name: KeyColumn, Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: ValueColumn, Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: HeadersColumn, Type: HeaderType(), Nullable: true},
		{Name: SchemaIDColumn, Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: ReasonColumn, Type: arrow.BinaryTypes.String},
		{Name: ErrorColumn, Type: arrow.BinaryTypes.String},
	}, nil)
}
