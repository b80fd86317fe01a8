package lake

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
)

// partitionField is one field of a partition setting.
type partitionField struct {
	transform string // identity, year, month, day, hour, bucket, truncate
	width     int    // bucket and truncate
	column    string // dotted path
}

// sortField is one field of a sort setting.
type sortField struct {
	column    string
	desc      bool
	nullsLast bool
}

var (
	callForm = regexp.MustCompile(`^([a-z]+)\(\s*(?:(\d+)\s*,\s*)?([^(),\s]+)\s*\)$`)
	bareForm = regexp.MustCompile(`^[^(),\s]+$`)
	sortForm = regexp.MustCompile(`^([^(),\s]+)(?i:\s+(asc|desc))?(?i:\s+nulls\s+(first|last))?$`)
)

// CheckShape checks a partition and a sort setting: their form, and, where sch is
// given, that their columns are there and of a type that every engine reads
// right. The error names the field and says why.
func CheckShape(partition, sort string, sch *schema.Schema) error {
	fields, err := parsePartition(partition)
	if err != nil {
		return err
	}
	order, err := parseSort(sort)
	if err != nil || sch == nil {
		return err
	}
	for _, f := range fields {
		if err := f.check(sch); err != nil {
			return err
		}
	}
	for _, f := range order {
		if _, err := f.source(sch); err != nil {
			return err
		}
	}
	return nil
}

// parsePartition reads "day(created_at), bucket(16, customer_id), region".
func parsePartition(text string) ([]partitionField, error) {
	var out []partitionField
	for _, item := range splitList(text) {
		f, err := parsePartitionField(item)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func parsePartitionField(item string) (partitionField, error) {
	bad := func(why string) error {
		return fault.New(fault.InvalidArgument,
			"checking partition field %q: %s: want year, month, day or hour(COLUMN), bucket(N, COLUMN), truncate(N, COLUMN) or COLUMN", item, why)
	}
	if bareForm.MatchString(item) {
		return partitionField{transform: "identity", column: item}, nil
	}
	m := callForm.FindStringSubmatch(item)
	if m == nil {
		return partitionField{}, bad("it cannot be read")
	}
	f := partitionField{transform: m[1], column: m[3]}
	switch f.transform {
	case "year", "month", "day", "hour", "identity":
		if m[2] != "" {
			return f, bad(f.transform + " takes no number")
		}
	case "bucket", "truncate":
		n, err := strconv.ParseInt(m[2], 10, 32)
		if err != nil || n < 1 {
			return f, bad(f.transform + " needs a number of 1 or more before the column")
		}
		f.width = int(n)
	default:
		return f, bad(fmt.Sprintf("there is no transform %q", f.transform))
	}
	return f, nil
}

// parseSort reads "customer_id, created_at desc nulls last".
func parseSort(text string) ([]sortField, error) {
	var out []sortField
	for _, item := range splitList(text) {
		m := sortForm.FindStringSubmatch(item)
		if m == nil {
			return nil, fault.New(fault.InvalidArgument, "checking sort field %q: want COLUMN [asc|desc] [nulls first|last]", item)
		}
		f := sortField{column: m[1], desc: strings.EqualFold(m[2], "desc")}
		f.nullsLast = f.desc
		if m[3] != "" {
			f.nullsLast = strings.EqualFold(m[3], "last")
		}
		out = append(out, f)
	}
	return out, nil
}

// splitList cuts at the commas that stand outside of parentheses.
func splitList(text string) []string {
	var out []string
	depth, from := 0, 0
	for i, c := range text + "," {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && (depth <= 0 || i == len(text)):
			if item := strings.TrimSpace(text[from:i]); item != "" {
				out = append(out, item)
			}
			from = i + 1
		}
	}
	return out
}

// find follows a dotted path through structs. A name that itself has dots is
// found too.
func find(nodes []*schema.Node, path string) *schema.Node {
	for _, n := range nodes {
		if n.Name == path {
			return n
		}
	}
	for _, n := range nodes {
		if rest, ok := strings.CutPrefix(path, n.Name+"."); ok && n.Type.Kind == schema.Struct {
			if found := find(n.Kids, rest); found != nil {
				return found
			}
		}
	}
	return nil
}

// check finds the column of f and checks that other engines read such a
// partition right. The rules are those of the project's interop tests: what is
// refused here makes some engine lose rows without an error, or the table
// unreadable.
func (f partitionField) check(sch *schema.Schema) error {
	n := find(sch.Columns, f.column)
	if n == nil {
		return fault.New(fault.InvalidArgument, "checking partition field %s: the table has no column %q", f, f.column)
	}
	if why := f.refused(n.Type.Kind); why != "" {
		return fault.New(fault.InvalidArgument, "checking partition field %s: column %q has type %s: %s", f, f.column, n.Type, why)
	}
	return nil
}

// instants are the kinds of points in time.
var instants = []schema.Kind{schema.TimestampTZ, schema.Timestamp, schema.TimestampTZNano, schema.TimestampNano}

func (f partitionField) refused(k schema.Kind) string {
	in := func(kinds ...schema.Kind) bool { return slices.Contains(kinds, k) }
	switch f.transform {
	case "year", "month", "day":
		if !in(schema.Date) && !in(instants...) {
			return f.transform + " needs a timestamp or date"
		}
	case "hour":
		if !in(instants...) {
			return "hour needs a timestamp"
		}
	case "bucket":
		if !in(schema.Int, schema.Long, schema.String, schema.Decimal, schema.Date) {
			return "bucket is read right by every engine only on int, long, string, decimal and date"
		}
	case "truncate":
		if !in(schema.Int, schema.Long) {
			return "truncate is read right by every engine only on int and long (an empty string would hide whole manifests): use bucket"
		}
	case "identity":
		switch {
		case in(instants...):
			return "every instant would be a partition: use day or hour"
		case k == schema.String:
			return "one empty string would hide whole manifests from other engines: use bucket"
		case !in(schema.Int, schema.Long, schema.Boolean, schema.Date):
			return "such partitions are misread by other engines: use bucket, or another column"
		}
	}
	return ""
}

// String is the field as it is written in the configuration.
func (f partitionField) String() string {
	switch {
	case f.transform == "identity":
		return f.column
	case f.width > 0:
		return fmt.Sprintf("%s(%d, %s)", f.transform, f.width, f.column)
	default:
		return f.transform + "(" + f.column + ")"
	}
}

// name of the field in the spec. An identity keeps the column's name, as the
// format wants.
func (f partitionField) name() string {
	if f.transform == "identity" {
		return f.column
	}
	base := strings.ReplaceAll(f.column, ".", "_") + "_" + f.transform
	if f.width > 0 {
		return fmt.Sprintf("%s_%d", base, f.width)
	}
	return base
}

func (f partitionField) iceberg() iceberg.Transform {
	switch f.transform {
	case "year":
		return iceberg.YearTransform{}
	case "month":
		return iceberg.MonthTransform{}
	case "day":
		return iceberg.DayTransform{}
	case "hour":
		return iceberg.HourTransform{}
	case "bucket":
		return iceberg.BucketTransform{NumBuckets: f.width}
	case "truncate":
		return iceberg.TruncateTransform{Width: f.width}
	default:
		return iceberg.IdentityTransform{}
	}
}

func (f sortField) source(sch *schema.Schema) (*schema.Node, error) {
	n := find(sch.Columns, f.column)
	if n == nil {
		return nil, fault.New(fault.InvalidArgument, "checking sort field %s: the table has no such column", f.column)
	}
	if n.Type.Kind.Nested() || n.Type.Kind == schema.Variant {
		return nil, fault.New(fault.InvalidArgument, "checking sort field %s: a %s has no order", f.column, n.Type)
	}
	return n, nil
}

// sortOrder is a sort setting in the library's words.
func sortOrder(fields []sortField, sch *schema.Schema) (table.SortOrder, error) {
	out := make([]table.SortField, len(fields))
	for i, f := range fields {
		n, err := f.source(sch)
		if err != nil {
			return table.SortOrder{}, err
		}
		out[i] = table.SortField{
			SourceIDs: []int{int(n.FieldID)}, Transform: iceberg.IdentityTransform{},
			Direction: table.SortASC, NullOrder: table.NullsFirst,
		}
		if f.desc {
			out[i].Direction = table.SortDESC
		}
		if f.nullsLast {
			out[i].NullOrder = table.NullsLast
		}
	}
	return table.NewSortOrder(1, out)
}
