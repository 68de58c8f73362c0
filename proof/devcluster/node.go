package devcluster

import (
	"cmp"
	"fmt"
	"net"
	"sync"
	"time"
)

// State is what became of a node.
type State string

// The states of a node.
const (
	Up       State = "up"
	Draining State = "draining" // left discovery, takes no new sessions, stops soon
	Stopped  State = "stopped"  // went in good order
	Killed   State = "killed"   // died
	Paused   State = "paused"   // its process was stopped by SIGSTOP; in discovery as before
)

// Node is one node of a Cluster, through all its lives.
type Node struct {
	cluster  *Cluster
	id       uint32
	location string

	change sync.Mutex // held while the state changes

	mu      sync.Mutex // guards the fields below
	address string     // for clients; fixed once the node ran
	state   State
	life    *server // nil while stopped or killed
	private string  // address for the other nodes
	leaving *time.Timer
	load    float32 // factor in discovery; of this life
	known   string  // address that discovery tells in place of its own; "" none
	retired bool
}

// ID is the node's number in the cluster.
func (n *Node) ID() uint32 { return n.id }

// Address is the host and port that clients dial.
func (n *Node) Address() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.address
}

// State is what became of the node.
func (n *Node) State() State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}

// Counters is what the node did since it started; zero while it does not run.
func (n *Node) Counters() Counters {
	if s := n.running(); s != nil {
		return s.snapshot()
	}
	return Counters{}
}

// Sessions describes the node's live sessions, oldest first.
func (n *Node) Sessions() []SessionInfo {
	if s := n.running(); s != nil {
		return s.sessions.infos()
	}
	return []SessionInfo{}
}

func (n *Node) running() *server {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life
}

func (n *Node) member() member {
	n.mu.Lock()
	defer n.mu.Unlock()
	return member{
		ID: n.id, Address: cmp.Or(n.known, n.address), Peer: n.private, Location: n.location, Load: n.load,
		Listed: n.state == Up, Alive: n.state == Up || n.state == Draining,
	}
}

// launch begins a new life; the caller publishes it.
func (n *Node) launch() error {
	public, err := n.cluster.config.listen(n.Address())
	if err != nil {
		return fmt.Errorf("node %d: listen: %w", n.id, err)
	}
	private, err := n.cluster.config.listen(net.JoinHostPort(n.cluster.config.Host, "0"))
	if err != nil {
		_ = public.Close() // the first error counts
		return fmt.Errorf("node %d: listen for other nodes: %w", n.id, err)
	}
	s := newServer(&n.cluster.shared, n.id, n.location, public, private)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.address, n.private = public.Addr().String(), private.Addr().String()
	n.life, n.state, n.load = s, Up, 0
	n.cluster.log.Info("node is up", "node", n.id, "address", n.address)
	return nil
}

// leave ends the state and takes the life out of the node, if there is one.
func (n *Node) leave(next State) *server {
	n.mu.Lock()
	s := n.life
	if s != nil {
		n.life, n.state = nil, next
	}
	if n.leaving != nil {
		n.leaving.Stop()
		n.leaving = nil
	}
	n.mu.Unlock()
	if s != nil {
		n.cluster.log.Info("node is "+string(next), "node", n.id)
		n.cluster.publish()
	}
	return s
}

// Start begins a new life at the same address; a draining node becomes usable
// again. It is no error if the node is up.
func (n *Node) Start() error {
	n.change.Lock()
	defer n.change.Unlock()
	n.mu.Lock()
	retired, s := n.retired, n.life
	n.mu.Unlock()
	switch {
	case retired:
		return errClosed
	case s != nil:
		n.undrain(s)
	default:
		if err := n.launch(); err != nil {
			return err
		}
	}
	n.cluster.publish()
	return nil
}

func (n *Node) undrain(s *server) {
	s.sessions.refuse(nil)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = Up
	if n.leaving != nil {
		n.leaving.Stop()
		n.leaving = nil
	}
}

// Kill ends the node as SIGKILL would: connections are reset, sessions and open
// transactions are lost. When it returns nothing of the node runs any more.
func (n *Node) Kill() {
	n.change.Lock()
	defer n.change.Unlock()
	if s := n.leave(Killed); s != nil {
		s.kill()
	}
}

// Stop takes the node out of discovery and ends its sessions and calls with an answer.
func (n *Node) Stop() {
	n.change.Lock()
	defer n.change.Unlock()
	if s := n.leave(Stopped); s != nil {
		s.stop()
	}
}

// retire stops the node for good.
func (n *Node) retire() {
	n.mu.Lock()
	n.retired = true
	n.mu.Unlock()
	n.Stop()
}

// Drain takes the node out of discovery, and after the notice refuses new sessions and asks the
// clients of all sessions to close them, in the words of the mode. The node stops at the hard limit;
// Start before that takes it back, except for the sessions that were asked to go.
func (n *Node) Drain(d Drain) {
	n.change.Lock()
	defer n.change.Unlock()
	n.mu.Lock()
	s := n.life
	if s == nil || n.state == Draining {
		n.mu.Unlock()
		return
	}
	n.state = Draining
	if d.Notice > 0 {
		n.leaving = time.AfterFunc(d.Notice, func() {
			n.change.Lock()
			defer n.change.Unlock()
			n.ask(s, d)
		})
	}
	n.mu.Unlock()
	n.cluster.log.Info("node is draining", "node", n.id, "mode", string(d.Mode), "notice", d.Notice.String(), "soft",
		d.Soft.String(), "hard", d.Hard.String())
	n.cluster.publish()
	if d.Notice == 0 {
		n.ask(s, d)
	}
}

// ask has the clients of a node hear of its drain, if it is still the life that drains.
// The caller holds change.
func (n *Node) ask(s *server, d Drain) {
	n.mu.Lock()
	current := n.life == s && n.state == Draining
	if current {
		n.leaving = time.AfterFunc(d.Hard, func() { n.drained(s) })
	}
	n.mu.Unlock()
	if current {
		s.sessions.drain(d)
	}
}

// drained stops the node if it is still the life that was draining.
func (n *Node) drained(s *server) {
	n.change.Lock()
	defer n.change.Unlock()
	n.mu.Lock()
	current := n.life == s && n.state == Draining
	n.mu.Unlock()
	if current {
		n.leave(Stopped).drained()
	}
}

// Kick asks the client of one session to close it, as YDB's balancer does.
func (n *Node) Kick(session string, d Drain) error {
	s := n.running()
	if s == nil {
		return n.errDown()
	}
	found, err := s.sessions.find(session)
	if err != nil {
		return err
	}
	found.ask(hintSession, d)
	return nil
}

func (n *Node) errDown() error { return fmt.Errorf("node %d is %s", n.id, n.State()) }

// change replaces the node's faults.
func (n *Node) fault(change func(*faults)) error {
	s := n.running()
	if s == nil {
		return n.errDown()
	}
	next := faults{}
	if f := s.faults.Load(); f != nil {
		next = *f
	}
	change(&next)
	s.faults.Store(&next)
	return nil
}

// Delay makes calls slow.
func (n *Node) Delay(d Delay) error {
	if d.Delay < 0 || d.Share < 0 || d.Share > 1 {
		return fmt.Errorf("delay = %v, share = %v; must be >= 0 and 0 to 1", d.Delay, d.Share)
	}
	if d.From != Anybody && d.From != Clients {
		return fmt.Errorf("from = %q; must be %q or absent", d.From, Clients)
	}
	return n.fault(func(f *faults) { f.delay = d })
}

// Hop sets what the network to other nodes takes, in place of Config.HopDelay.
func (n *Node) Hop(h Hop) error {
	if h.Delay < 0 || h.Near < 0 {
		return fmt.Errorf("delay = %v, near = %v; must be >= 0", h.Delay, h.Near)
	}
	return n.fault(func(f *faults) { f.hop = &h })
}

// Errors makes calls fail.
func (n *Node) Errors(e Errors) error {
	answer, err := e.parse()
	if err != nil {
		return err
	}
	if e.Share < 0 || e.Share > 1 {
		return fmt.Errorf("share = %v; must be 0 to 1", e.Share)
	}
	return n.fault(func(f *faults) { f.errors, f.answer = e, answer })
}

// Cut resets the connection of a share of the calls instead of (the rest of) their answer.
func (n *Node) Cut(share float64) error {
	if share < 0 || share > 1 {
		return fmt.Errorf("share = %v; must be 0 to 1", share)
	}
	return n.fault(func(f *faults) { f.cut = share })
}

// Blackhole makes the network between clients and the node swallow everything,
// both ways, until Clear. Other nodes still reach it.
func (n *Node) Blackhole() error {
	s := n.running()
	if s == nil {
		return n.errDown()
	}
	s.publicListener().freeze()
	return nil
}

// Refuse resets the clients' connections and refuses new ones until Clear. The
// node stays in discovery and other nodes still reach it.
func (n *Node) Refuse() error {
	s := n.running()
	if s == nil {
		return n.errDown()
	}
	s.publicListener().kill()
	return nil
}

// Throttle makes each connection of clients carry at most so many bytes a second each way, until Clear.
func (n *Node) Throttle(bytesPerSecond int) error {
	if bytesPerSecond < 1 {
		return fmt.Errorf("bytes_per_second = %d; must be >= 1", bytesPerSecond)
	}
	s := n.running()
	if s == nil {
		return n.errDown()
	}
	s.publicListener().throttle(bytesPerSecond)
	return nil
}

// SetLoad sets the load factor that discovery tells of this life of the node.
func (n *Node) SetLoad(factor float32) error {
	if !validLoad(factor) {
		return fmt.Errorf("factor = %v; must be 0 to 1", factor)
	}
	n.mu.Lock()
	if n.life == nil {
		n.mu.Unlock()
		return n.errDown()
	}
	n.load = factor
	n.mu.Unlock()
	n.cluster.publish()
	return nil
}

// Advertise makes discovery tell another address of the node, that of a proxy in
// the link of its clients; "" tells its own again.
func (n *Node) Advertise(address string) error {
	if _, _, err := splitAddress(address); address != "" && err != nil {
		return err
	}
	n.mu.Lock()
	n.known = address
	n.mu.Unlock()
	n.cluster.publish()
	return nil
}

func validLoad(factor float32) bool { return factor >= 0 && factor <= 1 } // false for NaN

// Limit sets how many sessions the node holds; those there are stay.
func (n *Node) Limit(count int) error {
	if count < 0 {
		return fmt.Errorf("sessions = %d; must be >= 0", count)
	}
	s := n.running()
	if s == nil {
		return n.errDown()
	}
	s.sessions.setLimit(count)
	return nil
}

// Clear ends all faults of a running node; Kill, Stop and Drain are undone by Start.
func (n *Node) Clear() error {
	n.change.Lock()
	defer n.change.Unlock()
	s := n.running()
	if s == nil {
		return n.errDown()
	}
	s.faults.Store(nil)
	s.sessions.setLimit(s.config.Sessions)
	public := s.publicListener()
	public.unfreeze()
	public.throttle(0)
	if !public.isClosed() {
		return nil
	}
	again, err := n.cluster.config.listen(n.Address())
	if err != nil {
		return fmt.Errorf("node %d: listen again: %w", n.id, err)
	}
	s.listen(again)
	return nil
}
