package findings

import "time"

// Picture is what the rules look at: the state of one moment. Counters are since
// the start. Wide: it has what each rule reads, and all rules read one.
type Picture struct {
	At    time.Time
	Stage string // of the process's life; "serving" is the usual one

	Pool        Pool
	Nodes       []Node
	Panic       bool // more than half of the nodes are ejected
	Discovery   Discovery
	SessionUses []SessionUse // sessions in use for at least a second, the longest first
	Apps        []App
	Statements  []Statement // of which there is something to say
	Answers     Answers

	Stalled     string // shards of the data path that do not turn, and for how long; "": all do
	Credentials string // why there are none, or why the cluster refuses them; "": they are good
	Denied      uint64 // calls that the cluster refused because of them
	MemoryTight bool
	Panics      Panics
	Config      Config
	HeldLong    time.Duration // from which on a holder is worth a finding; 0: never

	held bool // SESSIONS_HELD was found in it
}

// Pool is the pool of sessions. Wide: it has the figures that rules compare.
type Pool struct {
	Max, Limit, Sessions, Busy, Idle, Creating int
	Min                                        int
	Waiting                                    int
	Oldest                                     time.Duration // wait of the first caller in the queue
	Paused                                     bool

	Served, TimedOut, Refused, Shed, Created, Failed uint64
	OpenError                                        string // why the last session could not be opened; "": it could
	// calls told that sessions of wire.mode=session keep all sessions of their pool, this one or a
	// caller's
	Starved uint64
}

// lost is how many callers were sent away without a session.
func (p Pool) lost() uint64 { return p.TimedOut + p.Refused + p.Shed }

// Node is one node. Wide: it has the figures and marks that rules compare.
type Node struct {
	ID      uint32
	Address string
	Health  string // healthy, suspect, ejected, probing
	Cause   string // of the ejection
	Reason  string
	Since   time.Time
	Usable  bool // gets new work

	Unreachable, Banned, Draining bool
	BanReason                     string // what the operator said of the ban; "": nothing
	Gone                          bool   // it left discovery, and neither announced that nor was it drained
	Unwell                        bool   // discovery lists it as unhealthy
	Missing                       bool   // it vanished from discovery with many others, and is kept for now

	Latency   time.Duration // decayed, of calls that did their work; 0: none did within health.latency_window
	Median    time.Duration // of the newest statements
	Timed     uint64        // statements whose latency counted
	Succeeded uint64
	Refused   uint64 // calls that failed because something has too much to do, and nothing says what, or it is the node

	Tables, Disk, Quota, Pools Congested // calls that failed because of what is not the node
}

// Congested is how many calls failed because something had too much to do.
type Congested struct {
	Calls   uint64
	Subject string // the newest table or resource pool; "": unknown
}

func (n Node) out() bool { return n.Health == "ejected" || n.Health == "probing" }

// Discovery is the list of nodes.
type Discovery struct {
	Failures int // in a row
	Error    string
	Grace    time.Duration // for which missing nodes are kept
}

// SessionUse is a session in use.
type SessionUse struct {
	Session     string // short hash
	App         string
	Node        uint32
	Trace       string
	Held        time.Duration
	Transaction bool // it is open, whether a call runs or not
	Busy        bool // a call runs
}

// App is one app.
type App struct {
	Name    string
	Limited uint64 // calls rejected because of its limits
	Limit   string // the limit that rejected most, as apps.limits names it
	Waiting int64  // calls in the queue for a session
	Lost    uint64 // calls that got no session, for other reasons than its limits
}

// Config is what came of the last reload of the settings.
type Config struct {
	Fault   string   // why it failed; "": it did not
	Faults  int      // how many faults there were
	Pending []string // names of changed settings that wait for a restart
}

// Statement is a statement of which there is something to say.
type Statement struct {
	Digest string
	Kind   string // its first keyword; "": none
	App    string // of its last call
	Texts  int    // of one digest in the last five minutes; 0: not many

	Took, Usual time.Duration // medians at the nodes in the last minute and before; 0: not slow
	Calls       uint64        // in the last minute
}

// Answers are those of all statements since the start.
type Answers struct{ Calls, Bytes uint64 }

// since is how many bytes an answer had on average after others were counted; 0: unknown, or none had any.
func (a Answers) since(old Answers) uint64 {
	if a.Calls <= old.Calls || a.Bytes < old.Bytes {
		return 0
	}
	return (a.Bytes - old.Bytes) / (a.Calls - old.Calls)
}

// Panics are those that were caught since the start.
type Panics struct {
	Count uint64
	Where string    // of the last one
	At    time.Time // of the newest one; zero: there was none
}
