package core

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_TableStats"

	"github.com/ydb-sidecar/sidecar/internal/memguard"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Statement is one statement, ready to be sent.
type Statement struct {
	SQL    string
	Params *upstream.Params    // names with the dollar; nil: none
	stats  Ydb_Query.StatsMode // asked for by the caller
	counts bool                // it may change rows, and the server is asked how many
	limits Limits
	expect *uint64 // rows that it must return; nil: any number
	typed  int     // bytes that its types and its parameters take, without those that a cache holds
}

// Limits are the caller's own bounds on what is handed on of a result. 0 means none.
type Limits struct {
	Rows  uint64
	Bytes uint64
}

// Room is what the sidecar itself lets the reply of one call hold, all of its
// statements together; nil is a small reply, or none.
type Room struct {
	memory   *memguard.Guard
	short    bool   // memory was when the call began
	streamed bool   // the reply is not held, and the room for it has no end
	moved    func() // called when a piece arrived or was handed on; nil: it is not asked for
	granted  uint64 // rows of the answer to a statement that the app may have; 0: any number
	here     bool   // all of it is here, and nobody must wait where it is read
	reserved *memguard.Reservation
	cut      *atomic.Bool // set once the reply lacks rows

	mu          sync.Mutex // guards all below: the statements of a Batch run side by side
	rows, bytes int
	held        int    // bytes of the reply as it goes out
	lacks       string // why there was no memory for some of them; "": there was
}

// refuse is why a reply that has become large is not held, although the room for it is
// there: requests hold as much memory as they may, or the call began while memory was short, and it still is.
func (m *Room) refuse() error {
	if m == nil || m.streamed {
		return nil
	}
	m.mu.Lock()
	held, why := m.held, m.lacks
	m.mu.Unlock()
	if why == "" && m.short {
		why = m.memory.Refuse(held)
	}
	return TooMuch(why)
}

// forget gives back what was held of results that are thrown away.
func (m *Room) forget() {
	if m != nil {
		m.hold(-m.held)
	}
}

// part is how much of a result the database may send in one piece.
func (m *Room) part() int64 {
	if m != nil && m.memory.Tight() {
		return shortPartBytes
	}
	return partBytes
}

// slow waits for a moment while memory is short, before more is taken in.
func (m *Room) slow(ctx context.Context) {
	if m != nil && !m.here {
		m.memory.Slow(ctx)
	}
}

// Room is the room of a call whose reply is held.
func (s *Service) Room(c *Call) *Room {
	return &Room{reserved: &c.Reserved, cut: &c.cut, rows: s.Cfg.API.MaxRows, bytes: s.Cfg.API.MaxBytes, memory: s.Deps.Memory,
		short: s.Deps.Memory.Tight(), granted: c.App.Grants().Rows()}
}

// limits are the caller's own and those of its app.
func (m *Room) limits(l Limits) Limits {
	if m != nil && m.granted > 0 && (l.Rows == 0 || l.Rows > m.granted) {
		l.Rows = m.granted
	}
	return l
}

// RoomFor refuses a new request of so many bytes while memory is short.
func (s *Service) RoomFor(bytes int) error {
	return TooMuch(s.Deps.Memory.Refuse(bytes))
}

// take makes use of room for some rows, if there is enough.
func (m *Room) take(rows, bytes int) bool {
	if m == nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if rows > m.rows || bytes > m.bytes {
		return false
	}
	m.rows -= rows
	m.bytes -= bytes
	return true
}

// hold counts n bytes more of the reply.
func (m *Room) hold(n int) {
	if m == nil || n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held += n
	if m.lacks == "" {
		m.lacks = m.reserved.Take(n)
	}
}

// lend counts n bytes that a statement takes beside its reply; fewer than none are given back. It says why there are none.
func (m *Room) lend(n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return TooMuch(m.reserved.Take(n))
}

// Sink takes the results of a statement, as they arrive: each result set begins
// once, in order, and its rows follow. An error stops the statement.
type Sink interface {
	Begin(ctx context.Context, columns *yql.Columns) error
	// Rows gets encoded messages Ydb.Value, which are good until it returns.
	Rows(ctx context.Context, rows [][]byte) error
	// Cut says that the current result set has more rows than were handed on.
	Cut()
	// Again forgets everything before another attempt, or says that it is too
	// late: the caller has seen something.
	Again() bool
	// Held is how many bytes the reply takes in memory by now, with what copies are made of it
	// when it goes out. 0: it is not held.
	Held() int
}

// ending is what is known of a statement beside its rows.
type ending struct {
	tx        string // the open transaction, "" if none is
	stats     *Ydb_TableStats.QueryStats
	rows      uint64
	bytes     int     // of the rows
	sets      int     // result sets
	returned  uint64  // rows of all of them, also those that the limits cut off
	affected  *uint64 // see affected
	truncated bool
}

// partBytes is how much of a result the database may send in one piece, and so
// how much of a stream is held at a time.
const partBytes = 1 << 20

// shortPartBytes is the same while memory is short.
const shortPartBytes = 64 << 10

// unwanted is how many parts of an answer are read and thrown away before it is
// cut short. A session whose call was cut serves nobody until its node says that it is at rest, so an
// end that is near is waited for.
const unwanted = 4

// Run sends a statement on a session and hands its results to out. Rows beyond
// the limits, the caller's or the sidecar's own, are read and thrown away, because only the end of the answer says
// whether the statement was kept; when it only reads (readOnly), the answer is
// cut short instead.
func Run(ctx context.Context, s Session, st *Statement, control control, readOnly bool, own *Room, out Sink) (ending, error) {
	if !out.Again() {
		return ending{}, upstream.Final(Faultf(CodeInternal, "a statement whose rows were sent is run again"))
	}
	answer, sent, err := sentAhead(s)
	if !sent {
		answer, err = s.Execute(ctx, st.Request(control, own))
	}
	if err != nil {
		return ending{}, err
	}
	defer answer.Close()
	r := reader{out: out, readOnly: readOnly, limits: own.limits(st.limits), own: own, set: -1}
	// What a transaction did that this statement does not commit, nobody commits after an error.
	undone := readOnly || control.open()
	patience := unwanted
	for part, err := range parts(answer) {
		if err == nil {
			err = unsent(r.part(ctx, part), undone)
		}
		if err != nil {
			if !out.Again() {
				err = upstream.Final(err)
			}
			own.take(-int(r.end.rows), -r.end.bytes)
			own.hold(-r.held)
			return r.end, err
		}
		if r.end.truncated && readOnly {
			if patience--; patience < 0 {
				break
			}
		}
		own.slow(ctx)
		if own != nil && own.moved != nil {
			own.moved()
		}
	}
	r.end.counted(st, control)
	return r.end, nil
}

// sentAhead is the answer to a statement that was sent before there was anybody to wait for it; see InlineCall.
func sentAhead(s Session) (Stream, bool, error) {
	a, ok := s.(interface{ Sent() (Stream, bool, error) })
	if !ok {
		return nil, false, nil
	}
	return a.Sent()
}

// Request is what a node is sent.
func (st *Statement) Request(control control, own *Room) upstream.Statement {
	out := upstream.Statement{
		Text: st.SQL, Params: st.Params, Begin: control.begin, Within: control.within, TxID: control.id,
		Commit: control.commit, Stats: st.statsMode(), Part: own.part(),
	}
	if own != nil {
		out.Arrived = own.moved
	}
	return out
}

// unsent is the error of rows that could not be handed on: the caller stopped
// reading, or they hold a value that has no form in a reply. What a statement
// did by then, only the end of its answer would have said, unless it is undone.
func unsent(err error, undone bool) error {
	if err == nil {
		return nil
	}
	return FaultOf(err, Deed{}).With(func(f *Fault) { f.Unknown = !undone })
}

// parts reads an answer to its end, or to its error.
func parts(answer Stream) iter.Seq2[*upstream.Part, error] {
	return func(yield func(*upstream.Part, error) bool) {
		for {
			part, err := answer.Next()
			if errors.Is(err, io.EOF) || !yield(part, err) || err != nil {
				return
			}
		}
	}
}

// reader takes the parts of one answer apart.
type reader struct {
	out      Sink
	readOnly bool
	limits   Limits
	own      *Room
	set      int64 // the result set that began last
	held     int   // by out
	full     bool  // a limit was reached in this set
	end      ending
}

func (r *reader) part(ctx context.Context, p *upstream.Part) error {
	if p.TxMeta != nil {
		r.end.tx = p.TxMeta.GetId()
	}
	if p.ExecStats != nil {
		r.end.stats = p.ExecStats
	}
	rs := p.GetResultSet()
	if rs == nil {
		return nil
	}
	if i := p.GetResultSetIndex(); i > r.set {
		r.set, r.full = i, false
		r.end.sets++
		if err := r.out.Begin(ctx, p.Columns()); err != nil {
			return err
		}
	}
	rows := p.Rows
	r.end.returned += uint64(len(rows))
	kept := r.fit(p)
	if len(kept) > 0 {
		r.end.rows += uint64(len(kept))
		if err := r.hand(ctx, kept); err != nil {
			return err
		}
	}
	if (len(kept) < len(rows) || rs.GetTruncated()) && !r.full {
		r.full, r.end.truncated = true, true
		if r.own != nil {
			r.own.cut.Store(true)
		}
		r.out.Cut()
	}
	return nil
}

// heldRows is after how many rows of a reply that is held it counts what that takes: a row may become many times as large.
const heldRows = 1000

// hand hands rows on.
func (r *reader) hand(ctx context.Context, rows [][]byte) error {
	if r.own == nil || r.own.streamed {
		return r.out.Rows(ctx, rows)
	}
	for some := range slices.Chunk(rows, heldRows) {
		if err := r.out.Rows(ctx, some); err != nil {
			return err
		}
		before := r.held
		r.held = r.out.Held()
		r.own.hold(r.held - before)
		if !r.readOnly {
			continue // what a statement that writes has done is not thrown away
		}
		if err := r.own.refuse(); err != nil {
			return err
		}
	}
	return nil
}

// fit returns the leading rows that the limits leave room for. Once a set was
// cut, nothing more of it fits: rows never have a gap.
func (r *reader) fit(p *upstream.Part) [][]byte {
	rows := p.Rows
	if r.full {
		return nil
	}
	if most := r.limits.Rows; most > 0 && uint64(len(rows)) > most-min(most, r.end.rows) {
		rows = rows[:most-min(most, r.end.rows)]
	} else if r.take(len(rows), p.Size) {
		return rows
	}
	for i, row := range rows {
		if !r.take(1, len(row)) {
			return rows[:i]
		}
	}
	return rows
}

func (r *reader) take(rows, bytes int) bool {
	if most := r.limits.Bytes; most > 0 && uint64(r.end.bytes+bytes) > most || !r.own.take(rows, bytes) {
		return false
	}
	r.end.bytes += bytes
	return true
}

// Reads says what kind of work a statement of ours is that reads.
func (st *Statement) Reads(call *upstream.Call) { call.Idempotent, call.Work = true, kindOf(st.SQL) }
