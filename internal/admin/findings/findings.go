// Package findings says in plain words what is wrong with a sidecar, its
// cluster or its apps, and what to do about it.
//
// It owns the list of codes, which the page, the commands, alerts and the
// runbook share, and the rules that lead to them. What always holds: the rules
// read one Picture and a short past of Pictures, and nothing else; a code never
// changes its meaning; at most maxFindings are reported at a time; no text has a
// statement, a parameter, a credential or the id of a session in it.
package findings

import (
	"cmp"
	"slices"
	"time"
)

// Severity says how bad a finding is.
type Severity string

// The severities, worst first.
const (
	Problem Severity = "problem" // callers suffer
	Warning Severity = "warning" // they may soon, or less is left to spare
	Note    Severity = "note"    // as somebody ordered
)

func (s Severity) rank() int { return slices.Index([]Severity{Problem, Warning, Note}, s) }

// Code is the stable name of a kind of finding.
type Code string

// The codes.
const (
	ShardStalled      Code = "SHARD_STALLED"
	CredentialsBad    Code = "CREDENTIALS_BAD"
	NoNode            Code = "NO_NODE"
	NodeDead          Code = "NODE_DEAD"
	NodeSlow          Code = "NODE_SLOW"
	NodeRefuses       Code = "NODE_REFUSES"
	NodePanic         Code = "NODES_MOSTLY_OUT"
	NodeBanned        Code = "NODE_BANNED"
	NodeDraining      Code = "NODE_LEAVING"
	DiscoveryFails    Code = "DISCOVERY_FAILS"
	NodesMissing      Code = "NODES_MISSING"
	SessionsFail      Code = "SESSIONS_FAIL"
	SessionsHeld      Code = "SESSIONS_HELD"
	HeldLong          Code = "HELD_LONG"
	PoolSmall         Code = "POOL_SMALL"
	PoolPaused        Code = "POOL_PAUSED"
	Overload          Code = "OVERLOAD"
	ClusterOverloaded Code = "CLUSTER_OVERLOADED"
	DiskFull          Code = "DISK_FULL"
	DatabaseQuota     Code = "DATABASE_QUOTA"
	ResourcePoolFull  Code = "RESOURCE_POOL_FULL"
	TableOverloaded   Code = "TABLE_OVERLOADED"
	ClusterSlow       Code = "CLUSTER_SLOW"
	QuotaReached      Code = "QUOTA_REACHED"
	MemoryShort       Code = "MEMORY_SHORT"
	NotServing        Code = "NOT_SERVING"
	Panicked          Code = "PANICKED"
	StatementSlow     Code = "STATEMENT_SLOW"
	StatementTexts    Code = "STATEMENT_TEXTS"
)

// Kind is what there is to know of a code.
type Kind struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	Meaning  string   `json:"meaning"`
	Do       string   `json:"do"` // what an operator does about it
	hold     int      // Pictures in a row that must show it
}

// Kinds are all codes, in the order in which findings of one severity are told:
// causes before what follows from them.
var Kinds = []Kind{
	{ShardStalled, Problem,
		"A shard of the data path has not turned for a second or more: its clients wait. /livez fails.",
		"Should it last, restart the sidecar, as a liveness probe does. kill -QUIT writes the stacks of all " +
			"goroutines to the log and ends it: report them.",
		1},
	{CredentialsBad, Problem, "The cluster does not accept the sidecar's credentials, or they cannot be had.",
		"Check ydb.auth and its files or variables, and the rights of the account; sidecar doctor tries them.", 1},
	{NoNode, Problem, "No node of the cluster can be used: every call fails or waits.",
		"sidecar doctor says how far a connection gets: name, TCP, TLS, credentials, discovery.", 2},
	{NodeDead, Problem,
		"A node does not answer, or left discovery without announcing it. Work goes to the others; transactions on it are lost.",
		"sidecar why NODE has the evidence. Look at the node; nothing needs to be done here, it is taken back when it answers.",
		1},
	{NodeSlow, Problem, "A node is much slower than the others.",
		"sidecar why NODE has the figures. Look at its disk, CPU and network; sidecar ban NODE keeps new work off it.",
		1},
	{NodeRefuses, Problem, "A node refuses so many calls that it gets no more for a time.",
		"sidecar why NODE has the statuses. The node is overloaded or stops.", 1},
	{NodePanic, Problem, "More than half of the nodes are out: those that answer at all are used.",
		"Look at the cluster, or at the network from here to it.", 1},
	{DiscoveryFails, Warning, "The list of nodes cannot be read; the last one is used.",
		"sidecar doctor tries it. Check ydb.url and the network.", 3},
	{NodesMissing, Warning,
		"Many nodes vanished from discovery at once. They are kept for three discovery intervals, at least 10 s, or " +
			"until each is known to be gone.",
		"Compare sidecar nodes with the cluster. Nodes that are gone leave by themselves; if they run, look at the " +
			"server that answers discovery.",
		1},
	{SessionsFail, Problem, "No session can be opened.", "The message has the cluster's answer; sidecar doctor opens one.", 3},
	{DiskFull, Problem, "The database has no disk space left: it rejects writes. Reads and deletes work.",
		"Delete data, or raise the database's storage quota. Retries and other nodes do not help.", 2},
	{DatabaseQuota, Problem, "The database's quota of request units is used up: it rejects a part of the calls.",
		"Raise the database's throughput limit, or send less (calls_per_second in apps.limits). Other nodes do not help.",
		2},
	{ResourcePoolFull, Problem, "The queue of a resource pool is full: it rejects statements.",
		"Send less through the pool, raise its CONCURRENT_QUERY_LIMIT or QUEUE_SIZE, or give the app a pool of its " +
			"own. Other nodes do not help.",
		2},
	{TableOverloaded, Warning, "A shard of a table is overloaded, splits or moves: it rejects a part of the calls.",
		"Look for hot keys and turn on AUTO_PARTITIONING_BY_LOAD of the table that the message names. Other nodes do not help.",
		2},
	{ClusterOverloaded, Problem, "The cluster answers OVERLOADED and the like to a part of the calls.",
		"Send less, give the cluster more, or turn on pool.adaptive so that this sidecar takes no more than the cluster bears.",
		2},
	{SessionsHeld, Problem, "One app holds so many sessions in open transactions that too few are left for others.",
		"sidecar sessions lists who holds what since when, with trace ids. Shorten the app's transactions, bound it " +
			"by sessions= in apps.limits; sidecar kill ends one.",
		2},
	{Overload, Problem,
		"More work comes than is done: callers wait or are turned away, and the calls take longer than they did.",
		"Send less, or give the cluster more. A larger pool.max makes it worse.", 2},
	{PoolSmall, Problem, "All sessions are in use and callers wait, while the nodes are fast.",
		"Raise pool.max (sidecar resize -max N does at once).", 2},
	{ClusterSlow, Warning, "All nodes are much slower than they were.", "Look at the cluster, or at the network from here to it.", 5},
	{StatementSlow, Warning, "A statement takes several times as long at the nodes as it did in the last hour, while others do not.",
		"sidecar statements has its figures, and Explain its plan. Look for a table that grew, a missing index, or a changed plan.", 3},
	{StatementTexts, Warning, "An app writes values into the text of a statement: the cluster compiles each of them.",
		"Write parameters ($id) in place of values, and keep ids and times out of comments. sidecar statements " +
			"shows how many texts there are.",
		3},
	{QuotaReached, Warning, "An app is refused because it uses as much as apps.limits lets it.",
		"Raise the limit that the message names, or have the app send less.", 1},
	{MemoryShort, Problem, "Memory is short: large work is refused.",
		"Give the process more memory, or lower api.max_bytes and the sizes that apps ask for.", 1},
	{Panicked, Warning,
		"A part of the sidecar panicked in the last ten minutes: what it did for one caller failed, everything else goes on.",
		"The log has the stack (place=, stack=): report it. Nothing needs to be done here; a restart does not help against what causes it.",
		1},
	{HeldLong, Warning, "A session has been held by one caller for longer than admin.held_long.",
		"sidecar sessions shows the app and the trace id; sidecar kill ends it.", 1},
	{PoolPaused, Note, "An operator paused calls: those of every API wait.", "sidecar resume lets it go on.", 1},
	{NotServing, Note, "The sidecar is not ready: it starts, is a lame duck, or ends.", "sidecar drain -off takes a lame duck back.", 1},
	{NodeBanned, Note, "An operator banned a node.", "sidecar unban NODE takes it back.", 1},
	{NodeDraining, Note,
		"A node is leaving: it announced its shutdown, is gone from discovery, or an operator drains it.",
		"sidecar why NODE says which. Nothing needs to be done here.", 1},
}

func kindOf(c Code) (rank int, k Kind) {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Code == c })
	return i, Kinds[i]
}

// Finding is one thing that is wrong, or that somebody ordered.
type Finding struct {
	Code     Code      `json:"code"`
	Severity Severity  `json:"severity"`
	Text     string    `json:"text"` // one sentence, with the figures
	Do       string    `json:"do"`
	Node     uint32    `json:"node,omitempty"` // the node that it is about
	App      string    `json:"app,omitempty"`
	Trace    string    `json:"trace_id,omitempty"` // of the call that began it
	Session  string    `json:"session,omitempty"`  // short hash
	Digest   string    `json:"digest,omitempty"`   // of the statement that it is about
	Since    time.Time `json:"since"`              // first seen, without a gap since
}

// Report is the findings of one moment.
type Report struct {
	At       time.Time `json:"at"`
	Summary  string    `json:"summary"` // the worst one, or that nothing is wrong
	Findings []Finding `json:"findings"`
}

// maxFindings bounds a report.
const maxFindings = 50

func sorted(all []Finding) []Finding {
	slices.SortStableFunc(all, func(a, b Finding) int {
		i, _ := kindOf(a.Code)
		j, _ := kindOf(b.Code)
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(i, j), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.App, b.App), a.Since.Compare(b.Since))
	})
	return all[:min(len(all), maxFindings)]
}

func summaryOf(all []Finding) string {
	for _, f := range all {
		if f.Severity != Note {
			return f.Text
		}
	}
	return "nothing is wrong"
}
