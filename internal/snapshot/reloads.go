package snapshot

import "sync"

// ReloadsState is what became of reloads of the configuration. Immutable.
type ReloadsState struct {
	Good, Bad int64
	Pending   []string // names of settings that need a restart
	Faults    []string // of the settings at the last reload; none: it was good
}

// Reloads counts reloads of the configuration. Its methods may be called from any goroutine.
type Reloads struct {
	mu  sync.Mutex // guards now
	now ReloadsState
}

// Done counts a reload after which these settings need a restart.
func (r *Reloads) Done(pending []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Good++
	r.now.Pending, r.now.Faults = pending, nil
}

// Failed counts a reload that changed nothing. faulty says whether that is because of the settings.
func (r *Reloads) Failed(faults []string, faulty bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Bad++
	if r.now.Faults = nil; faulty {
		r.now.Faults = faults
	}
}

// State returns the counts.
func (r *Reloads) State() ReloadsState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}
