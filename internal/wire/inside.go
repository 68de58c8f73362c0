package wire

import (
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
)

// Calls of the server in this process. That server counts nothing of what it gathers. So the messages of such a
// call stay in the shard, where bytes that wait count, until they are whole and inflated; and the calls
// themselves are bounded.

// Inside bounds the calls of the server in this process. Zero fields have no bound of their own.
type Inside struct {
	Message int // bytes of a message that the server takes, inflated
	Streams int // calls that are open there, of each shard: beyond it the connection with most of them loses one
}

// methods are those of the server in this process.
type methods struct {
	services map[string]bool
	one      map[string]bool // paths of those whose request is one message
	many     map[string]bool // paths of those with a stream of answers
}

// methodsOf names those of a server. Methods that its services do not have are not looked for at a node.
func methodsOf(server *grpc.Server) methods {
	m := methods{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for service, info := range server.GetServiceInfo() {
		m.services[service] = true
		for _, method := range info.Methods {
			path := "/" + service + "/" + method.Name
			m.one[path], m.many[path] = !method.IsClientStream, method.IsServerStream
		}
	}
	return m
}

// rulesInside are what the request of a call of the server in this process must be like. What is
// compressed, and how, is for that server to judge.
func (s *Server) rulesInside(c *h2.Call) h2.Rules {
	return h2.Rules{One: s.inside.one[string(c.Path())], Most: s.mostInside(c)}
}

// mostPart is how many bytes a message of a stream of requests may have, inflated: the server in this
// process copies it before it can count it, and a stream may be sent in as many parts as its caller
// likes. 4 MiB is what servers of gRPC take by default.
const mostPart = 4 << 20

// mostInside is how many bytes a message of the call may have, inflated.
func (s *Server) mostInside(c *h2.Call) int {
	if s.inside.one[string(c.Path())] {
		return s.deps.Inside.Message
	}
	return min(mostPart, s.deps.Inside.Message)
}

// stay is a call of the server in this process, or a stream that is served where it arrives.
type stay struct {
	messages // of a call of that server
	ticket   h2.Ticket
	stayer   *stayer // nil: it has no place
	at       int     // in place.stays
}

// comeIn has the server in this process serve a call.
func (f *frames) comeIn(c *h2.Call, k *call) (*h2.Conn, error) {
	if k.stay == nil {
		if err := k.stayIn(c); err != nil {
			return nil, err
		}
		k.stay.messages = messages{frames: f, conn: c.Client(), encoding: string(c.Header(headerEncoding)), most: f.server.mostInside(c)}
		if _, whole := c.Message(); !whole || !f.server.inside.one[string(c.Path())] { // else nothing is to be gathered or inflated
			c.Rewrite(k.stay)
		}
	}
	var room [apps.MostOrigin]byte // all clients of the shard share one connection to the server
	from := apps.Origin{Connection: c.Client().Number()}
	from.User, from.Local = driver.User(c.Client())
	from.Certificate = driver.Certificate(c.Client())
	from.From(driver.Remote(c.Client()))
	c.SetOnce(headerConnection, from.Append(room[:0]))
	return f.local.Conn()
}

// stayIn counts a call of the server in this process, or a stream that is served where it arrives: each keeps goroutines.
func (k *call) stayIn(c *h2.Call) error {
	k.stay = &stay{ticket: c.Ticket()}
	if !k.frames.stays.enter(k.frames, c.Client(), k.stay) {
		return errStays
	}
	return nil
}

// Hold implements h2.Rewriter.
func (*stay) Hold(int) bool { return true }

// See implements h2.Rewriter.
func (*stay) See([]byte) {}

// Edit implements h2.Rewriter.
func (*stay) Edit(edits []h2.Edit) []h2.Edit { return edits }

// stays are the calls of a shard that have a place as one of them.
type stays struct {
	n    int
	of   map[*h2.Conn]*stayer
	by   [][]*stayer // connections by the number of their calls
	most int         // calls of the connection that has most
}

// stayer is a client's connection with such calls.
type stayer struct {
	conn  *h2.Conn
	stays []*stay
	at    int // in stays.by[len(stays)]
}

var (
	errStays = &h2.Status{Code: int(codes.ResourceExhausted),
		Message: "ydb-sidecar: as many streams of the plain API are open as the memory of the sidecar allows, and " +
			"no connection has more than this one would have: try again, or raise the memory limit (GOMEMLIMIT, or the container's)"}
	errMoreOf = &h2.Status{Code: int(codes.Unavailable),
		Message: "ydb-sidecar: as many streams of the plain API were open as the memory of the sidecar allows, and " +
			"this one ended because no connection has more than its own; what it did may have been executed"}
)

// enter counts a call. At the bound it takes the place of one of a connection that has most. False: none has more than its own
// would have. So nobody with as few loses one, and takes it back from the next.
func (s *stays) enter(f *frames, conn *h2.Conn, call *stay) bool {
	g := s.of[conn]
	if g == nil {
		g = &stayer{conn: conn}
	}
	if s.n >= f.server.deps.Inside.Streams {
		if s.most <= len(g.stays)+1 {
			return false
		}
		calls := s.by[s.most][0].stays
		last := calls[len(calls)-1]
		s.leave(last)
		f.shard.Expel(last.ticket, errMoreOf)
	}
	s.remove(g)
	call.stayer, call.at = g, len(g.stays)
	g.stays = append(g.stays, call)
	s.n++
	s.add(g)
	return true
}

// leave does nothing for a call that has no place.
func (s *stays) leave(call *stay) {
	g := call.stayer
	if g == nil {
		return
	}
	s.remove(g)
	last := len(g.stays) - 1
	g.stays[call.at], g.stays[last].at = g.stays[last], call.at
	g.stays[last] = nil
	g.stays, call.stayer = g.stays[:last], nil
	s.n--
	s.add(g)
}

// add puts a connection among those with as many calls.
func (s *stays) add(g *stayer) {
	n := len(g.stays)
	if n == 0 {
		delete(s.of, g.conn)
	} else {
		s.of[g.conn] = g
		for len(s.by) <= n {
			s.by = append(s.by, nil)
		}
		g.at = len(s.by[n])
		s.by[n] = append(s.by[n], g)
	}
	s.most = max(s.most, n)
	for s.most > 0 && len(s.by[s.most]) == 0 {
		s.most--
	}
}

// remove takes g out of the connections that have as many calls as it. add puts it back, after the number has changed.
func (s *stays) remove(g *stayer) {
	n := len(g.stays)
	if n == 0 {
		return
	}
	all := s.by[n]
	last := len(all) - 1
	all[g.at], all[last].at = all[last], g.at
	all[last] = nil
	s.by[n] = all[:last]
}

// bounded is in with a bound in each field.
func (in Inside) bounded() Inside {
	if in.Message == 0 {
		in.Message = mostBytes
	}
	if in.Streams == 0 {
		in.Streams = math.MaxInt
	}
	return in
}
