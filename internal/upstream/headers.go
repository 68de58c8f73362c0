package upstream

import (
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// headers builds what goes with every call of the driver's own, once for each ticket.
func (d *Driver) headers(ticket string) (call, open metadata.MD) {
	return d.headersIn(d.endpoint.database, ticket)
}

func (d *Driver) headersIn(database, ticket string) (call, open metadata.MD) {
	call = metadata.Pairs(
		"x-ydb-database", database,
		"x-ydb-sdk-build-info", d.build,
	)
	if ticket != "" {
		call.Set("x-ydb-auth-ticket", ticket)
	}
	open = call.Copy()
	// We honour the hints to close a session, so the cluster may send them.
	open.Set("x-ydb-client-capabilities", "session-balancer")
	return call, open
}

// rejected has the ticket fetched anew when a node did not accept it.
func (d *Driver) rejected(e *Error) {
	if e.Unauthorized() {
		d.tickets.reject()
	}
}

// Unauthorized reports whether a node did not accept the ticket.
func (e *Error) Unauthorized() bool {
	return e.Status == Ydb.StatusIds_UNAUTHORIZED || (e.Status == 0 && e.Code == codes.Unauthenticated)
}
