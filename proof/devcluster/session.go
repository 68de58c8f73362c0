package devcluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

const (
	sessionPrefix   = "ydb://session/3?"
	maxSessionID    = 1024 // bytes
	maxTransactions = 10   // open at once in one session
)

// newSessionID makes an id in YDB's form. The base64 of a UUID's text has
// neither padding nor characters that need escaping in a URL.
func newSessionID(node uint32) string {
	id := base64.StdEncoding.EncodeToString([]byte(uuid.NewString()))
	return sessionPrefix + "node_id=" + strconv.FormatUint(uint64(node), 10) + "&id=" + id
}

// ownerOf reads the owner's id out of a session id.
func ownerOf(id string) (uint32, error) {
	query, ok := strings.CutPrefix(id, sessionPrefix)
	if !ok || len(id) > maxSessionID {
		return 0, fail(Ydb.StatusIds_BAD_REQUEST, "failed to parse session id")
	}
	// The usual form needs no parser.
	if rest, ok := strings.CutPrefix(query, "node_id="); ok {
		if digits, _, ok := strings.Cut(rest, "&"); ok {
			if node, err := strconv.ParseUint(digits, 10, 32); err == nil && node != 0 {
				return uint32(node), nil
			}
		}
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return 0, fail(Ydb.StatusIds_BAD_REQUEST, "failed to parse session id: %v", err)
	}
	node, err := strconv.ParseUint(values.Get("node_id"), 10, 32)
	if err != nil || node == 0 {
		return 0, fail(Ydb.StatusIds_BAD_REQUEST, "failed to parse session id: no node in it")
	}
	return uint32(node), nil
}

// hint is what a node tells the clients of a session that must go.
type hint uint8

const (
	noHint      hint = iota
	hintSession      // this session must go
	hintNode         // the whole node must go
)

// session is one session. One call at a time is inside it (between enter and
// leave) and owns its transactions. close may come at any time.
type session struct {
	id      string
	query   bool // made by the query service: lives by its attach stream
	table   *sessions
	client  metadata.MD // of the call that made it
	created time.Time

	mu       sync.Mutex // guards the fields below
	used     time.Time  // end of the last call
	attached bool
	ended    bool
	open     map[string]*engine.Tx
	idle     *time.Timer // ends a session that is not used; nil for an implicit one
	callInside
	notice

	done chan struct{} // closed when the session ended
}

// callInside is the call inside a session.
type callInside struct {
	busy     bool
	cancel   context.CancelCauseFunc // of the call; nil if none is inside
	cleaning *time.Timer             // ends the rest of a call that was answered; nil: there is none
}

// notice is what a session knows of the wish that its client closes it.
type notice struct {
	hint   hint
	mode   DrainMode      // how the client hears of hint
	soft   bool           // past the soft limit: the next statement ends it
	last   [2]*time.Timer // its soft and its hard limit
	hinted chan struct{}  // closed when hint is set
}

// errBadSession is the answer to calls of a session that is not there.
func errBadSession(id string) *statusError {
	return fail(Ydb.StatusIds_BAD_SESSION, "Session not found: %s", id)
}

// enter lets one call in and returns its context, which ends with the session. A session
// past its soft limit ends instead, and rolls back what is open.
func (s *session) enter(ctx context.Context) (context.Context, error) {
	s.mu.Lock()
	switch {
	case s.ended:
		s.mu.Unlock()
		return nil, errBadSession(s.id)
	case s.busy:
		s.mu.Unlock()
		return nil, fail(Ydb.StatusIds_SESSION_BUSY, "Pending previous query completion")
	case s.soft:
		s.mu.Unlock()
		s.close(errSoft())
		return nil, errSoft()
	}
	defer s.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	s.busy, s.cancel = true, cancel
	return ctx, nil
}

// leave ends the call inside.
func (s *session) leave() {
	s.mu.Lock()
	s.cancel(nil)
	s.busy, s.cancel, s.used = false, nil, time.Now()
	var orphans map[string]*engine.Tx
	if s.ended {
		orphans, s.open = s.open, nil
	} else if !s.attached && s.idle != nil {
		s.idle.Reset(s.table.config.SessionIdle)
	}
	s.mu.Unlock()
	rollback(orphans)
}

// leaveAfter ends the call inside, of which the session still rolls back what it did: until
// then others are told SESSION_BUSY, although the client has its answer.
func (s *session) leaveAfter(cleanup time.Duration) {
	s.mu.Lock()
	if !s.ended && cleanup > 0 {
		s.cleaning = time.AfterFunc(cleanup, s.cleaned)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.leave()
}

// cleaned ends the cleaning up, once.
func (s *session) cleaned() {
	s.mu.Lock()
	due := s.cleaning != nil
	s.cleaning = nil
	s.mu.Unlock()
	if due {
		s.leave()
	}
}

// touch begins the idle time again.
func (s *session) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used = time.Now(); !s.ended && !s.attached {
		s.idle.Reset(s.table.config.SessionIdle)
	}
}

// isAttached says whether an attach stream is open.
func (s *session) isAttached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached
}

// isBusy says whether a call is inside.
func (s *session) isBusy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy
}

// attach claims the one attach stream.
func (s *session) attach() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return errBadSession(s.id)
	case !s.query:
		return fail(Ydb.StatusIds_BAD_REQUEST, "the session was not made by the query service")
	case s.hint != noHint:
		return &statusError{status: Ydb.StatusIds_NOT_FOUND} // it is closing
	case s.attached:
		return fail(Ydb.StatusIds_SESSION_BUSY, "Session is already attached")
	case s.busy:
		return fail(Ydb.StatusIds_SESSION_BUSY, "Pending previous query completion")
	}
	s.attached = true
	s.idle.Stop()
	return nil
}

// ask asks the session's client to close it, and ends it by itself at the limits: after the
// soft one with its next statement, at the hard one in any case.
func (s *session) ask(h hint, d Drain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.hint != noHint {
		return
	}
	s.hint, s.mode = h, d.Mode
	close(s.hinted)
	s.last[0] = time.AfterFunc(d.Soft, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.soft = true
	})
	s.last[1] = time.AfterFunc(d.Hard, func() { s.close(errDeleted()) })
}

// asked says whether the session's client was asked to close it, and how it hears of that.
func (s *session) asked() (hint, DrainMode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hint, s.mode
}

// close ends the session: the call inside is cancelled with the given answer,
// the attach stream ends, open transactions are rolled back. It reports whether
// it was this call that ended it.
func (s *session) close(answer *statusError) bool {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return false
	}
	s.ended = true
	if s.idle != nil {
		s.idle.Stop()
	}
	for _, t := range s.last {
		if t != nil {
			t.Stop()
		}
	}
	var orphans map[string]*engine.Tx
	if s.busy {
		s.cancel(answer) // leave rolls back
	} else {
		orphans, s.open = s.open, nil
	}
	close(s.done)
	cleaning := s.cleaning
	s.mu.Unlock()
	if cleaning != nil && cleaning.Stop() {
		s.cleaned()
	}
	s.table.remove(s)
	rollback(orphans)
	return true
}

func rollback(transactions map[string]*engine.Tx) {
	for _, tx := range transactions {
		tx.Rollback()
	}
}

// keep remembers an open transaction under a new id. The call inside calls it.
func (s *session) keep(tx *engine.Tx) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= maxTransactions {
		return "", coded(issueTooManyTransactions, Ydb.StatusIds_BAD_SESSION,
			"Too many transactions, current active: %d MaxTxPerSession: %d", len(s.open), maxTransactions)
	}
	id := rand.Text()
	s.open[id] = tx
	return id, nil
}

// transaction finds an open transaction.
func (s *session) transaction(id string) (*engine.Tx, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx, ok := s.open[id]
	if !ok {
		return nil, fail(Ydb.StatusIds_NOT_FOUND, "Transaction not found: %s", id)
	}
	return tx, nil
}

// forget takes a transaction out of the session; nil if it is not there.
func (s *session) forget(id string) *engine.Tx {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx := s.open[id]
	delete(s.open, id)
	return tx
}

// SessionInfo describes one live session.
type SessionInfo struct {
	ID           string    `json:"id"`
	NodeID       uint32    `json:"node_id"`
	State        string    `json:"state"` // created (not attached yet), idle or busy
	Kind         string    `json:"kind"`  // query or table
	Attached     bool      `json:"attached"`
	Transactions int       `json:"transactions"` // open ones
	Created      time.Time `json:"created"`
	Used         time.Time `json:"used"`         // end of the last call
	Hint         bool      `json:"hint"`         // asked to close
	Application  string    `json:"application"`  // x-ydb-application-name
	BuildInfo    string    `json:"build_info"`   // x-ydb-sdk-build-info
	Capabilities []string  `json:"capabilities"` // x-ydb-client-capabilities
	ClientPID    string    `json:"client_pid"`   // x-ydb-client-pid
}

func (s *session) info(node uint32) SessionInfo {
	first := func(key string) string {
		return strings.Join(s.client.Get(key), ",")
	}
	i := SessionInfo{
		ID: s.id, NodeID: node, Kind: "table", Created: s.created,
		Application:  first("x-ydb-application-name"),
		BuildInfo:    first("x-ydb-sdk-build-info"),
		Capabilities: append([]string{}, s.client.Get("x-ydb-client-capabilities")...),
		ClientPID:    first("x-ydb-client-pid"),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i.Attached, i.Transactions, i.Used, i.Hint = s.attached, len(s.open), s.used, s.hint != noHint
	if s.query {
		i.Kind = "query"
	}
	switch {
	case s.busy:
		i.State = "busy"
	case s.query && !s.attached:
		i.State = "created"
	default:
		i.State = "idle"
	}
	return i
}

// sessions is the session table of one life of a node.
type sessions struct {
	node   uint32
	config Config

	mu       sync.RWMutex // guards the fields below
	byID     map[string]*session
	implicit map[*session]struct{} // sessions that the node made for calls without one
	limit    int
	shut     *refusal      // answer to new sessions; nil while they are welcome
	evicted  *session      // the newest that was asked to go for the limit; nil: none
	told     time.Time     // first sign of a drain that clients could see; zero: none
	refused  int64         // creations of sessions during it
	late     time.Duration // from the first sign to the last of them
}

func newSessions(node uint32, config Config) *sessions {
	return &sessions{node: node, config: config, limit: config.Sessions, byID: make(map[string]*session),
		implicit: make(map[*session]struct{})}
}

// create makes a session for the client with the given metadata.
func (t *sessions) create(query bool, client metadata.MD) (*session, error) {
	now := time.Now()
	s := &session{
		id: newSessionID(t.node), query: query, table: t, client: client, created: now, used: now,
		open:   make(map[string]*engine.Tx),
		notice: notice{hinted: make(chan struct{})}, done: make(chan struct{}),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shut != nil {
		t.refusedLocked(now)
		return nil, t.shut.explicit
	}
	if err := t.roomLocked(now); err != nil {
		return nil, err
	}
	s.mu.Lock() // the timer may fire before it is stored
	s.idle = time.AfterFunc(t.config.SessionIdle, s.expire)
	s.mu.Unlock()
	t.byID[s.id] = s
	return s, nil
}

// worker makes the session that a call without one runs in. It counts like any other, and
// ends with the call.
func (t *sessions) worker() (*session, error) {
	now := time.Now()
	s := &session{table: t, created: now, used: now, notice: notice{hinted: make(chan struct{})}, done: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shut != nil {
		if t.told.IsZero() {
			t.told = now
		}
		return nil, t.shut.implicit
	}
	if err := t.roomLocked(now); err != nil {
		return nil, err
	}
	t.implicit[s] = struct{}{}
	return s, nil
}

// roomLocked says whether there is room for one more session. If there is none it asks the
// session to go that was idle for longest, should the node evict.
func (t *sessions) roomLocked(now time.Time) error {
	if len(t.byID)+len(t.implicit) < t.limit {
		return nil
	}
	if t.config.Evict {
		t.evictLocked(now)
	}
	return fail(Ydb.StatusIds_OVERLOADED, "Active sessions limit exceeded, maximum allowed: %d", t.limit)
}

// evictLocked asks one session at a time to go.
func (t *sessions) evictLocked(now time.Time) {
	if t.evicted != nil && t.byID[t.evicted.id] == t.evicted {
		return
	}
	var oldest *session
	var since time.Time
	for _, s := range t.byID {
		if used, ok := s.idleSince(); ok && now.Sub(used) >= t.config.SessionIdle && (oldest == nil || used.Before(since)) {
			oldest, since = s, used
		}
	}
	if t.evicted = oldest; oldest != nil {
		oldest.ask(hintSession, Drain{Mode: DrainStreams, Limits: t.config.kick()})
	}
}

// idleSince is the end of the last call of an attached session that is idle and was not asked to go.
func (s *session) idleSince() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.attached && !s.busy && s.hint == noHint
}

// refusedLocked takes note of a creation that was refused.
func (t *sessions) refusedLocked(now time.Time) {
	if t.told.IsZero() {
		t.told = now
	}
	t.refused++
	t.late = now.Sub(t.told)
}

// sawDrain are the creations of sessions that were refused during a drain, and for how long
// after its first sign the last of them came.
func (t *sessions) sawDrain() (refused int64, late time.Duration) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.refused, t.late
}

// expire ends a session that was idle for too long.
func (s *session) expire() {
	s.mu.Lock()
	used := s.busy || s.attached || time.Since(s.used) < s.table.config.SessionIdle
	s.mu.Unlock()
	if !used { // a call that slips in now is answered BAD_SESSION
		s.close(errBadSession(s.id))
	}
}

func (t *sessions) find(id string) (*session, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s, ok := t.byID[id]
	if !ok {
		return nil, errBadSession(id)
	}
	return s, nil
}

func (t *sessions) remove(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, s.id)
	delete(t.implicit, s)
	if t.evicted == s {
		t.evicted = nil
	}
}

// refuse answers everybody who wants a new session from now on; nil welcomes them.
func (t *sessions) refuse(answer *refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shut, t.told, t.refused, t.late = answer, time.Time{}, 0, 0
}

// drain refuses new sessions and asks those there are to go.
func (t *sessions) drain(d Drain) {
	t.refuse(shuttingDown())
	if d.Mode != DrainSilent {
		t.mu.Lock()
		t.told = time.Now()
		t.mu.Unlock()
	}
	for _, s := range t.everyone() {
		s.ask(hintNode, d)
	}
}

// setLimit changes the number of sessions allowed; those there are stay.
func (t *sessions) setLimit(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = n
}

func (t *sessions) all() []*session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]*session, 0, len(t.byID))
	for _, s := range t.byID {
		list = append(list, s)
	}
	return list
}

// everyone is all, and the sessions of calls that have none.
func (t *sessions) everyone() []*session {
	list := t.all()
	t.mu.RLock()
	defer t.mu.RUnlock()
	for s := range t.implicit {
		list = append(list, s)
	}
	return list
}

// closeAll ends every session.
func (t *sessions) closeAll(answer *statusError) {
	for _, s := range t.everyone() {
		s.close(answer)
	}
}

// infos describes the sessions, oldest first.
func (t *sessions) infos() []SessionInfo {
	list := make([]SessionInfo, 0, 16)
	for _, s := range t.all() {
		list = append(list, s.info(t.node))
	}
	slices.SortFunc(list, func(a, b SessionInfo) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return list
}
