package snapshot

import (
	"fmt"
	"strings"
	"time"
)

// Progress is GET /drain.
type Progress struct {
	Stage        string    `json:"stage"`
	Since        time.Time `json:"since,omitzero"`
	Cause        string    `json:"cause,omitempty"`
	Calls        int       `json:"calls"`        // open
	Transactions int       `json:"transactions"` // open
	Sessions     int       `json:"sessions"`     // sessions of this process that are left on nodes
	Connections  int       `json:"connections"`  // of clients
	WaitsFor     string    `json:"waits_for,omitempty"`
	Deadline     time.Time `json:"deadline,omitzero"` // of the stage: what is left then is cut off
	LeftMS       int64     `json:"left_ms,omitempty"` // until the deadline
}

// Progress returns what the process does now and what it waits for.
func (s *Source) Progress() Progress {
	phase, now := s.Phase(), s.look(ofPool|ofAPI|ofClients|ofWire)
	out := Progress{
		Stage: phase.Stage.String(), Since: phase.Since, Cause: phase.Cause, Deadline: phase.Deadline, LeftMS: phase.Left.Milliseconds(),
		Calls: now.API.OpenCalls, Transactions: now.API.Transactions, Sessions: now.Pool.Sessions,
	}
	if now.Wire != nil && now.Wire.Virtual != nil {
		for _, p := range now.Wire.Virtual.Pools {
			out.Sessions += p.Sessions
		}
	}
	for _, n := range now.Clients {
		out.Connections += n
	}
	out.WaitsFor = s.waitsFor(phase.Stage, &out)
	return out
}

// waitsFor says in words what the end of a stage depends on.
func (s *Source) waitsFor(at Stage, now *Progress) string {
	switch at {
	case LameDuck:
		return "SIGTERM, or mode=off"
	case Leaving:
		if s.Replaced() {
			return number(now.Connections, "connection") + ", to be handed over"
		}
		return "drain.delay"
	case Draining:
		return s.waitsForCallers(now)
	case LettingGo:
		return number(now.Connections, "connection")
	case Deleting:
		return number(now.Sessions, "session")
	default:
		return ""
	}
}

func (s *Source) waitsForCallers(now *Progress) string {
	var parts []string
	if now.Calls > 0 {
		parts = append(parts, number(now.Calls, "call"))
	}
	if now.Transactions > 0 {
		last := int64(0)
		for _, t := range s.API.Transactions() {
			last = max(last, t.Expires)
		}
		within := (time.Duration(last) * time.Millisecond).Round(time.Second)
		open := number(now.Transactions, "transaction")
		parts = append(parts, fmt.Sprintf("%s (if nothing is sent, rolled back within %v)", open, within))
	}
	return strings.Join(parts, ", ")
}

func number(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
