package snapshot

import (
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Status answers the API's call of that name; the API adds the transactions.
func (s *Source) Status() *sidecarv1.StatusResponse {
	now := s.look(ofPool)
	p, state := &now.Pool, now.Stage
	if state > Serving {
		state = Draining // all that callers need to know
	}
	out := &sidecarv1.StatusResponse{
		Version: s.Self.Version, Database: s.Driver.Database(), State: state.String(),
		UptimeS: now.At.Sub(s.Started).Seconds(),
		Pool: &sidecarv1.PoolStatus{
			Max: uint32(p.Max), Sessions: uint32(p.Sessions), Idle: uint32(p.Idle), Busy: uint32(p.InUse),
			Creating: uint32(p.Opening), Waiting: uint32(p.InLine()),
		},
	}
	sessions := sessionsByNode(p)
	for _, n := range now.View.Nodes {
		out.Nodes = append(out.Nodes, &sidecarv1.NodeStatus{
			NodeId: uint32(n.ID), Address: n.Address, Zone: n.Zone,
			Health: n.Condition.Health.String(), Use: n.Use.String(), Reason: n.Condition.Reason,
			Sessions: uint32(sessions[n.ID].Sessions), Busy: uint32(sessions[n.ID].InUse),
		})
	}
	return out
}
