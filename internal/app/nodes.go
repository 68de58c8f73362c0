package app

import (
	"errors"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
)

// nodes is what operators may do to nodes.
type nodes struct{ judge *pessimize.Judge }

var _ admin.Nodes = nodes{}

func (n nodes) Ban(cluster.NodeID, time.Duration, string) error { return errors.ErrUnsupported }
func (n nodes) Unban(cluster.NodeID) error                      { return errors.ErrUnsupported }
func (n nodes) Drain(cluster.NodeID) error                      { return errors.ErrUnsupported }
func (n nodes) Undrain(cluster.NodeID) error                    { return errors.ErrUnsupported }
func (n nodes) Why(cluster.NodeID) any                          { return nil }
func (n nodes) Events(uint64) []any                             { return nil }
