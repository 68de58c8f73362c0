package devcluster

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Auth"
	"google.golang.org/protobuf/proto"
)

const loginMethod = "/Ydb.Auth.V1.AuthService/Login"

// tickets makes and checks the tickets of a cluster that asks for them.
type tickets struct {
	users map[string]string
	fixed []string
	life  time.Duration
	key   []byte
}

// newTickets returns nil for a cluster that is open to everybody. Nodes with
// the same users accept each other's tickets, also from before a restart.
func newTickets(c Config) *tickets {
	if len(c.Users) == 0 && len(c.Tokens) == 0 {
		return nil
	}
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

// check returns the user of a ticket.
func (t *tickets) check(ticket string) (string, error) {
	if ticket == "" {
		return "", fail(Ydb.StatusIds_UNAUTHORIZED, "Access denied: no ticket")
	}
	if slices.Contains(t.fixed, ticket) {
		return "token", nil
	}
	claims := &jwt.RegisteredClaims{}
	_, err := jwt.ParseWithClaims(ticket, claims, func(*jwt.Token) (any, error) { return t.key, nil },
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithExpirationRequired())
	if err != nil {
		return "", fail(Ydb.StatusIds_UNAUTHORIZED, "Access denied: %v", err)
	}
	return claims.Subject, nil
}

// authenticate checks the ticket of a client's call. An empty one counts as none.
func (c *call) authenticate() error {
	if c.tickets == nil || c.from || c.method.name == loginMethod {
		return nil
	}
	ticket := ""
	for _, v := range c.header[headerTicket] {
		if v != "" {
			ticket = v
			break
		}
	}
	user, err := c.tickets.check(ticket)
	if err != nil {
		return err
	}
	c.user = user
	return nil
}

func login(c *call, r *Ydb_Auth.LoginRequest) (proto.Message, error) {
	if c.tickets == nil {
		return nil, fail(Ydb.StatusIds_UNAUTHORIZED, "Invalid user name or password: the cluster has no users")
	}
	ticket, err := c.tickets.issue(r.GetUser(), r.GetPassword(), time.Now())
	if err != nil {
		return nil, err
	}
	return &Ydb_Auth.LoginResult{Token: ticket}, nil
}
