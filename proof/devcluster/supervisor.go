package devcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Supervisor is a running cluster whose nodes are processes of their own. It
// serves the control API, tells every node who is there, and takes the nodes
// with it when it goes: they end when their standard input does.
type Supervisor struct {
	config  Config
	command func(flags ...string) *exec.Cmd
	log     *slog.Logger
	dir     string // of the sockets, and of the database if no file was given
	control *controlServer
	outages outages

	tell sync.Mutex // held while the nodes are told who is there, so that the last word is the newest

	mu       sync.Mutex // guards the fields below
	children []*child   // in order of id; they stay for good once they ran
	closed   bool
}

// Supervise starts the cluster. command makes the command of a node: this
// program with the flags of the cluster, followed by the given ones.
func Supervise(ctx context.Context, config Config, command func(flags ...string) *exec.Cmd) (*Supervisor, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("devcluster: %w", err)
	}
	dir, err := os.MkdirTemp("", "devcluster-")
	if err != nil {
		return nil, fmt.Errorf("devcluster: %w", err)
	}
	if config.Data == "" {
		config.Data = filepath.Join(dir, "data")
	}
	s := &Supervisor{config: config, command: command, log: config.Log, dir: dir}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("devcluster: %w", err), s.Close())
	}
	return s, nil
}

func (s *Supervisor) start(ctx context.Context) error {
	for range s.config.Nodes {
		if _, err := s.AddNode(ctx, ""); err != nil {
			return err
		}
	}
	if s.config.Control == "" {
		return nil
	}
	control, err := serveControl(s.config.Control, controlHandler(s), s.log)
	if err != nil {
		return err
	}
	s.control = control
	return nil
}

// AddNode starts one more node, with the next id and the next port, in the given data
// centre; "" takes the next of Config.Locations.
func (s *Supervisor) AddNode(ctx context.Context, location string) (NodeInfo, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return NodeInfo{}, errClosed
	}
	if len(s.children) >= MaxNodes {
		s.mu.Unlock()
		return NodeInfo{}, badRequest("the cluster has %d nodes; that is the most", MaxNodes)
	}
	index := len(s.children)
	port := 0
	if s.config.Port != 0 {
		port = s.config.Port + index
	}
	c := newChild(s, uint32(index+1), location, net.JoinHostPort(s.config.Host, strconv.Itoa(port)))
	c.change.Lock()
	defer c.change.Unlock()
	s.children = append(s.children, c)
	s.mu.Unlock()
	if err := c.launch(ctx); err != nil {
		s.drop(c)
		return NodeInfo{}, err
	}
	s.publish(ctx)
	return c.info(ctx), nil
}

// drop forgets a node that never ran.
func (s *Supervisor) drop(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.children = slices.DeleteFunc(slices.Clone(s.children), func(other *child) bool { return other == c })
}

func (s *Supervisor) all() []*child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*child{}, s.children...)
}

// publish tells every running node who the others are.
func (s *Supervisor) publish(ctx context.Context) {
	s.tell.Lock()
	defer s.tell.Unlock()
	children := s.all()
	members := make([]member, len(children))
	for i, c := range children {
		members[i] = c.member()
	}
	var told sync.WaitGroup
	for _, c := range children {
		if c.running() == nil || c.isPaused() {
			continue // a paused one is told when it goes on
		}
		told.Go(func() {
			others := make([]member, 0, len(members))
			for _, m := range members {
				if m.ID != c.id && m.Address != "" {
					others = append(others, m)
				}
			}
			if err := c.put(ctx, "/topology", others); err != nil && c.running() != nil && !c.isPaused() {
				s.log.Warn("cannot tell a node who is there", "node", c.id, "err", err)
			}
			if s.outages.list.Load() == nil {
				return // there never was one
			}
			if err := c.putFaults(ctx); err != nil && c.running() != nil && !c.isPaused() {
				s.log.Warn("cannot tell a node what is wrong", "node", c.id, "err", err)
			}
		})
	}
	told.Wait()
}

// NodeInfos describes the nodes in order of id.
func (s *Supervisor) NodeInfos(ctx context.Context) ([]NodeInfo, error) {
	children := s.all()
	list := make([]NodeInfo, len(children))
	var asked sync.WaitGroup
	for i, c := range children {
		asked.Go(func() { list[i] = c.info(ctx) })
	}
	asked.Wait()
	return list, nil
}

// SessionInfos describes every live session. A node that dies while it is asked has none;
// those of a paused one cannot be told.
func (s *Supervisor) SessionInfos(ctx context.Context) ([]SessionInfo, error) {
	list := make([]SessionInfo, 0)
	for _, c := range s.all() {
		if c.running() == nil || c.isPaused() {
			continue
		}
		var answer struct{ Sessions []SessionInfo }
		if err := c.get(ctx, "/sessions", &answer); err != nil {
			if c.running() == nil {
				continue
			}
			return nil, fmt.Errorf("sessions of node %d: %w", c.id, err)
		}
		list = append(list, answer.Sessions...)
	}
	return list, nil
}

// Act does what POST /nodes/{id}/{action} asks for: what concerns the process
// here, everything else in the node.
func (s *Supervisor) Act(ctx context.Context, node uint32, action string, body []byte) error {
	var c *child
	for _, candidate := range s.all() {
		if candidate.id == node {
			c = candidate
		}
	}
	if c == nil {
		return notFound("no node %d", node)
	}
	switch action {
	case "kill":
		c.change.Lock()
		defer c.change.Unlock()
		c.end(Killed)
		s.publish(ctx)
		return nil
	case "stop":
		c.change.Lock()
		defer c.change.Unlock()
		c.stop(ctx)
		return nil
	case "start":
		return c.start(ctx)
	case "pause":
		return c.pause(ctx)
	case "resume":
		return c.resume(ctx)
	}
	if c.isPaused() {
		return badRequest("node %d is paused; resume it first", node)
	}
	switch action {
	case "drain":
		return c.drain(ctx, body)
	case "load", "advertise":
		return c.tell(ctx, action, body)
	}
	if c.running() == nil {
		return badRequest("node %d is %s", node, c.info(ctx).State)
	}
	return c.post(ctx, fmt.Sprintf("/nodes/%d/%s", node, action), body)
}

// Ready describes the cluster.
func (s *Supervisor) Ready(ctx context.Context) (Ready, error) {
	r := Ready{Ready: true, Nodes: []ReadyNode{}}
	for _, c := range s.all() {
		i, m := c.info(ctx), c.member()
		r.Nodes = append(r.Nodes, ReadyNode{ID: c.id, Address: m.Address, Peer: m.Peer, PID: i.PID})
	}
	if len(r.Nodes) > 0 {
		r.Endpoint = s.config.endpoint(r.Nodes[0].Address)
	}
	if s.control != nil {
		r.Control = s.control.address
	}
	return r, nil
}

// Close stops all nodes, gracefully, and removes the temporary files.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	children := s.children
	s.mu.Unlock()
	var err error
	if s.control != nil {
		err = s.control.close(context.Background())
	}
	var ending sync.WaitGroup
	for _, c := range children {
		ending.Go(c.retire)
	}
	ending.Wait()
	if remove := os.RemoveAll(s.dir); remove != nil {
		err = errors.Join(err, fmt.Errorf("devcluster: %w", remove))
	}
	return err
}

// How long the process of a node may take to start, and to stop.
const (
	childStart = time.Minute
	childGrace = 10 * time.Second
)

// peersFlag names the nodes that run, for a node that starts.
func (s *Supervisor) peersFlag(except uint32) string {
	var list []string
	for _, c := range s.all() {
		if m := c.member(); c.id != except && m.Alive {
			list = append(list, fmt.Sprintf("%d=%s", m.ID, m.Address))
		}
	}
	return strings.Join(list, ",")
}

// terminate asks a process to end and makes it after childGrace.
func terminate(p *os.Process, exited <-chan struct{}) {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return // it is gone
	}
	timer := time.NewTimer(childGrace)
	defer timer.Stop()
	select {
	case <-exited:
	case <-timer.C:
		_ = p.Kill() // an error means that it is gone
	}
}
