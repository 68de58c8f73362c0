// Package findings says in plain words what is wrong with a sidecar, its
// cluster or its apps, and what to do about it.
//
// It owns the list of codes, which the page, the commands, alerts and the
// runbook share, and the rules that lead to them. What always holds: the rules
// read one Picture, a short past of Pictures and which findings are on, and
// nothing else; it takes less for a finding to stay than to begin; a code never
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
	Warning Severity = "warning" // callers may suffer soon, or one app alone does
	Note    Severity = "note"    // an operator ordered it
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
	ConfigBad         Code = "CONFIG_BAD"
	ConfigPending     Code = "CONFIG_PENDING"
	StatementSlow     Code = "STATEMENT_SLOW"
	StatementTexts    Code = "STATEMENT_TEXTS"
)

// Kind describes a code.
type Kind struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	Meaning  string   `json:"meaning"`
	Do       string   `json:"do"` // what an operator does about it
	hold     int      // Pictures in a row that must show it
}

// Kinds are all codes, in the order in which a report lists findings of one severity:
// causes before their consequences.
var Kinds = []Kind{
	{ShardStalled, Problem,
		"A shard of the data path has not taken a turn for a second or more. Its clients wait, and /livez fails.",
		"If it lasts, restart the sidecar, as a liveness probe does. kill -QUIT writes the stacks of all goroutines to " +
			"the log and ends the process. Report them.",
		1},
	{CredentialsBad, Problem, "The cluster rejects the sidecar's credentials, or the sidecar cannot get any.",
		"Check ydb.auth, its files or variables, and the rights of the account. sidecar doctor tries them.", 1},
	{NoNode, Problem, "No node of the cluster can be used. Every call fails or waits.",
		"Run sidecar doctor. It shows which step of a connection fails: name, TCP, TLS, credentials, discovery.", 2},
	{NodeDead, Problem,
		"A node does not answer, or vanished from discovery without an announcement. Calls go to the other nodes. " +
			"Transactions on the node are lost.",
		"Run sidecar why NODE for the evidence, and repair the node. The sidecar uses it again as soon as it answers.",
		1},
	{NodeSlow, Problem, "A node is much slower than the others. It is a warning until the node is ejected for it.",
		"Run sidecar why NODE for the figures. Check the node's disk, CPU and network. sidecar ban NODE keeps new work off it.",
		1},
	{NodeRefuses, Problem, "A node rejects so many calls that it gets no new work for a time.",
		"Run sidecar why NODE for the statuses. The node is overloaded or shuts down.", 1},
	{NodePanic, Problem, "More than half of the nodes are ejected. Every node that answers at all is used.",
		"Check the cluster, and the network between it and this sidecar.", 1},
	{DiscoveryFails, Warning, "The list of nodes cannot be read. The last one stays in use.",
		"Run sidecar doctor, which tries it. Check ydb.url and the network.", 3},
	{NodesMissing, Warning,
		"Many nodes vanished from discovery at once. They are kept for three discovery intervals, at least 10 s, or " +
			"until each is known to be gone.",
		"Compare sidecar nodes with the cluster. Nodes that are gone leave by themselves. If the nodes run, repair the " +
			"server that answers discovery.",
		1},
	{SessionsFail, Problem, "No session can be opened.",
		"Read the cluster's answer in the message. sidecar doctor opens a session.", 3},
	{DiskFull, Problem, "The database has no disk space left and rejects writes. Reads and deletes work.",
		"Delete data, or raise the database's storage quota. Retries and other nodes do not help.", 2},
	{DatabaseQuota, Problem, "The database has used up its quota of request units and rejects a part of the calls.",
		"Raise the database's throughput limit, or send less (calls_per_second in apps.limits). Other nodes do not help.",
		2},
	{ResourcePoolFull, Problem, "The queue of a resource pool is full. It rejects statements.",
		"Send less through the pool, raise its CONCURRENT_QUERY_LIMIT or QUEUE_SIZE, or give the app a pool of its " +
			"own. Other nodes do not help.",
		2},
	{TableOverloaded, Warning, "A shard of a table is overloaded, splits or moves. It rejects a part of the calls.",
		"Look for hot keys, and turn on AUTO_PARTITIONING_BY_LOAD of the table that the message names. Other nodes do not help.",
		2},
	{ClusterOverloaded, Problem, "The cluster rejects a part of the calls with OVERLOADED or a similar status.",
		"Send less, or give the cluster more. pool.adaptive makes this sidecar send no more than the cluster can do.",
		2},
	{SessionsHeld, Problem, "One app holds so many sessions in open transactions that too few are left for others.",
		"Run sidecar sessions to see each session with its app, age and trace id. Shorten the app's transactions, or limit it " +
			"by sessions= in apps.limits. sidecar kill ends one session.",
		2},
	{Overload, Problem,
		"More calls come than the cluster can do. Callers wait or are rejected, and calls take longer than usual.",
		"Send less, or give the cluster more. A larger pool.max makes it worse.", 2},
	{PoolSmall, Problem, "All sessions are in use and callers wait, while the nodes are as fast as usual.",
		"Raise pool.max (sidecar resize -max N takes effect at once), or limit the app that the message names by apps.limits.", 2},
	{ClusterSlow, Warning, "Calls take much longer than usual on all nodes.",
		"If the message says that answers have grown as well, the nodes may be well: sidecar statements shows rows and bytes. " +
			"Otherwise check the cluster, and the network between it and this sidecar.",
		5},
	{StatementSlow, Warning, "A statement takes several times as long at the nodes as in the last hour, while other statements do not.",
		"Run sidecar statements for its figures, and Explain for its plan. Look for a table that grew, a missing index, or a changed plan.",
		3},
	{StatementTexts, Warning, "An app writes values into the text of a statement, so that the cluster compiles each text.",
		"Replace the values by parameters ($id), and keep ids and times out of comments. sidecar statements " +
			"shows the number of texts.",
		3},
	{QuotaReached, Warning, "An app reached its limit in apps.limits. Further calls of it are rejected.",
		"Raise the limit that the message names, or make the app send less.", 1},
	{MemoryShort, Problem, "Memory is short. Large requests and replies are rejected.",
		"Give the process more memory, or lower api.max_bytes and the sizes that apps ask for.", 1},
	{Panicked, Warning,
		"A part of the sidecar panicked in the last ten minutes. The call that it served failed. Everything else goes on.",
		"Report the stack in the log (place=, stack=). A restart does not remove the cause.",
		1},
	{ConfigBad, Warning,
		"The settings were not reloaded, because they have a fault. The old ones stay in force, but a restart would fail.",
		"Correct the fault that the message names. sidecar check-config -config FILE lists all faults of that file. sidecar " +
			"reload -admin HOST:PORT tries again, with the address of admin.listen.",
		1},
	{HeldLong, Warning, "One caller has held a session for longer than admin.held_long.",
		"Run sidecar sessions for its app and trace id. sidecar kill ends it.", 1},
	{PoolPaused, Note, "An operator paused calls. Calls of every API wait.", "Run sidecar resume to let them run.", 1},
	{NotServing, Note, "The sidecar is not ready: it starts, is a lame duck, or shuts down.",
		"If an operator made it a lame duck, run sidecar drain -off. Otherwise wait: GET /drain shows what it waits for.", 1},
	{ConfigPending, Note, "Changed settings wait for a restart.",
		"Restart the sidecar, or replace it by serve -takeover without a lost call. GET /reload lists the settings.", 1},
	{NodeBanned, Note, "An operator banned a node.", "Run sidecar unban NODE to use it again.", 1},
	{NodeDraining, Note,
		"A node is draining: it announced its shutdown, left discovery, or an operator drains it.",
		"Nothing. sidecar why NODE shows which of the three it is.", 1},
}

func kindOf(c Code) (rank int, k Kind) {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Code == c })
	return i, Kinds[i]
}

// Finding is one thing that is wrong, or that an operator ordered.
type Finding struct {
	Code     Code      `json:"code"`
	Severity Severity  `json:"severity"`
	Text     string    `json:"text"` // one sentence, with the figures
	Do       string    `json:"do"`
	Node     uint32    `json:"node,omitempty"`     // the node that it is about
	Address  string    `json:"address,omitempty"`  // address of the node
	App      string    `json:"app,omitempty"`      // the app that it is about
	Trace    string    `json:"trace_id,omitempty"` // of the call that began it
	Session  string    `json:"session,omitempty"`  // short hash
	Digest   string    `json:"digest,omitempty"`   // of the statement that it is about
	Since    time.Time `json:"since"`              // first seen, without a gap since
	Times    int       `json:"times"`              // how often it began in the last ten minutes
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
