package server

import (
	"context"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// mayCreate refuses to make a table that was there before (G9): one that somebody
// drops while this process runs stops it, and must not come back empty, with its
// pipelines at their beginnings, because the process was restarted. The buffer
// remembers: its log knows the id of every table that was opened, also from its
// journal.
func (h *Hub) mayCreate(ctx context.Context, name string) error {
	h.mu.Lock()
	renewed := h.renewed[name]
	h.mu.Unlock()
	if renewed {
		return h.quarantineGone(ctx, name)
	}
	buffer := h.bufferOf(name)
	id, err := buffer.remembers(ctx)
	switch {
	case err != nil:
		return fault.New(fault.Unavailable,
			"opening table %s: the catalog has no such table, and whether it was dropped is not known before the buffer answers: %w", name, err)
	case id == ident.UUID{}: // it may have been moved without its journal
		return h.quarantineGone(ctx, name)
	}
	err = fault.New(fault.Stopped,
		"opening table %s: the catalog has no such table, but the buffer holds the log of one (id %s): it was dropped or renamed by somebody. "+
			"Put it back; or, to start anew at the beginning of its topics, run `icestream renew %s` and restart the buffer", name, id, name)
	h.o.Health.Component("committer/table "+name).NotReady("stopped: %s", fault.Text(err))
	return err
}

// quarantineGone refuses to make a table anew beside the quarantine of the old
// one: the same records would be in it twice, and no count would be right again.
func (h *Hub) quarantineGone(ctx context.Context, name string) error {
	q := lake.QuarantineName(name)
	switch _, err := h.o.Lake.Load(ctx, q); {
	case fault.ReasonOf(err) == fault.UnknownTable:
		return nil
	case err != nil:
		return err
	default:
		err = fault.New(fault.Stopped, "making table %s anew: %s, the quarantine of an old one that was dropped or renamed, is still there: "+
			"put the table back; or drop or rename it too, since its records are read again", name, q)
		h.o.Health.Component("committer/table "+name).NotReady("stopped: %s", fault.Text(err))
		return err
	}
}

// Renew lets a table be made although the buffer remembers it.
func (h *Hub) Renew(name string) error {
	h.mu.Lock()
	e := h.tables[name]
	h.mu.Unlock()
	if e != nil {
		if !e.turn.TryTake() {
			return fault.New(fault.Unavailable, "renewing table %s: this committer is opening it: try again", name)
		}
		defer e.turn.Give()
		if e.table != nil {
			return fault.New(fault.Conflict, "renewing table %s: this committer has it open; if it was dropped meanwhile, restart the committer first", name)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.renewed[name] = true
	h.o.Log.Warn("table may be made anew, as an operator says; its pipelines start over", "table", name)
	return nil
}

// RenewTable implements the RPC.
func (s *commitService) RenewTable(_ context.Context, req *committerv1.RenewTableRequest) (*committerv1.RenewTableResponse, error) {
	if req.GetTable() == "" {
		return nil, fault.New(fault.InvalidArgument, "renewing a table: no table is named")
	}
	if main, ok := ident.MainTable(req.GetTable()); ok {
		return nil, fault.New(fault.InvalidArgument, "renewing a table: %s", near.Quarantine(req.GetTable(), main))
	}
	if err := s.hub.Renew(req.GetTable()); err != nil {
		return nil, err
	}
	return &committerv1.RenewTableResponse{}, nil
}
