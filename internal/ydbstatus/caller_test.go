package ydbstatus

import (
	"slices"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
)

// Each error is of one side. A name that is both a status and a code is of the same side as either, because metrics
// and the page have only the name.
func TestErrorsOfCallers(t *testing.T) {
	service := map[string]bool{
		"UNAVAILABLE": true, "OVERLOADED": true, "INTERNAL_ERROR": true, "TIMEOUT": true, "BAD_SESSION": true,
		"SESSION_EXPIRED": true, "SESSION_BUSY": true, "UNDETERMINED": true, "EXTERNAL_ERROR": true,
		"UNKNOWN": true, "DEADLINE_EXCEEDED": true, "RESOURCE_EXHAUSTED": true, "INTERNAL": true, "DATA_LOSS": true,
	}
	caller := map[string]bool{
		"BAD_REQUEST": true, "UNAUTHORIZED": true, "ABORTED": true, "SCHEME_ERROR": true, "GENERIC_ERROR": true,
		"PRECONDITION_FAILED": true, "ALREADY_EXISTS": true, "NOT_FOUND": true, "CANCELLED": true, "UNSUPPORTED": true,
		"INVALID_ARGUMENT": true, "PERMISSION_DENIED": true, "FAILED_PRECONDITION": true, "OUT_OF_RANGE": true,
		"UNIMPLEMENTED": true, "UNAUTHENTICATED": true,
	}
	check := func(name string, got bool) {
		if caller[name] == service[name] || got != caller[name] {
			t.Errorf("%s counts as an error of the caller: %v; in the lists of this test: caller %v, service %v",
				name, got, caller[name], service[name])
		}
	}
	for number := range Ydb.StatusIds_StatusCode_name {
		if s := Ydb.StatusIds_StatusCode(number); s != 0 && s != Ydb.StatusIds_SUCCESS {
			check(StatusName(s), OfCaller(s, 0))
		}
	}
	for c := codes.Canceled; int(c) < len(codeNames); c++ {
		check(CodeName(c), OfCaller(0, c))
	}
	if OfCaller(Ydb.StatusIds_StatusCode(999999), 0) || OfCaller(0, 99) || slices.Contains(codeNames[:], "") {
		t.Error("an error that is not known counts as the caller's")
	}
}
