package upstream

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// headerUnits is the trailer in which a node reports the request units that a call consumed.
const headerUnits = "x-ydb-consumed-units"

// headers builds what goes with every call of the driver's own, once for each ticket.
func (d *Driver) headers(ticket string) (call, open metadata.MD) {
	return d.headersIn(d.endpoint.database, "", ticket)
}

// headersIn is headers for a database, and for sessions that bear an app's name; "": none.
func (d *Driver) headersIn(database, app, ticket string) (call, open metadata.MD) {
	call = metadata.Pairs(
		"x-ydb-database", database,
		"x-ydb-sdk-build-info", d.build,
	)
	if app != "" { // servers read it when a session is made
		call.Set("x-ydb-application-name", app)
	}
	if ticket != "" {
		call.Set("x-ydb-auth-ticket", ticket)
	}
	open = call.Copy()
	if d.config.SessionBalancer { // a server closes only sessions of clients that say so
		open.Set("x-ydb-client-capabilities", "session-balancer")
	}
	return call, open
}

// rejected has the ticket fetched again when a node did not accept it.
func (s *signIn) rejected(e *Error) {
	if e.Unauthorized() {
		s.tickets.reject()
	}
}

// Unauthorized reports whether a node did not accept the ticket: another one may be better.
func (e *Error) Unauthorized() bool { return e.Status == 0 && e.Code == codes.Unauthenticated }

// Denied reports whether a node accepted the ticket, and its user lacks a right.
func (e *Error) Denied() bool { return e.Status == Ydb.StatusIds_UNAUTHORIZED && !e.Foreign }
