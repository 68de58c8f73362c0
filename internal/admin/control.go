package admin

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// What errors of Deps are to be: of a node, a session or a call that nobody knows, and of
// what a request asks that cannot be.
var (
	ErrUnknown = errors.New("no such node")
	ErrSession = errors.New("no such session")
	ErrCall    = errors.New("no such call")
	ErrInvalid = errors.New("cannot be")
)

// maxReason bounds what an operator may give as a reason, in bytes.
const maxReason = 200

// Nodes is what an operator may do to the nodes of the cluster.
type Nodes interface {
	// Ban keeps new work off a node for d; 0: until Unban.
	Ban(id cluster.NodeID, d time.Duration, reason string) error
	Unban(id cluster.NodeID) error
	// Drain empties a node until Undrain.
	Drain(id cluster.NodeID) error
	Undrain(id cluster.NodeID) error
	// Why explains what is thought of a node; nil: it is not known.
	Why(id cluster.NodeID) any
}

// Process is what an operator may do to the sidecar itself.
type Process interface {
	// LameDuck makes the sidecar not ready while it serves everything, or takes
	// that back.
	LameDuck(on bool) error
	// Stop is what SIGTERM does. grace is in place of drain.grace; negative: that.
	Stop(grace time.Duration) error
	// Progress is what GET /drain shows.
	Progress() any
}

// Pool is what an operator may do to the pool.
type Pool interface {
	// Resize changes the most and the least sessions; negative: as it is.
	Resize(most, least int) error
	// Pause has callers wait in the queue, or lets them go on.
	Pause(on bool) error
	// State is what the answer to these shows.
	State() any
}

// Logging is what an operator may do to the log.
type Logging interface {
	Level() string
	SetLevel(level string) error
}

// actions are the endpoints that do something, and what operators look at to decide.
func (s *Server) actions() map[string]action {
	all := map[string]action{
		"GET /drain":          func(*http.Request) (any, error) { return s.deps.Process.Progress(), nil },
		"POST /drain":         s.drain,
		"GET /nodes/{id}/why": s.node(func(cluster.NodeID, *http.Request) error { return nil }),

		"POST /nodes/{id}/ban":     s.node(s.ban),
		"POST /nodes/{id}/unban":   s.node(func(id cluster.NodeID, _ *http.Request) error { return s.deps.Nodes.Unban(id) }),
		"POST /nodes/{id}/drain":   s.node(func(id cluster.NodeID, _ *http.Request) error { return s.deps.Nodes.Drain(id) }),
		"POST /nodes/{id}/undrain": s.node(func(id cluster.NodeID, _ *http.Request) error { return s.deps.Nodes.Undrain(id) }),

		"GET /reload":  func(*http.Request) (any, error) { return s.deps.Reloaded(), nil },
		"POST /reload": s.reload,

		"POST /pool/resize": s.resize,
		"POST /pool/pause":  func(*http.Request) (any, error) { return s.pool(s.deps.Pool.Pause(true)) },
		"POST /pool/resume": func(*http.Request) (any, error) { return s.pool(s.deps.Pool.Pause(false)) },

		"POST /sessions/{id}/kill": func(r *http.Request) (any, error) { return s.deps.Kill(r.PathValue("id")) },

		"POST /calls/{id}/kill": func(r *http.Request) (any, error) { return s.deps.EndCall(r.PathValue("id")) },

		"GET /logging": func(*http.Request) (any, error) { return s.level(), nil },
		"POST /logging": func(r *http.Request) (any, error) {
			if err := s.deps.Logging.SetLevel(r.URL.Query().Get("level")); err != nil {
				return nil, badRequest(err.Error())
			}
			return s.level(), nil
		},
	}
	process := func(do func() error) action {
		return func(*http.Request) (any, error) {
			if err := do(); err != nil {
				return nil, err
			}
			return s.deps.Process.Progress(), nil
		}
	}
	all["POST /quitquitquit"] = process(func() error { return s.deps.Process.Stop(-1) })
	all["POST /shutdown"] = all["POST /quitquitquit"]
	all["POST /healthcheck/fail"] = process(func() error { return s.deps.Process.LameDuck(true) })
	all["POST /healthcheck/ok"] = process(func() error { return s.deps.Process.LameDuck(false) })
	return all
}

func (s *Server) level() any { return map[string]string{"level": s.deps.Logging.Level()} }

func (s *Server) pool(err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return s.deps.Pool.State(), nil
}

func (s *Server) resize(r *http.Request) (any, error) {
	query, to := r.URL.Query(), [2]int{-1, -1}
	for i, name := range []string{"max", "min"} {
		if text := query.Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				return nil, badRequest(fmt.Sprintf("%s = %.40q; want a number of sessions", name, text))
			}
			to[i] = n
		}
	}
	if to == [2]int{-1, -1} {
		return nil, badRequest("want max, min or both: sessions")
	}
	return s.pool(s.deps.Pool.Resize(to[0], to[1]))
}

// badRequest is a fault of the request.
type badRequest string

func (b badRequest) Error() string { return string(b) }

func statusOf(err error) int {
	_, bad := errors.AsType[badRequest](err)
	switch {
	case bad || errors.Is(err, ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, ErrUnknown) || errors.Is(err, ErrSession) || errors.Is(err, ErrCall):
		return http.StatusNotFound
	default:
		return http.StatusConflict
	}
}

// node makes an endpoint of an act on one node; it answers with why the node is
// where it is.
func (s *Server) node(act func(cluster.NodeID, *http.Request) error) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		n, err := strconv.ParseUint(r.PathValue("id"), 10, 32)
		if err != nil || n == 0 {
			return nil, badRequest(fmt.Sprintf("%.40q is not the number of a node; sidecar nodes lists them",
				r.PathValue("id")))
		}
		id := cluster.NodeID(n)
		if err := act(id, r); err != nil {
			return nil, err
		}
		if why := s.deps.Nodes.Why(id); why != nil {
			return why, nil
		}
		return nil, fmt.Errorf("%w: %d; sidecar nodes lists them", ErrUnknown, id)
	}
}

func (s *Server) ban(id cluster.NodeID, r *http.Request) error {
	query := r.URL.Query()
	d, err := duration(query.Get("for"), "for")
	if err != nil {
		return err
	}
	reason := query.Get("reason")
	if len(reason) > maxReason || strings.ContainsFunc(reason, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return badRequest(fmt.Sprintf("reason: want one line of at most %d bytes", maxReason))
	}
	return s.deps.Nodes.Ban(id, max(d, 0), reason)
}

func (s *Server) drain(r *http.Request) (any, error) {
	query := r.URL.Query()
	timeout, err := duration(query.Get("timeout"), "timeout")
	if err != nil {
		return nil, err
	}
	switch mode := query.Get("mode"); mode {
	case "lameduck":
		err = s.deps.Process.LameDuck(true)
	case "off":
		err = s.deps.Process.LameDuck(false)
	case "graceful":
		err = s.deps.Process.Stop(timeout)
	default:
		err = badRequest(fmt.Sprintf("mode = %.40q; want lameduck, graceful or off", mode))
	}
	if err != nil {
		return nil, err
	}
	return s.deps.Process.Progress(), nil
}

func (s *Server) reload(r *http.Request) (any, error) {
	dry := r.URL.Query().Get("dry_run")
	switch dry {
	case "", "0", "false", "1", "true":
	default:
		return nil, badRequest(fmt.Sprintf("dry_run = %.40q; want 1 or 0", dry))
	}
	return s.deps.Reload(dry == "1" || dry == "true")
}

// duration reads a parameter; -1 if it is not given.
func duration(text, name string) (time.Duration, error) {
	if text == "" {
		return -1, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, badRequest(fmt.Sprintf("%s = %.40q; want a duration such as 30s or 10m", name, text))
	}
	return d, nil
}

// refusal says why a request may not control anything.
type refusal struct {
	status int
	text   string
}

// mayControl admits what comes over the Unix socket, whose listener has looked
// at the peer; over TCP, who has the token, and programs of the same user and of
// root on this machine. nil means yes.
func (s *Server) mayControl(r *http.Request) *refusal {
	config := s.inForce.Load()
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local != nil && local.Network() == "unix" {
		return nil
	}
	if config.Control == ControlSocket {
		return &refusal{http.StatusForbidden, "control is for admin.socket alone (admin.control = socket)"}
	}
	if given := r.Header.Get("Authorization"); given != "" {
		if _, err := config.BearerToken(); err != nil {
			return &refusal{http.StatusForbidden, err.Error()}
		}
		if !s.hasToken(r) {
			return &refusal{http.StatusUnauthorized, "the bearer token is not admin.token"}
		}
		return nil
	}
	const other = "use admin.socket (sidecar drain, ban ...), or set admin.token and send it as Authorization: Bearer"
	if config.Control == ControlToken {
		return &refusal{http.StatusUnauthorized, "control over TCP needs the token (admin.control = token): " + other}
	}
	uid, err := tcpPeer(r.RemoteAddr, local)
	switch {
	case err != nil:
		return &refusal{http.StatusForbidden, fmt.Sprintf("cannot tell whose program this is (%v): %s", err, other)}
	case !Trusted(uid):
		return &refusal{http.StatusForbidden,
			fmt.Sprintf("control is for user %d and root, and this program is of user %d: %s", os.Getuid(), uid, other)}
	}
	return nil
}

// hasToken reports whether a request comes with admin.token.
func (s *Server) hasToken(r *http.Request) bool {
	token, err := s.inForce.Load().BearerToken()
	given, want := r.Header.Get("Authorization"), "Bearer "+token
	return err == nil && token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(want)) == 1
}

// Trusted reports whether programs of a user may control this process: those of
// its own user and of root.
func Trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Getuid() }
