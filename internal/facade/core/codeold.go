package core

import (
	"net/http"

	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// The values of api.statuses.
const (
	statusesCurrent = "current" // as docs/reference/errors.md has them
	statusesOld     = "old"     // as the version before had them
)

// oldStatus is what a code was in the version before.
type oldStatus struct {
	HTTP int
	GRPC codes.Code
}

// oldStatuses has the codes whose status over HTTP or gRPC is another one since this version. It goes, with
// api.statuses, in the next version.
var oldStatuses = map[string]oldStatus{
	"TABLE_MISMATCH":          {http.StatusInternalServerError, codes.FailedPrecondition},
	"KEY_TOO_LARGE":           {http.StatusRequestHeaderFieldsTooLarge, codes.ResourceExhausted},
	"MEMORY_SHORT":            {http.StatusServiceUnavailable, codes.ResourceExhausted},
	"SHED_DELAY":              {http.StatusServiceUnavailable, codes.Unavailable},
	"YDB_UNAUTHORIZED":        {http.StatusForbidden, codes.PermissionDenied},
	"YDB_OVERLOADED":          {http.StatusServiceUnavailable, codes.Unavailable},
	"YDB_SCHEME_ERROR":        {http.StatusNotFound, codes.NotFound},
	"YDB_PRECONDITION_FAILED": {http.StatusPreconditionFailed, codes.FailedPrecondition},
	"YDB_NOT_FOUND":           {http.StatusNotFound, codes.NotFound},
}

// Old returns the status that the code had in the version before; false: it had this one.
func (c *Code) Old() (status int, code codes.Code, differs bool) {
	o, known := oldStatuses[c.Name]
	return o.HTTP, o.GRPC, known && (o.HTTP != c.HTTP || o.GRPC != c.GRPC)
}

// Answered returns the fault as callers are told of it: with the status of the version before if api.statuses says so.
func (s *Service) Answered(f *Fault) *Fault {
	if f == nil || s.Cfg.API.Statuses != statusesOld {
		return f
	}
	status, code, differs := f.Code.Old()
	if !differs {
		return f
	}
	was := *f.Code
	was.HTTP, was.GRPC, was.old = status, code, true
	return f.With(func(f *Fault) { f.Code = &was })
}

// checkStatuses reports a value of api.statuses that it cannot have.
func checkStatuses(value string) error {
	if value != statusesCurrent && value != statusesOld {
		return config.Faultf("statuses", " = %q; must be %s or %s", value, statusesCurrent, statusesOld)
	}
	return nil
}
