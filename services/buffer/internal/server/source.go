package server

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/readview"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/buffer/internal/table"
)

// parses refuses a schema whose columns no append could be checked against.
func parses(s event.Schema) error {
	if err := json.Unmarshal(s.Columns, &schema.Schema{}); err != nil {
		return fault.New(fault.InvalidArgument, "schema %q does not parse: %w", s.Fingerprint, err)
	}
	return nil
}

func writerEpoch(n int64) ident.WriterEpoch { return ident.WriterEpoch(n) }

// source is a table log as readers see it.
type source struct{ l *tableLog }

// Position is the newest consistent position.
func (s source) Position() (readview.Position, error) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.l.m.State() != table.Serving {
		return readview.Position{}, s.l.notReady()
	}
	return s.l.m.View().Position(), nil
}

// Resolve finds the rows of a token.
func (s source) Resolve(tok readview.Token) (readview.Resolved, error) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.l.m.State() != table.Serving {
		return readview.Resolved{}, s.l.notReady()
	}
	return s.l.m.View().Resolve(tok)
}

// SchemaByID returns the newest schema with this table schema id.
func (s source) SchemaByID(id int32) (found event.Schema, ok bool) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	for _, sch := range s.l.m.View().Schemas() {
		if sch.TableSchemaID == id {
			found, ok = sch, true
		}
	}
	return found, ok
}

// Status is what operators ask for.
func (s source) Status() readapi.Status {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	st := readapi.Status{Table: s.l.m.Head().Table, State: readapi.StateServing, Progress: maps.Clone(s.l.progress)}
	if s.l.m.State() != table.Serving {
		st.State = s.l.waitsFor()
		return st
	}
	st.Rows, st.Bytes = s.l.m.View().Rows(), s.l.m.View().Bytes()
	return st
}

// Changed returns a channel that is closed at the next change.
func (s source) Changed() <-chan struct{} {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	return s.l.changed
}

// Admin answers operators.
type Admin struct {
	adminv1.UnimplementedAdminServiceServer
	h        *Host
	instance string
	version  string
	started  time.Time
}

// NewAdmin returns the admin service of a host.
func NewAdmin(h *Host, instance, version string, started time.Time) *Admin {
	return &Admin{h: h, instance: instance, version: version, started: started}
}

// GetStatus says what the buffer is doing.
func (a *Admin) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	report := a.h.opt.Health.Report("buffer")
	used, granted := a.h.budget.read()
	out := &adminv1.GetStatusResponse{
		Service: "buffer", Instance: a.instance, Version: a.version, Started: timestamppb.New(a.started), Ready: report.Ready,
		Facts: map[string]string{
			"boot": a.h.opt.Boot.String(), "hot.bytes": strconv.FormatInt(used, 10),
			"hot.limit": strconv.FormatInt(a.h.opt.HotBytes, 10), "credit.bytes": strconv.FormatInt(granted, 10),
		},
	}
	for _, c := range report.Components {
		out.Components = append(out.Components, &adminv1.Component{Name: c.Name, Ready: c.Ready, Reason: c.Reason})
	}
	for _, l := range a.h.all() {
		out.Facts["table."+l.name] = l.describe()
	}
	return out, nil
}

// SetPipelineState is served by ingest.
func (a *Admin) SetPipelineState(context.Context, *adminv1.SetPipelineStateRequest) (*adminv1.SetPipelineStateResponse, error) {
	return nil, fault.New(fault.WrongDoor, "pipelines are paused and resumed at ingest")
}

func (l *tableLog) describe() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, v := l.m.Head(), l.m.View()
	return fmt.Sprintf("%s; log epoch %d, snapshot %d, next LSN %d of %d, hot rows %d, hot bytes %d, outstanding entries %d, append streams %d, followers %d",
		l.m.State(), c.LogEpoch, c.SnapshotID, l.m.NextLSN(), c.LSN.Reserved, v.Rows(), v.Bytes(), len(l.m.Outstanding()), len(l.appenders), len(l.followers))
}
