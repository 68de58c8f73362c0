package wire

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/audit"
	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/h2/driver"
	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// class is that of all calls of SDKs, as apps count it.
const class = uint8(virtual.Class)

// named is the part of a caller that says which app it is.
type named struct {
	application string // as the client names itself
	token       string // of the sidecar; "": none
	generation  uint32 // of the apps, when app was found
	app         *apps.Stripe

	version uint64 // of the header that application came in, see same
}

// is reports whether a call comes with the same.
func (n *named) is(c *h2.Call, all *apps.Registry) bool {
	return same(c, headerApplication, &n.version, n.application) && n.generation == all.Generation() &&
		(!all.HasTokens() || !several(c) && string(tokenOf(c)) == n.token)
}

// same reports whether a header of a call has a value; version is that of the last call that had.
func same(c *h2.Call, name h2.Name, version *uint64, value string) bool {
	now := c.Version(name)
	if now == *version {
		return true
	}
	if string(c.Header(name)) != value {
		return false
	}
	*version = now
	return true
}

// introduce finds out which app a call comes from.
func (f *frames) introduce(c *h2.Call) (n named, refused *refusal) {
	if len(c.Header(headerApplication)) > mostName {
		return n, &errLongName
	}
	all := f.server.deps.Apps
	n = named{application: string(c.Header(headerApplication)), version: c.Version(headerApplication), generation: all.Generation()}
	by := n.caller(c)
	if all.HasTokens() {
		by.Bear(authorizations(c))
		n.token = by.Token
	}
	app, err := all.Of(by)
	if err != nil {
		r := refusalOf(err, 0)
		return n, &r
	}
	n.app = app.Stripe(f.number)
	return n, nil
}

// authorizations are the values of all headers Authorization.
func authorizations(c *h2.Call) (values []string) {
	c.Values(headerAuthorization, func(value []byte) { values = append(values, string(value)) })
	return values
}

// unproved reports whether a call of the plain API comes with no token of an app, while any app has
// one. What name it comes with is not for here.
func (s *Server) unproved(c *h2.Call) bool {
	all := s.deps.Apps
	if !all.HasTokens() {
		return false
	}
	by := new(named).caller(c)
	by.Prove = true
	by.Bear(authorizations(c))
	_, err := all.Of(by)
	return err != nil
}

// caller is what a call says of its app, the kernel of the user of its client, and TLS of its certificate.
func (n *named) caller(c *h2.Call) apps.Caller {
	by := apps.Caller{Name: n.application, Token: n.token}
	by.User, by.Local = driver.User(c.Client())
	by.Certificate = driver.Certificate(c.Client())
	return by
}

// tokenOf returns the token of the sidecar's that a call comes with, unless it has several authorizations.
func tokenOf(c *h2.Call) []byte { return apps.Bearer(c.Header(headerAuthorization)) }

// several reports whether a call may have more than one authorization, of which any can be
// the sidecar's: in several headers, or in one with commas.
func several(c *h2.Call) bool {
	return c.Repeated(headerAuthorization) || bytes.IndexByte(c.Header(headerAuthorization), ',') >= 0
}

// speakerOf is callerOf where nobody needs to know whose ticket it is.
func (f *frames) speakerOf(c *h2.Call) (*caller, *refusal) {
	conn := c.Client()
	if who, ok := conn.Tag.(*caller); ok && who.is(c, f.server.deps.Apps) {
		return who, nil
	}
	who := new(caller)
	var refused *refusal
	if who.named, refused = f.introduce(c); refused != nil {
		return nil, refused
	}
	conn.Tag = who
	return who, nil
}

// hide keeps tokens of the sidecar's from the nodes, each time that a call is routed. While any app has one, that is
// all there is in headers Authorization: a token that is misspelt is a secret, too. Nodes read x-ydb-auth-ticket.
func (s *Server) hide(c *h2.Call, who *caller) {
	if who.token != "" || s.deps.Apps.HasTokens() {
		c.Remove(headerAuthorization)
	}
}

// admit counts a call as one of its app, once. must: it is let in whatever the app's
// limits say, because something open depends on it.
func (f *frames) admit(c *h2.Call, k *call, who *caller, must bool) error {
	if k.app != nil {
		return nil
	}
	if !who.app.Enter() { // its place went to another name
		app, err := f.server.deps.Apps.Enter(who.caller(c), f.number)
		if err != nil {
			return k.refuse(refusalOf(err, 0))
		}
		who.app = app
	}
	if err := k.mayCome(c, who); err != nil {
		who.app.Leave(0)
		return err
	}
	if !must {
		if err := f.server.roomFor(c, k); err != nil {
			who.app.Leave(0)
			return err
		}
	}
	k.app = who.app
	if must {
		return nil
	}
	if err := k.app.Admit(class); err != nil {
		return k.refuse(refusalOf(err, 0))
	}
	return nil
}

// admit is admit of frames, except that a stream which keeps a session alive is no load: the limits of its app do not
// count it, and its grants hold for it.
func (k *call) admit(c *h2.Call, who *caller, must bool) error {
	if k.method == attachSession {
		return k.mayCome(c, who)
	}
	return k.frames.admit(c, k, who, must)
}

// mayCome checks the grants of an app. Calls go through unread, so an app whose grants are about what is in them may
// make none, also in a transaction that it opened before it had them.
func (k *call) mayCome(c *h2.Call, who *caller) error {
	err := who.app.Grants().SDK()
	if e, ok := errors.AsType[*apps.NotGranted](err); ok {
		who.app.Deny(e.Grant)
		by := who.caller(c)
		by.Remote = driver.Remote(c.Client())
		k.frames.server.deps.Audit.Denied(audit.Deed{
			Who: by.Proof(), App: e.App, What: string(c.Path()), From: by.From(), Outcome: e.Words,
		})
		return k.refuse(refusalOf(err, 0))
	}
	return nil
}

// roomFor refuses new large work while memory is short: a large request, and any of a
// client that leaves much of what it asked for waiting here.
func (s *Server) roomFor(c *h2.Call, k *call) error {
	g := s.deps.Memory
	if !g.Tight() {
		return nil
	}
	bytes, known := c.Announced()
	if !known && k.method != nil && k.method.Role == protocol.RoleNone && k.method.Kind == cluster.CallExecute {
		return h2.ErrNeedMessage // it is routed without: BulkUpsert
	}
	if why := g.Refuse(max(bytes, c.Client().Unread())); why != "" {
		return k.refuse(overloaded(why))
	}
	return nil
}

// consume counts the request units that a node reports in the headers or the trailer in hand. The
// client gets them as well.
func (k *call) consume(c *h2.Call) {
	if text := c.Header(headerUnits); text != nil {
		if units, err := strconv.ParseUint(string(text), 10, 63); err == nil {
			k.app.Consume(units)
		}
	}
}

// errand is what a call needs a session for.
func (k *call) errand() hop.Errand {
	return hop.Errand{App: k.app, Class: virtual.Class, Work: k.method.Work}
}

// answered counts what the pool said to a call of an app, and has the session know it.
func answered(app *apps.Stripe, g pool.Grant, err error) {
	e := hop.Errand{App: app, Class: virtual.Class}
	if e.Answered(g.Waited, err); err == nil {
		g.Session.User = app
	}
}

// remember keeps how long the call had a server session that it did not find bound.
func (k *call) remember(o *h2.Outcome) {
	l := &k.use
	if l.Server != nil && !l.Bound && o.Forwarded != 0 && (o.End == h2.Answered || o.End == h2.Expired) {
		k.errand().Took(o.Ended - o.Forwarded)
	}
}

// refusalOfApp returns the answer for a call that is rejected because of its app: shed, over a quota, or without the
// app's token. ok is false for any other error.
func refusalOfApp(err error) (r refusal, ok bool) {
	e, shed := errors.AsType[*pool.ShedError](err)
	_, quota := errors.AsType[*apps.Refusal](err)
	_, denied := errors.AsType[apps.Denial](err)
	_, granted := errors.AsType[*apps.NotGranted](err)
	switch {
	case shed && e.Why == pool.ShedDeadline:
		return overloaded("SHED_DEADLINE: " + err.Error() + "; the call was not sent: wait, give it more time, or raise pool.max"), true
	case shed:
		return overloaded("SHED_DELAY: " + err.Error() + "; the call was not sent: slow down, or raise pool.max"), true
	case quota:
		return overloaded("QUOTA_EXCEEDED: " + err.Error() + "; the call was not sent"), true
	case granted:
		return refusal{codes.PermissionDenied, Ydb.StatusIds_UNAUTHORIZED,
			"ydb-sidecar: APP_DENIED: " + err.Error() + "; the call was not sent"}, true
	case denied:
		return refusal{codes.PermissionDenied, Ydb.StatusIds_UNAUTHORIZED, "ydb-sidecar: " + err.Error() + "; the call was not sent"}, true
	}
	return r, false
}
