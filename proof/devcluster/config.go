package devcluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Config describes a cluster. Start from Default.
//
// Wide: one flat list, as the flags are; a field stands where its flag does.
type Config struct {
	Nodes    int    // nodes at the start, 0 to MaxNodes
	Host     string // address that the nodes listen on and are known by
	Port     int    // port of node 1, of node 2 the next; 0 gives each a free one
	Control  string // address of the control API: host:port or unix:/path; "" for none
	Database string // path of the one database, with its leading slash
	Data     string // file of the database; "" keeps it in memory

	HopDelay  time.Duration // added to every call that one node forwards to another
	Locations []string      // data centres of the nodes, in turn
	Piles     []Pile        // the parts of a cluster in bridge mode, which the nodes belong to in turn; none: no bridge
	// how discovery lists the nodes; "": each at its own address. Merged, the balancer has Port,
	// and node 1 the next
	Endpoints Endpoints

	// bytes of a statement's text; longer ones are BAD_REQUEST; 0: as many as a message has room
	// for, as the server's default is
	QueryLimit int

	Sessions    int           // sessions that one node holds; more are refused with OVERLOADED
	SessionIdle time.Duration // a session without attach stream ends after this time without a call
	// a session rolls back for so long after a call that ran out of time or was cancelled; calls
	// meanwhile are SESSION_BUSY
	Cleanup   time.Duration
	HintGrace time.Duration // soft limit of a session that is asked to close for its own sake; the hard one is twice as long
	Shutdown  Limits        // of the sessions of a node that drains
	StopGrace time.Duration // for answers on their way when a node stops
	Evict     bool          // at the limit the session that was idle for longest is asked to close, if it was for SessionIdle
	Balance   bool          // place sessions of clients with the session-balancer capability on all nodes in turn

	ConsumedUnits bool // answers carry the trailer x-ydb-consumed-units

	Auth   Auth              // whether calls need a ticket; "": they do if there are Users or Tokens
	Users  map[string]string // names and passwords for Login
	Tokens []string          // tickets that are valid besides those of Login

	TicketLife time.Duration // of the tickets of Login

	TLS    *tls.Config          // certificate of the nodes; nil serves plaintext
	Tracer trace.TracerProvider // gets a span of every call; nil for none
	Log    *slog.Logger         // nil discards

	Listen func(address string) (net.Listener, error)                  // for the nodes; nil listens on TCP
	Dial   func(ctx context.Context, address string) (net.Conn, error) // between the nodes; nil dials TCP

	Advertise string // address that discovery tells of the one node of this process; "" its own

	Node       uint32 // id of the one node of this process; 0 if the whole cluster is here
	Peers      []Peer // nodes in other processes
	Supervised bool   // a Supervisor says who is there; else each node watches its peers
}

// Peer is a node in another process.
type Peer struct {
	ID      uint32
	Address string // host:port for clients
}

// MaxNodes is the most nodes a cluster has: the official Python client keeps at
// most 9 connections and would send calls to the wrong node beyond that.
const MaxNodes = 9

// Default is a cluster of three nodes in memory, on free ports of the loopback
// interface and without a control API.
func Default() Config {
	return Config{
		Nodes:       3,
		Host:        "127.0.0.1",
		Database:    "/local",
		Locations:   []string{"local"},
		Sessions:    1000,
		SessionIdle: 10 * time.Minute,
		Cleanup:     50 * time.Millisecond,
		HintGrace:   15 * time.Second,
		Shutdown:    Limits{Soft: 2 * time.Second, Hard: 10 * time.Second},
		StopGrace:   2 * time.Second,
		TicketLife:  12 * time.Hour,
	}
}

// Validate reports all faults of the configuration at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Nodes < 0 || c.Nodes > MaxNodes, "nodes = %d; must be 0 to %d", c.Nodes, MaxNodes)
	bad(c.Host == "", "host is empty")
	bad(c.Port < 0 || c.Port > math.MaxUint16-MaxNodes, "port = %d; must be 0 to %d", c.Port, math.MaxUint16-MaxNodes)
	bad(!strings.HasPrefix(c.Database, "/") || strings.HasSuffix(c.Database, "/"),
		"database = %q; must begin and not end with a slash", c.Database)
	bad(c.HopDelay < 0, "hop delay = %v; must be >= 0", c.HopDelay)
	bad(len(c.Locations) == 0, "locations are empty")
	if err := validatePiles(c.Piles); err != nil {
		errs = append(errs, err)
	}
	bad(len(c.Piles) > 0 && c.Node != 0, "piles need all nodes in one process")
	bad(!c.Endpoints.valid(), "endpoints = %q; must be %s or %s", c.Endpoints, EndpointsEach, EndpointsMerged)
	bad(c.Endpoints == EndpointsMerged && c.Node != 0, "endpoints = %s needs all nodes in one process", EndpointsMerged)
	bad(c.QueryLimit < 0, "query limit = %d; must be >= 0", c.QueryLimit)
	bad(c.Sessions < 1, "sessions = %d; must be >= 1", c.Sessions)
	bad(c.SessionIdle <= 0, "session idle = %v; must be > 0", c.SessionIdle)
	bad(c.Cleanup < 0, "cleanup = %v; must be >= 0", c.Cleanup)
	bad(c.HintGrace <= 0, "hint grace = %v; must be > 0", c.HintGrace)
	bad(c.StopGrace <= 0, "stop grace = %v; must be > 0", c.StopGrace)
	bad(c.Auth != "" && c.Auth != AuthOff && c.Auth != AuthEnforced, "auth = %q; must be %s or %s", c.Auth, AuthOff, AuthEnforced)
	bad(c.Auth == AuthEnforced && len(c.Users)+len(c.Tokens) == 0, "auth = %s; needs a user or a token", c.Auth)
	bad(c.TicketLife < time.Second, "ticket life = %v; must be >= 1s", c.TicketLife)
	bad(c.Node != 0 && c.Nodes != 1, "nodes = %d; must be 1 in the process of one node", c.Nodes)
	if err := c.Shutdown.validate("shutdown"); err != nil {
		errs = append(errs, err)
	}
	_, _, err := splitAddress(c.Advertise)
	bad(c.Advertise != "" && err != nil, "advertise = %q: %v", c.Advertise, err)
	bad(c.Advertise != "" && c.Node == 0, "advertise is for the process of one node")
	for _, p := range c.Peers {
		bad(p.ID == 0 || p.ID == c.Node, "peer %d: must be another node", p.ID)
		_, _, err := splitAddress(p.Address)
		bad(err != nil, "peer %d: %v", p.ID, err)
	}
	for name, password := range c.Users {
		bad(name == "" || password == "", "user %q: a name and a password are needed", name)
	}
	return errors.Join(errs...)
}

func (c Config) listen(address string) (net.Listener, error) {
	if c.Listen != nil {
		return c.Listen(address)
	}
	if host, port, err := net.SplitHostPort(address); err == nil && port == "0" {
		if l := listenLow(host); l != nil {
			return l, nil
		}
	}
	return net.Listen("tcp", address)
}

// listenLow listens on a port below those that the kernel gives away: a node that is down
// comes back at its address, which no other program gets meanwhile. It returns nil if it found none.
func listenLow(host string) net.Listener {
	const first, last = 10000, 30000
	for range 20 {
		if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(first+rand.IntN(last-first)))); err == nil {
			return l
		}
	}
	return nil
}

// location is the data centre of a node.
func (c Config) location(id uint32) string { return c.Locations[(int(id)-1)%len(c.Locations)] }

// endpoint is the connection string by the node at the given address.
func (c Config) endpoint(address string) string {
	scheme := "grpc"
	if c.TLS != nil {
		scheme = "grpcs"
	}
	return scheme + "://" + address + c.Database
}
