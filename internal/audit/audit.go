// Package audit writes the lines of the log that say who did what, and from where: one for each act of an
// operator, and one for each call or act that was denied. It owns Lines, which bounds the lines that others can cause.
//
// What always holds: a line has no statement, parameter, row or secret; every act has a line; of denials at
// most Rate a second have one, and the next line says how many had none.
package audit

import (
	"log/slog"
	"strings"
	"time"
)

// Deed is what somebody did, or wanted to do. What is empty is left out.
type Deed struct {
	Who     string // such as "uid 1000, pid 17" or "token of admin.token"
	App     string
	What    string // the act with its parameters, or the name of the call
	From    string // address, or the socket
	TraceID string
	Outcome string // of an act: its status; of a denial: the reason
}

// Log writes deeds. A nil one writes none. It is safe for concurrent use.
type Log struct {
	out     *slog.Logger
	denials Lines
}

// New returns a log that writes to out.
func New(out *slog.Logger) *Log { return &Log{out: out} }

// Acted writes the line of an operator's act.
func (l *Log) Acted(d Deed) {
	if l != nil {
		l.out.Info("an operator acted", d.fields()...)
	}
}

// Denied writes the line of a denial, if there is room for it.
func (l *Log) Denied(d Deed) {
	if l == nil {
		return
	}
	without, ok := l.denials.Take(time.Now())
	if !ok {
		return
	}
	fields := d.fields()
	if without > 0 {
		fields = append(fields, "denials_without_a_line", without)
	}
	l.out.Info("denied", fields...)
}

// mostText bounds what a line has of a text that a caller may choose, in bytes.
const mostText = 300

// clip shortens such a text.
func clip(text string) string {
	if len(text) <= mostText {
		return text
	}
	return strings.ToValidUTF8(text[:mostText], "") + "..."
}

// fields are the parts of a line that are known.
func (d *Deed) fields() []any {
	var all []any
	for _, f := range [][2]string{
		{"who", d.Who}, {"app", d.App}, {"what", clip(d.What)}, {"from", d.From}, {"outcome", d.Outcome}, {"trace_id", d.TraceID},
	} {
		if f[1] != "" {
			all = append(all, f[0], f[1])
		}
	}
	return all
}
