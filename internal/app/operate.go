package app

import (
	"fmt"
	"log/slog"

	"github.com/ydb-sidecar/sidecar/internal/admin"
)

// pools is what operators may do to the pool.
type pools struct{ *App }

var _ admin.Pool = pools{}

// Resize holds until a reload changes a setting of the pool.
func (p pools) Resize(most, least int) error {
	p.reload.births.Lock() // a reload in between would be undone
	defer p.reload.births.Unlock()
	at := p.core.pool
	c := at.Config()
	from := fmt.Sprintf("max %d, min %d", c.Max, c.Min)
	if most >= 0 {
		c.Max = most
	}
	if least >= 0 {
		c.Min = least
	} else {
		c.Min = min(c.Min, c.Max)
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("%w: %s", admin.ErrInvalid, FaultLine(err))
	}
	p.core.reconfigure(c)
	p.core.limits.Resize(lawOf(c))
	p.note("resized", from, fmt.Sprintf("max %d, min %d", c.Max, c.Min))
	return nil
}

func (p pools) Pause(on bool) error {
	p.reload.births.Lock() // a pool that is made in between would be missed
	defer p.reload.births.Unlock()
	switch was := p.core.pool.Paused(); {
	case was == on:
		return nil
	case on && p.phase.get() > lameDuck:
		return errStopping
	}
	p.pause(on)
	if on {
		p.note("paused", "running", "paused")
	} else {
		p.note("resumed", "paused", "running")
	}
	return nil
}

func (p pools) State() any { return p.views.PoolState() }

// note tells the log and the events what was done to the pool.
func (p pools) note(what, from, to string) {
	text := "the pool was " + what + " by an operator"
	p.log.Warn(text, "from", from, "to", to)
	p.events.Add(admin.Event{Kind: "pool", From: from, To: to, Reason: text})
}

// logging is what operators may do to the log.
type logging struct{ *App }

var _ admin.Logging = logging{}

func (l logging) Level() string { return l.level.Level().String() }

func (l logging) SetLevel(text string) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return fmt.Errorf("level = %.40q; want DEBUG, INFO, WARN or ERROR", text)
	}
	from := l.Level()
	l.level.Set(level)
	l.log.Warn("the level of the log was changed by an operator", "from", from, "to", level.String())
	return nil
}
