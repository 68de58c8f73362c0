package snapshot

import "time"

// Stage is how far the process is in its life.
type Stage int32

// The stages, in their order.
const (
	Starting  Stage = iota
	Serving         // everything
	LameDuck        // by an operator: not ready and without optional work, but serves everything
	Leaving         // not ready, because the end has begun: drain.delay
	Draining        // refuses what is new
	LettingGo       // the last call and transaction are done; clients are let go
	Deleting        // deletes its sessions on their nodes
)

// String returns the stage in words.
func (s Stage) String() string {
	return [...]string{"starting", "serving", "lame duck", "leaving", "draining", "letting clients go", "deleting sessions"}[s]
}

// PhaseState is how far the process is, and why.
type PhaseState struct {
	Stage    Stage
	Since    time.Time
	Cause    string        // why it stops
	Deadline time.Time     // of the stage; zero: none
	Left     time.Duration // until the deadline; 0: it has none
}
