package audit

import (
	"sync"
	"time"
)

// Rate is the most lines a second that Lines has room for, which may come at once.
const Rate = 10

// Lines is the room in the log for lines of one kind whose number others decide. The zero value has all of it. It is
// safe for concurrent use.
type Lines struct {
	mu      sync.Mutex // guards what follows
	second  time.Time  // when these lines began
	lines   int
	without uint64 // events since the last line
}

// Take takes a line of this second for an event, and returns how many events had none since the last one. false:
// there is no room for it.
func (l *Lines) Take(now time.Time) (without uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.second) >= time.Second {
		l.second, l.lines = now, 0
	}
	if l.lines++; l.lines > Rate {
		l.without++
		return 0, false
	}
	without, l.without = l.without, 0
	return without, true
}
