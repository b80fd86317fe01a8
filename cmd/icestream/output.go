package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/spf13/cobra"

	"github.com/icestream/icestream/internal/fault"
)

// rowWriter prints record batches of one shape.
type rowWriter interface {
	write(rec arrow.RecordBatch) error
	close() error
}

// newRowWriter returns the writer for -o; format is one of table, json, csv, arrow.
func newRowWriter(format string, w io.Writer, s *arrow.Schema) (rowWriter, error) {
	switch format {
	case "table":
		return newTableWriter(w, s), nil
	case "json":
		return jsonWriter{w}, nil
	case "csv":
		c := csv.NewWriter(w)
		return &csvWriter{w: c}, c.Write(columnNames(s))
	case "arrow":
		return arrowWriter{ipc.NewWriter(w, ipc.WithSchema(s))}, nil
	default:
		return nil, fault.New(fault.InvalidArgument, "output format %q: want table, json, csv or arrow", format)
	}
}

func columnNames(s *arrow.Schema) []string {
	names := make([]string, s.NumFields())
	for i, f := range s.Fields() {
		names[i] = f.Name
	}
	return names
}

// cell renders one value; null is the word given.
func cell(f arrow.Field, a arrow.Array, row int, null string) string {
	if a.IsNull(row) {
		return null
	}
	if holdsVariant(f) {
		if text, err := json.Marshal(forJSON(f, a, row)); err == nil {
			return string(text)
		}
	}
	return a.ValueStr(row)
}

// jsonWriter prints one object a line.
type jsonWriter struct{ w io.Writer }

func (j jsonWriter) write(rec arrow.RecordBatch) error {
	var line strings.Builder
	for row := range int(rec.NumRows()) {
		line.Reset()
		line.WriteByte('{')
		for i, f := range rec.Schema().Fields() {
			if i > 0 {
				line.WriteByte(',')
			}
			name, err := json.Marshal(f.Name)
			if err != nil {
				return fmt.Errorf("printing column %q: %w", f.Name, err)
			}
			value, err := json.Marshal(forJSON(f, rec.Column(i), row))
			if err != nil {
				return fmt.Errorf("printing column %q: %w", f.Name, err)
			}
			line.Write(name)
			line.WriteByte(':')
			line.Write(value)
		}
		line.WriteString("}\n")
		if _, err := io.WriteString(j.w, line.String()); err != nil {
			return fmt.Errorf("writing the output: %w", err)
		}
	}
	return nil
}

func (j jsonWriter) close() error { return nil }

// csvWriter prints a header line and one line a row; null is empty.
type csvWriter struct{ w *csv.Writer }

func (c *csvWriter) write(rec arrow.RecordBatch) error {
	line := make([]string, rec.NumCols())
	for row := range int(rec.NumRows()) {
		for i := range line {
			line[i] = cell(rec.Schema().Field(i), rec.Column(i), row, "")
		}
		if err := c.w.Write(line); err != nil {
			return fmt.Errorf("writing the output: %w", err)
		}
	}
	c.w.Flush()
	return c.w.Error()
}

func (c *csvWriter) close() error { c.w.Flush(); return c.w.Error() }

// arrowWriter passes on an Arrow IPC stream.
type arrowWriter struct{ w *ipc.Writer }

func (a arrowWriter) write(rec arrow.RecordBatch) error { return a.w.Write(rec) }
func (a arrowWriter) close() error                      { return a.w.Close() }

// maxCell cuts long values in tables for people; json and csv hold them whole.
const maxCell = 48

// tableWriter aligns the columns of the first batch, and of later ones as far as
// they fit, so that a long read prints as it goes and has one head.
type tableWriter struct {
	w      io.Writer
	names  []string
	widths []int // nil before the head is printed
}

func newTableWriter(w io.Writer, s *arrow.Schema) *tableWriter {
	return &tableWriter{w: w, names: columnNames(s)}
}

func (t *tableWriter) write(rec arrow.RecordBatch) error {
	rows := make([][]string, rec.NumRows())
	for row := range rows {
		line := make([]string, rec.NumCols())
		for i := range line {
			v := []rune(strings.Map(printable, cell(rec.Schema().Field(i), rec.Column(i), row, "∅")))
			if len(v) > maxCell {
				v = append(v[:maxCell-1], '…')
			}
			line[i] = string(v)
		}
		rows[row] = line
	}
	return t.print(rows)
}

func (t *tableWriter) print(rows [][]string) error {
	if t.widths == nil {
		rows = append([][]string{t.names}, rows...)
		t.widths = make([]int, len(t.names))
	}
	for _, row := range rows {
		for i, v := range row {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(v))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, v := range row {
			if b.WriteString(v); i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(v)+2))
			}
		}
		b.WriteByte('\n')
	}
	if _, err := io.WriteString(t.w, b.String()); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

func (t *tableWriter) close() error {
	if t.widths == nil {
		return t.print(nil) // no rows: the head still names the columns
	}
	return nil
}

// printable keeps control characters of the data out of the terminal.
func printable(r rune) rune {
	if r < 0x20 || r == 0x7f {
		return '·'
	}
	return r
}

// printTable writes aligned columns.
func printTable(w io.Writer, names []string, rows [][]string) error {
	return (&tableWriter{w: w, names: names}).print(rows)
}

// printJSON writes one indented object.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// printLine writes one object on a line of its own.
func printLine(w io.Writer, v any) error {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// outputFlag adds -o with the formats a command knows; the first is the default.
func outputFlag(cmd *cobra.Command, into *string, formats ...string) {
	*into = formats[0]
	cmd.Flags().VarP(&choice{into, formats}, "output", "o", "output format: "+strings.Join(formats, ", "))
}

// choice is the value of a flag that takes one of a few words.
type choice struct {
	into  *string
	words []string
}

func (c *choice) String() string { return *c.into }
func (c *choice) Type() string   { return "format" }

// Set implements pflag.Value.
func (c *choice) Set(word string) error {
	if !slices.Contains(c.words, word) {
		return fmt.Errorf("want one of %s", strings.Join(c.words, ", "))
	}
	*c.into = word
	return nil
}

// bytesForPeople prints a size with three digits or so; config.Size prints it whole.
func bytesForPeople(n int64) string {
	const step = 1024
	f := float64(n)
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if f < step {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + unit
		}
		f /= step
	}
	return fmt.Sprintf("%.1f TiB", f)
}
