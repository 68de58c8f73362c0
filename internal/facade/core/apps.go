package core

import (
	"cmp"
	"context"
	"hash/maphash"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/ydb-sidecar/sidecar/internal/apps"
)

// The headers, of HTTP and of gRPC metadata, in which a caller says who it is, and how urgent its call is.
const (
	HeaderApp         = "X-Sidecar-App"
	headerApplication = "X-Ydb-Application-Name" // what YDB's SDKs send
	HeaderToken       = "Authorization"
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

// userOf is the user that the program of a caller runs as, if the call came over a Unix socket. get is as for ConnectionOf.
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
	if p.Addr.Network() == inProcess { // as in ConnectionOf
		o := apps.ParseOrigin(get(apps.HeaderOrigin))
		return o.User, o.Local
	}
	if a, ok := p.Addr.(local); ok {
		return a.User()
	}
	return 0, false
}

// CallerOf is what a call says of its app.
func CallerOf(ctx context.Context, get func(string) string, authorization []string) apps.Caller {
	c := CallerBy(get(HeaderApp), get(headerApplication), authorization)
	c.Peer = ctx.Value(FromOther{}) != nil
	c.User, c.Local = userOf(ctx, get)
	c.Remote, c.Certificate = remoteOf(ctx, get), certificateOf(ctx, get)
	return c
}

// remoteOf is the address of a caller; nil: nobody knows. get is as for ConnectionOf.
func remoteOf(ctx context.Context, get func(string) string) net.Addr {
	if k := ConnectionIn(ctx); k != nil {
		return k.Remote
	}
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ Remote() net.Addr }); ok {
		return s.Remote()
	}
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return nil
	}
	if p.Addr.Network() != inProcess {
		return p.Addr
	}
	if from := apps.ParseOrigin(get(apps.HeaderOrigin)).Remote; from.IsValid() { // as in ConnectionOf
		return net.TCPAddrFromAddrPort(from)
	}
	return nil
}

// certificateOf is what the client of a call of gRPC has shown by TLS, verified; nil: nothing. get is as for
// ConnectionOf. A request of HTTP has it in its TLS.
func certificateOf(ctx context.Context, get func(string) string) *apps.Certificate {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ Certificate() *apps.Certificate }); ok {
		return s.Certificate()
	}
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return nil
	}
	if p.Addr.Network() == inProcess { // as in ConnectionOf
		return apps.ParseOrigin(get(apps.HeaderOrigin)).Certificate
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		return apps.CertificateOf(info.State.VerifiedChains)
	}
	return nil
}

// CallerBy is what the headers of a call say of its app.
func CallerBy(app, application string, authorization []string) apps.Caller {
	c := apps.Caller{Name: app, Prove: true, Strict: true}
	if app == "" {
		c.Name, c.Strict = application, false
	}
	c.Bear(authorization)
	return c
}

// depart ends a call of its app. One that failed before it began anything costs no bytes,
// or an app that retries would never be out of debt.
func (c *Call) depart(failed bool) {
	begun := c.admitted || c.handed || c.txTrace != nil
	if failed && !begun {
		c.bytes.Store(0)
	}
	c.App.Leave(int(c.bytes.Load()))
}

// Count adds bytes of the request or of the answer, if somebody wants to know.
func (c *Call) Count(n int) {
	if c.App != nil {
		c.bytes.Add(int64(n))
	}
}

// Pace counts bytes of a stream that may go on for ever, and holds it back while its
// app has had more than its rate.
func (c *Call) Pace(ctx context.Context, n int) error {
	wait := c.App.Spend(n)
	if wait == 0 {
		return nil
	}
	return Rest(ctx, wait)
}

// Fresh says whether work that belongs to nothing open may begin. A call is asked about once.
func (s *Service) Fresh(c *Call) error {
	if c.admitted {
		return nil
	}
	return s.freshList(c, 1)
}

// FreshEarly is fresh before the body is read, as far as that can be said then: how
// many statements a list has is in the body. A refusal counts in the class of the headers.
func (s *Service) FreshEarly(c *Call) error {
	if class, err := ClassOf(c, ""); err == nil { // else the body may name another one
		c.Class = class
	}
	if c.Name == "Transact" || c.Name == "Batch" {
		return s.gate.fresh()
	}
	return s.Fresh(c)
}

// freshList is fresh for a list: its statements count as so many calls, all of them or none.
func (s *Service) freshList(c *Call, statements int) error {
	if err := s.gate.fresh(); err != nil {
		return err
	}
	err := c.App.AdmitAll(uint8(c.Class), statements)
	c.admitted = err == nil
	return err
}

// kindOf is a number for a kind of work: a statement's text, or the name of a call.
func kindOf(text string) uint64 { return maphash.String(printSeed, text) }

// refusedFault is the fault of a call that its app has no room for.
func refusedFault(e *apps.Refusal) *Fault {
	if e.Calls > 0 {
		return Faultf(CodeLimit, "%v", e).With(func(f *Fault) { f.Cause = e })
	}
	f := Faultf(CodeQuota, "%v", e)
	f.After, f.Cause = cmp.Or(e.Retry.Round(time.Millisecond), f.After), e
	return f
}
