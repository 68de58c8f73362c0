package wire

import (
	"context"
	"slices"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/internal/protocol"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
)

// caller is what the calls of a connection come with. It belongs to the connection's shard.
type caller struct {
	named
	virtual.Credentials        // their ticket and database are constant
	asked               string // database, as the client names it

	ticketVersion, databaseVersion uint64 // of the headers, see same
}

// A connection keeps the ticket and the names of its last call, before it is known whose the ticket is. gRPC's default, which
// YDB's nodes have, is to take no call with more than 16 KiB of headers.
const (
	mostTicket = 16 << 10
	mostName   = 1 << 10 // of the app, and of the database
)

var (
	errLongTicket = refusal{codes.Unauthenticated, Ydb.StatusIds_UNAUTHORIZED,
		"ydb-sidecar: the call's credentials (header x-ydb-auth-ticket) are longer than 16,384 bytes, more than a " +
			"node takes: use a shorter ticket; the call was not sent"}
	errLongName = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST,
		"ydb-sidecar: the name of the app (header x-ydb-application-name) or of the database (x-ydb-database) is " +
			"longer than 1,024 bytes: send a shorter one; the call was not sent"}
)

// mailbox is where a call, or the stream of a session, waits.
type mailbox struct {
	frames *frames
	ticket h2.Ticket
}

// Wake implements virtual.Waiter.
func (m mailbox) Wake() { m.frames.post(mail{ticket: m.ticket}) }

// End implements virtual.Stream.
func (m mailbox) End() {
	m.frames.post(mail{ticket: m.ticket, status: &h2.Status{Body: attachSession.Success("", nil)}})
}

// canonical is a database's path as the sidecar writes it: "/local".
func canonical(database string) string { return "/" + strings.Trim(database, "/") }

// served are the databases that clients may name, the sidecar's own first.
type served []string

func servedBy(config Config, deps Deps) served {
	all := served{canonical(deps.Database)}
	for _, database := range config.Databases {
		all = append(all, canonical(database))
	}
	return all
}

// path is that of a database as a client names it; ok is false if it is not served.
func (d served) path(name string) (path string, ok bool) {
	if name == "" {
		return d[0], true
	}
	path = canonical(name)
	return path, slices.Contains(d, path)
}

// newIdentities returns the identities of a server's callers.
func (s *Server) newIdentities(ctx context.Context, config Config) *virtual.IdentityPools {
	c := virtual.PoolsConfig{
		Cluster: s.deps.Cluster, Database: s.databases[0], Tables: config.TableSessions == TableSessionsOwn,
		Names: s.deps.Names, Weight: s.deps.Apps.Weight, Pools: s.deps.Pools, Refused: s.refused, Log: s.log,
	}
	if s.own {
		c.Own = s.deps.Pool // the plain API's
	}
	return virtual.NewIdentityPools(ctx, c)
}

// callerOf returns what a call comes with. The connection keeps it: usually there is
// nothing to do but to compare.
func (f *frames) callerOf(c *h2.Call) (*caller, *refusal) {
	own, conn := f.server.own, c.Client()
	last, ok := conn.Tag.(*caller)
	if who := last; ok && (own || same(c, headerTicket, &who.ticketVersion, who.Ticket)) &&
		same(c, headerDatabase, &who.databaseVersion, who.asked) && who.is(c, f.server.deps.Apps) {
		return who, nil
	}
	switch {
	case !own && len(c.Header(headerTicket)) > mostTicket:
		return nil, &errLongTicket
	case len(c.Header(headerDatabase)) > mostName:
		return nil, &errLongName
	}
	who := &caller{asked: string(c.Header(headerDatabase)), databaseVersion: c.Version(headerDatabase)}
	ticket := ""
	if !own {
		ticket, who.ticketVersion = string(c.Header(headerTicket)), c.Version(headerTicket)
	}
	database, served := f.server.databases.path(who.asked)
	if !served {
		return nil, &errDatabase
	}
	var refused *refusal
	if who.named, refused = f.introduce(c); refused != nil {
		return nil, refused
	}
	who.Credentials = virtual.NewCredentials(database, ticket)
	if who.ConnSessions = new(virtual.ConnSessions); ok {
		who.ConnSessions = last.ConnSessions
	}
	conn.Tag = who
	return who, nil
}

// identityOf returns the identity of a call. While it is not known, or has no pool yet, the error is
// h2.ErrPark, and the call goes on afterwards.
func (f *frames) identityOf(c *h2.Call, k *call, who *caller) (*virtual.IdentityPool, error) {
	ts, table := f.server.identities, k.method.Style == protocol.StyleOperation
	if t := ts.Known(&who.Credentials, table); t != nil {
		return t, nil
	}
	t, err := ts.Of(&who.Credentials, table, f.server.appOf(who), c.Client(), mailbox{f, c.Ticket()})
	return t, k.noIdentity(err)
}

// noIdentity is what a call is told that has no identity for that reason; nil: it has one.
func (k *call) noIdentity(err error) error {
	switch err {
	case nil:
		return nil
	case virtual.ErrAsked:
		return h2.ErrPark
	}
	return k.refuse(refusalOf(err, 0))
}

// appOf is the app whose name the sessions for a caller bear; nil: none.
func (s *Server) appOf(who *caller) *apps.App {
	if s.deps.Names == nil || !who.app.Named() {
		return nil
	}
	return who.app.App
}

// refused ends the wait of those calls for a session of t that came with a ticket for which
// a node opens none: see virtual.PoolsConfig.
func (s *Server) refused(t *virtual.IdentityPool, ticket string) {
	for _, f := range s.shards {
		f.post(mail{refused: t, ofTicket: ticket})
	}
}
