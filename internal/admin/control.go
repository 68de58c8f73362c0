package admin

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
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

// ErrUnknown is to be wrapped by the error of Nodes for a node that nobody knows.
var ErrUnknown = errors.New("no such node")

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
	// Events lists what happened since the event of that number, oldest first.
	Events(after uint64) []any
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

// control adds what operators may do, and what they look at to decide.
func (s *Server) control(mux *http.ServeMux) (paths []string) {
	add := func(pattern string, do func(*http.Request) (any, error)) {
		method, _, _ := strings.Cut(pattern, " ")
		paths = append(paths, strings.TrimPrefix(pattern, "GET "))
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if method == http.MethodPost {
				if refusal := s.mayControl(r); refusal != nil {
					writeText(w, refusal.status, refusal.text+"\n")
					return
				}
			}
			answer, err := do(r)
			if err != nil {
				writeText(w, statusOf(err), err.Error()+"\n")
				return
			}
			writeJSON(w, answer)
		})
	}
	add("GET /drain", func(*http.Request) (any, error) { return s.deps.Process.Progress(), nil })
	add("POST /drain", s.drain)
	add("GET /nodes/{id}/why", s.node(func(cluster.NodeID, *http.Request) error { return nil }))
	add("POST /nodes/{id}/ban", s.node(s.ban))
	for name, do := range map[string]func(cluster.NodeID) error{
		"unban": s.deps.Nodes.Unban, "drain": s.deps.Nodes.Drain, "undrain": s.deps.Nodes.Undrain,
	} {
		add("POST /nodes/{id}/"+name, s.node(func(id cluster.NodeID, _ *http.Request) error { return do(id) }))
	}
	mux.HandleFunc("GET /events", s.events)
	return append(paths, "/events")
}

// badRequest is a fault of the request.
type badRequest string

func (b badRequest) Error() string { return string(b) }

func statusOf(err error) int {
	_, bad := errors.AsType[badRequest](err)
	switch {
	case bad:
		return http.StatusBadRequest
	case errors.Is(err, ErrUnknown):
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
			return nil, badRequest(fmt.Sprintf("%.40q is not the number of a node; GET /state/nodes lists them", r.PathValue("id")))
		}
		id := cluster.NodeID(n)
		if err := act(id, r); err != nil {
			return nil, err
		}
		if why := s.deps.Nodes.Why(id); why != nil {
			return why, nil
		}
		return nil, fmt.Errorf("%w: %d; GET /state/nodes lists them", ErrUnknown, id)
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

// events answers with one JSON object a line.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	after := uint64(0)
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			writeText(w, http.StatusBadRequest, fmt.Sprintf("after = %.40q; want the number of an event\n", text))
			return
		}
	}
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, event := range s.deps.Nodes.Events(after) {
		if err := encoder.Encode(event); err != nil {
			writeText(w, http.StatusInternalServerError, "cannot be shown: "+err.Error()+"\n")
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = lines.WriteTo(w) // the caller went away
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
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local != nil && local.Network() == "unix" {
		return nil
	}
	if s.config.Control == ControlSocket {
		return &refusal{http.StatusForbidden, "control is for admin.socket alone (admin.control = socket)"}
	}
	if given := r.Header.Get("Authorization"); given != "" {
		token, err := s.config.BearerToken()
		if err != nil {
			return &refusal{http.StatusForbidden, err.Error()}
		}
		want := "Bearer " + token
		if token == "" || subtle.ConstantTimeCompare([]byte(given), []byte(want)) != 1 {
			return &refusal{http.StatusUnauthorized, "the bearer token is not admin.token"}
		}
		return nil
	}
	const other = "use admin.socket (sidecar drain, ban ...), or set admin.token and send it as Authorization: Bearer"
	if s.config.Control == ControlToken {
		return &refusal{http.StatusUnauthorized, "control over TCP needs the token (admin.control = token): " + other}
	}
	uid, err := tcpPeer(r.RemoteAddr, local)
	switch {
	case err != nil:
		return &refusal{http.StatusForbidden, fmt.Sprintf("cannot tell whose program this is (%v): %s", err, other)}
	case !Trusted(uid):
		return &refusal{http.StatusForbidden, fmt.Sprintf("control is for user %d and root, and this program is of user %d: %s", os.Getuid(), uid, other)}
	}
	return nil
}

// Trusted reports whether programs of a user may control this process: those of
// its own user and of root.
func Trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Getuid() }
