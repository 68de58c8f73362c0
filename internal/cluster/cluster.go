// Package cluster is the vocabulary that the parts share: nodes, topologies,
// the health of nodes, what may be sent where, and what came of a call.
//
// It holds data and no I/O. Every value handed from one part to another is
// immutable once handed over: readers keep it without a lock or a copy.
package cluster

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"time"
)

// NodeID is YDB's number of a node, unique in its cluster. 0 means no node.
type NodeID uint32

// Node is one server of the cluster, as discovery reports it.
type Node struct {
	ID         NodeID
	Address    string  // host:port to dial
	Zone       string  // data centre ("location" in YDB's discovery); "" if unknown; see In
	TLSName    string  // name to verify in the node's certificate; "" means the host of Address
	LoadFactor float32 // of discovery; 0 if unknown, as YDB's servers always say
	Draining   bool    // drained by the one that lists the node: nothing new there, what is open may finish
	Unwell     bool    // unhealthy, says the one that lists the node: nothing new there while enough others are left
	Pile       Pile    // of a cluster in bridge mode
	Missing    bool    // the newest answer lacks the node and is in doubt: it keeps what it has, and gets new work after the others
	Shared     bool    // several nodes share Address: ID stands for them all, and sessions made there name any of them
}

// Pile is one of the parts of a cluster in bridge mode, each of which has all data. The zero
// value means that the cluster has none.
type Pile struct {
	Name  string
	State PileState
}

// PileState says what a pile is good for now.
type PileState uint8

// The states of a pile: Ydb.Bridge.PileState, of which PROMOTED (it is about to be the primary)
// counts as SYNCHRONIZED.
const (
	PileNone     PileState = iota // no piles, or a state that is not known
	PilePrimary                   // PRIMARY: what writes is here
	PileInStep                    // SYNCHRONIZED: has all data, and may become the primary
	PileBehind                    // NOT_SYNCHRONIZED
	PileDetached                  // SUSPENDED or DISCONNECTED: its nodes cannot work
)

func (s PileState) String() string {
	return [...]string{"", "primary", "synchronized", "not_synchronized", "detached"}[int(s)%5]
}

// In reports whether the node belongs to a zone. Where several nodes share an address,
// YDB's discovery joins their locations: "a/b" is in a and in b.
func (n Node) In(zone string) bool {
	if n.Zone == zone {
		return true
	}
	for part := range strings.SplitSeq(n.Zone, "/") {
		if part == zone {
			return zone != ""
		}
	}
	return false
}

// Zones returns the zones that the node belongs to; none if that is unknown.
func (n Node) Zones() []string {
	return strings.FieldsFunc(n.Zone, func(r rune) bool { return r == '/' })
}

// Topology is one answer of discovery: the nodes in ascending order of ID,
// each ID and each Address once.
type Topology struct {
	Nodes   []Node
	Zone    string // zone of the node that answered; "" if unknown
	Nearest string // zone whose nodes accept a connection soonest; "" if nobody measured
	LeftOut int    // listed nodes that are not among Nodes, because there are more than MaxNodes
}

// MaxNodes is how many nodes of a list are used. Clusters have some thousands at the most.
const MaxNodes = 16384

// chosenBy makes the choice of Bounded another one in each process.
var chosenBy = maphash.MakeSeed()

// Bounded returns MaxNodes of the nodes, and how many it left out. This process chooses the same
// ones each time. Other processes choose others, so that each node is used by some.
func Bounded(nodes []Node) (kept []Node, leftOut int) {
	if len(nodes) <= MaxNodes {
		return nodes, 0
	}
	type ranked struct {
		rank uint64
		at   int
	}
	all := make([]ranked, len(nodes))
	for i, n := range nodes {
		all[i] = ranked{maphash.String(chosenBy, n.Address), i}
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	kept = make([]Node, MaxNodes)
	for i := range kept {
		kept[i] = nodes[all[i].at]
	}
	return kept, len(nodes) - MaxNodes
}

// NewTopology sorts nodes by ID and drops what a client must not rely on:
// nodes without an ID or an address and repeated IDs or addresses (the first
// one wins, as in the official SDKs).
func NewTopology(nodes []Node, zone string) Topology {
	out := make([]Node, 0, len(nodes))
	ids := make(map[NodeID]bool, len(nodes))
	addresses := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		if n.ID == 0 || n.Address == "" || ids[n.ID] || addresses[n.Address] {
			continue
		}
		ids[n.ID], addresses[n.Address] = true, true
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Node) int { return int(a.ID) - int(b.ID) })
	return Topology{Nodes: out, Zone: zone}
}

// Health is the state of one node in the eyes of this process.
type Health uint8

// The states of a node. See internal/pessimize for the edges between them.
const (
	Healthy Health = iota
	Suspect        // bad signs, still in use
	Ejected        // gets nothing new
	Probing        // ejected, and being tried with probes
)

func (h Health) String() string {
	return [...]string{"healthy", "suspect", "ejected", "probing"}[h&3]
}

// Condition is what internal/pessimize says of one node.
type Condition struct {
	Health      Health
	Draining    bool      // the node announced its shutdown, left discovery, or is drained by an operator or by the one that lists it
	Unreachable bool      // the last sign was a transport error: hard, unlike refusals or latency
	Banned      bool      // by an operator: nothing new as long as any other node is left
	BanReason   string    // what the operator said of the ban; "": nothing
	Ramp        float32   // what the node gets of its fair share of new load in a slow start: above 0, below 1; 0 means all of it
	Joined      bool      // with Ramp: discovery did not list the node before, so other nodes carry its load already
	Reason      string    // one line for operators: the sign that led here
	Since       time.Time // when Health last changed
	Cause       Cause     // of the ejection, while Ejected or Probing
}

// Cause says what a node is ejected for.
type Cause uint8

// The causes of an ejection.
const (
	CauseNone      Cause = iota // not ejected
	CauseTransport              // transport errors in a row
	CauseSilence                // a connection with calls outstanding brought nothing
	CauseProbe                  // a probe was not answered
	CauseRefusals               // refusals, in a row or as a share
	CauseLatency                // much slower than the other nodes
	CauseSize      = int(CauseLatency) + 1
)

func (c Cause) String() string {
	return [...]string{"none", "transport", "silence", "probe", "refusals", "latency"}[int(c)%CauseSize]
}

// Conditions maps nodes to their conditions. A missing node is Healthy. Immutable.
type Conditions map[NodeID]Condition

// Use says what may be sent to a node now.
type Use uint8

// From most to least.
const (
	UseNew  Use = iota // new sessions and new transactions
	UseOpen            // only what is open there may finish
	UseNone            // unreachable: not even that, while another node answers
)

func (u Use) String() string { return [...]string{"new", "open", "none"}[u%3] }

// ViewNode is one node of a View.
type ViewNode struct {
	Node
	Condition Condition
	Use       Use
	Gone      bool // discovery no longer lists it, for sure: what is open there may finish
	// Weight is the node's part of new sessions and new load, relative to that of
	// the others: 1 for a full share, less while it returns or lies in another
	// zone. 0, with UseNew: only when the others have no room. 0 without UseNew.
	Weight float32
	// Load is what the calls to the node have shown lately. Unlike the rest of a
	// view it lives; it may be nil in views made by hand.
	Load *Load
}

// View is what internal/routing makes of a topology and verdicts: every known
// node in ascending order of ID, with what may be sent to it. Panic rules are
// already applied. Immutable.
type View struct {
	Nodes []ViewNode
	Panic bool // more than half of the nodes are ejected or listed as unhealthy: what is ejected for soft signs or listed so gets new work
	Alone bool // discovery lists one node: what it does not know, nobody else does
}

// Find returns the node with the given ID.
func (v View) Find(id NodeID) (ViewNode, bool) {
	i, ok := slices.BinarySearchFunc(v.Nodes, id, func(n ViewNode, id NodeID) int { return int(n.ID) - int(id) })
	if !ok {
		return ViewNode{}, false
	}
	return v.Nodes[i], true
}

// CallKind tells calls apart whose failure means different things.
type CallKind uint8

// The kinds of call.
const (
	CallOpen     CallKind = iota // create and attach a session
	CallExecute                  // run a statement
	CallCommit                   // commit, also inline with a statement
	CallControl                  // begin, rollback, delete, describe, discovery
	CallProbe                    // active health probe
	CallKindSize = int(CallProbe) + 1
)

func (k CallKind) String() string {
	return [...]string{"open", "execute", "commit", "control", "probe"}[k]
}

// Blame is what an outcome says about the node that gave it.
type Blame uint8

// From none to most.
const (
	BlameNone      Blame = iota // says nothing: the caller's cancel, bad SQL, a conflict
	BlameSuccess                // the node did its work
	BlameRefusal                // soft: the node answered, but has itself too much to do, or is not ready
	BlameTransport              // hard: the node could not be reached or the connection broke
	BlameDraining               // the node announced its shutdown
	BlameForeign                // the node serves another database: it has the address of one that left
)

func (b Blame) String() string {
	return [...]string{"none", "success", "refusal", "transport", "leaving", "foreign"}[b]
}

// Outcome is what came of one call to one node, as reported to
// internal/pessimize and internal/routing. Nobody else classifies calls:
// Blame comes from internal/ydbstatus.
type Outcome struct {
	Node    NodeID
	Kind    CallKind
	Blame   Blame
	Latency time.Duration // to the first part of the answer; 0 if none came
	Waits   bool          // a call during which the server itself may wait for a shard: its time says nothing of the node
	Waited  time.Duration // for an answer that had not come when the caller gave up or its time was over; 0 if one came
	Detail  string        // a constant text such as "UNAVAILABLE"; no ids, no addresses
	Lost    uint64        // number of the connection that ended under the call; 0: unknown. One connection is lost once

	Congestion Congestion // what has too much to do; CongestedNothing for other outcomes
	Subject    string     // the table or the resource pool that Congestion is about; "": unknown
}
