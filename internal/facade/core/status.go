package core

import (
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Status adds what this package knows to the state of the sidecar.
func (s *Service) Status() *sidecarv1.StatusResponse {
	out := &sidecarv1.StatusResponse{State: "serving"}
	if s.Deps.Status != nil {
		out = s.Deps.Status()
	}
	out.Database, out.OpenTransactions = s.Deps.Database, uint32(s.Tx.leases.Size())
	if s.State().Draining {
		out.State = "draining"
	}
	return out
}
