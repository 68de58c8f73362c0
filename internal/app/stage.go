package app

import "time"

// stage is how far the process is in its life.
type stage int32

const (
	starting  stage = iota
	serving         // everything
	lameDuck        // by an operator: not ready and without optional work, but serves everything
	leaving         // the same, because the end has begun: drain.delay
	draining        // refuses what is new
	lettingGo       // the last call and transaction are done; clients are let go
	deleting        // deletes its sessions on their nodes
)

func (s stage) String() string {
	return [...]string{"starting", "serving", "lame duck", "leaving", "draining", "letting clients go", "deleting sessions"}[s]
}

// phaseState is how far the process is, and why.
type phaseState struct {
	Stage    stage
	Since    time.Time
	Cause    string        // why it stops
	Deadline time.Time     // of the stage; zero: none
	Left     time.Duration // until the deadline; 0: it has none
}
