package listen

import (
	"bytes"
	"log"
	"log/slog"
	"sync"
	"time"
)

// mostFaults is how many lines a second a server writes about connections whose peer breaks the rules.
const mostFaults = 10

// FaultLog is the log of a server of net/http, which writes a line for each connection whose peer breaks the rules of HTTP/2 or of
// TLS. Peers decide how many that are, so further lines of a second are only counted: the first line of a later one says how many.
func FaultLog(to *slog.Logger) *log.Logger { return log.New(&faultLog{to: to}, "", 0) }

type faultLog struct {
	to *slog.Logger

	mu      sync.Mutex // guards what follows
	second  time.Time  // when these lines began
	lines   int
	without int // errors since the last line
}

// Write implements io.Writer, for one line.
func (l *faultLog) Write(line []byte) (int, error) {
	if without, ok := l.take(time.Now()); ok {
		text := string(bytes.TrimSpace(line))
		if without > 0 {
			l.to.Warn(text, "errors_without_a_line", without)
		} else {
			l.to.Warn(text)
		}
	}
	return len(line), nil
}

// take takes a line of this second, and returns how many errors had none since the last one.
func (l *faultLog) take(now time.Time) (without int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.second) >= time.Second {
		l.second, l.lines = now, 0
	}
	if l.lines++; l.lines > mostFaults {
		l.without++
		return 0, false
	}
	without, l.without = l.without, 0
	return without, true
}
