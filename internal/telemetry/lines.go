package telemetry

import (
	"io"
	"sync"
	"time"
)

// maxWaiting is how many bytes of lines may wait for whoever reads the log.
const maxWaiting = 1 << 20

// Lines is a writer of whole lines that never waits for its reader: a pipe that nobody
// reads must hold up neither a call nor the end of the process. A goroutine writes, and
// lives while there is something to write; so many bytes may wait, and the lines beyond
// are dropped and counted. Safe for concurrent use.
//
// What the Go runtime says of a crash does not pass here: it goes to the descriptor itself.
type Lines struct {
	to io.Writer

	mu      sync.Mutex    // guards what follows
	waiting []byte        // whole lines
	spare   []byte        // room for the next ones
	idle    chan struct{} // closed when nothing is left to write; nil: nothing is
	lost    uint64        // lines that were dropped
	untold  uint64        // lines dropped since tell was called
	tell    func(lost uint64)
}

// NewLines returns a writer of lines to w.
func NewLines(w io.Writer) *Lines { return &Lines{to: w} }

// Write takes a line; p is not kept. It reports success in any case.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting)+len(p) > maxWaiting {
		l.lost++
		l.untold++
		return len(p), nil
	}
	l.waiting = append(l.waiting, p...)
	if l.idle == nil {
		l.idle = make(chan struct{})
		go l.write()
	}
	return len(p), nil
}

// write writes until nothing waits.
func (l *Lines) write() {
	for {
		l.mu.Lock()
		b, untold, tell := l.waiting, l.untold, l.tell
		if len(b) == 0 && (untold == 0 || tell == nil) {
			close(l.idle)
			l.idle = nil
			l.mu.Unlock()
			return
		}
		if len(b) == 0 { // the reader is back, and has what came before the gap
			l.untold = 0
			l.mu.Unlock()
			tell(untold)
			continue
		}
		l.waiting, l.spare = l.spare[:0], nil
		l.mu.Unlock()
		_, _ = l.to.Write(b) // there is no other place to say that it failed
		l.mu.Lock()
		l.spare = b[:0]
		l.mu.Unlock()
	}
}

// Lost is how many lines were dropped so far. A nil Lines has lost none.
func (l *Lines) Lost() uint64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// onLoss has tell called with the number of lines that were dropped, once those before
// them are written. No other line is written while tell runs: it writes to l.to itself.
func (l *Lines) onLoss(tell func(lost uint64)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell = tell
}

// Flush returns when all lines are written, or after limit.
func (l *Lines) Flush(limit time.Duration) {
	l.mu.Lock()
	idle := l.idle
	l.mu.Unlock()
	if idle == nil {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}
