package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	identifyAtOnce   = 32                     // nodes asked for their ids at a time
	identifyGrace    = time.Second            // how long an answer waits for the ids of nodes never asked before
	identifyPause    = 500 * time.Millisecond // after a first failure; doubles
	identifyPauseMax = 15 * time.Second
)

// Identify asks the node at an address for its id; upstream.Driver.Identify is one. It
// must honour ctx and bound itself.
type Identify func(ctx context.Context, address, tlsName string) (cluster.NodeID, error)

// identities knows the ids of nodes whose source names addresses alone. The id is
// YDB's own, because a call on a session goes by the id of a node that the session's id
// holds: numbers of our own making would send every such call astray.
//
// What always holds: a node is listed only once it told its id; an id counts until the
// node tells another, whatever fails meanwhile; a node is asked again whenever a new
// connection to its address was made (see Doubt), since another process may listen
// there then, and never because of time alone.
type identities struct {
	ask  Identify
	log  *slog.Logger
	wake chan struct{} // capacity 1: Run should look again

	mu     sync.Mutex // guards all below
	known  map[string]*identity
	asking int           // nodes being asked
	heard  chan struct{} // closed, and replaced by a new one, when one was
}

// identity is one address.
type identity struct {
	cluster.Node           // as the source names it, with the id that it told; 0: none yet
	told         time.Time // when
	tried        bool      // it was asked once, with whatever success
	doubt        bool      // it is to be asked
	asking       bool
	due          time.Time // not before
	pause        time.Duration
	err          error // of the last time; nil: it told
}

func newIdentities(ask Identify, log *slog.Logger) *identities {
	return &identities{ask: ask, log: log, wake: make(chan struct{}, 1), known: map[string]*identity{}, heard: make(chan struct{})}
}

// Doubt says that a connection to an address was made, so that another node than
// before may be there. It does not block.
func (i *identities) Doubt(address string) {
	i.mu.Lock()
	n := i.known[address]
	if n != nil {
		n.doubt, n.due = true, time.Time{}
	}
	i.mu.Unlock()
	if n != nil {
		i.nudge()
	}
}

func (i *identities) nudge() {
	select {
	case i.wake <- struct{}{}:
	default: // Run has yet to come to the last one
	}
}

// topology makes an answer of nodes, of which some may have no id. It is for one goroutine at a time.
func (i *identities) topology(ctx context.Context, nodes []cluster.Node) (cluster.Topology, error) {
	nodes, leftOut := cluster.Bounded(nodes)
	nodes, err := i.resolve(ctx, nodes)
	if err != nil {
		return cluster.Topology{}, err
	}
	t := cluster.NewTopology(nodes, "")
	t.LeftOut = leftOut
	return t, nil
}

// resolve is for one goroutine at a time. It fills in the ids of nodes that have none and leaves out those that did not
// tell any yet. Where two addresses are one node, that which told last comes first. The
// error is that of a node without id if there is no node left.
func (i *identities) resolve(ctx context.Context, nodes []cluster.Node) ([]cluster.Node, error) {
	i.want(nodes)
	ctx, cancel := context.WithTimeout(ctx, identifyGrace)
	defer cancel()
	for {
		i.mu.Lock()
		heard, waiting := i.heard, false
		for _, n := range i.known {
			waiting = waiting || !n.tried
		}
		i.mu.Unlock()
		if !waiting {
			break
		}
		select {
		case <-heard:
			continue
		case <-ctx.Done():
		}
		break
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	out, told, err := []cluster.Node(nil), []*identity(nil), error(nil)
	for _, n := range nodes {
		if n.ID != 0 {
			out = append(out, n)
		} else if k := i.known[n.Address]; k.ID != 0 {
			told = append(told, k)
		} else if k.err != nil {
			err = k.err
		}
	}
	slices.SortStableFunc(told, func(a, b *identity) int { return b.told.Compare(a.told) })
	for _, k := range told {
		out = append(out, k.Node)
	}
	if len(out) > 0 || len(nodes) == 0 {
		return out, nil
	}
	if err == nil {
		err = context.DeadlineExceeded
	}
	return nil, fmt.Errorf("none of %d addresses has told its node id yet: %w", len(nodes), err)
}

// want makes the known addresses those of nodes without an id.
func (i *identities) want(nodes []cluster.Node) {
	i.mu.Lock()
	next := make(map[string]*identity, len(nodes))
	for _, n := range nodes {
		if n.ID != 0 {
			continue
		}
		k := i.known[n.Address]
		if k == nil || k.TLSName != n.TLSName {
			k = &identity{doubt: true}
		}
		n.ID = k.ID
		k.Node = n
		next[n.Address] = k
	}
	i.known = next
	i.mu.Unlock()
	i.nudge()
}

// run asks until ctx ends, and calls changed when a node told another id than before.
func (i *identities) run(ctx context.Context, changed func()) {
	var asking sync.WaitGroup
	defer asking.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		n, next := i.next()
		if n != nil {
			asking.Go(func() {
				defer panics.Go("what a node's id changes")
				i.identify(ctx, n, changed)
			})
			continue
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-i.wake:
		case <-timer.C:
		}
	}
}

// next returns a node to be asked now, or nil and for how long there is none; who is
// told wakes run.
func (i *identities) next() (*identity, time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	next := time.Hour
	if i.asking == identifyAtOnce {
		return nil, next
	}
	for _, n := range i.known {
		if !n.doubt || n.asking {
			continue
		}
		if rest := time.Until(n.due); rest > 0 {
			next = min(next, rest)
			continue
		}
		n.asking, n.doubt = true, false
		i.asking++
		return n, 0
	}
	return nil, next
}

// identify asks one node.
func (i *identities) identify(ctx context.Context, n *identity, changed func()) {
	i.mu.Lock()
	address, name := n.Address, n.TLSName
	i.mu.Unlock()
	var id cluster.NodeID
	err := panics.Call("the question for a node's id", func() (err error) {
		id, err = i.ask(ctx, address, name)
		return err
	})
	if err == nil && id == 0 {
		err = fmt.Errorf("%s told no node id", address)
	}
	i.mu.Lock()
	before, first := n.ID, n.err == nil
	i.asking--
	n.asking, n.tried, n.err = false, true, err
	if err == nil {
		n.ID, n.told, n.pause = id, time.Now(), 0
	} else {
		n.pause = min(max(2*n.pause, identifyPause), identifyPauseMax)
		if !n.doubt { // else a connection was made meanwhile
			n.doubt, n.due = true, time.Now().Add(n.pause)
		}
	}
	close(i.heard)
	i.heard = make(chan struct{})
	i.mu.Unlock()
	i.nudge()
	switch {
	case ctx.Err() != nil:
	case err != nil && first:
		i.log.WarnContext(ctx, "a node does not tell its id; it is asked again", "address", address, "err", err, "former_id", before)
	case err == nil && before != id:
		i.log.InfoContext(ctx, "a node told its id", "address", address, "node", id, "former_id", before)
		changed()
	}
}

// Unidentified is an address without a node id.
type Unidentified struct {
	Address string
	Err     error // why; nil: it was not asked yet
}

// unidentified lists them in order of address.
func (i *identities) unidentified() (all []Unidentified) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, n := range i.known {
		if n.ID == 0 {
			all = append(all, Unidentified{n.Address, n.err})
		}
	}
	slices.SortFunc(all, func(a, b Unidentified) int { return strings.Compare(a.Address, b.Address) })
	return all
}
