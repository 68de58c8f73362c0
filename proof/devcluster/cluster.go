package devcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// Cluster is a running cluster whose nodes live in this process.
type Cluster struct {
	shared
	log     *slog.Logger
	control *controlServer // nil without a control API
	watches watches
	held    held      // while a supervisor pauses this process
	merged  *balancer // nil: each node has its own address

	mu     sync.Mutex // guards the fields below
	nodes  []*Node    // in order of id; nodes are added and never removed
	remote []member   // nodes in other processes
	closed bool
}

// Start opens the database and starts the nodes. Close ends the cluster.
func Start(config Config) (*Cluster, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("devcluster: %w", err)
	}
	methods, err := newMethods()
	if err != nil {
		return nil, fmt.Errorf("devcluster: %w", err)
	}
	db, err := engine.Open(config.Data)
	if err != nil {
		return nil, fmt.Errorf("devcluster: open the database: %w", err)
	}
	c := &Cluster{
		shared: shared{config: config, db: db, methods: methods, tickets: newTickets(config), readers: &readers{},
			scripts: &scripts{}, outages: &outages{}},
		log: config.Log,
	}
	for _, p := range config.Peers {
		c.remote = append(c.remote, member{
			ID: p.ID, Address: p.Address, Location: config.location(p.ID),
			Listed: config.Supervised, Alive: config.Supervised, // else they are watched
		})
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if config.Tracer != nil {
		c.tracer = config.Tracer.Tracer("github.com/ydb-sidecar/sidecar/proof/devcluster")
	}
	if len(config.Piles) > 0 {
		c.piles.Store(&config.Piles)
	}
	c.publishLocked() // no other goroutine has c yet
	if err := c.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("devcluster: %w", err), c.Close())
	}
	return c, nil
}

func (c *Cluster) start() error {
	if c.config.Endpoints == EndpointsMerged {
		b, err := balance(c.config, c.accepting)
		if err != nil {
			return fmt.Errorf("listen for all nodes: %w", err)
		}
		c.merged = b
	}
	for range c.config.Nodes {
		if _, err := c.Add(); err != nil {
			return err
		}
	}
	if !c.config.Supervised {
		c.watch(c.config.Peers)
	}
	if c.config.Control == "" {
		return nil
	}
	handler := controlHandler(c)
	if c.config.Supervised {
		handler = c.supervisedHandler(handler)
	}
	control, err := serveControl(c.config.Control, handler, c.log)
	if err != nil {
		return err
	}
	c.control = control
	return nil
}

// Add starts one more node, with the next id and the next port.
func (c *Cluster) Add() (*Node, error) { return c.AddAt("") }

// AddAt starts one more node in the given data centre; "" takes the next of Config.Locations.
func (c *Cluster) AddAt(location string) (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if len(c.nodes) >= MaxNodes {
		return nil, fmt.Errorf("the cluster has %d nodes; that is the most", MaxNodes)
	}
	index := len(c.nodes)
	id := max(c.config.Node, 1) + uint32(index)
	if location == "" {
		location = c.config.location(id)
	}
	port := 0
	if c.config.Port != 0 {
		port = c.config.Port + index
	}
	known := c.config.Advertise
	if c.merged != nil {
		known = c.merged.address
		if port != 0 {
			port++ // the first one is the balancer's
		}
	}
	n := &Node{
		cluster: c, id: id,
		location: location,
		known:    known,
		address:  net.JoinHostPort(c.config.Host, strconv.Itoa(port)),
	}
	if err := n.launch(); err != nil {
		return nil, err
	}
	c.nodes = append(c.nodes, n)
	c.publishLocked()
	return n, nil
}

var errClosed = errors.New("the cluster is closed")

// publish tells all nodes of this process who is there.
func (c *Cluster) publish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publishLocked()
}

func (c *Cluster) publishLocked() {
	members := append([]member{}, c.remote...)
	for _, n := range c.nodes {
		members = append(members, n.member())
	}
	c.topology.set(members)
}

// setRemote replaces what is known of the nodes in other processes.
func (c *Cluster) setRemote(members []member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remote = members
	c.publishLocked()
}

// all returns the nodes that there are now.
func (c *Cluster) all() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Node{}, c.nodes...)
}

// Node returns the node with the given id, or nil.
func (c *Cluster) Node(id uint32) *Node {
	for _, n := range c.all() {
		if n.id == id {
			return n
		}
	}
	return nil
}

// accepting are the addresses of the nodes that are there, without those that drain as long as
// there is another.
func (c *Cluster) accepting() []string {
	var up, draining []string
	for _, n := range c.all() {
		switch n.State() {
		case Up:
			up = append(up, n.Address())
		case Draining:
			draining = append(draining, n.Address())
		}
	}
	if len(up) == 0 {
		return draining
	}
	return up
}

// Endpoint is the connection string of the cluster, by its balancer or its first node.
func (c *Cluster) Endpoint() string {
	if c.merged != nil {
		return c.config.endpoint(c.merged.address)
	}
	nodes := c.all()
	if len(nodes) == 0 {
		return ""
	}
	return c.config.endpoint(nodes[0].Address())
}

// Control is the address of the control API; "" if there is none.
func (c *Cluster) Control() string {
	if c.control == nil {
		return ""
	}
	return c.control.address
}

// Sessions describes every live session of every node, by node and age.
func (c *Cluster) Sessions() []SessionInfo {
	list := make([]SessionInfo, 0)
	for _, n := range c.all() {
		list = append(list, n.Sessions()...)
	}
	return list
}

// Close stops all nodes, gracefully, and closes the database.
func (c *Cluster) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	nodes := c.nodes
	c.mu.Unlock()
	var err error
	if c.control != nil {
		err = c.control.close(context.Background())
	}
	c.watches.stop()
	c.held.letGo() // the processes that held it are gone
	var ending sync.WaitGroup
	for _, n := range nodes {
		ending.Go(n.retire)
	}
	ending.Wait()
	if c.merged != nil {
		err = errors.Join(err, c.merged.close())
	}
	return errors.Join(err, c.db.Close())
}
