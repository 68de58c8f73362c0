package app

import (
	"errors"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
)

// nodes is what operators may do to nodes and ask about them.
type nodes struct{ detector *pessimize.Detector }

var _ admin.Nodes = nodes{}

func (n nodes) Ban(id cluster.NodeID, d time.Duration, reason string) error {
	return known(n.detector.Ban(id, d, reason))
}
func (n nodes) Unban(id cluster.NodeID) error   { return known(n.detector.Unban(id)) }
func (n nodes) Drain(id cluster.NodeID) error   { return known(n.detector.Drain(id)) }
func (n nodes) Undrain(id cluster.NodeID) error { return known(n.detector.Undrain(id)) }

// known says in admin's words that a node is not.
func known(err error) error {
	if errors.Is(err, pessimize.ErrUnknown) {
		return unknownNode{err}
	}
	return err
}

type unknownNode struct{ error }

func (unknownNode) Is(target error) bool { return target == admin.ErrUnknown }

func (n nodes) Why(id cluster.NodeID) any {
	if why, ok := n.detector.Why(id); ok {
		return why
	}
	return nil
}
