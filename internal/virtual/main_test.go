package virtual

import (
	"context"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node opens server sessions, and knows what is on each of them, whatever the sidecar thinks.
type node struct{ opened int }

// onNode is a server session as its node knows it.
type onNode struct {
	name      string
	open      map[uint64]bool // transactions
	temporary bool
	forgotten bool
	failed    bool
	retire    func(string)
}

func (s *onNode) ID() string                           { return s.name }
func (s *onNode) Forget()                              { s.forgotten = true }
func (s *onNode) Fail()                                { s.failed = true }
func (s *onNode) Close(context.Context) error          { return nil }
func (s *onNode) AtRest(context.Context) (bool, error) { return true, nil }

// dirty reports whether something is on it that nobody else may meet.
func (s *onNode) dirty() bool { return len(s.open) > 0 || s.temporary }

// Open implements pool.Opener.
func (n *node) Open(_ context.Context, _ cluster.NodeID, retire func(string)) (pool.Resource, error) {
	n.opened++
	return &onNode{name: fmt.Sprintf("s%d", n.opened), open: map[uint64]bool{}, retire: retire}, nil
}
