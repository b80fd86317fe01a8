package wire

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	errorsv1 "github.com/icestream/icestream/gen/go/icestream/errors/v1"
	"github.com/icestream/icestream/internal/fault"
)

// code is the gRPC code of a reason, for clients that know only gRPC.
func code(r fault.Reason) codes.Code {
	switch r {
	case fault.InvalidArgument, fault.Unsupported:
		return codes.InvalidArgument
	case fault.Unavailable, fault.NotReady, fault.NotOwner, fault.NotYet, fault.UnknownSchema, fault.UnknownPartition:
		return codes.Unavailable
	case fault.WrongDoor:
		return codes.Unimplemented
	case fault.Fenced, fault.OutOfOrder, fault.Conflict:
		return codes.Aborted
	case fault.TooOld, fault.SnapshotGone, fault.UnknownTable, fault.NotFound:
		return codes.NotFound
	case fault.EpochChanged, fault.LeaseExpired, fault.SchemaChanged, fault.SchemaRefused, fault.Stopped:
		return codes.FailedPrecondition
	case fault.OverLimit, fault.DiskFull:
		return codes.ResourceExhausted
	case fault.Unauthorized:
		return codes.PermissionDenied
	case fault.Corrupt:
		return codes.DataLoss
	default:
		return codes.Internal
	}
}

// ToStatus turns err into a gRPC status error that carries its reason. Context
// errors become the gRPC codes of the same meaning; a status passes unchanged.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	var f *fault.Error
	if !errors.As(err, &f) {
		if _, ok := status.FromError(err); ok {
			return err
		}
		switch {
		case errors.Is(err, context.Canceled):
			return status.Error(codes.Canceled, err.Error())
		case errors.Is(err, context.DeadlineExceeded):
			return status.Error(codes.DeadlineExceeded, err.Error())
		}
		f = fault.New(fault.Internal, "%w", err)
	}
	detail := &errorsv1.ErrorDetail{Reason: errorsv1.Reason(f.Reason), Retryable: f.Reason.Retryable(), Metadata: f.Meta}
	if f.RetryAfter > 0 {
		detail.RetryAfter = durationpb.New(f.RetryAfter)
	}
	st := status.New(code(f.Reason), f.Message)
	with, derr := st.WithDetails(detail)
	if derr != nil {
		return st.Err()
	}
	return with.Err()
}

// FromStatus turns a gRPC error back into what ToStatus was given: a
// *fault.Error, or a context error. A transport error becomes Unavailable. Nil
// and errors that are no gRPC status pass unchanged.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range st.Details() {
		if e, ok := d.(*errorsv1.ErrorDetail); ok {
			f := &fault.Error{Reason: fault.Reason(e.GetReason()), Message: st.Message(), Meta: e.GetMetadata()}
			if e.GetRetryAfter() != nil {
				f.RetryAfter = e.GetRetryAfter().AsDuration()
			}
			return f
		}
	}
	switch st.Code() {
	case codes.Canceled:
		return context.Canceled
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case codes.Unavailable, codes.Aborted:
		return &fault.Error{Reason: fault.Unavailable, Message: st.Message()}
	case codes.ResourceExhausted:
		return &fault.Error{Reason: fault.OverLimit, Message: st.Message()}
	case codes.Unimplemented:
		return fault.New(fault.WrongDoor, "another service listens at this address, or an older one (discovery in the configuration): %s", st.Message())
	case codes.InvalidArgument:
		return &fault.Error{Reason: fault.InvalidArgument, Message: st.Message()}
	case codes.Unauthenticated, codes.PermissionDenied:
		return &fault.Error{Reason: fault.Unauthorized, Message: st.Message()}
	default:
		return &fault.Error{Reason: fault.Internal, Message: st.Message()}
	}
}
