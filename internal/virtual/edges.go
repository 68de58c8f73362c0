package virtual

import "fmt"

// state is what a session is in: whether a call is under way on it, and whether a server session
// stays with it.
type state uint8

const (
	none    state = iota // no edge leads here
	resting              // no call, no server session
	calling              // a call, which uses a server session or has none yet
	bound                // no call; the server session stays
	using                // a call, on the server session that stays
	leaving              // the session has ended, and its call has not: that sees to the server session
	gone
	states = int(gone) + 1
)

func (s state) String() string {
	return [...]string{"none", "resting", "calling", "bound", "using", "leaving", "gone"}[s]
}

// busy reports whether a call is under way.
func (s state) busy() bool { return s == calling || s == using || s == leaving }

// holds reports whether a server session stays with the session.
func (s state) holds() bool { return s == bound || s == using }

// over reports whether the session has ended: it is in no list any more.
func (s state) over() bool { return s == leaving || s == gone }

// event is what can happen to a session.
type event uint8

const (
	enter  event = iota // a call begins
	free                // its call is over; no server session stays
	keep                // its call is over; the server session stays
	lose                // its call loses the server session that stayed
	drop                // the server session that stayed goes, between two calls
	tell                // its call goes on, and the server session is to stay
	end                 // the session ends
	events = int(end) + 1
)

func (e event) String() string {
	return [...]string{
		"a call begins",
		"the call is over, and the server session goes",
		"the call is over, and the server session stays",
		"the server session is lost, in a call",
		"the server session goes between two calls: its client's connection has ended, or its node wants it closed",
		"the client is about to be told of a transaction, and the call goes on",
		"the session ends: DeleteSession, its stream, ten minutes without use, it makes room, its connection is too old, a stop",
	}[e]
}

// edges has the next state for each state and event. It is the whole state machine; decision 9 shows it.
// Where there is none, the event cannot happen: whoever has it happen has broken the mechanism.
var edges = [states][events]state{
	resting: {enter: calling, end: gone},
	calling: {free: resting, keep: bound, tell: using, end: leaving},
	bound:   {enter: using, drop: resting, end: gone},
	using:   {free: resting, keep: bound, lose: calling, end: leaving},
	leaving: {free: gone},
}

// moveLocked has an event happen to a session. What depends on the state alone is done here.
func (s *Stripe) moveLocked(v *Session, e event) {
	from := v.state
	to := edges[from][e]
	if to == none {
		panic(fmt.Sprintf("a virtual session that is %v: %v", from, e))
	}
	v.state = to
	switch holds := to.holds(); {
	case holds == from.holds():
	case holds:
		s.bound[v] = struct{}{}
	default:
		v.server = nil
		delete(s.bound, v)
	}
}
