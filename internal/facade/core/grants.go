package core

import (
	"errors"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/audit"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Wish is what a call wants to do, as far as the grants of apps speak of it.
type Wish struct {
	Kind   apps.Calls
	Writes bool
	Table  string // absolute path; "": the call names none outside of its text
	Text   string // of a statement; "": there is none
	Plans  bool   // the text is only explained
	Keys   int    // rows that are asked for by their keys
}

// Allow checks what a call wants to do against the grants of its app. Every call that begins something
// asks before it does. What an app has begun it may end.
func (s *Service) Allow(c *Call, w Wish) error {
	g := c.App.Grants()
	if g == nil {
		return nil
	}
	err := s.granted(g, w)
	if e, ok := errors.AsType[*apps.NotGranted](err); ok {
		c.App.Deny(e.Grant)
		s.Deps.Audit.Denied(audit.Deed{
			Who: c.Caller.Proof(), App: e.App, What: c.Name, From: c.Caller.From(), TraceID: c.TraceID, Outcome: e.Words,
		})
	}
	return err
}

func (s *Service) granted(g *apps.Grants, w Wish) error {
	if err := g.Call(w.Kind, w.Writes); err != nil {
		return err
	}
	if err := g.Many(w.Keys); err != nil {
		return err
	}
	if w.Table != "" {
		if err := g.Table(s.relative(w.Table)); err != nil {
			return err
		}
	}
	if w.Text == "" {
		return nil
	}
	if !w.Plans {
		if err := g.Statement(yql.EffectsOf(w.Text) == yql.Reads); err != nil {
			return err
		}
	}
	if !g.OfTables() {
		return nil
	}
	tables, why := yql.Tables(w.Text)
	if why != "" {
		return g.Untold(why)
	}
	for _, table := range tables {
		if err := g.Table(s.relative(table)); err != nil {
			return err
		}
	}
	return nil
}

// relative is a path as grants name it: relative to the database, if it is in that.
func (s *Service) relative(path string) string {
	if rest, ok := strings.CutPrefix(path, s.Deps.Database); ok && (rest == "" || rest[0] == '/') {
		return strings.TrimPrefix(rest, "/")
	}
	return path
}

// Bounded is the settings of calls with the longest time that the app of a call may take. c notes whether that is shorter.
func (s *Service) Bounded(c *Call) *API {
	most := c.App.Grants().Timeout()
	if most == 0 || most >= s.Cfg.API.MaxTimeout {
		return &s.Cfg.API
	}
	own := s.Cfg.API
	own.MaxTimeout, own.Timeout = most, min(own.Timeout, most)
	return &own
}

// overtime names the grant that has a call end so early.
func (c *Call) overtime(f *Fault) *Fault {
	if c.App == nil || f.Code != CodeDeadline {
		return f
	}
	most := c.App.Grants().Timeout()
	if most == 0 {
		return f
	}
	return f.With(func(f *Fault) {
		f.Message += "; no call of app " + c.App.Name() + " takes longer than timeout=" + most.String() + " in apps.limits"
	})
}
