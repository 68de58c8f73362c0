package h2

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds what peers may do. Default has values that suit a sidecar.
//
// Wide: it is a flat list of bounds, each of which says by itself what it bounds.
type Config struct {
	Names []string // request and answer headers that the router reads or sets: FirstName, FirstName+1 ...
	Page  string   // body of the answer to requests that are not gRPC

	Connections int    // of clients, those that shake hands included
	Streams     uint32 // open streams of one client connection
	// calls in all that wait for a message, a decision or a node's connection; beyond it those of
	// the connections that have most are ended
	Held        int
	HeaderBytes uint32 // of one header block, decoded, with 32 bytes added for each field
	Window      int    // bytes a peer may send ahead on a stream at first
	MaxWindow   int    // what that grows to while the reader keeps up
	ConnWindow  int    // bytes a peer may send ahead on a connection
	Output      int    // bytes waiting to be written on a connection before data waits in its streams
	// bytes waiting in all calls; from half of it on, streams whose reader has taken less than 16
	// KB in 10 s are ended; beyond it calls of the connections that hold most are ended; half as
	// much may wait in Output of all clients, beyond which the connections that hold most are
	// ended; an eighth of it may be frames and header blocks that are not whole, beyond which the
	// connections with the oldest are ended
	Buffered int
	Message  int // bytes of a message that is held whole, for ErrNeedWhole or a Rewriter
	Control  int // frames a second that carry nothing (PING, SETTINGS ...), above those that traffic explains
	// streams a second that a client may reset within 100 ms, or that are reset at nodes for it:
	// calls that end well earn more
	Resets int

	HandshakeTimeout time.Duration // for a client's preface and SETTINGS, or the rest of a header block
	HoldTimeout      time.Duration // for a call to wait here; a shorter deadline of its own counts first
	GrowTimeout      time.Duration // for a client to send more of a message that is held until it is whole, once its first byte is here
	StallTimeout     time.Duration // for a peer to take what is written to it at once, about Output
	DrainTimeout     time.Duration // for a client to answer that it has read that its connection drains
	Silence          time.Duration // of a node, with calls open, after which it is pinged
	Keepalive        time.Duration // between pings while it sends nothing but their answers: servers do not like many
	KeepaliveTimeout time.Duration // silence after a ping, which ends the connection
	Idle             time.Duration // without a call, after which a node's connection ends; 0: never
	ClientSilence    time.Duration // of a client, after which it is pinged: one that has vanished would hold its calls for ever
	ClientTimeout    time.Duration // silence after that, which ends the connection
}

// Default returns the shipped bounds.
func Default() Config {
	return Config{
		Page:        "This port speaks gRPC.\n",
		Connections: 16384, Streams: 4096, Held: 16384, HeaderBytes: 64 << 10,
		Window: 256 << 10, MaxWindow: 4 << 20, ConnWindow: 16 << 20, Output: 256 << 10, Buffered: 128 << 20, Message: 64_000_000,
		Control: 1000, Resets: 1000,
		HandshakeTimeout: 10 * time.Second, HoldTimeout: time.Minute, GrowTimeout: 5 * time.Second,
		StallTimeout: time.Minute, DrainTimeout: 5 * time.Second,
		Silence: 2 * time.Second, Keepalive: 10 * time.Second, KeepaliveTimeout: time.Second, Idle: 2 * time.Minute,
		ClientSilence: 30 * time.Second, ClientTimeout: 10 * time.Second,
	}
}

// Validate reports every value out of range.
func (c Config) Validate() error {
	var errs []error
	inRange := func(name string, v, least, most int) {
		if v < least || v > most {
			errs = append(errs, fmt.Errorf("%s = %d; must be between %d and %d", name, v, least, most))
		}
	}
	inRange("connections", c.Connections, 1, maxWindow)
	inRange("streams", int(c.Streams), 1, maxWindow)
	inRange("held", c.Held, 1, maxWindow)
	inRange("header_bytes", int(c.HeaderBytes), 4096, 16<<20)
	inRange("window", c.Window, defaultWindow, maxWindow)
	inRange("max_window", c.MaxWindow, c.Window, maxWindow/2)
	inRange("conn_window", c.ConnWindow, defaultWindow, maxWindow/2)
	inRange("output", c.Output, minFrameSize, 1<<30)
	inRange("buffered", c.Buffered, c.Window, 1<<40)
	inRange("message", c.Message, 1, 1<<30)
	inRange("control", c.Control, 1, maxWindow)
	inRange("resets", c.Resets, 1, maxWindow)
	inRange("names", len(c.Names), 0, maxNames-int(FirstName))
	for name, d := range map[string]time.Duration{"handshake_timeout": c.HandshakeTimeout, "hold_timeout": c.HoldTimeout,
		"grow_timeout": c.GrowTimeout, "stall_timeout": c.StallTimeout,
		"drain_timeout": c.DrainTimeout, "silence": c.Silence, "keepalive": c.Keepalive, "keepalive_timeout": c.KeepaliveTimeout,
		"client_silence": c.ClientSilence, "client_timeout": c.ClientTimeout} {
		if d < tick {
			errs = append(errs, fmt.Errorf("%s = %v; must be at least %v", name, d, tick))
		}
	}
	return errors.Join(errs...)
}
