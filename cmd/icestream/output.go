package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

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
func cell(a arrow.Array, row int, null string) string {
	if a.IsNull(row) {
		return null
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
			value, err := json.Marshal(rec.Column(i).GetOneForMarshal(row))
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
			line[i] = cell(rec.Column(i), row, "")
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

// tableWriter aligns columns per batch, so that a long read prints as it goes.
type tableWriter struct {
	w     io.Writer
	names []string
}

func newTableWriter(w io.Writer, s *arrow.Schema) *tableWriter {
	return &tableWriter{w: w, names: columnNames(s)}
}

func (t *tableWriter) write(rec arrow.RecordBatch) error {
	rows := make([][]string, rec.NumRows())
	for row := range rows {
		line := make([]string, rec.NumCols())
		for i := range line {
			v := []rune(strings.Map(printable, cell(rec.Column(i), row, "∅")))
			if len(v) > maxCell {
				v = append(v[:maxCell-1], '…')
			}
			line[i] = string(v)
		}
		rows[row] = line
	}
	return printTable(t.w, t.names, rows)
}

func (t *tableWriter) close() error { return nil }

// printable keeps control characters of the data out of the terminal.
func printable(r rune) rune {
	if r < 0x20 || r == 0x7f {
		return '·'
	}
	return r
}

// printTable writes aligned columns.
func printTable(w io.Writer, names []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	if _, err := fmt.Fprintln(tw, strings.Join(names, "\t")); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	for _, r := range rows {
		if _, err := fmt.Fprintln(tw, strings.Join(r, "\t")); err != nil {
			return fmt.Errorf("writing the output: %w", err)
		}
	}
	return tw.Flush()
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

// outputFlag adds -o with the formats a command knows.
func outputFlag(cmd *cobra.Command, into *string, formats string) {
	cmd.Flags().StringVarP(into, "output", "o", "table", "output format: "+formats)
}
