package wire

import (
	"bytes"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/codes"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// mostBytes is how long a message to YDB may be. A node refuses a longer one as it refuses what is too much for it.
const mostBytes = 64_000_000

var (
	errFullHouse = refusal{status: Ydb.StatusIds_OVERLOADED,
		text: "ydb-sidecar: as many sessions are open as wire.max_virtual_sessions allows"}
	errTicket = refusal{codes.Unavailable, Ydb.StatusIds_UNAVAILABLE,
		"ydb-sidecar: the sidecar has no credentials now; the call was not sent"}
	errNoTicket = refusal{codes.Unauthenticated, Ydb.StatusIds_UNAUTHORIZED,
		"ydb-sidecar: the call has no credentials (header x-ydb-auth-ticket), and would reach the cluster as the " +
			"sidecar itself, which shows it a certificate (ydb.cert_file): send a ticket, or set wire.auth=own for " +
			"everybody to work with the sidecar's credentials"}
	errDatabase = refusal{codes.PermissionDenied, Ydb.StatusIds_UNAUTHORIZED,
		"ydb-sidecar: this database is not served here: name that of ydb.url, or one of wire.databases"}
	errForm = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST,
		"ydb-sidecar: the message has a form that no client of YDB sends: a field that comes twice, both fields of " +
			"a oneof, or fields out of order"}
	errTooLarge = refusal{codes.ResourceExhausted, Ydb.StatusIds_BAD_REQUEST,
		"ydb-sidecar: the request is longer than 64,000,000 bytes, the most that YDB accepts: send less at a time"}
	errMessages = refusal{codes.InvalidArgument, Ydb.StatusIds_BAD_REQUEST,
		"ydb-sidecar: the request has more than one message, and the method takes one: send each message in a call of its own"}
)

// login is how clients get a ticket, which they do not have yet.
const login = "/Ydb.Auth.V1.AuthService/Login"

// proved refuses a call without a ticket where nodes are shown a certificate of the sidecar's: to them the call would be the
// sidecar's own, and with wire.auth=caller nobody works with its credentials.
func (s *Server) proved(c *h2.Call, k *call) error {
	if !s.strict || k.method != nil && k.method.Path == login {
		return nil
	}
	ticket := c.Header(headerTicket)
	if len(bytes.TrimSpace(ticket)) == 0 { // a node may not read the blanks
		return k.refuse(errNoTicket)
	}
	if c.Repeated(headerTicket) { // the node must not read another one
		c.Set(headerTicket, ticket)
	}
	return nil
}

// identify sees to the database and the credentials of a call: the caller's own, or the sidecar's.
func (f *frames) identify(c *h2.Call, k *call) (*caller, error) {
	who, refused := f.callerOf(c)
	if refused != nil {
		return nil, k.refuse(*refused)
	}
	if err := f.server.proved(c, k); err != nil {
		return nil, err
	}
	f.server.hide(c, who)
	if who.asked != who.Database || c.Repeated(headerDatabase) { // the node must not read another one than we did
		c.Set(headerDatabase, []byte(who.Database))
	}
	if !f.server.own && c.Repeated(headerTicket) {
		c.Set(headerTicket, []byte(who.Ticket))
	}
	if !f.server.own || k.method != nil && k.method.Path == login {
		return who, nil
	}
	switch ticket, err := f.server.deps.Ticket(); {
	case err != nil:
		return nil, k.refuse(errTicket)
	case ticket != "":
		c.Set(headerTicket, []byte(ticket))
	default:
		c.Remove(headerTicket)
	}
	return who, nil
}
