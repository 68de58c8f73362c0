package ydbstatus

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
)

// OfCaller reports whether a call that failed with that status, or for 0 with that code, failed for a
// reason of its caller's: a wrong statement, a right that it lacks, data or another transaction that stands
// against it, or its own cancellation. Everything else is an error of the service: of the sidecar, the
// cluster or the network. The page and the alerts count the two apart.
func OfCaller(s Ydb.StatusIds_StatusCode, c codes.Code) bool {
	if s != 0 {
		switch s {
		case Ydb.StatusIds_BAD_REQUEST, Ydb.StatusIds_UNAUTHORIZED, Ydb.StatusIds_ABORTED, Ydb.StatusIds_SCHEME_ERROR,
			Ydb.StatusIds_GENERIC_ERROR, Ydb.StatusIds_PRECONDITION_FAILED, Ydb.StatusIds_ALREADY_EXISTS,
			Ydb.StatusIds_NOT_FOUND, Ydb.StatusIds_CANCELLED, Ydb.StatusIds_UNSUPPORTED:
			return true
		}
		return false
	}
	switch c {
	case codes.Canceled, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.Aborted, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return true
	}
	return false
}
