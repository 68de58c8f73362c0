package listen

import (
	"bytes"
	"log"
	"log/slog"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/audit"
)

// FaultLog is the log of a server of net/http, which writes a line for each connection whose peer breaks the rules of HTTP/2 or of
// TLS. Peers decide how many that are, so of a second audit.Rate lines are written, and the next line says how many had none.
func FaultLog(to *slog.Logger) *log.Logger { return log.New(&faultLog{to: to}, "", 0) }

type faultLog struct {
	to     *slog.Logger
	faults audit.Lines
}

// Write implements io.Writer, for one line.
func (l *faultLog) Write(line []byte) (int, error) {
	if without, ok := l.faults.Take(time.Now()); ok {
		text := string(bytes.TrimSpace(line))
		if without > 0 {
			l.to.Warn(text, "errors_without_a_line", without)
		} else {
			l.to.Warn(text)
		}
	}
	return len(line), nil
}
