// Package server is what readstate answers to operators, and how reads are
// counted.
package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/obs"
)

// Service is the name of the service in health, metrics and answers.
const Service = "readstate"

// Admin implements icestream.admin.v1.AdminService. Safe for concurrent use.
type Admin struct {
	adminv1.UnimplementedAdminServiceServer

	Instance string
	Version  string
	Started  time.Time
	Health   *obs.Health
	// Facts returns what people want to know, by name.
	Facts func() map[string]string
}

// GetStatus says what the service is doing.
func (a *Admin) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	report := a.Health.Report(Service)
	resp := &adminv1.GetStatusResponse{
		Service: Service, Instance: a.Instance, Version: a.Version, Started: timestamppb.New(a.Started),
		Ready: report.Ready, Facts: a.Facts(),
	}
	for _, c := range report.Components {
		resp.Components = append(resp.Components, &adminv1.Component{Name: c.Name, Ready: c.Ready, Reason: c.Reason})
	}
	return resp, nil
}

// SetPipelineState is answered by ingest only.
func (a *Admin) SetPipelineState(context.Context, *adminv1.SetPipelineStateRequest) (*adminv1.SetPipelineStateResponse, error) {
	return nil, fault.New(fault.WrongDoor, "pipelines are paused and resumed at ingest")
}

// Meter implements readapi.Meter over metrics.
type Meter struct{ Metrics *obs.Metrics }

// Read implements readapi.Meter.
func (m Meter) Read(call string, reason fault.Reason) {
	outcome := "ok"
	if reason != fault.Unspecified {
		outcome = reason.String()
	}
	m.Metrics.Counter(readsDef(), call, outcome).Inc()
}

// Sent implements readapi.Meter.
func (m Meter) Sent(part string, rows, bytes int64) {
	m.Metrics.Counter(sentRowsDef(), part).Add(float64(rows))
	m.Metrics.Counter(sentBytesDef(), part).Add(float64(bytes))
}

// Leases implements readapi.Meter.
func (m Meter) Leases(count int, bytes int64) {
	m.Metrics.Gauge(leasesDef()).Set(float64(count))
	m.Metrics.Gauge(leaseBytesDef()).Set(float64(bytes))
}

// Defs returns the metrics of this package.
func Defs() []obs.Def {
	return []obs.Def{readsDef(), sentRowsDef(), sentBytesDef(), leasesDef(), leaseBytesDef()}
}

func readsDef() obs.Def {
	return obs.Def{
		Name: "icestream_readstate_reads_total", Help: "Read calls that have ended, by call and outcome; the outcome is ok or the reason of the error.",
		Kind: obs.KindCounter, Labels: []string{"call", "outcome"},
	}
}

func sentRowsDef() obs.Def {
	return obs.Def{
		Name: "icestream_readstate_sent_rows_total", Help: "Rows sent to readers, from hot batches or from files of the lake.",
		Kind: obs.KindCounter, Labels: []string{"part"},
	}
}

func sentBytesDef() obs.Def {
	return obs.Def{
		Name: "icestream_readstate_sent_bytes_total", Help: "Bytes of Arrow streams sent to readers.",
		Kind: obs.KindCounter, Labels: []string{"part"},
	}
}

func leasesDef() obs.Def {
	return obs.Def{Name: "icestream_readstate_leases", Help: "Reads whose lease has not ended.", Kind: obs.KindGauge}
}

func leaseBytesDef() obs.Def {
	return obs.Def{
		Name: "icestream_readstate_lease_bytes", Help: "Hot bytes that leases keep; at the budget new reads are refused with OVER_LIMIT.",
		Kind: obs.KindGauge,
	}
}
