package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Auth_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Auth"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Bridge"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// ListEndpoints asks for the nodes of the cluster: see firstAnswer. The error
// joins all refusals.
func (d *Driver) ListEndpoints(ctx context.Context) (cluster.Topology, error) {
	return d.listed(firstAnswer(ctx, d, d.listEndpoints))
}

// ListElsewhere is ListEndpoints, but asks nodes of the view before the bootstrap
// addresses, and of those the one that answered last at the end.
func (d *Driver) ListElsewhere(ctx context.Context) (cluster.Topology, error) {
	bootstrap, nodes := d.sources(1)
	return d.listed(askInOrder(ctx, d, append(nodes, bootstrap...), d.listEndpoints))
}

func (e *endpoint) listed(t cluster.Topology, err error) (cluster.Topology, error) {
	if err != nil {
		return cluster.Topology{}, fmt.Errorf("list endpoints of %s: %w", e.database, err)
	}
	return t, nil
}

func (d *Driver) listEndpoints(ctx context.Context, c *nodeConn) (cluster.Topology, error) {
	out, err := d.tickets.outgoing(ctx)
	if err != nil {
		return cluster.Topology{}, err
	}
	r, err := Ydb_Discovery_V1.NewDiscoveryServiceClient(c.cc).ListEndpoints(out,
		&Ydb_Discovery.ListEndpointsRequest{Database: d.endpoint.database})
	if err == nil {
		err = CheckOperation(r.GetOperation())
	}
	if err != nil {
		_, e := failure(ctx, err, true)
		e.Op = "ListEndpoints"
		d.rejected(e)
		return cluster.Topology{}, e
	}
	var list Ydb_Discovery.ListEndpointsResult
	if err := r.GetOperation().GetResult().UnmarshalTo(&list); err != nil {
		return cluster.Topology{}, fmt.Errorf("read the list of endpoints: %w", err)
	}
	return topology(&list, d.endpoint.secure)
}

var pileStates = map[Ydb_Bridge.PileState_State]cluster.PileState{
	Ydb_Bridge.PileState_PRIMARY:          cluster.PilePrimary,
	Ydb_Bridge.PileState_PROMOTED:         cluster.PileInStep,
	Ydb_Bridge.PileState_SYNCHRONIZED:     cluster.PileInStep,
	Ydb_Bridge.PileState_NOT_SYNCHRONIZED: cluster.PileBehind,
	Ydb_Bridge.PileState_SUSPENDED:        cluster.PileDetached,
	Ydb_Bridge.PileState_DISCONNECTED:     cluster.PileDetached,
}

// topology turns an answer of discovery into nodes. Like the official SDKs it
// drops endpoints whose transport security differs from ours.
func topology(list *Ydb_Discovery.ListEndpointsResult, secure bool) (cluster.Topology, error) {
	nodes := make([]cluster.Node, 0, len(list.GetEndpoints()))
	piles := make(map[string]cluster.PileState, len(list.GetPileStates()))
	for _, p := range list.GetPileStates() {
		piles[p.GetPileName()] = pileStates[p.GetState()]
	}
	other := 0
	for _, e := range list.GetEndpoints() {
		if e.GetSsl() != secure {
			other++
			continue
		}
		if e.GetAddress() == "" || e.GetPort() == 0 || e.GetPort() > 65535 {
			continue
		}
		nodes = append(nodes, cluster.Node{
			ID:         cluster.NodeID(e.GetNodeId()),
			Address:    net.JoinHostPort(e.GetAddress(), strconv.FormatUint(uint64(e.GetPort()), 10)),
			Zone:       e.GetLocation(),
			TLSName:    e.GetSslTargetNameOverride(),
			LoadFactor: e.GetLoadFactor(),
			Pile:       cluster.Pile{Name: e.GetBridgePileName(), State: piles[e.GetBridgePileName()]},
		})
	}
	nodes, leftOut := cluster.Bounded(nodes)
	t := cluster.NewTopology(nodes, list.GetSelfLocation())
	t.LeftOut = leftOut
	switch {
	case len(t.Nodes) > 0:
		return t, nil
	case other > 0:
		return t, fmt.Errorf("none of the %d endpoints has the transport security of ydb.url (TLS: %t)", other, secure)
	}
	return t, errors.New("the list of endpoints is empty")
}

const (
	// maxAsked is how many nodes of the view are asked when no bootstrap address answers.
	maxAsked = 3
	// patience is how long the bootstrap addresses may be silent, after the last of
	// them was asked, before nodes of the view are asked as well.
	patience = time.Second
)

// firstAnswer returns the first answer to f: of the bootstrap addresses,
// beginning with the one that answered last, then of some nodes of the view. The
// next one is asked when one failed, or is silent for stagger; each may take
// Config.DiscoveryTimeout. The error joins all refusals.
func firstAnswer[T any](ctx context.Context, d *Driver, f func(ctx context.Context, c *nodeConn) (T, error)) (T, error) {
	bootstrap, nodes := d.sources(0)
	return askInOrder(ctx, d, append(bootstrap, nodes...), f)
}

// source is where a question can be asked: a node, or without one a bootstrap address.
type source struct {
	node      cluster.NodeID
	bootstrap int
}

// sources are the bootstrap addresses, from so many after the one that answered last,
// and some nodes of the view.
func (d *Driver) sources(after int) (bootstrap, nodes []source) {
	d.mu.Lock()
	first := d.lastGood + after
	d.mu.Unlock()
	for i := range d.endpoint.addresses {
		bootstrap = append(bootstrap, source{bootstrap: (first + i) % len(d.endpoint.addresses)})
	}
	for _, id := range d.someNodes() {
		nodes = append(nodes, source{node: id})
	}
	return bootstrap, nodes
}

// askInOrder asks in this order and returns the first answer.
func askInOrder[T any](ctx context.Context, d *Driver, sources []source, f func(ctx context.Context, c *nodeConn) (T, error)) (T, error) {
	conn := func(p source) (*nodeConn, error) {
		if p.node == 0 {
			return d.bootstrapConn(p.bootstrap)
		}
		return d.conn(p.node)
	}
	pause := func(i int) time.Duration {
		if sources[i].node != 0 && i > 0 && sources[i-1].node == 0 {
			return patience
		}
		return stagger
	}
	try := func(ctx context.Context, i int) (T, error) {
		var none T
		c, err := conn(sources[i])
		if err != nil {
			return none, err
		}
		defer c.drop()
		ask, cancel := context.WithTimeout(ctx, d.config.DiscoveryTimeout)
		defer cancel()
		answer, err := f(ask, c)
		if err != nil {
			return none, fmt.Errorf("%s: %w", c.node.Address, err)
		}
		return answer, nil
	}
	winner, answer, err := race(ctx, len(sources), pause, try, func(T) {})
	if err == nil && sources[winner].node == 0 {
		d.mu.Lock()
		d.lastGood = sources[winner].bootstrap
		d.mu.Unlock()
	}
	return answer, err
}

// someNodes returns up to maxAsked nodes of the view, in no order.
func (d *Driver) someNodes() (nodes []cluster.NodeID) {
	for id := range *d.conns.Load() {
		if len(nodes) == maxAsked {
			break
		}
		nodes = append(nodes, id)
	}
	return nodes
}

// bootstrapConn returns the connection to the k-th bootstrap address with a
// reference that the caller drops.
func (d *Driver) bootstrapConn(k int) (*nodeConn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	if d.bootstrap[k] == nil {
		c, err := d.connectLocked(cluster.Node{Address: d.endpoint.addresses[k]})
		if err != nil {
			return nil, err
		}
		d.bootstrap[k] = c
	}
	d.bootstrap[k].hold()
	return d.bootstrap[k], nil
}

// login exchanges user and password for a token, without a ticket.
func (d *Driver) login(ctx context.Context, user, password string) (string, error) {
	return firstAnswer(ctx, d, func(ctx context.Context, c *nodeConn) (string, error) {
		bare, _ := d.headers("")
		r, err := Ydb_Auth_V1.NewAuthServiceClient(c.cc).Login(metadata.NewOutgoingContext(ctx, bare),
			&Ydb_Auth.LoginRequest{User: user, Password: password})
		if err == nil {
			err = CheckOperation(r.GetOperation())
		} else {
			_, e := failure(ctx, err, true)
			e.Op, err = "Login", e
		}
		if err != nil {
			return "", err
		}
		var result Ydb_Auth.LoginResult
		if err := r.GetOperation().GetResult().UnmarshalTo(&result); err != nil {
			return "", fmt.Errorf("read the answer to Login: %w", err)
		}
		if result.GetToken() == "" {
			return "", errors.New("the answer to Login holds no token")
		}
		return result.GetToken(), nil
	})
}

// Probe asks a node for a session and gives it back: what a node must be able
// to do before it gets work again. It satisfies pessimize.Prober; a refusal
// wraps pessimize.ErrRefused, the end of a probe by this process pessimize.ErrNothing.
func (d *Driver) Probe(ctx context.Context, node cluster.NodeID) error {
	c, err := d.conn(node)
	if err != nil {
		return err
	}
	defer c.drop()
	k, err := d.tickets.get(ctx)
	if err != nil {
		// Nothing is wrong with the node; say so, rather than that it is unreachable.
		return fmt.Errorf("%w: %w", pessimize.ErrRefused, err)
	}
	c.cc.hurry() // the pause between attempts may be longer than the probe may take
	var sent peer.Peer
	before := c.wire.heard.Load()
	// Without the capability session-balancer: the session is to be this node's own.
	r, err := c.query.CreateSession(metadata.NewOutgoingContext(ctx, k.call), &Ydb_Query.CreateSessionRequest{},
		grpc.WaitForReady(true), grpc.Peer(&sent))
	if err == nil {
		err = Check(r.GetStatus(), r.GetIssues())
	}
	if err == nil {
		if c.hold() {
			d.orphan(newSession(d, d.tickets, c, r.GetSessionId()))
		}
		return nil
	}
	if status.Code(err) == codes.Unimplemented {
		return nil // it answers, and has no sessions: whatever it serves, this says nothing against it
	}
	if sent.Addr != nil && c.wire.heard.Load() == before {
		c.cc.ask() // the next probe needs another connection if this one is dead
	}
	signs, e := failure(ctx, err, true)
	signs.Kind, signs.NotSent = cluster.CallProbe, signs.NotSent || (signs.Status == 0 && sent.Addr == nil)
	e.Op, e.Node, e.Verdict = "CreateSession", node, ydbstatus.Judge(signs)
	d.rejected(e)
	if signs.Cause == ydbstatus.CauseProcess { // it held more memory than there is, for example
		return fmt.Errorf("%w: %w", pessimize.ErrNothing, ofNode{e})
	}
	if e.Denied() {
		return nil // the right is missing on every node
	}
	if b := e.Verdict.Blame; b == cluster.BlameDraining || b == cluster.BlameForeign {
		d.renew(c)
		d.deps.Health.Report(cluster.Outcome{Node: node, Kind: cluster.CallProbe, Blame: b, Detail: e.StatusName()})
	}
	if e.Verdict.Blame != cluster.BlameTransport {
		return fmt.Errorf("%w: %w", pessimize.ErrRefused, ofNode{e})
	}
	return ofNode{e}
}
