package wire

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// State is /state/connections: what the data path carries.
//
// Wide: its fields are those of a document.
type State struct {
	Clients     int               `json:"clients"`   // connections
	Nodes       int               `json:"nodes"`     // connections; those to the plain API in this process count
	Calls       uint64            `json:"calls"`     // since the start
	Forwarded   uint64            `json:"forwarded"` // calls sent to a node or to the plain API
	Ends        map[string]uint64 `json:"ends"`      // how they ended
	Held        int               `json:"held"`      // calls that wait here
	Buffered    int               `json:"buffered"`  // bytes that wait for slow readers
	Resets      uint64            `json:"resets"`    // RST_STREAM frames received
	GoAways     uint64            `json:"goaways"`   // GOAWAY frames received
	Accepted    uint64            `json:"accepted"`  // connections of clients so far
	Crowded     uint64            `json:"crowded"`   // refused because there were too many
	Unread      uint64            `json:"unread"`    // readings of a shard that got no turn in time, and repeated its last figures
	Abuses      map[string]uint64 `json:"abuses"`    // what peers did only by fault or ill will
	ClientIn    uint64            `json:"client_bytes_in"`
	ClientOut   uint64            `json:"client_bytes_out"`
	NodeIn      uint64            `json:"node_bytes_in"`
	NodeOut     uint64            `json:"node_bytes_out"`
	Virtual     *virtual.State    `json:"virtual_sessions,omitempty"`
	Connections []Connection      `json:"connections"` // the busiest, at most maxConnections
}

// Connection is one connection.
type Connection struct {
	Peer     string         `json:"peer"`           // client, node, or api: the plain API in this process
	Node     cluster.NodeID `json:"node,omitempty"` // of a node
	Remote   string         `json:"remote"`         // address
	TLS      bool           `json:"tls"`
	Shard    int            `json:"shard"` // the last one carries the sidecar's own calls
	AgeS     float64        `json:"age_s"`
	SilentS  float64        `json:"silent_s"` // since its last byte
	Streams  int            `json:"streams"`  // open
	Waiting  int            `json:"waiting"`  // calls that wait for it
	Calls    uint64         `json:"calls"`    // so far
	BytesIn  uint64         `json:"bytes_in"`
	BytesOut uint64         `json:"bytes_out"`
	Buffered int            `json:"buffered"` // bytes for it that are not written
	Window   int64          `json:"window"`   // bytes of messages that it takes now
	Draining bool           `json:"draining"` // takes no new calls
}

// maxConnections bounds the list of connections in State.
const maxConnections = 1000

// readLimit bounds the wait for the figures of all shards.
const readLimit = 500 * time.Millisecond

// Stats is State without the connections. Of a shard that gives no turn in time it has
// the figures of before, and counts that as unread.
func (s *Server) Stats() State {
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	return s.stats(ctx)
}

func (s *Server) stats(ctx context.Context) State {
	out := State{Ends: map[string]uint64{}, Abuses: map[string]uint64{}, Connections: []Connection{}}
	if s.sessions != nil {
		out.Virtual = s.sessions.State(s.identities)
	}
	for _, shard := range s.all() {
		st, ok := shard.TryStats(ctx)
		if !ok {
			s.unread.Add(1)
		}
		out.Clients += st.Clients
		out.Nodes += st.Nodes
		out.Calls += st.Calls
		out.Forwarded += st.Forwarded
		out.Held += st.Held
		out.Buffered += st.Buffered
		out.Resets += st.Resets
		out.GoAways += st.GoAways
		out.Accepted += st.Accepted
		out.Crowded += st.Crowded
		out.ClientIn += st.ClientIn
		out.ClientOut += st.ClientOut
		out.NodeIn += st.NodeIn
		out.NodeOut += st.NodeOut
		for end, n := range st.Ends {
			out.Ends[h2.End(end).String()] += n
		}
		for abuse, n := range st.Abuses {
			out.Abuses[h2.Abuse(abuse).String()] += n
		}
	}
	out.Unread = s.unread.Load()
	return out
}

// State returns what the data path carries now. The connections of a shard that gives no
// turn in time are left out.
func (s *Server) State() State {
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	out := s.stats(ctx)
	for i, shard := range s.all() {
		all, ok := shard.Connections(ctx, h2.Default().Connections)
		if !ok {
			s.unread.Add(1)
		}
		for _, c := range all {
			one := Connection{
				Peer: "client", Remote: c.Remote, TLS: c.TLS, Shard: i, AgeS: round(c.Age), SilentS: round(c.Silent),
				Streams: c.Streams, Waiting: c.Waiting,
				Calls: c.Calls, BytesIn: c.In, BytesOut: c.Out, Buffered: c.Buffered, Window: c.Window, Draining: c.Draining,
			}
			if !c.IsClient {
				one.Peer = "api"
				switch t := c.Tag.(type) {
				case *tag:
					one.Peer, one.Node = "node", t.node
				case cluster.NodeID: // of the sidecar's own calls
					one.Peer, one.Node = "node", t
				}
			}
			out.Connections = append(out.Connections, one)
		}
	}
	slices.SortFunc(out.Connections, func(a, b Connection) int {
		return cmp.Or(cmp.Compare(b.Streams, a.Streams), cmp.Compare(b.Calls, a.Calls))
	})
	out.Connections = out.Connections[:min(len(out.Connections), maxConnections)]
	return out
}

func round(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// Stall is a shard that has not turned for a second or more: see driver.Shard.Stalled.
type Stall struct {
	Shard int
	For   time.Duration
}

// Stalled returns the shards that do not turn. It takes no lock.
func (s *Server) Stalled() (all []Stall) {
	for i, shard := range s.all() {
		if d := shard.Stalled(); d > 0 {
			all = append(all, Stall{i, d})
		}
	}
	return all
}

// Shards returns how many there are besides that of the sidecar's own calls, which has this number.
func (s *Server) Shards() int { return len(s.shards) }
