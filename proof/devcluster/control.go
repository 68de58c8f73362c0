package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/loopback"
)

// controlled is what the control API needs of a cluster, in this process or in
// several. Act's errors of type *RequestError are the caller's fault.
type controlled interface {
	NodeInfos(ctx context.Context) ([]NodeInfo, error)
	SessionInfos(ctx context.Context) ([]SessionInfo, error)
	Act(ctx context.Context, node uint32, action string, body []byte) error
	AddNode(ctx context.Context, location string) (NodeInfo, error) // "" takes the next of the locations
	AddFault(ctx context.Context, f Fault) (Fault, error)
	RemoveFault(ctx context.Context, id string) error
	Faults(ctx context.Context) ([]Fault, error)
	SetPiles(ctx context.Context, states map[string]string) error // by name
}

// NodeInfo describes one node.
type NodeInfo struct {
	ID       uint32   `json:"id"`
	Address  string   `json:"address"`
	State    State    `json:"state"`
	PID      int      `json:"pid,omitempty"` // of a node that is a process of its own
	Location string   `json:"location"`
	Counters Counters `json:"counters"`
}

// RequestError is a request of the control API that makes no sense.
type RequestError struct {
	NotFound bool // there is no such node, session or action
	Reason   string
}

func (e *RequestError) Error() string { return e.Reason }

func badRequest(format string, args ...any) error {
	return &RequestError{Reason: fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) error {
	return &RequestError{NotFound: true, Reason: fmt.Sprintf(format, args...)}
}

const (
	maxControlBody = 1 << 20 // bytes
	controlTimeout = 30 * time.Second
)

// controlServer serves the control API.
type controlServer struct {
	address string
	http    *http.Server
	served  chan struct{}
}

// listenControl listens on host:port or unix:/path.
func listenControl(address string) (net.Listener, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("control API: %w", err)
	}
	return l, nil
}

func serveControl(address string, handler http.Handler, log *slog.Logger) (*controlServer, error) {
	l, err := listenControl(address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		// For programs of this machine: no page in its browser may reach it.
		handler = new(loopback.Guard).Wrap(handler, loopback.Forbid)
	}
	s := &controlServer{
		address: l.Addr().String(),
		http: &http.Server{Handler: handler, ReadHeaderTimeout: controlTimeout,
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)},
		served: make(chan struct{}),
	}
	go func() {
		defer close(s.served)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("control API ended", "err", err)
		}
	}()
	return s, nil
}

// controlGrace is for requests that run when the control API stops.
const controlGrace = 20 * time.Second

// close lets running requests finish, but not for long.
func (s *controlServer) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, controlGrace)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("stop the control API: %w", err), s.http.Close())
	}
	<-s.served
	return err
}

// controlHandler is the control API over c.
func controlHandler(c controlled) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /nodes", asked(func(r *http.Request) (any, error) {
		nodes, err := c.NodeInfos(r.Context())
		return map[string]any{"nodes": nodes}, err
	}))
	mux.HandleFunc("GET /sessions", asked(func(r *http.Request) (any, error) {
		sessions, err := c.SessionInfos(r.Context())
		return map[string]any{"sessions": sessions}, err
	}))
	mux.HandleFunc("POST /nodes", told(func(r *http.Request, body []byte) (any, error) {
		b, err := parseAction(body)
		if err != nil {
			return nil, err
		}
		return c.AddNode(r.Context(), b.Location)
	}))
	mux.HandleFunc("GET /faults", asked(func(r *http.Request) (any, error) {
		list, err := c.Faults(r.Context())
		return map[string]any{"faults": list}, err
	}))
	mux.HandleFunc("POST /faults", told(func(r *http.Request, body []byte) (any, error) {
		f, err := parseFault(body)
		if err != nil {
			return nil, err
		}
		return c.AddFault(r.Context(), f)
	}))
	mux.HandleFunc("DELETE /faults/{id}", asked(func(r *http.Request) (any, error) {
		return map[string]any{}, c.RemoveFault(r.Context(), r.PathValue("id"))
	}))
	mux.HandleFunc("POST /piles", told(func(r *http.Request, body []byte) (any, error) {
		states, err := parsePileStates(body)
		if err == nil {
			err = c.SetPiles(r.Context(), states)
		}
		return map[string]any{}, err
	}))
	mux.HandleFunc("POST /nodes/{id}/{action}", told(func(r *http.Request, body []byte) (any, error) {
		id, err := strconv.ParseUint(r.PathValue("id"), 10, 32)
		if err != nil {
			return nil, notFound("no node %q", r.PathValue("id"))
		}
		return map[string]any{}, c.Act(r.Context(), uint32(id), r.PathValue("action"), body)
	}))
	return mux
}

// asked is the handler of a request without a body.
func asked(answer func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := answer(r)
		reply(w, out, err)
	}
}

// told is the handler of a request with a body.
func told(answer func(r *http.Request, body []byte) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := readBody(w, r)
		if err != nil {
			reply(w, nil, err)
			return
		}
		out, err := answer(r, body)
		reply(w, out, err)
	}
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxControlBody))
	if err != nil {
		return nil, badRequest("read the body: %v", err)
	}
	return body, nil
}

func reply(w http.ResponseWriter, body any, err error) {
	code := http.StatusOK
	if err != nil {
		code = http.StatusInternalServerError
		if e, ok := errors.AsType[*RequestError](err); ok {
			code = http.StatusBadRequest
			if e.NotFound {
				code = http.StatusNotFound
			}
		}
		body = map[string]string{"error": err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the caller is gone if it fails
}

// actionBody is the union of the bodies of all actions, and of the one that adds a node.
//
// Wide: it is one JSON object, of which each action reads the members it knows.
type actionBody struct {
	Mode     DrainMode `json:"mode"`
	Soft     *duration `json:"soft"`
	Hard     *duration `json:"hard"`
	Notice   duration  `json:"notice"`
	Hints    *bool     `json:"hints"` // of a drain: the old name of mode
	Grace    *duration `json:"grace"` // the old name of soft and hard
	Delay    duration  `json:"delay"`
	From     Callers   `json:"from"`
	Near     *duration `json:"near"` // Delay unless said
	Share    *float64  `json:"share"`
	Status   string    `json:"status"`
	Methods  []string  `json:"methods"`
	After    bool      `json:"after"`
	Sessions *int      `json:"sessions"`
	Session  string    `json:"session"`
	Speed    int       `json:"bytes_per_second"`
	Factor   *float32  `json:"factor"`
	Address  string    `json:"address"`
	Location string    `json:"location"`
}

// share is 1 unless said.
func (b actionBody) share() float64 {
	if b.Share == nil {
		return 1
	}
	return *b.Share
}

// duration is a Go duration as a JSON string.
type duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return err
	}
	if v < 0 {
		return fmt.Errorf("duration %v is negative", v)
	}
	*d = duration(v)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

const defaultGrace = 10 * time.Second // of a drain with the old names

// parseAction reads the body of an action. Unknown fields are errors.
func parseAction(body []byte) (actionBody, error) {
	var b actionBody
	if len(strings.TrimSpace(string(body))) == 0 {
		return b, nil
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		return b, badRequest("body: %v", err)
	}
	return b, nil
}

// parseFault reads the body of a new fault: the share is 1 unless said, the id is given here.
func parseFault(body []byte) (Fault, error) {
	f := Fault{Share: 1}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return f, badRequest("body: %v", err)
	}
	if f.ID != "" {
		return f, badRequest("id = %q; the answer has it", f.ID)
	}
	return f, nil
}

// Act does what POST /nodes/{id}/{action} asks for.
func (c *Cluster) Act(_ context.Context, node uint32, action string, body []byte) error {
	n := c.Node(node)
	if n == nil {
		return notFound("no node %d", node)
	}
	b, err := parseAction(body)
	if err != nil {
		return err
	}
	switch action {
	case "kill":
		n.Kill()
	case "stop":
		n.Stop()
	case "start":
		err = n.Start()
	case "drain":
		var d Drain
		if d, err = b.drainOf(c.config); err == nil {
			n.Drain(d)
		}
	case "pause", "resume":
		return badRequest("only a node that is a process of its own can be paused: start the cluster with -processes")
	case "kick", "hint":
		var d Drain
		if d, err = b.kickOf(c.config); err != nil {
			break
		}
		if action == "hint" {
			d.Mode = DrainHints
		}
		err = n.Kick(b.Session, d)
	default:
		var known bool
		if known, err = n.disturb(action, b); !known {
			return notFound("no action %q", action)
		}
	}
	if err != nil {
		return badRequest("%v", err)
	}
	return nil
}

// disturb makes something go wrong with the node, or shows it as another one. known is false if no such action is.
func (n *Node) disturb(action string, b actionBody) (known bool, err error) {
	switch action {
	case "delay":
		return true, n.Delay(Delay{Delay: time.Duration(b.Delay), Share: b.share(), Methods: b.Methods, From: b.From})
	case "hop":
		h := Hop{Delay: time.Duration(b.Delay), Near: time.Duration(b.Delay)}
		if b.Near != nil {
			h.Near = time.Duration(*b.Near)
		}
		return true, n.Hop(h)
	case "blackhole":
		return true, n.Blackhole()
	case "refuse":
		return true, n.Refuse()
	case "errors":
		return true, n.Errors(Errors{Status: b.Status, Share: b.share(), Methods: b.Methods, After: b.After})
	case "cut":
		return true, n.Cut(b.share())
	case "limit":
		if b.Sessions == nil {
			return true, badRequest("sessions is missing")
		}
		return true, n.Limit(*b.Sessions)
	case "throttle":
		return true, n.Throttle(b.Speed)
	case "load":
		if b.Factor == nil {
			return true, badRequest("factor is missing")
		}
		return true, n.SetLoad(*b.Factor)
	case "advertise":
		return true, n.Advertise(b.Address)
	case "clear":
		return true, n.Clear()
	}
	return false, nil
}

// NodeInfos describes the nodes in order of id.
func (c *Cluster) NodeInfos(context.Context) ([]NodeInfo, error) {
	list := make([]NodeInfo, 0)
	for _, n := range c.all() {
		list = append(list, n.info())
	}
	return list, nil
}

func (n *Node) info() NodeInfo {
	i := NodeInfo{ID: n.id, Address: n.Address(), State: n.State(), Location: n.location, Counters: n.Counters()}
	if n.cluster.config.Node != 0 {
		i.PID = os.Getpid()
	}
	return i
}

// SessionInfos is Sessions for the control API.
func (c *Cluster) SessionInfos(context.Context) ([]SessionInfo, error) { return c.Sessions(), nil }

// AddNode is AddAt for the control API.
func (c *Cluster) AddNode(_ context.Context, location string) (NodeInfo, error) {
	n, err := c.AddAt(location)
	if err != nil {
		return NodeInfo{}, err
	}
	return n.info(), nil
}
