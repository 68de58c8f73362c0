package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
	"github.com/ydb-sidecar/sidecar/internal/telemetry"
)

// How one sidecar takes the place of another (docs/decisions/0005-takeover.md).
// The new process gets copies of the listening descriptors, builds everything,
// and accepts beside the old one; then it says so, the old one closes its copies,
// and everything that is at rest there moves: HTTP/1.1 connections as
// descriptors, clients of HTTP/2 by GOAWAY. Calls for transactions of the other
// process are handed over until the old one has ended.

// succession is the place of this process in a row of processes.
type succession struct {
	socket  *takeover.Socket // nil: nobody can take over from this process
	path    string           // where it is published
	accepts listen.Backoff

	from  *takeover.Link // the process whose place this one takes; nil: none
	other takeover.Process

	heir atomic.Pointer[pair] // with the process that takes over; set when it serves

	mu    sync.Mutex    // guards all below
	busy  string        // why nobody can take over now; "": somebody can
	limit time.Duration // readyLimit, but in tests
}

// inherited is what came from the process whose place this one takes. A nil one
// has nothing.
type inherited struct {
	link  *takeover.Link
	other takeover.Process
	left  []takeover.Listener // nobody wanted these yet
}

// take returns the listener of an address, nil if none came. A setting whose
// address was changed does not match; port 0 matches that of the same setting.
func (h *inherited) take(setting, address string) net.Listener {
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

// close closes what nobody wanted: it is no longer in the configuration.
func (h *inherited) close() {
	if h == nil {
		return
	}
	for _, l := range h.left {
		_ = l.Close()
	}
	h.left = nil
}

// adminSocket is openAdminSocket, or the one that came.
func (h *inherited) adminSocket(path string, log *slog.Logger) (*listen.AdminSocket, error) {
	if came, ok := h.take("admin.socket", path).(*net.UnixListener); ok {
		return listen.NewAdminSocket(came, admin.Trusted, log), nil
	}
	return listen.OpenAdminSocket(path, admin.Trusted, log)
}

// New builds the sidecar of a configuration that Load returned and binds its
// ports; nothing runs yet. The caller must Run or Close it.
func New(c *Config, settings *config.Settings, version string, logs io.Writer) (*App, error) {
	return assemble(c, settings, version, logs, nil)
}

// Replace is New for a process that takes the place of the one that offers it at
// takeover.socket. When there is none it is New.
func Replace(c *Config, settings *config.Settings, version string, logs io.Writer) (*App, error) {
	if c.Takeover.Socket == "" {
		return nil, errors.New("-takeover needs takeover.socket, the same as that of the running process")
	}
	log := telemetry.NewLogger(logs, c.Log, nil)
	link, err := reach(c.Takeover.Socket)
	if errors.Is(err, takeover.ErrNobody) {
		log.Info("nobody to take over from; starting as usual", "socket", c.Takeover.Socket)
		return New(c, settings, version, logs)
	}
	if err != nil {
		return nil, err
	}
	from := &inherited{link: link}
	// The instance is not known before all is built, and not needed: see pair.
	if from.other, from.left, err = link.Ask(takeover.Process{PID: os.Getpid(), Version: version, Wait: c.Startup.Wait}); err != nil {
		return nil, errors.Join(err, link.Close())
	}
	log.Info("taking over", "from", from.other.PID, "its_version", from.other.Version, "listeners", len(from.left))
	a, err := assemble(c, settings, version, logs, from)
	if err != nil {
		return nil, errors.Join(err, listen.UnlessClosed(link.Close()))
	}
	a.adopt(from.other.Notes)
	return a, nil
}

// notes are what the next process is to know.
type notes struct {
	Orders []pessimize.Order `json:"orders,omitempty"` // of operators
}

// notes returns them as text, as many orders as have room.
func (a *App) notes() string {
	all := a.core.judge.Orders()
	for n := len(all); ; n /= 2 {
		text, err := json.Marshal(notes{all[:n]})
		if err == nil && len(text) <= takeover.MaxNotes {
			if n < len(all) {
				a.log.Warn("the process that takes over does not learn of all banned and drained nodes", "learns", n, "all", len(all))
			}
			return string(text)
		}
		if n == 0 {
			return ""
		}
	}
}

// adopt takes the notes of the process whose place this one takes.
func (a *App) adopt(text string) {
	var n notes
	if text == "" {
		return
	}
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		a.log.Warn("what the process to take over from wants known is not understood", "err", err)
	}
	a.core.judge.Adopt(n.Orders)
}

// open makes the socket of this process; it is published only once this process
// serves. from is nil for a process that starts as usual.
func (n *succession) open(c takeover.Config, from *inherited) (err error) {
	if from != nil {
		n.from, n.other = from.link, from.other
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
	return errors.Join(fmt.Errorf("a running process answers at %s; start this one with -takeover to take its place, or give it another path", path), link.Close())
}

// close lets go of what open took.
func (n *succession) close() {
	if n.socket != nil {
		_ = n.socket.Close()
	}
	if n.from != nil {
		_ = n.from.Close()
	}
	if heir := n.heir.Load(); heir != nil {
		_ = heir.link.Close()
	}
}

func (n *succession) setBusy(why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.busy = why
}

// claim lets one process at a time take over, for as long as it returns; otherwise it returns why not.
func (n *succession) claim(heir takeover.Process) (limit time.Duration, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy != "" {
		return 0, n.busy
	}
	n.busy = fmt.Sprintf("process %d is taking over already", heir.PID)
	return min(max(heir.Wait, 0), maxWait) + cmp.Or(n.limit, readyLimit), ""
}

func (n *succession) publish() error {
	if n.socket == nil {
		return nil
	}
	return n.socket.Publish(n.path)
}

// self is what this process says of itself.
func (a *App) self() takeover.Process {
	return takeover.Process{PID: os.Getpid(), Version: a.version, Instance: a.api.Instance()}
}

// succeed is the part of a process that takes over, or lets others do so. life
// ends when the end of this process begins, ctx when all is over; serve is called
// once this process may accept.
func (a *App) succeed(ctx, life context.Context, stop context.CancelCauseFunc, s *servers, serve func()) error {
	n := &a.succession
	var work sync.WaitGroup
	defer work.Wait()
	defer n.close()
	if n.from != nil {
		if !a.warmed(life) {
			<-ctx.Done()
			return nil
		}
		n.setBusy(fmt.Sprintf("the process that it replaced itself, %d, still finishes transactions; try again in a moment", n.other.PID))
		p, err := a.newPair(s, n.from, n.other)
		if err != nil {
			return err
		}
		if err := n.from.Ready(a.self()); refused(err) {
			p.part()
			return err
		} else if err != nil {
			a.log.Warn("the process to take over from ended before this one was ready", "pid", n.other.PID, "err", err)
		}
		work.Go(func() {
			if err := panics.Call("the link to the replaced process", p.run); refused(err) {
				stop(err)
			}
			n.setBusy("")
			a.log.Info("the replaced process has ended", "pid", n.other.PID)
		})
		if a.socket != nil {
			a.socket.SetUnlinkOnClose(true) // if it came, it is this process's now
		}
		serve()
	}
	if n.from != nil {
		if err := n.publish(); err != nil {
			a.log.Error("no process will be able to take over from this one", "err", err)
		}
	}
	if n.socket != nil {
		work.Go(func() {
			panics.Keep(ctx, "the wait for processes that take over", func() { a.acceptHeirs(ctx, life, stop, s) })
		})
	}
	<-ctx.Done()
	return nil
}

// refused reports whether the process to take over from serves on.
func refused(err error) bool {
	_, is := errors.AsType[*takeover.RefusedError](err)
	return is
}

// warmPause is the time between two looks whether the pool is warm.
const warmPause = 10 * time.Millisecond

// warmed waits until the pool is warm, or startup.wait is over; it returns false
// when life ends first.
func (a *App) warmed(life context.Context) bool {
	tick := time.NewTicker(warmPause)
	defer tick.Stop()
	for a.warm() != nil {
		select {
		case <-tick.C:
		case <-life.Done():
			return false
		}
	}
	return life.Err() == nil
}

// maxHeirs bounds the processes that ask at a time.
const maxHeirs = 8

// acceptHeirs answers processes that want to take over, until ctx ends.
func (a *App) acceptHeirs(ctx, life context.Context, stop context.CancelCauseFunc, s *servers) {
	var asking sync.WaitGroup
	defer asking.Wait()
	room := make(chan struct{}, maxHeirs)
	for {
		link, err := a.succession.socket.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			a.succession.accepts.Failed(err, "takeover.socket", a.log, ctx.Done())
			continue
		}
		a.succession.accepts.Worked()
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
			a.giveWay(life, stop, s, link)
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
func (a *App) giveWay(life context.Context, stop context.CancelCauseFunc, s *servers, link *takeover.Link) {
	n := &a.succession
	heir, err := link.Asked()
	if err != nil {
		a.log.Debug("somebody came to take over and did not ask properly", "err", err)
		return
	}
	limit, why := time.Duration(0), "it is stopping"
	if life.Err() == nil {
		limit, why = n.claim(heir)
	}
	if why != "" {
		a.log.Warn("another process may not take over now", "pid", heir.PID, "why", why)
		_ = link.Refuse(why) // it is told, or gone
		return
	}
	a.log.Info("another process is about to take over", "pid", heir.PID, "its_version", heir.Version)
	self := a.self()
	self.Notes = a.notes()
	if heir, err = link.Offer(self, a.offered(), limit); err != nil {
		n.setBusy("")
		a.log.Warn("the other process did not take over; serving on", "err", err)
		return
	}
	n.setBusy(fmt.Sprintf("it was replaced by process %d", heir.PID))
	p, err := a.newPair(s, link, heir)
	if err != nil {
		a.log.Error("cannot hand over calls to the new process", "err", err)
		return
	}
	n.heir.Store(p)
	stop(fmt.Errorf("replaced by process %d", heir.PID))
	_ = p.run() // it has said what failed
}

// offered are the listeners that another process gets.
func (a *App) offered() []takeover.Listener {
	all := a.listeners.Named()
	if a.socket != nil {
		all = append(all, takeover.Listener{Setting: "admin.socket", Listen: a.config.Admin.Socket, Listener: a.socket})
	}
	return all
}

// handClientsOver gives everything that is at rest to the process that has taken
// over, and goes on serving what is not until that comes to rest, or for
// drain.grace. What is left of that time is for transactions. Nothing is refused.
func (a *App) handClientsOver(ctx context.Context, s *servers) error {
	grace, began := a.grace(), time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, grace, errGrace)
	defer cancel()
	s.handedOver.Store(true)
	// Only this process's copies: what waits to be accepted is the other one's now.
	a.listeners.Close()
	if a.socket != nil {
		a.socket.SetUnlinkOnClose(false)
		_ = a.socket.Close()
	}
	heir := a.succession.heir.Load()
	to := func(place string) listen.Mover {
		return func(conn listen.Stream) error { return heir.link.Hand(place, conn) }
	}
	s.on.GRPC.Conns.MoveTo(to(placeGRPC))
	s.on.HTTP.Conns.MoveTo(to(placeHTTP))
	if local := s.on.GRPCSocket; local != nil {
		local.Conns.MoveTo(to(placeGRPCSocket))
	}
	if local := s.on.HTTPSocket; local != nil {
		local.Conns.MoveTo(to(placeHTTPSocket))
	}
	away := s.drainGRPC()
	s.on.HTTP.Conns.Empty(ctx.Done())
	if local := s.on.HTTPSocket; local != nil {
		local.Conns.Empty(ctx.Done())
	}
	for _, l := range s.on.OfHTTP() {
		l.Conns.CloseParked()
	}
	s.on.HTTP.Conns.Hush()
	_ = s.http.Shutdown(ctx) // GOAWAY; what it could not wait for is cut with the calls
	select {
	case <-away:
	case <-time.After(listen.Quiet): // by now clients have heard GOAWAY, and watch the new process
		s.watch.release()
		select {
		case <-away:
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	a.phase.mu.Lock()
	defer a.phase.mu.Unlock()
	a.phase.grace = max(0, grace-time.Since(began))
	return nil
}

// replaced tells whether another process has taken over.
func (a *App) replaced() bool { return a.succession.heir.Load() != nil }
