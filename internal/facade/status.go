package facade

import (
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// status adds what this package knows to the state of the sidecar.
func (s *coreService) status() *sidecarv1.StatusResponse {
	out := &sidecarv1.StatusResponse{State: "serving"}
	if s.deps.Status != nil {
		out = s.deps.Status()
	}
	out.Database, out.OpenTransactions = s.deps.Database, uint32(s.tx.leases.Size())
	if s.State().Draining {
		out.State = "draining"
	}
	return out
}
