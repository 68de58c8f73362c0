package devcluster

import (
	"fmt"
	"strings"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// DrainMode is what the clients of a session hear when it is asked to close. It differs
// between versions of the server.
type DrainMode string

// The modes.
const (
	DrainStreams DrainMode = "streams" // attach streams get one more state and end; the sessions live on
	DrainSilent  DrainMode = "silent"  // nothing until the session ends; the server up to 25.1
	DrainHints   DrainMode = "hints"   // as streams, and the state names the reason; 26.2, with a feature flag
)

func (m DrainMode) valid() bool { return m == DrainStreams || m == DrainSilent || m == DrainHints }

// Limits say how long a session lives that was asked to close.
type Limits struct {
	Soft time.Duration // then the next statement is refused, and ends the session
	Hard time.Duration // then the session ends, and the statement that runs in it
}

func (l Limits) validate(name string) error {
	if l.Soft < 0 || l.Hard < l.Soft {
		return fmt.Errorf("%s: soft = %v, hard = %v; must be 0 <= soft <= hard", name, l.Soft, l.Hard)
	}
	return nil
}

// ParseLimits reads "soft,hard".
func ParseLimits(text string) (l Limits, err error) {
	soft, hard, ok := strings.Cut(text, ",")
	if !ok {
		return l, fmt.Errorf("%q; must be soft,hard, such as 2s,10s", text)
	}
	if l.Soft, err = time.ParseDuration(soft); err != nil {
		return l, err
	}
	if l.Hard, err = time.ParseDuration(hard); err != nil {
		return l, err
	}
	return l, l.validate("limits")
}

// Drain says how a node goes down in good order.
type Drain struct {
	Mode   DrainMode
	Notice time.Duration // from the end of its listing in discovery until clients hear of it
	Limits               // from then on; the node stops at the hard one
}

func (d Drain) validate() error {
	if !d.Mode.valid() {
		return fmt.Errorf("mode = %q; must be %q, %q or %q", d.Mode, DrainStreams, DrainSilent, DrainHints)
	}
	return d.Limits.validate("drain")
}

// drainOf reads the body of a drain.
func (b actionBody) drainOf(c Config) (Drain, error) {
	d := Drain{Mode: b.Mode, Notice: time.Duration(b.Notice), Limits: c.Shutdown}
	if b.Hints != nil || b.Grace != nil { // as bodies were until this version
		if b.Mode != "" || b.Soft != nil || b.Hard != nil {
			return d, fmt.Errorf("hints and grace are the old names; give mode, soft and hard alone")
		}
		grace := defaultGrace
		if b.Grace != nil {
			grace = time.Duration(*b.Grace)
		}
		d = Drain{Mode: DrainSilent, Notice: d.Notice, Limits: Limits{Soft: grace, Hard: grace}}
		if b.Hints != nil && *b.Hints {
			d.Mode = DrainHints
		}
		return d, nil
	}
	if d.Mode == "" {
		d.Mode = DrainStreams
	}
	d.Limits = b.limits(c.Shutdown)
	return d, d.validate()
}

// kickOf reads the body of a kick.
func (b actionBody) kickOf(c Config) (Drain, error) {
	d := Drain{Mode: b.Mode, Limits: b.limits(c.kick())}
	if d.Mode == "" {
		d.Mode = DrainStreams
	}
	return d, d.validate()
}

// limits are those of the body; def where it has none.
func (b actionBody) limits(def Limits) Limits {
	if b.Soft != nil {
		def.Soft = time.Duration(*b.Soft)
		if b.Hard == nil {
			def.Hard = max(def.Hard, def.Soft)
		}
	}
	if b.Hard != nil {
		def.Hard = time.Duration(*b.Hard)
		if b.Soft == nil {
			def.Soft = min(def.Hard, def.Soft)
		}
	}
	return def
}

// kick are the limits of a session that is asked to close for its own sake.
func (c Config) kick() Limits { return Limits{Soft: c.HintGrace, Hard: 2 * c.HintGrace} }

// What the server says, word for word.
const (
	textShutdown = "Cannot create session: system shutdown requested."
	textSoft     = "Session is under shutdown"
	textDeleted  = "Query execution is cancelled because session was requested to be closed."
)

// refusal is the answer to those who want a session. A CreateSession and the session that
// the server makes for a call without one are refused in different ways.
type refusal struct{ explicit, implicit error }

// shuttingDown is the refusal of a node that drains.
func shuttingDown() *refusal {
	return &refusal{
		explicit: &transportError{status.Error(codes.ResourceExhausted, textShutdown)},
		implicit: fail(Ydb.StatusIds_OVERLOADED, textShutdown),
	}
}

// always is a refusal that is the same for both.
func always(answer *statusError) *refusal { return &refusal{answer, answer} }

// errSoft is the answer to a statement on a session past its soft limit.
func errSoft() *statusError { return fail(Ydb.StatusIds_BAD_SESSION, textSoft) }

// errDeleted is the answer to the statement that runs in a session when that is deleted, or
// reaches its hard limit.
func errDeleted() *statusError { return fail(Ydb.StatusIds_CANCELLED, textDeleted) }

// errCut ends the calls that are left when a node that drained ends.
func errCut() error {
	return &transportError{status.Error(codes.Canceled, "the server stops")}
}
