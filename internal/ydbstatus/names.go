package ydbstatus

import (
	"fmt"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
)

// StatusName is the name of a YDB status; a number for one newer than our protos.
func StatusName(s Ydb.StatusIds_StatusCode) string {
	if name, ok := Ydb.StatusIds_StatusCode_name[int32(s)]; ok {
		return name
	}
	return fmt.Sprintf("STATUS_%d", int32(s))
}

var codeNames = [...]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
	"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

// CodeName is the constant name of a gRPC code, as metrics and reports show it.
func CodeName(c codes.Code) string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "UNKNOWN"
}

// Failed reports whether a call with that status, or for 0 with that code, did not do its work.
func Failed(s Ydb.StatusIds_StatusCode, c codes.Code) bool {
	return s != Ydb.StatusIds_SUCCESS && (s != 0 || c != codes.OK)
}

// Name is the name of how a call ended: "SUCCESS", or that of the status, or without one that of the code.
func Name(s Ydb.StatusIds_StatusCode, c codes.Code) string {
	switch {
	case !Failed(s, c):
		return "SUCCESS"
	case s != 0:
		return StatusName(s)
	}
	return CodeName(c)
}
