package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
)

func readCommand() *cobra.Command {
	var (
		t       target
		format  string
		columns []string
		limit   int64
		at      string
		part    string
	)
	cmd := &cobra.Command{
		Use:   "read TABLE",
		Short: "Read hot and committed rows as one consistent table",
		Example: `  icestream read --dir ./icestream-dev shop.orders --limit 5
  icestream read -c icestream.yaml shop.orders --columns order_id,_lsn -o json
  icestream read -c icestream.yaml shop.orders --at snapshot:8744736658442914487 -o arrow > rows.arrow`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &readstatev1.ScanRequest{Table: args[0], Columns: columns, Limit: limit}
			if limit < 0 {
				return fault.New(fault.InvalidArgument, "--limit %d: want a positive number, or 0 for all rows", limit)
			}
			var err error
			if req.At, err = parseAt(at); err != nil {
				return err
			}
			if req.Part, err = parsePart(part); err != nil {
				return err
			}
			return t.scan(cmd, req, format)
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json", "csv", "arrow")
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "columns to read (default all)")
	cmd.Flags().Int64Var(&limit, "limit", 0, "rows at most (default all)")
	cmd.Flags().StringVar(&at, "at", "latest", "position: latest, token:…, lsn:N, snapshot:ID, time:RFC3339")
	cmd.Flags().StringVar(&part, "part", "all", "all, hot or cold")
	return cmd
}

// parseAt reads the --at flag.
func parseAt(s string) (*readstatev1.At, error) {
	kind, value, _ := strings.Cut(s, ":")
	switch kind {
	case "", "latest":
		return nil, nil //nolint:nilnil // no position means latest, as on the wire
	case "token":
		return &readstatev1.At{Position: &readstatev1.At_Token{Token: value}}, nil
	case "lsn", "snapshot":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, fault.New(fault.InvalidArgument, "--at %q: %q is no number", s, value)
		}
		if kind == "lsn" {
			return &readstatev1.At{Position: &readstatev1.At_Lsn{Lsn: n}}, nil
		}
		return &readstatev1.At{Position: &readstatev1.At_SnapshotId{SnapshotId: n}}, nil
	case "time":
		at, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return nil, fault.New(fault.InvalidArgument, "--at %q: want time:2026-01-31T12:00:00Z", s)
		}
		return &readstatev1.At{Position: &readstatev1.At_Time{Time: timestamppb.New(at)}}, nil
	default:
		return nil, fault.New(fault.InvalidArgument, "--at %q: want latest, token:…, lsn:N, snapshot:ID or time:RFC3339", s)
	}
}

func parsePart(s string) (readstatev1.ScanPart, error) {
	switch s {
	case "all":
		return readstatev1.ScanPart_SCAN_PART_UNSPECIFIED, nil
	case "hot":
		return readstatev1.ScanPart_SCAN_PART_HOT, nil
	case "cold":
		return readstatev1.ScanPart_SCAN_PART_COLD, nil
	default:
		return 0, fault.New(fault.InvalidArgument, "--part %q: want all, hot or cold", s)
	}
}

// scan streams a Scan from readstate, or, for a dev folder with nothing
// running, from the catalog in the folder.
func (t *target) scan(cmd *cobra.Command, req *readstatev1.ScanRequest, format string) error {
	if t.dir != "" && t.addr == "" {
		c, err := t.load(cmd)
		if err != nil {
			return err
		}
		if !listening(cmd.Context(), c.Discovery.Readstate) {
			cmd.PrintErrf("nothing is running in %s: committed rows only\n", t.dir)
			return t.scanOffline(cmd, req, format)
		}
		if isQuarantine(req.GetTable()) {
			return t.scanOffline(cmd, req, format)
		}
	} else if main, ok := ident.MainTable(req.GetTable()); ok {
		return fault.New(fault.Unsupported, "%s is a quarantine table: it is never hot, so read it with `icestream quarantine show %s`, or any engine that reads Iceberg",
			req.GetTable(), main)
	}
	conn, err := t.dial(cmd, readstateOf)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return printScan(cmd.Context(), conn, req, format, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// isQuarantine tells quarantine tables by their name; no pipeline may write one so named.
func isQuarantine(table string) bool {
	_, ok := ident.MainTable(table)
	return ok
}

// printScan prints the rows, and on errs one line with the position.
func printScan(ctx context.Context, conn grpc.ClientConnInterface, req *readstatev1.ScanRequest, format string, out, errs io.Writer) error {
	stream, err := readstatev1.NewReadStateServiceClient(conn).Scan(ctx, req)
	if err != nil {
		return wire.FromStatus(err)
	}
	first, err := stream.Recv()
	if err != nil {
		return wire.FromStatus(err)
	}
	begin := first.GetBegin()
	rows, err := printStream(&arrowx.Chunks{Next: func() ([]byte, error) {
		m, err := stream.Recv()
		if err != nil {
			return nil, wire.FromStatus(err)
		}
		return m.GetChunk().GetData(), nil
	}}, format, out)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(errs, "%d rows · snapshot %d · token %s\n", rows, begin.GetCold().GetSnapshotId(), begin.GetToken())
	return err
}

// printStream prints an Arrow IPC stream and returns the number of rows.
func printStream(r io.Reader, format string, out io.Writer) (int64, error) {
	p := rowPrinter{format: format, out: out}
	if err := p.print(r); err != nil {
		return p.printed, err
	}
	return p.printed, p.close()
}

// rowPrinter prints one Arrow IPC stream after the other as one output: one head,
// one stream, until the schema changes.
type rowPrinter struct {
	format  string
	limit   int64 // 0: none
	out     io.Writer
	printed int64

	schema *arrow.Schema
	w      rowWriter
}

// full reports whether the limit is reached.
func (p *rowPrinter) full() bool { return p.limit > 0 && p.printed >= p.limit }

func (p *rowPrinter) print(r io.Reader) error {
	rd, err := ipc.NewReader(r)
	if err != nil {
		return fmt.Errorf("reading the rows: %w", err)
	}
	defer rd.Release()
	if p.w == nil || !p.schema.Equal(rd.Schema()) {
		if err := p.close(); err != nil {
			return err
		}
		if p.w, err = newRowWriter(p.format, p.out, rd.Schema()); err != nil {
			return err
		}
		p.schema = rd.Schema()
	}
	for !p.full() && rd.Next() {
		if err := p.batch(rd.RecordBatch()); err != nil {
			return err
		}
	}
	if err := rd.Err(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the rows: %w", err)
	}
	return nil
}

func (p *rowPrinter) batch(rec arrow.RecordBatch) error {
	if left := p.limit - p.printed; p.limit > 0 && rec.NumRows() > left {
		rec = rec.NewSlice(0, left)
		defer rec.Release()
	}
	p.printed += rec.NumRows()
	return p.w.write(rec)
}

// close ends the output.
func (p *rowPrinter) close() error {
	if p.w == nil {
		return nil
	}
	return p.w.close()
}

func tailCommand() *cobra.Command {
	var (
		t         target
		format    string
		columns   []string
		fromStart bool
		limit     int64
	)
	cmd := &cobra.Command{
		Use:   "tail TABLE",
		Short: "Print rows as they become visible, without end",
		Long: `Print rows as they become visible, without end. It begins at the committed positions: first come the rows that are hot
now, then each as it arrives. --from-start begins with the first row of the table. A connection that breaks is taken up
where it broke, without a row twice or missing.`,
		Example: `  icestream tail --dir ./icestream-dev shop.orders --columns order_id,_lsn
  icestream tail -c icestream.yaml shop.orders --from-start -o json`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			conn, err := t.dial(cmd, readstateOf)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			if limit < 0 {
				return fault.New(fault.InvalidArgument, "--limit %d: want a positive number, or 0 for no end", limit)
			}
			req := &readstatev1.TailRequest{Table: args[0], Columns: columns, FromStart: fromStart}
			tail := &tailer{
				api: readstatev1.NewReadStateServiceClient(conn), rows: rowPrinter{format: format, limit: limit, out: cmd.OutOrStdout()},
				errs: cmd.ErrOrStderr(), pause: time.Second,
			}
			return tail.run(cmd.Context(), req)
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table", "json", "csv", "arrow")
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "columns to read (default all)")
	cmd.Flags().BoolVar(&fromStart, "from-start", false, "begin with the first row of the table")
	cmd.Flags().Int64Var(&limit, "limit", 0, "end after that many rows (default never)")
	return cmd
}

// tailer follows a table. A stream that breaks is resumed by offset vector, so
// that no row is printed twice or missed (G4).
type tailer struct {
	api   readstatev1.ReadStateServiceClient
	rows  rowPrinter
	errs  io.Writer
	pause time.Duration // before a broken stream is resumed
}

// run prints until the limit, the end of ctx or an error that no retry helps.
func (t *tailer) run(ctx context.Context, req *readstatev1.TailRequest) error {
	for {
		err := t.stream(ctx, req)
		if r := fault.ReasonOf(err); r != fault.Unavailable && r != fault.NotReady {
			return errors.Join(err, t.rows.close())
		}
		_, _ = fmt.Fprintln(t.errs, "reconnecting:", fault.Describe(err))
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), t.rows.close())
		case <-time.After(t.pause):
		}
	}
}

// stream prints one stream and leaves in req where the next one goes on. Its
// error is nil only at the limit.
func (t *tailer) stream(ctx context.Context, req *readstatev1.TailRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := t.api.Tail(ctx, req)
	for err == nil && !t.rows.full() {
		var m *readstatev1.TailResponse
		if m, err = stream.Recv(); err == nil {
			err = t.take(m)
			req.From, req.FromStart = m.GetPosition(), false
		}
	}
	return wire.FromStatus(err)
}

func (t *tailer) take(m *readstatev1.TailResponse) error {
	if rows := m.GetRows(); rows != nil {
		return t.rows.print(bytes.NewReader(rows.GetData()))
	}
	if c := m.GetCommit(); c != nil {
		_, _ = fmt.Fprintf(t.errs, "-- committed: snapshot %d\n", c.GetSnapshotId())
	}
	return nil
}

// fullName prints a partition of a pipeline for people.
func fullName(p *typesv1.Partition) string { return p.GetPipeline() + "/" + partitionName(p) }

// partitionName prints a topic partition for people.
func partitionName(p *typesv1.Partition) string {
	return ident.TopicPartition(p.GetTopic(), p.GetNumber())
}
