package facade

import (
	"context"
	"hash/maphash"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/ydb-sidecar/sidecar/internal/apps"
)

// The headers, of HTTP and of gRPC metadata, in which a caller says who it is, and how urgent its call is.
const (
	headerApp         = "X-Sidecar-App"
	headerApplication = "X-Ydb-Application-Name" // what YDB's SDKs send
	headerToken       = "Authorization"
	headerPriority    = "X-Ydb-Priority" // or just Priority
)

// userKey is where WithUser puts the user.
type userKey struct{}

// WithUser returns the context of a connection that a program of that user of this
// machine has made, as the kernel says.
func WithUser(ctx context.Context, uid uint32) context.Context {
	return context.WithValue(ctx, userKey{}, uid)
}

// inProcess is the network of the connections from the data path; see h2/driver.Local.
const inProcess = "local"

// userOf is the user that the program of a caller runs as, if the call came over a Unix socket. get is as for connectionOf.
func userOf(ctx context.Context, get func(string) string) (uid uint32, ok bool) {
	if uid, ok := ctx.Value(userKey{}).(uint32); ok {
		return uid, true
	}
	type local interface{ User() (uint32, bool) }
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(local); ok {
		return s.User()
	}
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return 0, false
	}
	if p.Addr.Network() == inProcess { // as in connectionOf
		o := apps.ParseOrigin(get(apps.HeaderOrigin))
		return o.User, o.Local
	}
	if a, ok := p.Addr.(local); ok {
		return a.User()
	}
	return 0, false
}

// callerOf is what a call says of its app.
func callerOf(ctx context.Context, get func(string) string, authorization []string) apps.Caller {
	c := callerBy(get(headerApp), get(headerApplication), authorization)
	c.Peer = ctx.Value(fromOther{}) != nil
	c.User, c.Local = userOf(ctx, get)
	return c
}

// callerBy is what the headers of a call say of its app.
func callerBy(app, application string, authorization []string) apps.Caller {
	c := apps.Caller{Name: app, Prove: true, Strict: true}
	if app == "" {
		c.Name, c.Strict = application, false
	}
	c.Bear(authorization)
	return c
}

// depart ends a call of its app. One that failed before it began anything costs no bytes,
// or an app that retries would never be out of debt.
func (c *call) depart(failed bool) {
	begun := c.admitted || c.handed || c.txTrace != nil
	if failed && !begun {
		c.bytes.Store(0)
	}
	c.app.Leave(int(c.bytes.Load()))
}

// count adds bytes of the request or of the answer, if somebody wants to know.
func (c *call) count(n int) {
	if c.app != nil {
		c.bytes.Add(int64(n))
	}
}

// pace counts bytes of a stream that may go on for ever, and holds it back while its
// app has had more than its rate.
func (c *call) pace(ctx context.Context, n int) error {
	wait := c.app.Spend(n)
	if wait == 0 {
		return nil
	}
	return rest(ctx, wait)
}

// fresh says whether work that belongs to nothing open may begin. A call is asked about once.
func (s *coreService) fresh(c *call) error {
	if c.admitted {
		return nil
	}
	return s.freshList(c, 1)
}

// freshEarly is fresh before the body is read, as far as that can be said then: how
// many statements a list has is in the body. A refusal counts in the class of the headers.
func (s *coreService) freshEarly(c *call) error {
	if class, err := classOf(c, ""); err == nil { // else the body may name another one
		c.class = class
	}
	if c.name == "Transact" || c.name == "Batch" {
		return s.gate.fresh()
	}
	return s.fresh(c)
}

// freshList is fresh for a list: its statements count as so many calls, all of them or none.
func (s *coreService) freshList(c *call, statements int) error {
	if err := s.gate.fresh(); err != nil {
		return err
	}
	err := c.app.AdmitAll(uint8(c.class), statements)
	c.admitted = err == nil
	return err
}

// kindOf is a number for a kind of work: a statement's text, or the name of a call.
func kindOf(text string) uint64 { return maphash.String(printSeed, text) }

// refusedFault is the fault of a call that its app has no room for.
func refusedFault(e *apps.Refusal) *fault {
	if e.Calls > 0 {
		return faultf(codeLimit, "%v", e).with(func(f *fault) { f.cause = e })
	}
	f := faultf(codeQuota, "%v", e)
	f.after, f.cause = e.Retry.Round(time.Millisecond), e
	return f
}
