package cluster

// Congestion is what has too much to do, or is used up, when a node answers OVERLOADED,
// UNAVAILABLE or RESOURCE_EXHAUSTED. Most of it is not the node that answers.
type Congestion uint8

// The kinds of congestion.
const (
	CongestedNothing Congestion = iota
	CongestedUnknown            // the answer does not say what
	CongestedNode               // the node that answers
	CongestedTable              // a shard of a table
	CongestedDisk               // the database's disk space
	CongestedQuota              // the database's request units or rate
	CongestedPool               // a resource pool
	CongestionSize   = int(CongestedPool) + 1
)

func (c Congestion) String() string {
	return [...]string{"nothing", "unknown", "node", "table", "disk", "quota", "pool"}[c]
}
