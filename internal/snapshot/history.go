package snapshot

import (
	"github.com/ydb-sidecar/sidecar/internal/history"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
)

// Reading is what a point of the history is made of.
func (s *Source) Reading(r *history.Reading) {
	now := s.look(ofPool | ofAPI)
	p := &now.Pool
	r.Used, r.Idle, r.Creating, r.Limit, r.Waiting = p.InUse, p.Idle, p.Opening, p.Limit, p.InLine()
	r.Transactions = now.API.Transactions
	sessions := sessionsByNode(p)
	var heard pessimize.Heard
	for _, n := range now.View.Nodes {
		s.Detector.Heard(n.ID, &heard)
		of := sessions[n.ID]
		r.Nodes = append(r.Nodes, history.NodeReading{ID: uint32(n.ID), Used: of.InUse, Idle: of.Idle, Bad: heard.Bad, Took: heard.Took})
	}
}
