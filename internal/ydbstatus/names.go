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
