package main

import (
	"bytes"
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
)

// operators is what the verbs of this file talk to; it keeps what was asked.
type operators struct {
	committerv1.UnimplementedAdminServiceServer

	replays []*committerv1.ReplayQuarantineRequest
	resets  []*committerv1.ResetOffsetsRequest
	answer  *committerv1.ReplayQuarantineResponse
	policy  *policies
}

type policies struct {
	adminv1.UnimplementedAdminServiceServer

	name string
}

func (o *operators) ReplayQuarantine(_ context.Context, r *committerv1.ReplayQuarantineRequest) (*committerv1.ReplayQuarantineResponse, error) {
	o.replays = append(o.replays, r)
	return o.answer, nil
}

func (p *policies) current() *adminv1.PipelinePolicy {
	out := &adminv1.PipelinePolicy{Pipeline: "orders", Policy: p.name, Configured: "stop"}
	if p.name == "stop" {
		out.Stopped = []*adminv1.StoppedPartition{{Topic: "orders", Partition: 3, Reason: "offset 7 cannot be a row\x1b[2J"}}
	}
	return out
}

func (p *policies) GetPolicy(context.Context, *adminv1.GetPolicyRequest) (*adminv1.GetPolicyResponse, error) {
	return &adminv1.GetPolicyResponse{Policies: []*adminv1.PipelinePolicy{p.current()}}, nil
}

func (p *policies) SetPolicy(_ context.Context, r *adminv1.SetPolicyRequest) (*adminv1.SetPolicyResponse, error) {
	if r.GetPipeline() != "orders" {
		return nil, wire.ToStatus(fault.New(fault.NotFound, "there is no pipeline %q here", r.GetPipeline()))
	}
	p.name = r.GetPolicy()
	return &adminv1.SetPolicyResponse{Policy: p.current()}, nil
}

func (p *policies) AllowFlood(context.Context, *adminv1.AllowFloodRequest) (*adminv1.AllowFloodResponse, error) {
	return &adminv1.AllowFloodResponse{Released: []*adminv1.StoppedPartition{{Topic: "orders", Partition: 3, Reason: "too many"}}}, nil
}

// cli runs a verb against o.
func (o *operators) cli(t *testing.T) func(args ...string) (string, string, run.Code) {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}))
	committerv1.RegisterAdminServiceServer(server, o)
	adminv1.RegisterAdminServiceServer(server, o.policy)
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	return func(args ...string) (string, string, run.Code) {
		var out, errs bytes.Buffer
		code := execute(t.Context(), append(args, "--addr", ln.Addr().String()), &out, &errs)
		return out.String(), errs.String(), code
	}
}

func TestAReplaySaysWhatLandedAndWhatStays(t *testing.T) {
	o := &operators{policy: &policies{name: "stop"}, answer: &committerv1.ReplayQuarantineResponse{
		Selected: 5, Replayed: 3, Marked: true,
		Snapshots: []*committerv1.ReplaySnapshot{{SnapshotId: 77, Rows: 3, CommitId: "c-1"}},
		Refusals:  []*committerv1.ReplayRefusal{{Reason: "frame_missing", Count: 2, First: "p/orders[0] offset 9", Error: "it begins with {\x1b"}},
	}}
	cli := o.cli(t)
	out, _, code := cli("quarantine", "replay", "shop.orders", "--partition", "0", "--from", "0", "--schema-id", "0", "--reason", "schema_unknown")
	require.Equal(t, run.Violated, code, "some stay")
	require.Contains(t, out, "3 of 5 quarantined records were replayed")
	require.Contains(t, out, "snapshot 77: 3 rows, commit c-1")
	require.Contains(t, out, "frame_missing: it begins with {·", "no control characters of the data")
	f := o.replays[0].GetFilter()
	require.NotNil(t, f.Partition, "zero is a partition")
	require.NotNil(t, f.From)
	require.NotNil(t, f.SchemaId)
	require.Nil(t, f.To)
	require.Equal(t, "schema_unknown", f.GetReason())
	require.False(t, o.replays[0].GetDryRun())

	o.answer = &committerv1.ReplayQuarantineResponse{Selected: 3, Replayed: 3}
	out, _, code = cli("quarantine", "replay", "shop.orders", "--dry-run", "--offset", "9")
	require.Equal(t, run.OK, code)
	require.Contains(t, out, "3 of 3 quarantined records would be rows")
	require.Contains(t, out, "does not say so yet")
	require.EqualValues(t, 9, o.replays[1].GetFilter().GetFrom())
	require.EqualValues(t, 10, o.replays[1].GetFilter().GetTo())
	require.True(t, o.replays[1].GetDryRun())

	_, errs, code := cli("quarantine", "replay", "shop.orders", "--offset", "9", "--to", "12")
	require.Equal(t, run.CannotTell, code)
	require.Contains(t, errs, "--offset excludes")
	require.Len(t, o.replays, 2)
}

func TestAPolicyIsShownAndSwitchedAndSaysHowLongItLasts(t *testing.T) {
	cli := (&operators{policy: &policies{name: "stop"}}).cli(t)
	out, _, code := cli("policy", "show")
	require.Equal(t, run.OK, code)
	require.Contains(t, out, "orders/orders[3] stands still: offset 7 cannot be a row·[2J")
	out, _, code = cli("policy", "set", "orders", "skip")
	require.Equal(t, run.OK, code)
	require.Contains(t, out, "until ingest restarts; to keep it, set on_invalid: skip in the configuration, which says stop")
	out, _, _ = cli("policy", "show")
	require.Contains(t, out, "switched; the configuration says stop")
	out, _, code = cli("quarantine", "allow", "orders")
	require.Equal(t, run.OK, code)
	require.Contains(t, out, "orders[3] goes on; it stood still: too many")
	_, errs, code := cli("policy", "set", "nope", "skip")
	require.Equal(t, run.CannotTell, code)
	require.Contains(t, errs, `no pipeline "nope"`)
	_, errs, code = cli("policy", "set", "orders")
	require.Equal(t, run.CannotTell, code)
	require.Contains(t, errs, "wants a pipeline and one of quarantine, stop, skip")
}
