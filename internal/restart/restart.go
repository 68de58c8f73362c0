package restart

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/facade"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
)

// How one sidecar takes the place of another (docs/dev/decisions/0005-takeover.md).
// The new process gets copies of the listening descriptors, builds everything,
// and accepts beside the old one; then it says so, the old one closes its copies,
// and everything that is idle there moves: HTTP/1.1 connections as
// descriptors, clients of HTTP/2 by GOAWAY. Calls for transactions of the other
// process are handed over until the old one has ended.

// Servers are those of this process that clients come to.
type Servers struct {
	On    *listen.Set
	Admin *listen.AdminSocket // nil: off

	ServeGRPC func(net.Listener) error // until the listener is closed
	HTTP      *http.Server
	HTTPTLS   bool // over TCP

	HandedOver func()                 // says that another process accepts from now on
	DrainGRPC  func() <-chan struct{} // says GOAWAY; closed when every gRPC connection is over
	Release    func()                 // ends the Watch streams of gRPC's health checks
}

// Deps is what a Restart needs of its process.
type Deps struct {
	Servers Servers
	API     *facade.Service

	Self    func() takeover.Process    // what this process says of itself
	Notes   func() string              // what the next process is to know
	Offered func() []takeover.Listener // the listeners that the next process gets
	Warm    func() error               // why the pool is not warm yet; nil: it is

	MaxOpen, MaxHeaders        int // calls of one client, and bytes of headers
	HeaderTimeout, IdleTimeout time.Duration
	Window, ConnWindow         int32 // HTTP/2 flow control: bytes in flight of a call, and of a connection

	Log *slog.Logger
}

// Restart is the place of this process in a row of processes.
type Restart struct {
	socket  *takeover.Socket // nil: nobody can take over from this process
	path    string           // where it is published
	accepts listen.Backoff
	deps    Deps // set when Succeed begins

	from  *takeover.Link // the process whose place this one takes; nil: none
	other takeover.Process

	next atomic.Pointer[pair] // with the process that takes over; set when it serves

	mu    sync.Mutex    // guards all below
	busy  string        // why nobody can take over now; "": somebody can
	limit time.Duration // readyLimit, but in tests
}

// Inherited is what came from the process whose place this one takes. A nil one
// has nothing.
type Inherited struct {
	Other takeover.Process
	link  *takeover.Link
	left  []takeover.Listener // nobody wanted these yet
}

// Take returns the listener of an address, nil if none came. A setting whose
// address was changed does not match; port 0 matches that of the same setting.
func (h *Inherited) Take(setting, address string) net.Listener {
	if h == nil {
		return nil
	}
	_, port, _ := net.SplitHostPort(address)
	for i, l := range h.left {
		if (l.Setting == setting && l.Listen == address) ||
			(port != "" && port != "0" && (l.Listen == address || l.Addr().String() == address)) {
			h.left = append(h.left[:i:i], h.left[i+1:]...)
			return l.Listener
		}
	}
	return nil
}

// Close closes what nobody wanted: it is no longer in the configuration.
func (h *Inherited) Close() {
	if h == nil {
		return
	}
	for _, l := range h.left {
		_ = l.Close()
	}
	h.left = nil
}

// Part ends the link to the other process, which serves on.
func (h *Inherited) Part() error { return listen.UnlessClosed(h.link.Close()) }

// Ask asks the process that offers its place at path for it, as self. takeover.ErrNobody: there is none.
func Ask(path string, self takeover.Process) (*Inherited, error) {
	link, err := reach(path)
	if err != nil {
		return nil, err
	}
	from := &Inherited{link: link}
	if from.Other, from.left, err = link.Ask(self); err != nil {
		return nil, errors.Join(err, link.Close())
	}
	return from, nil
}

// Listeners is how many listeners came that nobody has taken.
func (h *Inherited) Listeners() int { return len(h.left) }

// Open makes the socket of this process; it is published only once this process
// serves. from is nil for a process that starts as usual.
func (n *Restart) Open(c takeover.Config, from *Inherited) (err error) {
	if from != nil {
		n.from, n.other = from.link, from.Other
	}
	if n.path = c.Socket; n.path == "" {
		return nil
	}
	if from == nil {
		if err := unoccupied(n.path); err != nil {
			return err
		}
	}
	if n.socket, err = takeover.Listen(n.path); err != nil || from != nil {
		return err
	}
	return n.publish()
}

// reachLimit bounds the connecting to a process on this machine.
const reachLimit = time.Second

func reach(path string) (*takeover.Link, error) {
	ctx, cancel := context.WithTimeout(context.Background(), reachLimit)
	defer cancel()
	return takeover.Dial(ctx, path)
}

// unoccupied is an error when somebody answers at path.
func unoccupied(path string) error {
	link, err := reach(path)
	if errors.Is(err, takeover.ErrNobody) {
		return nil
	}
	if err != nil {
		return err
	}
	err = fmt.Errorf("a running process answers at %s; start this one with -takeover to take its place, or give it another path", path)
	return errors.Join(err, link.Close())
}

// Close lets go of what Open took.
func (n *Restart) Close() {
	if n.socket != nil {
		_ = n.socket.Close()
	}
	if n.from != nil {
		_ = n.from.Close()
	}
	if next := n.next.Load(); next != nil {
		_ = next.link.Close()
	}
}

// Replaces reports whether this process takes the place of another one.
func (n *Restart) Replaces() bool { return n.from != nil }

// Replaced reports whether another process has taken over.
func (n *Restart) Replaced() bool { return n.next.Load() != nil }

// Failures is how many attempts to accept a process that wants to take over have failed.
func (n *Restart) Failures() int64 { return n.accepts.Failures() }

// SetLimit bounds the time within which a process that takes over must be ready, in place of a minute.
func (n *Restart) SetLimit(limit time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limit = limit
}

func (n *Restart) setBusy(why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.busy = why
}

// claim lets one process at a time take over, for as long as it returns; otherwise it returns why not.
func (n *Restart) claim(next takeover.Process) (limit time.Duration, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy != "" {
		return 0, n.busy
	}
	n.busy = fmt.Sprintf("process %d is taking over already", next.PID)
	return min(max(next.Wait, 0), maxWait) + cmp.Or(n.limit, readyLimit), ""
}

func (n *Restart) publish() error {
	if n.socket == nil {
		return nil
	}
	return n.socket.Publish(n.path)
}

// Succeed is the part of a process that takes over, or lets others do so. life
// ends when the end of this process begins, ctx when all is over; serve is called
// once this process may accept. stop begins the end of this process.
func (n *Restart) Succeed(ctx, life context.Context, stop context.CancelCauseFunc, deps Deps, serve func()) error {
	n.deps = deps
	var work sync.WaitGroup
	defer work.Wait()
	defer n.Close()
	if n.from != nil {
		if !n.warmed(life) {
			<-ctx.Done()
			return nil
		}
		n.setBusy(fmt.Sprintf("the process that it replaced itself, %d, still finishes transactions; try again in a moment", n.other.PID))
		p, err := newPair(&n.deps, n.from, n.other)
		if err != nil {
			return err
		}
		if err := n.from.Ready(deps.Self()); Refused(err) {
			p.part()
			return err
		} else if err != nil {
			deps.Log.Warn("the process to take over from ended before this one was ready", "pid", n.other.PID, "err", err)
		}
		work.Go(func() {
			if err := panics.Call("the link to the replaced process", p.run); Refused(err) {
				stop(err)
			}
			n.setBusy("")
			deps.Log.Info("the replaced process has ended", "pid", n.other.PID)
		})
		if deps.Servers.Admin != nil {
			deps.Servers.Admin.SetUnlinkOnClose(true) // if it came, it is this process's now
		}
		serve()
	}
	if n.from != nil {
		if err := n.publish(); err != nil {
			deps.Log.Error("no process will be able to take over from this one", "err", err)
		}
	}
	if n.socket != nil {
		work.Go(func() {
			panics.Keep(ctx, "the wait for processes that take over", func() { n.accept(ctx, life, stop) })
		})
	}
	<-ctx.Done()
	return nil
}

// Refused reports whether the process to take over from serves on.
func Refused(err error) bool {
	_, is := errors.AsType[*takeover.RefusedError](err)
	return is
}

// warmPause is the time between two looks whether the pool is warm.
const warmPause = 10 * time.Millisecond

// warmed waits until the pool is warm, or startup.wait is over; it returns false
// when life ends first.
func (n *Restart) warmed(life context.Context) bool {
	tick := time.NewTicker(warmPause)
	defer tick.Stop()
	for n.deps.Warm() != nil {
		select {
		case <-tick.C:
		case <-life.Done():
			return false
		}
	}
	return life.Err() == nil
}

// maxAsking bounds the processes that ask at a time.
const maxAsking = 8

// accept answers processes that want to take over, until ctx ends.
func (n *Restart) accept(ctx, life context.Context, stop context.CancelCauseFunc) {
	var asking sync.WaitGroup
	defer asking.Wait()
	room := make(chan struct{}, maxAsking)
	for {
		link, err := n.socket.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			n.accepts.Failed(err, "takeover.socket", n.deps.Log, ctx.Done())
			continue
		}
		n.accepts.Worked()
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			_ = link.Close()
			continue
		}
		asking.Go(func() {
			defer func() { <-room }()
			defer link.Close()
			unblock := context.AfterFunc(ctx, func() { _ = link.Close() })
			defer unblock()
			defer panics.Go("the handing over to another process")
			n.giveWay(life, stop, link)
		})
	}
}

// A process that takes over must be ready within readyLimit and the time for which it says that it may
// wait, but no more than maxWait of that: while it is not, no other one may take over.
const (
	readyLimit = time.Minute
	maxWait    = time.Hour
)

// giveWay lets one process take over, or refuses, and stays with it until one of
// the two ends.
func (n *Restart) giveWay(life context.Context, stop context.CancelCauseFunc, link *takeover.Link) {
	next, err := link.Asked()
	if err != nil {
		n.deps.Log.Debug("somebody came to take over and did not ask properly", "err", err)
		return
	}
	limit, why := time.Duration(0), "it is stopping"
	if life.Err() == nil {
		limit, why = n.claim(next)
	}
	if why != "" {
		n.deps.Log.Warn("another process may not take over now", "pid", next.PID, "why", why)
		_ = link.Refuse(why) // it is told, or gone
		return
	}
	n.deps.Log.Info("another process is about to take over", "pid", next.PID, "its_version", next.Version)
	self := n.deps.Self()
	self.Notes = n.deps.Notes()
	if next, err = link.Offer(self, n.deps.Offered(), limit); err != nil {
		n.setBusy("")
		n.deps.Log.Warn("the other process did not take over; serving on", "err", err)
		return
	}
	n.setBusy(fmt.Sprintf("it was replaced by process %d", next.PID))
	p, err := newPair(&n.deps, link, next)
	if err != nil {
		n.deps.Log.Error("cannot hand over calls to the new process", "err", err)
		return
	}
	n.next.Store(p)
	stop(fmt.Errorf("replaced by process %d", next.PID))
	_ = p.run() // it has said what failed
}

// HandClientsOver gives everything that is idle to the process that has taken
// over, and goes on serving what is not until that comes to rest, or ctx ends.
// What is left of that time is for transactions. Nothing is refused.
func (n *Restart) HandClientsOver(ctx context.Context) {
	s := &n.deps.Servers
	s.HandedOver()
	// Only this process's copies: what waits to be accepted is the other one's now.
	s.On.Close()
	if s.Admin != nil {
		s.Admin.SetUnlinkOnClose(false)
		_ = s.Admin.Close()
	}
	next := n.next.Load()
	to := func(place string) listen.Mover {
		return func(conn listen.Stream) error { return next.link.Hand(place, conn) }
	}
	s.On.GRPC.Conns.MoveTo(to(channelGRPC))
	s.On.HTTP.Conns.MoveTo(to(channelHTTP))
	if local := s.On.GRPCSocket; local != nil {
		local.Conns.MoveTo(to(channelGRPCSocket))
	}
	if local := s.On.HTTPSocket; local != nil {
		local.Conns.MoveTo(to(channelHTTPSocket))
	}
	away := s.DrainGRPC()
	s.On.HTTP.Conns.Empty(ctx.Done())
	if local := s.On.HTTPSocket; local != nil {
		local.Conns.Empty(ctx.Done())
	}
	for _, l := range s.On.OfHTTP() {
		l.Conns.CloseParked()
	}
	s.On.HTTP.Conns.Hush()
	_ = s.HTTP.Shutdown(ctx) // GOAWAY; what it could not wait for is cut with the calls
	select {
	case <-away:
	case <-time.After(listen.Quiet): // by now clients have heard GOAWAY, and watch the new process
		s.Release()
		select {
		case <-away:
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
}

// Finish returns when the process that has taken over, if one has, has the answers to all that it called here, or ctx ends.
func (n *Restart) Finish(ctx context.Context) {
	if next := n.next.Load(); next != nil {
		next.finish(ctx)
	}
}
