//go:build synctests

package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/wire"
)

const readTime = 10 * time.Second

// token is a read that may be asked for again.
type token struct {
	text   string
	epoch  int64
	vector [partitions]int64
	rows   map[row]int
}

func (w *world) door(s *slot) (readstatev1.ReadStateServiceClient, error) {
	conn, err := w.conns.Conn(s.address())
	if err != nil {
		return nil, err
	}
	return readstatev1.NewReadStateServiceClient(conn), nil
}

// scan reads the union at a position; "" is the newest.
func (w *world) scan(ctx context.Context, s *slot, at string) (*readstatev1.BeginReadResponse, []row, error) {
	api, err := w.door(s)
	if err != nil {
		return nil, nil, err
	}
	req := &readstatev1.ScanRequest{Table: tablePath}
	if at != "" {
		req.At = &readstatev1.At{Position: &readstatev1.At_Token{Token: at}}
	}
	stream, err := api.Scan(ctx, req)
	if err != nil {
		return nil, nil, wire.FromStatus(err)
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, wire.FromStatus(err)
	}
	var rows []row
	err = arrowx.EachBatch(&arrowx.Chunks{Next: func() ([]byte, error) {
		m, err := stream.Recv()
		return m.GetChunk().GetData(), wire.FromStatus(err)
	}}, collect(&rows))
	return first.GetBegin(), rows, err
}

// hot reads the hot rows of a table from a buffer or a readstate.
func (w *world) hot(ctx context.Context, s *slot) (*readstatev1.BeginReadResponse, []row, error) {
	api, err := w.door(s)
	if err != nil {
		return nil, nil, err
	}
	begin, err := api.BeginRead(ctx, &readstatev1.BeginReadRequest{Table: tablePath})
	if err != nil {
		return nil, nil, wire.FromStatus(err)
	}
	var rows []row
	for _, ticket := range begin.GetHot().GetTickets() {
		stream, err := api.ReadHot(ctx, &readstatev1.ReadHotRequest{Ticket: ticket})
		if err != nil {
			return nil, nil, wire.FromStatus(err)
		}
		err = arrowx.EachBatch(&arrowx.Chunks{Next: func() ([]byte, error) {
			m, err := stream.Recv()
			return m.GetChunk().GetData(), wire.FromStatus(err)
		}}, collect(&rows))
		if err != nil {
			return nil, nil, err
		}
	}
	_, err = api.EndRead(ctx, &readstatev1.EndReadRequest{ReadId: begin.GetReadId()})
	return begin, rows, wire.FromStatus(err)
}

func vectorOf(v *readstatev1.OffsetVector) (out [partitions]int64) {
	for _, o := range v.GetOffsets() {
		out[o.GetPartition().GetNumber()] = o.GetNext()
	}
	return out
}

func coldOf(c *readstatev1.ColdPart) (out [partitions]int64) {
	for _, p := range c.GetPositions() {
		out[p.GetPartition().GetNumber()] = p.GetNext()
	}
	return out
}

// epochOf asks for the log epoch of a table before and after a read, since a read does not name it.
func (w *world) epochOf(ctx context.Context, s *slot) (int64, error) {
	api, err := w.door(s)
	if err != nil {
		return 0, err
	}
	d, err := api.DescribeTable(ctx, &readstatev1.DescribeTableRequest{Table: tablePath})
	return d.GetLogEpoch(), wire.FromStatus(err)
}

// look makes one read and checks it (G3, G4, G5). Refusals are answers.
func (w *world) look(r interface{ IntN(int) int }) error {
	slots := append(w.running(discovery.Readstate, true), w.running(discovery.Buffer, true)...)
	if len(slots) == 0 {
		return nil
	}
	s := slots[r.IntN(len(slots))]
	ctx, cancel := context.WithTimeout(w.ctx, readTime)
	defer cancel()
	var err error
	switch {
	case s.role == discovery.Buffer:
		_, err = w.lookHot(ctx, s)
	case len(w.book.tokens) > 0 && r.IntN(2) == 0:
		t := w.book.tokens[r.IntN(len(w.book.tokens))]
		err = w.lookAgain(ctx, s, t)
	default:
		var t *token
		if t, err = w.lookUnion(ctx, s); err == nil {
			if w.book.tokens = append(w.book.tokens, t); len(w.book.tokens) > 8 {
				i := r.IntN(len(w.book.tokens))
				w.book.tokens = append(w.book.tokens[:i], w.book.tokens[i+1:]...)
			}
		}
	}
	if wrong, ok := errors.AsType[*wrongRead](err); ok {
		return wrong
	}
	if err != nil {
		if !refusal(err) && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("G3: a read at %s is refused without a reason: %w", s.name, err)
		}
		w.book.refused[fault.ReasonOf(err).String()]++
	}
	return nil
}

// wrongRead is a read with a wrong answer.
type wrongRead struct{ error }

func wrong(err error) error {
	if err == nil {
		return nil
	}
	return &wrongRead{err}
}

func (w *world) lookUnion(ctx context.Context, s *slot) (*token, error) {
	before, err := w.epochOf(ctx, s)
	if err != nil {
		return nil, err
	}
	begin, rows, err := w.scan(ctx, s, "")
	if err != nil {
		return nil, err
	}
	after, err := w.epochOf(ctx, s)
	if err != nil {
		return nil, err
	}
	vector, cold := vectorOf(begin.GetVector()), coldOf(begin.GetCold())
	what := "G4: union at " + s.name
	if err := w.book.exactly(what, rows, [partitions]int64{}, vector); err != nil {
		return nil, wrong(err)
	}
	if before == after {
		if err := w.book.named("G5: union at "+s.name, rows, before, cold); err != nil {
			return nil, wrong(err)
		}
	}
	w.book.exact++
	return &token{text: begin.GetToken(), epoch: before, vector: vector, rows: digest(rows)}, nil
}

func (w *world) lookAgain(ctx context.Context, s *slot, t *token) error {
	_, rows, err := w.scan(ctx, s, t.text)
	if err != nil {
		return err
	}
	if now := digest(rows); differ(t.rows, now) != "" {
		return wrong(fmt.Errorf("G3: token %s of epoch %d at %v reads other rows at %s: %s", t.text, t.epoch, t.vector, s.name, differ(t.rows, now)))
	}
	w.book.again++
	return nil
}

// lookHot checks that the hot rows are exactly those between the committed and the visible position.
func (w *world) lookHot(ctx context.Context, s *slot) ([partitions]int64, error) {
	before, err := w.epochOf(ctx, s)
	if err != nil {
		return [partitions]int64{}, err
	}
	begin, rows, err := w.hot(ctx, s)
	vector, cold := vectorOf(begin.GetVector()), coldOf(begin.GetCold())
	if err != nil {
		return vector, err
	}
	after, err := w.epochOf(ctx, s)
	if err != nil {
		return vector, err
	}
	if err := w.book.exactly("G4: hot rows at "+s.name, rows, cold, vector); err != nil {
		return vector, wrong(err)
	}
	if before == after {
		if err := w.book.named("G5: hot rows at "+s.name, rows, before, cold); err != nil {
			return vector, wrong(err)
		}
	}
	w.book.exact++
	return vector, nil
}

// spots reads partition and offset of each row of the quarantine table.
func spots(into *[]spot) func(arrow.RecordBatch) error {
	return func(rec arrow.RecordBatch) error {
		parts, ok1 := column[*array.Int32](rec, "partition")
		offsets, ok2 := column[*array.Int64](rec, "offset")
		if !ok1 || !ok2 {
			return fmt.Errorf("the quarantine table has no columns partition and offset: %s", rec.Schema())
		}
		for i := range int(rec.NumRows()) {
			*into = append(*into, spot{parts.Value(i), offsets.Value(i)})
		}
		return nil
	}
}
