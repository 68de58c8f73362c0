package devcluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// child is one node of a Supervisor, through all its processes.
type child struct {
	supervisor *Supervisor
	id         uint32
	socket     string // of the node's own control API
	location   string
	http       *http.Client

	change sync.Mutex // held while the state changes

	mu      sync.Mutex // guards the fields below
	address string     // for clients; fixed once the node ran
	peer    string     // for the other nodes
	state   State
	process *process // nil while none runs
	paused  bool     // the process was stopped and holds no lock of the database
	leaving *time.Timer
	retired bool
	shown
}

// shown is what discovery tells of a child in place of what is so.
type shown struct {
	load  float32 // factor; of this life
	known string  // address; "" its own
}

// process is one life of a child.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer     // the process ends when this does
	exited chan struct{} // closed when it was waited for
}

func newChild(s *Supervisor, id uint32, location, address string) *child {
	if location == "" {
		location = s.config.location(id)
	}
	c := &child{
		supervisor: s, id: id, location: location, address: address, state: Stopped,
		socket: filepath.Join(s.dir, fmt.Sprintf("node-%d.sock", id)),
	}
	c.http = &http.Client{
		Timeout: controlTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true, // the process at the other end changes
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", c.socket)
			},
		},
	}
	return c
}

func (c *child) running() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process
}

func (c *child) isPaused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused
}

func (c *child) member() member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return member{
		ID: c.id, Address: cmp.Or(c.known, c.address), Peer: c.peer,
		Location: c.location, Load: c.load,
		Listed: c.state == Up, Alive: c.state == Up || c.state == Draining,
	}
}

// info describes the node; its counters are zero while it does not run or is paused.
func (c *child) info(ctx context.Context) NodeInfo {
	c.mu.Lock()
	i := NodeInfo{ID: c.id, Address: c.address, State: c.state, Location: c.location}
	if c.process != nil {
		i.PID = c.process.cmd.Process.Pid
	}
	paused := c.paused
	c.mu.Unlock()
	if paused {
		i.State = Paused
	}
	if i.PID == 0 || paused {
		return i
	}
	var answer struct{ Nodes []NodeInfo }
	if err := c.get(ctx, "/nodes", &answer); err != nil || len(answer.Nodes) == 0 {
		return i // it is dying; the supervisor will notice
	}
	i.Counters = answer.Nodes[0].Counters
	return i
}

// launch starts a process and waits until it is ready. The caller holds change
// and publishes.
func (c *child) launch(ctx context.Context) error {
	s := c.supervisor
	c.mu.Lock()
	address, known := c.address, c.known
	c.mu.Unlock()
	_, port, err := splitAddress(address)
	if err != nil {
		return err
	}
	if err := os.Remove(c.socket); err != nil && !errors.Is(err, os.ErrNotExist) { // left by a killed process
		return fmt.Errorf("node %d: %w", c.id, err)
	}
	flags := []string{"-processes=false", "-supervised", "-nodes=1",
		"-node=" + strconv.Itoa(int(c.id)), "-port=" + strconv.Itoa(int(port)),
		"-data=" + s.config.Data, "-control=unix:" + c.socket, "-peers=" + s.peersFlag(c.id)}
	if c.location != s.config.location(c.id) {
		flags = append(flags, "-locations="+c.location) // of this node; those of the others it is told at once
	}
	if known != "" {
		flags = append(flags, "-advertise="+known)
	}
	cmd := s.command(flags...)
	cmd.SysProcAttr = childAttributes()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("node %d: %w", c.id, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("node %d: %w", c.id, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("node %d: %w", c.id, err)
	}
	p := &process{cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	ready, err := awaitReady(ctx, stdout)
	if err != nil {
		_ = cmd.Process.Kill() // an error means that it is gone
		_ = cmd.Wait()         // of a process that failed to start; err says why
		return fmt.Errorf("node %d: %w", c.id, err)
	}
	c.mu.Lock()
	c.address, c.peer = ready.Nodes[0].Address, ready.Nodes[0].Peer
	c.process, c.state, c.paused, c.load = p, Up, false, 0
	c.mu.Unlock()
	go c.wait(p)
	s.log.Info("node is up", "node", c.id, "address", ready.Nodes[0].Address, "pid", cmd.Process.Pid)
	return nil
}

// awaitReady reads the line that says that a node is ready.
func awaitReady(ctx context.Context, stdout io.ReadCloser) (Ready, error) {
	ctx, cancel := context.WithTimeout(ctx, childStart)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = stdout.Close() })() // ends the read
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	var ready Ready
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err == nil && len(ready.Nodes) != 1 {
		err = fmt.Errorf("%d nodes", len(ready.Nodes))
	}
	if err != nil {
		return Ready{}, fmt.Errorf("it did not get ready (its log says why): %w", errors.Join(err, context.Cause(ctx)))
	}
	return ready, nil
}

// wait notices the end of a process, also one that the supervisor did not ask for.
func (c *child) wait(p *process) {
	err := p.cmd.Wait()
	_ = p.stdin.Close() // Wait closed it
	c.mu.Lock()
	unasked := c.process == p
	if unasked {
		c.process, c.state, c.paused = nil, Killed, false
		c.stopLeavingLocked()
	}
	c.mu.Unlock()
	close(p.exited)
	if unasked {
		c.supervisor.log.Warn("node died", "node", c.id, "err", err)
		c.supervisor.publish(context.Background())
	}
}

func (c *child) stopLeavingLocked() {
	if c.leaving != nil {
		c.leaving.Stop()
		c.leaving = nil
	}
}

// end ends the process, if there is one, and waits for its end. The caller holds change.
func (c *child) end(next State) {
	if next != Killed {
		c.wake(context.Background())
	}
	c.mu.Lock()
	p := c.process
	c.stopLeavingLocked()
	if p != nil {
		c.process, c.state, c.paused = nil, next, false
	}
	c.mu.Unlock()
	if p == nil {
		return
	}
	if next == Killed {
		_ = p.cmd.Process.Kill() // an error means that it is gone
	} else {
		terminate(p.cmd.Process, p.exited)
	}
	<-p.exited
	c.supervisor.log.Info("node is "+string(next), "node", c.id)
}

// stop takes the node out of discovery and ends its process in good order. The
// caller holds change.
func (c *child) stop(ctx context.Context) {
	c.mu.Lock()
	if c.process != nil {
		c.state = Stopped
	}
	c.mu.Unlock()
	c.supervisor.publish(ctx) // before it ends, so that discovery sends no client there
	c.end(Stopped)
}

// start begins a new process at the same address, or takes a drain or a pause back.
func (c *child) start(ctx context.Context) error {
	c.change.Lock()
	defer c.change.Unlock()
	c.mu.Lock()
	retired, p := c.retired, c.process
	c.stopLeavingLocked()
	c.mu.Unlock()
	if retired {
		return errClosed
	}
	if p != nil {
		c.wake(ctx)
		err := c.post(ctx, c.action("start"), nil)
		if err == nil {
			c.mu.Lock()
			c.state = Up
			c.mu.Unlock()
			c.supervisor.publish(ctx)
			return nil
		}
		if _, answered := errors.AsType[*RequestError](err); answered {
			return err
		}
		select { // another process may have killed it just now
		case <-p.exited:
		case <-ctx.Done():
			return err
		}
	}
	if err := c.launch(ctx); err != nil {
		return err
	}
	c.supervisor.publish(ctx)
	return nil
}

func (c *child) action(name string) string { return fmt.Sprintf("/nodes/%d/%s", c.id, name) }

// drain takes the node out of discovery, lets it drain, and stops it at the hard limit.
func (c *child) drain(ctx context.Context, body []byte) error {
	b, err := parseAction(body)
	if err != nil {
		return err
	}
	d, err := b.drainOf(c.supervisor.config)
	if err != nil {
		return badRequest("%v", err)
	}
	c.change.Lock()
	defer c.change.Unlock()
	c.mu.Lock()
	p, state := c.process, c.state
	if p == nil || state == Draining {
		c.mu.Unlock()
		return nil
	}
	c.state = Draining
	c.mu.Unlock()
	c.supervisor.publish(ctx) // the others first: they list it no more when it refuses
	if err := c.post(ctx, c.action("drain"), body); err != nil {
		c.mu.Lock()
		if c.process == p {
			c.state = Up
		}
		c.mu.Unlock()
		c.supervisor.publish(ctx)
		return err
	}
	c.mu.Lock()
	c.leaving = time.AfterFunc(d.Notice+d.Hard, func() {
		c.change.Lock()
		defer c.change.Unlock()
		c.mu.Lock()
		current := c.process == p && c.state == Draining
		c.mu.Unlock()
		if current {
			c.stop(context.Background())
		}
	})
	c.mu.Unlock()
	return nil
}

// pause stops the process with SIGSTOP, at a moment at which it holds no lock of the
// database: a real cluster would not wait for a stopped node's lock either.
func (c *child) pause(ctx context.Context) error {
	c.change.Lock()
	defer c.change.Unlock()
	p := c.running()
	if p == nil {
		return badRequest("node %d is %s", c.id, c.info(ctx).State)
	}
	if c.isPaused() {
		return nil
	}
	if err := c.post(ctx, "/hold", nil); err != nil {
		return err
	}
	c.mu.Lock()
	c.paused = c.process == p
	c.mu.Unlock()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		c.wake(ctx)
		return fmt.Errorf("node %d: pause: %w", c.id, err)
	}
	c.supervisor.log.Info("node is paused", "node", c.id)
	return nil
}

// resume lets a paused process go on.
func (c *child) resume(ctx context.Context) error {
	c.change.Lock()
	defer c.change.Unlock()
	if c.running() == nil {
		return badRequest("node %d is %s", c.id, c.info(ctx).State)
	}
	c.wake(ctx)
	c.supervisor.publish(ctx)
	return nil
}

// wake lets the process go on if it is paused. The caller holds change.
func (c *child) wake(ctx context.Context) {
	c.mu.Lock()
	p, paused := c.process, c.paused
	c.paused = false
	c.mu.Unlock()
	if p == nil || !paused {
		return
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return // it is gone
	}
	if err := c.post(ctx, "/release", nil); err != nil && c.running() == p {
		c.supervisor.log.Warn("cannot let a node write again", "node", c.id, "err", err)
	}
	c.supervisor.log.Info("node goes on", "node", c.id)
}

// tell changes what discovery tells of the node: its load factor in this life, or its address in later lives as well.
func (c *child) tell(ctx context.Context, action string, body []byte) error {
	b, err := parseAction(body)
	if err != nil {
		return err
	}
	c.change.Lock()
	defer c.change.Unlock()
	if c.running() == nil {
		return badRequest("node %d is %s", c.id, c.info(ctx).State)
	}
	if err := c.post(ctx, c.action(action), body); err != nil {
		return err
	}
	c.mu.Lock() // the node has checked the body
	if action == "load" {
		c.load = *b.Factor
	} else {
		c.known = b.Address
	}
	c.mu.Unlock()
	c.supervisor.publish(ctx)
	return nil
}

// retire ends the node for good.
func (c *child) retire() {
	c.mu.Lock()
	c.retired = true
	c.mu.Unlock()
	c.change.Lock()
	defer c.change.Unlock()
	c.end(Stopped)
}

func (c *child) get(ctx context.Context, path string, into any) error {
	return c.call(ctx, http.MethodGet, path, nil, into)
}

func (c *child) post(ctx context.Context, path string, body []byte) error {
	return c.call(ctx, http.MethodPost, path, body, nil)
}

func (c *child) put(ctx context.Context, path string, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodPut, path, body, nil)
}

// call asks the node's own control API.
func (c *child) call(ctx context.Context, method, path string, body []byte, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://node"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		var failed struct{ Error string }
		if err := json.NewDecoder(response.Body).Decode(&failed); err != nil {
			return fmt.Errorf("node %d: %s", c.id, response.Status)
		}
		return &RequestError{NotFound: response.StatusCode == http.StatusNotFound, Reason: failed.Error}
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// supervisedHandler adds what a supervisor asks of a node.
func (c *Cluster) supervisedHandler(rest http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", rest)
	mux.HandleFunc("PUT /topology", func(w http.ResponseWriter, r *http.Request) {
		var others []member
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxControlBody)).Decode(&others); err != nil {
			reply(w, nil, badRequest("body: %v", err))
			return
		}
		c.setRemote(others)
		reply(w, map[string]any{}, nil)
	})
	mux.HandleFunc("PUT /faults", func(w http.ResponseWriter, r *http.Request) {
		var list []Fault
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxControlBody)).Decode(&list); err != nil {
			reply(w, nil, badRequest("body: %v", err))
			return
		}
		c.outages.put(list)
		reply(w, map[string]any{}, nil)
	})
	mux.HandleFunc("POST /hold", func(w http.ResponseWriter, r *http.Request) {
		reply(w, map[string]any{}, c.held.hold(r.Context(), c.db))
	})
	mux.HandleFunc("POST /release", func(w http.ResponseWriter, _ *http.Request) {
		c.held.letGo()
		reply(w, map[string]any{}, nil)
	})
	return mux
}

// held is the right to write that a process gives up before it is paused.
type held struct {
	mu      sync.Mutex // guards release
	release func()     // nil while not held
}

func (h *held) hold(ctx context.Context, db *engine.DB) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.release != nil {
		return nil
	}
	release, err := db.Hold(ctx)
	h.release = release
	return err
}

func (h *held) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.release != nil {
		h.release()
		h.release = nil
	}
}
