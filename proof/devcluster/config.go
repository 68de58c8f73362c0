package devcluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Config describes a cluster. Start from Default.
type Config struct {
	Nodes    int    // nodes at the start, 0 to MaxNodes
	Host     string // address that the nodes listen on and are known by
	Port     int    // port of node 1, of node 2 the next; 0 gives each a free one
	Control  string // address of the control API: host:port or unix:/path; "" for none
	Database string // path of the one database, with its leading slash
	Data     string // file of the database; "" keeps it in memory

	HopDelay  time.Duration // added to every call that one node forwards to another
	Locations []string      // data centres of the nodes, in turn

	Sessions    int           // sessions that one node holds; more are refused with OVERLOADED
	SessionIdle time.Duration // a session without attach stream ends after this time without a call
	HintGrace   time.Duration // a session ends this long after it was asked to close
	Balance     bool          // place sessions of clients with the session-balancer capability on all nodes in turn

	Users  map[string]string // names and passwords for Login; if there are Users or Tokens, every call needs a ticket
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
		HintGrace:   15 * time.Second,
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
	bad(c.Sessions < 1, "sessions = %d; must be >= 1", c.Sessions)
	bad(c.SessionIdle <= 0, "session idle = %v; must be > 0", c.SessionIdle)
	bad(c.HintGrace <= 0, "hint grace = %v; must be > 0", c.HintGrace)
	bad(c.TicketLife < time.Second, "ticket life = %v; must be >= 1s", c.TicketLife)
	bad(c.Node != 0 && c.Nodes != 1, "nodes = %d; must be 1 in the process of one node", c.Nodes)
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
	return net.Listen("tcp", address)
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
