package grpcapi

import (
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// panicStatus is the answer to a call whose handler panicked outside of serve, which
// knows more.
func panicStatus(err error) error {
	if _, ok := errors.AsType[*panics.Error](err); ok {
		return StatusOf(core.FaultOf(err, core.Deed{}), "")
	}
	return err
}

// StatusOf is what gRPC sends for a fault: the code and message, and as details
// google.rpc.ErrorInfo, google.rpc.RetryInfo and the same message that HTTP sends.
func StatusOf(f *core.Fault, traceID string) error {
	if f.Relayed != nil {
		return f.Relayed
	}
	body := f.Proto(traceID)
	info := &errdetails.ErrorInfo{Reason: body.Code, Domain: errorDomain, Metadata: map[string]string{
		"safe_to_retry": "false", "outcome_unknown": "false", "hint": body.Hint, "trace_id": traceID,
	}}
	if body.OperatorHint != "" {
		info.Metadata["operator_hint"] = body.OperatorHint
	}
	if f.Safe {
		info.Metadata["safe_to_retry"] = "true"
	}
	if f.Unknown {
		info.Metadata["outcome_unknown"] = "true"
	}
	if f.YDB != "" {
		info.Metadata["ydb_status"] = f.YDB
	}
	details := []protoadapt.MessageV1{info}
	if f.After > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.After)})
	}
	if proto.Size(body) > core.MaxDetails {
		body.Issues = nil // the message has their texts
		body.Message = core.Clip(body.Message, core.MaxMessage/2)
	}
	st := status.New(f.Code.GRPC, core.Clip(body.Message, core.MaxMessage/2))
	if full, err := st.WithDetails(append(details, body)...); err == nil {
		st = full
	}
	return st.Err()
}
