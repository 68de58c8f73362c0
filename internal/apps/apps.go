// Package apps tells apart the programs that share a sidecar. It knows what each may
// use, counts what each uses, and remembers how long their work takes.
//
// It owns the names, the quotas and the figures of apps. What always holds:
//
//   - At most Config.Max names have a place, and each has a number of its own while
//     it has. Names without a place share one app; a name that was not used for a
//     while, and has nothing open, leaves its place to one that comes.
//   - A name that has a token, a user or a certificate belongs to whoever proves it, and
//     nobody else gets it.
//   - What is counted for a call on one app is taken back on the same: a place is
//     not left while something is open.
//   - Calls take no lock and allocate nothing, but to give a new name its place.
//   - Neither tokens nor what callers claim is logged.
package apps

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

// The apps that are always there, by their numbers.
const (
	unnamed  = 0 // of callers that give no name
	theRest  = 1 // of names that have no place
	firstOwn = 2
)

// Names of apps that stand for several.
const (
	Unnamed = "default"
	Other   = "other"
)

// digest is the hash of a token.
type digest = [sha256.Size]byte

func digestOf(token string) digest { return sha256.Sum256([]byte(token)) }

// Registry is all apps. It is safe for concurrent use.
type Registry struct {
	log    *slog.Logger
	began  time.Time     // of the clock
	works  []works       // one for each stripe: a power of two of them
	minute atomic.Uint32 // since the start, kept by Run

	known  atomic.Uint32 // how often proofs were taken into use
	proofs atomic.Pointer[proofs]
	byName atomic.Pointer[map[string]*App]

	histograms histograms // constant once apps are used

	mu     sync.Mutex // serializes changes of byName and proofs, and guards what follows
	cfg    Config
	quotas map[string]quotas
	all    []*App          // by number
	file   config.FileMark // of the token file that was read last
}

// proofs are by what callers prove who they are. Immutable.
type proofs struct {
	tokens map[digest]string // names
	users  map[uint32]string // names
	names  map[string]string // names, by those of certificates with their kinds
	owned  map[string]bool   // names that belong to whoever proves them
}

// New returns the apps of a configuration. Run must be running for tokens to be
// read again, and for figures to be those of the last minute. log may be nil.
func New(cfg Config, log *slog.Logger) (*Registry, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	r := &Registry{cfg: cfg, log: log, began: time.Now(), quotas: p.quotas, works: make([]works, stripes())}
	r.byName.Store(&map[string]*App{})
	r.file = config.MarkOf(cfg.TokenFile)
	r.addLocked(Unnamed)
	r.addLocked(Other)
	r.own(p)
	r.registerListed()
	return r, nil
}

// stripesMost is the most stripes of an app: more processors than that share them.
const stripesMost = 8

// stripes is how many stripes an app has: one for each processor.
func stripes() int {
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < stripesMost {
		n *= 2
	}
	return n
}

// own takes tokens, users and names of certificates into use.
func (r *Registry) own(p parsed) {
	owned := map[string]bool{}
	for _, name := range p.users {
		owned[name] = true
	}
	for _, name := range p.tokens {
		owned[name] = true
	}
	for _, name := range p.names {
		owned[name] = true
	}
	r.proofs.Store(&proofs{p.tokens, p.users, p.names, owned})
	r.known.Add(1)
}

// registerListed gives a number to each app that has quotas of its own.
func (r *Registry) registerListed() {
	for _, name := range slices.Sorted(maps.Keys(r.quotas)) {
		if name != everybody && r.look(name) == nil {
			r.registerLocked(name)
		}
	}
}

// Config returns the configuration that is in force.
func (r *Registry) Config() Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cfg
}

// Reconfigure puts another configuration into force: tokens, users and quotas at once,
// for calls that are open as well. A lower Max takes no place away. On an error, which
// is that of Config.Validate, all stays as it was.
func (r *Registry) Reconfigure(cfg Config) error {
	mark := config.MarkOf(cfg.TokenFile)
	p, err := cfg.parse()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cfg, r.file, r.quotas = cfg, mark, p.quotas
	r.own(p)
	for _, a := range r.all {
		if a != nil {
			a.quotas.Store(r.quotasOf(a.name))
		}
	}
	r.registerListed()
	return nil
}

// quotasOf returns what an app may use.
func (r *Registry) quotasOf(name string) *quotas {
	for _, listed := range []string{name, everybody} {
		if l, ok := r.quotas[listed]; ok {
			l.grants = l.grants.of(name)
			return &l
		}
	}
	return &quotas{weight: 1, top: topInteractive}
}

// Generation changes when the answers of Of may.
func (r *Registry) Generation() uint32 { return r.known.Load() }

// HasTokens reports whether there is any token.
func (r *Registry) HasTokens() bool { return len(r.proofs.Load().tokens) > 0 }

// Caller is what is known of a caller.
type Caller struct {
	Name   string   // what it calls itself; "": nothing
	Token  string   // its bearer token; "": none
	Tokens bool     // it has two that differ
	User   uint32   // the user that its program runs as, if
	Local  bool     // it came over a Unix socket
	Remote net.Addr // for the audit line; nil: it is not known
	Prove  bool     // once there are tokens no caller is served without proof
	Strict bool     // a name that is not well formed is an error, and not another one of many
	Peer   bool     // the sidecar process that this one replaces, or that replaces it, has looked at the caller

	Certificate *Certificate // of its client, verified; nil: none
}

// Proof names by what the caller proves its app, for the audit line. It shows no token.
func (c *Caller) Proof() string {
	var parts []string
	if c.Token != "" {
		parts = append(parts, "a token")
	}
	if c.Local {
		parts = append(parts, fmt.Sprintf("uid %d", c.User))
	}
	if c.Certificate != nil {
		parts = append(parts, c.Certificate.String())
	}
	if parts == nil {
		return "no proof"
	}
	return strings.Join(parts, ", ")
}

// From is where the caller calls from; "": it is not known.
func (c *Caller) From() string {
	switch {
	case c.Remote != nil:
		return c.Remote.String()
	case c.Local:
		return "a Unix socket"
	}
	return ""
}

// Bearer is the token in a header Authorization; empty if it has none. The scheme may be
// in any case, with white space around it (RFC 9110, 11.1 and 11.4).
func Bearer[T string | []byte](header T) (token T) {
	from, to := 0, len(header)
	for from < to && isBlank(header[from]) {
		from++
	}
	for from < to && isBlank(header[to-1]) {
		to--
	}
	if to-from <= len(scheme) || !isBlank(header[from+len(scheme)]) {
		return token
	}
	for i := range len(scheme) {
		if header[from+i]|0x20 != scheme[i] { // the bit by which a letter's cases differ
			return token
		}
	}
	for from += len(scheme); isBlank(header[from]); from++ {
	}
	return header[from:to]
}

const scheme = "bearer"

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// element returns the first of the values that commas join in a header Authorization. The
// next one begins at a scheme Bearer behind a comma: any other comma may be part of a token.
func element(header string) (first, rest string) {
	for i := range len(header) {
		if header[i] == ',' && Bearer(header[i+1:]) != "" {
			return header[:i], header[i+1:]
		}
	}
	return header, ""
}

// Token is the one in the values of all headers Authorization, also of those that commas join; empty
// if they have none. Two that differ are an error: which of them counts is not for the sidecar to choose.
func Token(headers []string) (token string, err error) {
	for _, header := range headers {
		header = strings.TrimRight(header, " \t") // or each element would look through that
		for one, rest := element(header); one != "" || rest != ""; one, rest = element(rest) {
			switch t := Bearer(one); {
			case t == "" || t == token:
			case token != "":
				return "", ErrTokens
			default:
				token = t
			}
		}
	}
	return token, nil
}

// Bear takes the token from the values of all headers Authorization that the caller sent.
func (c *Caller) Bear(headers []string) {
	token, err := Token(headers)
	c.Token, c.Tokens = token, err != nil
}

// Denial is why a caller is refused.
type Denial string

// Error implements error.
func (d Denial) Error() string { return string(d) }

// The reasons.
const (
	ErrTokens   Denial = "apps: the call has headers Authorization with two tokens, which must be one: send that of apps.token alone"
	ErrNoToken  Denial = "apps: a token is needed (header Authorization: Bearer, see apps.token)"
	ErrToken    Denial = "apps: the token belongs to no app (apps.token, apps.token_file)"
	ErrName     Denial = "apps: an app's name is " + nameForm
	ErrNotYours Denial = "apps: the name belongs to the owner of another token, user or certificate (apps.token, apps.users)"
	ErrProofs   Denial = "apps: the token and the names of the client's certificate belong to several apps, which must be one " +
		"(apps.token, apps.users)"
)

// Enter begins a call of a caller, on the stripe of its app that a number stands for. The error is a Denial.
func (r *Registry) Enter(c Caller, number int) (*Stripe, error) {
	for {
		app, err := r.Of(c)
		if err != nil {
			return nil, err
		}
		if s := app.Stripe(number); s.Enter() { // else its place went to another name this instant
			return s, nil
		}
	}
}

// Of returns the app of a caller. The error is a Denial.
func (r *Registry) Of(c Caller) (*App, error) {
	proven, by := "", r.proofs.Load()
	if c.Peer {
		return r.named(c.Name), nil
	}
	if c.Tokens && len(by.tokens) > 0 {
		return nil, ErrTokens
	}
	certified, err := by.certified(c.Certificate)
	if err != nil {
		return nil, err
	}
	if c.Token != "" && len(by.tokens) > 0 {
		name, ok := by.tokens[digestOf(c.Token)]
		if !ok {
			return nil, ErrToken
		}
		if certified != "" && certified != name {
			return nil, ErrProofs
		}
		proven = name
	} else if proven = certified; c.Local && proven == "" {
		proven = by.users[c.User]
	}
	switch {
	case c.Name != "" && !isName(c.Name):
		if c.Strict {
			return nil, ErrName
		}
		c.Name = Other
	case c.Name != "" && c.Name != proven && (proven != "" || by.owned[c.Name]):
		return nil, ErrNotYours
	case c.Prove && proven == "" && len(by.tokens) > 0:
		return nil, ErrNoToken
	}
	if proven != "" {
		return r.named(proven), nil
	}
	return r.named(c.Name), nil
}

// look returns the app of that name, if it has a place.
func (r *Registry) look(name string) *App { return (*r.byName.Load())[name] }

// named returns the app of a name, which has a place from then on if there is one.
func (r *Registry) named(name string) *App {
	if name == "" {
		name = Unnamed
	}
	if a := r.look(name); a != nil {
		return a
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.look(name); a != nil {
		return a
	}
	if a := r.registerLocked(name); a != nil {
		return a
	}
	return r.all[theRest]
}

// Weight returns the part of the queue of the app of that name next to others.
func (r *Registry) Weight(name string) int {
	if name == "" {
		name = Unnamed
	}
	if a := r.look(name); a != nil {
		return int(a.Weight())
	}
	return 1 // its place is another's
}

// reserved reports whether a name always has a place: it has quotas of its own, or
// belongs to whoever proves it. Others may have taken all places before a
// configuration came that names it.
func (r *Registry) reserved(name string) bool {
	_, listed := r.quotas[name]
	return listed || r.proofs.Load().owned[name]
}

// registerLocked gives a name a number; nil: none is left.
func (r *Registry) registerLocked(name string) *App {
	numbers := 0
	for _, a := range r.all[firstOwn:] {
		if a != nil {
			numbers++
		}
	}
	if numbers < r.cfg.Max || numbers < maxApps && r.reserved(name) {
		return r.addLocked(name)
	}
	for _, a := range r.all[firstOwn:] {
		if a != nil && r.leaveLocked(a) {
			return r.addLocked(name)
		}
	}
	return nil
}

// forgetAfter is for how many minutes an app without anything open keeps its place
// when others want one.
const forgetAfter = 10

// leaveLocked takes an app out of its place if it may go.
func (r *Registry) leaveLocked(a *App) bool {
	if r.reserved(a.name) || r.minute.Load()-a.seen.Load() < forgetAfter || a.busy() {
		return false
	}
	a.gone.Store(true)
	if a.busy() { // somebody came just now; who comes from now on sees that it is gone
		a.gone.Store(false)
		return false
	}
	next := maps.Clone(*r.byName.Load())
	delete(next, a.name)
	r.byName.Store(&next)
	r.all[a.index] = nil
	r.foldLocked(a)
	return true
}

// addLocked gives a name the first free number.
func (r *Registry) addLocked(name string) *App {
	a := &App{registry: r, name: name, stripes: make([]Stripe, len(r.works)), first: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
	for i := range a.stripes {
		a.stripes[i].App, a.stripes[i].work = a, &r.works[i]
	}
	a.measure()
	a.quotas.Store(r.quotasOf(name))
	a.seen.Store(r.minute.Load())
	at := slices.Index(r.all, nil)
	if at < 0 {
		at = len(r.all)
		r.all = append(r.all, nil)
	}
	r.all[at], a.index = a, uint8(at)
	next := maps.Clone(*r.byName.Load())
	next[name] = a
	r.byName.Store(&next)
	return a
}

const (
	tick       = time.Second
	fileEvery  = 5 // ticks between looks at the token file
	windowSize = 30
)

// Run has the log say what apps may do, keeps time for what is counted, and reads the token file again when it has
// changed, until ctx ends. It returns nil.
func (r *Registry) Run(ctx context.Context) error {
	r.sayGrants()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for n := uint32(1); ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for i := range r.works {
			r.works[i].second.Store(n)
		}
		r.minute.Store(n / 60)
		if n%windowSize == 0 {
			r.each(func(a *App) { a.rotate() })
		}
		if n%fileEvery == 0 {
			r.reread()
		}
	}
}

func (r *Registry) each(f func(*App)) {
	r.mu.Lock()
	all := slices.Clone(r.all)
	r.mu.Unlock()
	for _, a := range all {
		if a != nil {
			f(a)
		}
	}
}

// reread takes new tokens into use. Those that were read last stay while the file is
// missing or has a fault.
func (r *Registry) reread() {
	r.mu.Lock()
	defer r.mu.Unlock()
	mark := config.MarkOf(r.cfg.TokenFile)
	if mark == r.file {
		return
	}
	r.file = mark
	p, err := r.cfg.parse()
	if err != nil {
		r.log.Warn("the tokens were not read again; those read before still count", "setting", "apps.token_file", "err", err)
		return
	}
	r.own(p)
	r.log.Info("tokens read again", "setting", "apps.token_file", "tokens", len(p.tokens))
}

// clock is the time since New.
func (r *Registry) clock() time.Duration { return time.Since(r.began) }

// Refusal says which of its quotas an app has reached.
type Refusal struct {
	App   string
	Why   Reason
	Limit int64
	Retry time.Duration // when there is room again, as far as that is known
	Calls int           // as many as a call begins that never fits; 0: it may fit later
}

func (e *Refusal) Error() string {
	if e.Calls > 0 {
		return fmt.Sprintf(
			"a list of %d statements counts as %d calls, and app %s may begin %d at once; send shorter lists, or "+
				"raise calls_burst= for it in apps.limits",
			e.Calls, e.Calls, e.App, e.Limit,
		)
	}
	word := e.Why.String()
	what := map[Reason]string{
		ByOpen: "calls open", BySessions: "sessions in use or asked for", ByCalls: "calls a second", ByBytes: "bytes a second",
	}[e.Why]
	return fmt.Sprintf("app %s has %d %s, its limit; raise %s= for it in apps.limits", e.App, e.Limit, what, word)
}
