package devcluster

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Auth"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const loginMethod = "/Ydb.Auth.V1.AuthService/Login"

// Auth says whether calls need a ticket.
type Auth string

// The ways to look at tickets. The empty one is AuthEnforced where there are users or
// tickets, and AuthOff where there are none.
const (
	AuthOff      Auth = "off"      // any ticket passes, and none; those that are not valid name no user
	AuthEnforced Auth = "enforced" // a call without a valid ticket ends with gRPC's UNAUTHENTICATED
)

// enforced says whether calls need a ticket.
func (c Config) enforced() bool {
	return c.Auth == AuthEnforced || c.Auth == "" && len(c.Users)+len(c.Tokens) > 0
}

// tickets makes and checks the tickets of a cluster.
type tickets struct {
	users map[string]string
	fixed []string
	life  time.Duration
	key   []byte
}

// newTickets prepares the tickets of a node. Nodes with the same users accept each
// other's tickets, also from before a restart.
func newTickets(c Config) *tickets {
	h := sha256.New()
	for _, user := range slices.Sorted(maps.Keys(c.Users)) {
		fmt.Fprintf(h, "%q %q\n", user, c.Users[user]) // a hash never fails to write
	}
	return &tickets{users: c.Users, fixed: c.Tokens, life: c.TicketLife, key: h.Sum(nil)}
}

// issue makes a JWT, which clients read for its expiry.
func (t *tickets) issue(user, password string, now time.Time) (string, error) {
	want, ok := t.users[user]
	if !ok || subtle.ConstantTimeCompare([]byte(want), []byte(password)) != 1 {
		return "", fail(Ydb.StatusIds_UNAUTHORIZED, "Invalid user name or password")
	}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Subject: user, IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(t.life)),
	}).SignedString(t.key)
}

// What the server says of tickets.
var (
	errNoTicket  = errors.New("No token provided")                      //lint:ignore ST1005 the server's words
	errBadTicket = errors.New("Could not find correct token validator") //lint:ignore ST1005 the server's words
)

// check returns the user of a ticket.
func (t *tickets) check(ticket string) (string, error) {
	if ticket == "" {
		return "", errNoTicket
	}
	if slices.Contains(t.fixed, ticket) {
		return "token", nil
	}
	claims := &jwt.RegisteredClaims{}
	_, err := jwt.ParseWithClaims(ticket, claims, func(*jwt.Token) (any, error) { return t.key, nil },
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithExpirationRequired())
	if err != nil {
		return "", errBadTicket
	}
	return claims.Subject, nil
}

// authenticate checks the ticket of a client's call, and its database if it has a ticket or
// needs one. An empty ticket counts as none. Whatever its method, the call ends before any service
// sees it if the cluster does not have the database, or if tickets are enforced and its ticket is not valid.
func (c *call) authenticate() error {
	if c.from || c.method.name == loginMethod {
		return nil
	}
	ticket := ""
	for _, v := range c.header[headerTicket] {
		if v != "" {
			ticket = v
			break
		}
	}
	if (ticket != "" || c.config.enforced()) && !c.config.has(c.database()) { // before the ticket itself
		return errUnauthenticated("unauthenticated, Unknown database")
	}
	c.user, c.anonymous = c.tickets.check(ticket)
	if c.anonymous != nil && c.config.enforced() {
		return errUnauthenticated("unauthenticated: { <main>: Error: " + c.anonymous.Error() + " }")
	}
	return nil
}

// database is what the header of the call names; "" if there is none.
func (c *call) database() string {
	values := c.header[headerDatabase]
	if len(values) == 0 {
		return ""
	}
	if plain, err := url.QueryUnescape(values[0]); err == nil {
		return plain
	}
	return values[0]
}

// has says whether a client that names this database means the one of the cluster. One that names none does.
func (c Config) has(database string) bool {
	database = strings.Trim(database, "/")
	return database == "" || "/"+database == c.Database
}

// errUnauthenticated is how the server refuses a call before any service sees it.
func errUnauthenticated(why string) error {
	return &transportError{status.Error(codes.Unauthenticated, "unauthenticated, "+why)}
}

func login(c *call, r *Ydb_Auth.LoginRequest) (proto.Message, error) {
	ticket, err := c.tickets.issue(r.GetUser(), r.GetPassword(), time.Now())
	if err != nil {
		return nil, err
	}
	return &Ydb_Auth.LoginResult{Token: ticket}, nil
}
