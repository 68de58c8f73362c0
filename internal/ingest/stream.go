package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"

	"github.com/ydb-sidecar/sidecar/internal/panics"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// maxRefused is how many refusals may wait to be read; then nobody may add rows.
const maxRefused = 1000

// describeEvery is the least time between two questions for the form of the table
// that rows bring about.
const describeEvery = time.Second

// Stream is one stream of rows. One goroutine adds rows and finishes it, another
// one reads its Progress; Stop may be called by any.
type Stream struct {
	engine  *Engine
	ctx     context.Context // of the stream as a whole: that of the caller that opened it
	options Options
	opened  time.Time

	adding
	signals

	layout     atomic.Pointer[layout]
	describing sync.Mutex // guards asking for the form of the table, and asked
	asked      time.Time

	mu sync.Mutex // guards all below
	sending
	counted
}

// adding belongs to the goroutine that adds rows.
type adding struct {
	cells   yql.Cells
	key     []byte
	names   []string // of the rows of the message before
	indices []int    // indices in the layout's rows, of placed
	placed  *layout
}

// signals tell the goroutines of a stream that they may go on.
type signals struct {
	room chan struct{} // wakes the goroutine that adds rows
	wake chan struct{} // says that run may look again
	news chan struct{} // says that Next may look again

	landed chan struct{}   // closed when nothing is under way and nothing will be
	cut    context.Context // ends when what is under way is to be given up
	giveUp context.CancelFunc
	over   chan struct{}  // closed when no write of the stream can come to light any more
	trails sync.WaitGroup // batches, until their keys are free
}

// sending is what is gathered and under way. Stream.mu guards it.
type sending struct {
	gather  *gather
	since   time.Time           // when gather had to begin to wait
	quiet   time.Time           // when the stream had nothing left to do; zero: it has
	flying  map[uint64]struct{} // hashes of keys that must not be written now
	batches []*batch            // under way
	blocked bool                // every gathered key is among flying
	stop    error               // no more rows are taken; io.EOF: there are no more
	failed  error               // nothing more is sent
}

// counted is what Next tells. Stream.mu guards it.
type counted struct {
	next    uint64 // offset of the next row
	floor   uint64 // offset that stays undone, because its batch failed; math.MaxUint64: none
	told    uint64 // what Next said last
	refused []Refusal
	seen    chan struct{} // closed when refusals were read, or nobody needs to wait for that any more
	rows    uint64
	refusal uint64 // rows
}

// Refusal is a row that cannot be written.
type Refusal struct {
	Offset uint64
	Err    error
}

// Progress is what became of rows since the one before.
type Progress struct {
	Refused []Refusal // in no order
	Next    uint64    // every row before this offset is written, or refused here or before
}

// Totals are the figures of a whole stream.
type Totals struct {
	Next, Rows, Refused uint64
}

// describe puts a description of the table into use.
func (s *Stream) describe(d *Ydb_Table.DescribeTableResult) error {
	old := s.layout.Load()
	l, err := newLayout(d, old)
	if err == nil && !l.same(old) {
		s.layout.Store(l)
	}
	return err
}

// refresh asks for the form of the table, unless somebody did since a moment.
// The error is that of a table whose rows cannot be written any more.
func (s *Stream) refresh(ctx context.Context, since time.Time) error {
	s.describing.Lock()
	defer s.describing.Unlock()
	if s.asked.After(since) {
		return nil
	}
	d, err := s.options.Sink.Describe(ctx, s.options.Table, true)
	if err != nil {
		return err
	}
	s.asked = time.Now()
	return s.describe(d)
}

// AddJSON adds a row: an object whose members are columns. The row is kept by
// nobody after the call. An error ends the stream; a row that cannot be read is a
// Refusal. It waits while the stream has as much to do as it may hold.
func (s *Stream) AddJSON(line []byte) error {
	if len(line) > s.engine.config.MaxRow {
		return s.Refuse(tooLong(s.engine.config.MaxRow))
	}
	return s.add(func(l *layout) error { return l.rows.JSON(line, &s.cells) })
}

func tooLong(limit int) error {
	return &yql.Error{Msg: fmt.Sprintf("the row has more than %d bytes (ingest.max_row)", limit)}
}

// AddEncoded adds a row of the columns with these names: the bytes of a sidecarv1.Row,
// with the values in their order.
func (s *Stream) AddEncoded(names []string, row []byte) error {
	if len(row) > s.engine.config.MaxRow {
		return s.Refuse(tooLong(s.engine.config.MaxRow))
	}
	return s.add(func(l *layout) error {
		if err := s.find(l, names); err != nil {
			return err
		}
		return l.rows.Encoded(s.indices, row, &s.cells)
	})
}

// find translates names into places, once for all rows that have the same.
func (s *Stream) find(l *layout, names []string) error {
	if s.placed == l && slices.Equal(names, s.names) {
		return nil
	}
	s.placed, s.indices = nil, s.indices[:0]
	for _, name := range names {
		i, ok := l.rows.Find(name)
		if !ok {
			return &yql.Error{Msg: fmt.Sprintf("the table has no column %.64q", name)}
		}
		if slices.Contains(s.indices, i) {
			return &yql.Error{Path: name, Msg: "the column appears twice"}
		}
		s.indices = append(s.indices, i)
	}
	s.placed, s.names = l, slices.Clone(names)
	return nil
}

// Refuse takes the offset of a row that cannot even be read.
func (s *Stream) Refuse(err error) error {
	s.mu.Lock()
	for {
		if no := s.takesNoneLocked(); no != nil {
			s.mu.Unlock()
			return no
		}
		if len(s.refused) < maxRefused {
			break
		}
		if err := s.waitLocked(); err != nil {
			return err
		}
	}
	s.refuseLocked(s.next, err)
	s.next++
	s.mu.Unlock()
	signal(s.news)
	return nil
}

// takesNoneLocked is why no further row can be taken; nil: one can. The offset behind the last row must be one that a stream can
// begin with.
func (s *Stream) takesNoneLocked() error {
	if s.next >= MaxOffset {
		return ErrOffset
	}
	return s.endedLocked()
}

func (s *Stream) refuseLocked(offset uint64, err error) {
	s.refused = append(s.refused, Refusal{offset, err})
	s.refusal++
	s.engine.tel.rowsRefused.Add(1)
}

// read reads a row into cells and key.
func (s *Stream) read(l *layout, read func(*layout) error) error {
	err := read(l)
	if err == nil {
		err = l.check(&s.cells)
	}
	if err == nil {
		s.key, err = l.appendKey(s.key[:0], &s.cells)
	}
	return err
}

func (s *Stream) add(read func(*layout) error) error {
	l := s.layout.Load()
	err := s.read(l, read)
	if err != nil && s.refresh(s.ctx, time.Now().Add(-describeEvery)) == nil {
		// The table may have another form since it was described.
		if now := s.layout.Load(); now != l {
			l = now
			err = s.read(l, read)
		}
	}
	if err != nil {
		return s.Refuse(err)
	}
	hash := s.engine.hash(s.key)
	s.mu.Lock()
	for {
		if no := s.takesNoneLocked(); no != nil {
			s.mu.Unlock()
			return no
		}
		if !s.fullLocked() && len(s.refused) < maxRefused {
			if s.gather.add(l, s.next, &s.cells, hash, s.key) {
				break
			}
		}
		if err := s.waitLocked(); err != nil {
			return err
		}
	}
	s.next++
	poke := s.fullLocked()
	if len(s.gather.rows) == 1 {
		s.since, s.quiet, poke = time.Now(), time.Time{}, true
	}
	if s.blocked {
		_, s.blocked = s.flying[hash]
		poke = poke || !s.blocked
	}
	s.mu.Unlock()
	if poke {
		signal(s.wake)
	}
	return nil
}

// endedLocked is why no row is taken any more.
func (s *Stream) endedLocked() error {
	if s.failed != nil {
		return s.failed
	}
	return s.stop
}

// fullLocked tells whether the gathered rows are a batch.
func (s *Stream) fullLocked() bool {
	c := &s.engine.config
	return len(s.gather.slots) >= c.BatchRows || s.gather.bytes() >= c.BatchBytes || len(s.gather.sets) >= maxSets
}

// waitLocked lets go of the lock until there may be room; without an error it has
// it again.
func (s *Stream) waitLocked() error {
	s.mu.Unlock()
	signal(s.wake)
	select {
	case <-s.room:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	s.mu.Lock()
	return nil
}

// Finish says that all rows were added.
func (s *Stream) Finish() { s.Stop(io.EOF) }

// Stop has the stream take no more rows, for a reason that AddJSON and AddEncoded
// return, and Next when all rows that were taken are done. The first reason counts.
func (s *Stream) Stop(reason error) {
	s.mu.Lock()
	if s.stop == nil {
		s.stop = reason
	}
	s.mu.Unlock()
	s.signalAll()
}

// fail gives up the rows that are not written.
func (s *Stream) fail(reason error) {
	s.mu.Lock()
	if s.failed == nil {
		s.failed = reason
	}
	s.seenLocked()
	s.mu.Unlock()
	s.signalAll()
}

func (s *Stream) seenLocked() {
	close(s.seen)
	s.seen = make(chan struct{})
}

func (s *Stream) signalAll() {
	signal(s.room)
	signal(s.wake)
	signal(s.news)
}

// Next waits until more rows are done. After the last of them it returns io.EOF
// if all rows of a finished stream are, else why the stream ended.
func (s *Stream) Next(ctx context.Context) (Progress, error) {
	for {
		s.mu.Lock()
		if done := s.doneLocked(); done > s.told || len(s.refused) > 0 {
			p := Progress{Refused: s.refused, Next: done}
			s.refused, s.told = nil, done
			s.seenLocked()
			s.mu.Unlock()
			signal(s.room)
			return p, nil
		}
		if s.landedLocked() {
			err := s.endedLocked()
			s.mu.Unlock()
			return Progress{}, err
		}
		s.mu.Unlock()
		select {
		case <-s.news:
		case <-ctx.Done():
			return Progress{}, context.Cause(ctx)
		}
	}
}

// doneLocked is the first offset that is not done.
func (s *Stream) doneLocked() uint64 {
	done := min(s.next, s.floor)
	if s.gather != nil {
		done = min(done, s.gather.min)
	}
	for _, b := range s.batches {
		done = min(done, b.g.min)
	}
	return done
}

// landedLocked tells whether nothing is under way and nothing will be.
func (s *Stream) landedLocked() bool {
	if len(s.batches) > 0 || s.endedLocked() == nil {
		return false
	}
	return s.failed != nil || len(s.gather.rows) == 0
}

// Totals are the figures of the stream so far.
func (s *Stream) Totals() Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Totals{Next: s.doneLocked(), Rows: s.rows, Refused: s.refusal}
}

// Cut gives up what is under way: it may be written or not. Close does the rest.
func (s *Stream) Cut() { s.giveUp() }

// Close gives up what was not sent, waits for what is under way, and lets go of
// the stream.
func (s *Stream) Close() {
	s.fail(ErrClosed)
	<-s.landed
	s.engine.leave(s)
}

// run sends batches until the stream has landed, and lets those know who wait for that.
func (s *Stream) run() {
	if err := panics.Call("a stream of rows", s.send); err != nil {
		s.fail(err)
	}
	close(s.landed)
	signal(s.news)
	s.engine.work.Go(func() {
		s.trails.Wait()
		s.engine.forget(s)
	})
}

// send sends batches when it is time, until the stream has landed.
func (s *Stream) send() error {
	timer := time.NewTimer(s.engine.config.Idle)
	defer timer.Stop()
	for {
		wait, landed := s.turn(time.Now())
		if landed {
			return nil
		}
		timer.Reset(wait)
		select {
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// turn sends what is due, and says when the next thing may be.
func (s *Stream) turn(now time.Time) (wait time.Duration, landed bool) {
	c := &s.engine.config
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.landedLocked() {
			return 0, true
		}
		if len(s.gather.rows) == 0 && len(s.batches) == 0 {
			if s.quiet.IsZero() {
				s.quiet = now
			}
			if wait = s.quiet.Add(c.Idle).Sub(now); wait > 0 {
				return wait, false
			}
			s.stop = ErrIdle
			signal(s.room)
			signal(s.news)
			continue
		}
		if s.failed != nil || len(s.gather.rows) == 0 || len(s.batches) >= c.Window || s.blocked {
			return math.MaxInt64, false // a batch that ends wakes
		}
		if !s.fullLocked() && s.stop == nil {
			if wait := s.since.Add(c.Delay).Sub(now); wait > 0 {
				return wait, false
			}
		}
		b := s.cutLocked(now)
		if b == nil {
			s.blocked = true
			continue
		}
		s.batches = append(s.batches, b)
		s.trails.Add(1)
		s.engine.tel.flights.Add(1)
		s.engine.work.Go(func() { s.fly(b) })
		signal(s.room)
	}
}

// cutLocked takes the gathered rows as a batch, except those whose keys are
// being written; nil if that is all of them.
func (s *Stream) cutLocked(now time.Time) *batch {
	g, held := s.gather, 0
	for i := range g.slots {
		if _, ok := s.flying[g.slots[i].hash]; ok {
			held++
		}
	}
	if held == len(g.slots) {
		return nil
	}
	rest := s.engine.bins.Get().(*gather)
	if held > 0 {
		kept := g.slots[:0]
		for i := range g.slots {
			if _, ok := s.flying[g.slots[i].hash]; ok {
				rest.move(g, &g.slots[i])
			} else {
				kept = append(kept, g.slots[i])
			}
		}
		g.slots = kept
		g.min = math.MaxUint64
		for i := range g.slots {
			for k := g.slots[i].last; k >= 0; k = g.rows[k].prev {
				g.min = min(g.min, g.rows[k].offset)
			}
		}
	}
	s.gather, s.since = rest, now
	for i := range g.slots {
		s.flying[g.slots[i].hash] = struct{}{}
	}
	return &batch{s: s, g: g, cut: now}
}

// fly writes a batch, and frees its keys.
func (s *Stream) fly(b *batch) {
	defer s.trails.Done()
	err := panics.Call("the writing of a batch", b.write)
	if _, broke := errors.AsType[*panics.Error](err); broke {
		b.unsure = true
	}
	s.mu.Lock()
	if err != nil {
		if s.failed == nil {
			s.failed = err
		}
		s.seenLocked()
		s.floor = min(s.floor, b.g.min)
	}
	s.rows += b.written
	s.batches = slices.DeleteFunc(s.batches, func(other *batch) bool { return other == b })
	keys := make([]uint64, len(b.g.slots)) // what is held longer than the batch
	for i := range b.g.slots {
		keys[i] = b.g.slots[i].hash
	}
	if !b.unsure {
		s.freeLocked(keys)
	}
	s.mu.Unlock()
	unsure := b.unsure
	s.engine.tel.flights.Add(-1)
	s.signalAll()
	b.recycle()
	if !unsure {
		return
	}
	// A try that got lost may yet be carried out. What comes after it must come later.
	pause := time.NewTimer(s.engine.config.Attempt + s.engine.config.Settle)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-s.engine.cut.Done():
	}
	s.mu.Lock()
	s.freeLocked(keys)
	s.mu.Unlock()
	signal(s.wake)
}

func (s *Stream) freeLocked(keys []uint64) {
	for _, key := range keys {
		delete(s.flying, key)
	}
	s.blocked = false
}

// Held is how many bytes the stream has of rows that are not written yet.
func (s *Stream) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heldLocked()
}

func (s *Stream) heldLocked() (n int) {
	if s.gather != nil {
		n = s.gather.bytes()
	}
	for _, b := range s.batches {
		n += b.g.bytes()
	}
	return n
}

func (s *Stream) state() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := State{
		App: s.options.App, Table: s.options.Table, Name: s.options.Name, Age: time.Since(s.opened).Milliseconds(),
		Next: s.next, Done: s.doneLocked(), Rows: s.rows, Refused: s.refusal, Flights: len(s.batches), Bytes: s.heldLocked(),
	}
	if s.gather != nil {
		out.Waiting = len(s.gather.rows)
	}
	if err := s.endedLocked(); err != nil && !errors.Is(err, io.EOF) {
		out.Ending = "stopping"
	} else if err != nil {
		out.Ending = "finished"
	}
	return out
}

// signal says that something changed to the one who waits for that.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
