// Package store keeps versioned rows in SQLite, in memory or in a file that
// several processes share.
//
// Every commit has a version, one higher than the last. A row's older versions stay
// as long as a snapshot may need them, so a reader needs no lock and no SQLite
// transaction of its own: a snapshot is a version number. A writer holds SQLite's
// one write lock only inside Write, where it can ask what has changed since a
// version; nothing about conflicts is kept in memory, so it works between processes.
//
// What always holds: all rows of one Write become visible together; a version that
// an open Snapshot can see is not removed, unless its process did not show itself
// for leaseTime, and then the reads of that snapshot fail with ErrSnapshotLost.
package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const (
	readConns = 4
	collectAt = 64 // written rows after which old versions are looked for
	beatEvery = time.Second
	leaseTime = 15 * time.Second // after which other processes forget a silent one
	trustTime = 10 * time.Second // after which a process stops trusting its own snapshots
	// firstVersion is that of a new database and of its schema, as in the first row of meta.
	firstVersion = 1
	infiniteTo   = "\xff" // greater than every key: keys begin with 0 or 1
)

// ErrSnapshotLost says that rows of the process's snapshots may be gone: it was silent (stopped,
// starved) for longer than others keep them.
var ErrSnapshotLost = errors.New("store: the snapshot is too old")

// ErrUndetermined says that a commit failed in a way that leaves open whether it happened.
var ErrUndetermined = errors.New("store: the outcome of the commit is unknown")

// ErrClosed says that the store was closed.
var ErrClosed = errors.New("store: closed")

// Store is an open database. All methods may be called from any goroutine.
type Store struct {
	shared  bool // a file: other processes may write as well
	id      int64
	readers chan *conn
	writer  chan *conn // in memory the same channel as readers: there is one connection
	conns   int        // how many there are in both
	garbage int        // rows written since old versions were looked for; the writer's
	closed  chan struct{}
	once    sync.Once
	keeper  sync.WaitGroup
	beat    atomic.Int64  // unix nanoseconds of the last time this process showed itself
	lapses  atomic.Uint64 // how often it was silent for longer than trustTime

	mu     sync.Mutex     // guards what follows
	active map[uint64]int // lower bounds of the open snapshots, with their number
	seen   uint64         // the highest version known here
	schema uint64         // the version of the schema at seen
}

// Open opens the file at path, or a database in memory if path is empty.
func Open(path string) (*Store, error) {
	s := &Store{shared: path != "", id: rand.Int64(), closed: make(chan struct{}), active: map[uint64]int{}}
	dsn := inMemory
	if s.shared {
		dsn = "file:" + (&url.URL{Path: path}).EscapedPath() +
			"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=temp_store(MEMORY)"
	}
	s.readers, s.writer = make(chan *conn, readConns), make(chan *conn, 1)
	w, err := openConn(dsn, schema)
	if err != nil {
		return nil, fmt.Errorf("open database %q: %w", path, err)
	}
	s.writer <- w
	s.conns = 1
	for s.shared && s.conns <= readConns {
		r, err := openConn(dsn, nil) // the first has made the tables
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open database %q: %w", path, err), s.Close())
		}
		s.readers <- r
		s.conns++
	}
	if !s.shared {
		s.readers, s.seen, s.schema = s.writer, firstVersion, firstVersion
		return s, nil
	}
	if err := s.Write(context.Background(), func(w *Writer) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen, s.schema = w.version-1, w.schema
		return nil
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %q: %w", path, err), s.Close())
	}
	if err := s.show(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.keeper.Go(s.keep)
	return s, nil
}

// Close ends the store after the calls under way.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closed)
		s.keeper.Wait()
		for range s.conns { // also those in use, when they come back
			var c *conn
			select {
			case c = <-s.writer:
				if s.shared {
					_ = c.run(c.forget, s.id) // a failure costs only the others' waiting for the lease
				}
			case c = <-s.readers:
			}
			err = errors.Join(err, c.close())
		}
	})
	return err
}

// keep shows the process to the others, so that they keep the rows of its snapshots.
func (s *Store) keep() {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-t.C:
			_ = s.show() // the next tick tries again; trustTime guards the snapshots
		}
	}
}

// show writes down the horizon of this process and the time.
func (s *Store) show() error {
	return s.Write(context.Background(), func(w *Writer) error { w.beat = true; return nil })
}

// horizon is the newest version up to which no open snapshot of this process needs
// superseded rows.
func (s *Store) horizon() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.seen
	for v := range s.active {
		h = min(h, v)
	}
	return h
}

// Snapshot is a version to read at. Release it.
type Snapshot struct {
	s               *Store
	once            sync.Once
	bound           uint64
	lapses          uint64 // of the store when the snapshot was taken
	Version, Schema uint64
}

// Snapshot opens a snapshot of the newest version.
func (s *Store) Snapshot(ctx context.Context) (*Snapshot, error) {
	s.mu.Lock()
	sn := &Snapshot{s: s, bound: s.seen, lapses: s.lapses.Load(), Version: s.seen, Schema: s.schema}
	s.active[sn.bound]++
	s.mu.Unlock()
	if !s.shared {
		return sn, nil
	}
	if err := s.refresh(ctx, sn); err != nil {
		sn.Release()
		return nil, err
	}
	return sn, nil
}

// refresh asks the file for the newest version.
func (s *Store) refresh(ctx context.Context, sn *Snapshot) error {
	c, err := take(ctx, s, s.readers)
	if err != nil {
		return err
	}
	sn.Version, sn.Schema, err = c.meta()
	s.readers <- c
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sn.Version > s.seen {
		s.seen, s.schema = sn.Version, sn.Schema
	}
	return nil
}

// Release ends the snapshot; more than once is fine.
func (sn *Snapshot) Release() {
	sn.once.Do(func() {
		s := sn.s
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.active[sn.bound]--; s.active[sn.bound] == 0 {
			delete(s.active, sn.bound)
		}
	})
}

// Schema returns the newest version of the schema.
func (s *Store) Schema(ctx context.Context) (uint64, error) {
	sn, err := s.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	defer sn.Release()
	return sn.Schema, nil
}

// take gets an idle connection.
func take(ctx context.Context, s *Store, from chan *conn) (*conn, error) {
	select {
	case c := <-from:
		return c, nil
	default:
	}
	select {
	case c := <-from:
		return c, nil
	case <-s.closed:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Check fails with ErrSnapshotLost if, since the snapshot was taken, others may have
// taken this process for dead and removed what it can see.
func (sn *Snapshot) Check() error {
	s := sn.s
	if s.shared && (time.Since(time.Unix(0, s.beat.Load())) > trustTime || s.lapses.Load() != sn.lapses) {
		return ErrSnapshotLost
	}
	return nil
}

// Row is a stored row.
type Row struct{ Key, Val []byte }

// Get returns the row of the key, or nil.
func (sn *Snapshot) Get(ctx context.Context, table uint64, key []byte) ([]byte, error) {
	s := sn.s
	c, err := take(ctx, s, s.readers)
	if err != nil {
		return nil, err
	}
	v, err := c.row(table, key, sn.Version)
	s.readers <- c
	if err != nil {
		return nil, err
	}
	return v, sn.Check()
}

// Range is a part of a table's keys to scan: from inclusive, to exclusive (nil: no end).
type Range struct {
	Table    uint64
	From, To []byte
	Reverse  bool
	Rows     int // at most
	Bytes    int // about; at least one row comes
}

// Scan returns the next rows of the range in order, and whether there may be more after them.
func (sn *Snapshot) Scan(ctx context.Context, r Range) (rows []Row, more bool, err error) {
	s := sn.s
	c, err := take(ctx, s, s.readers)
	if err != nil {
		return nil, false, err
	}
	rows, more, err = c.scan(r, sn.Version)
	s.readers <- c
	if err != nil {
		return nil, false, err
	}
	return rows, more, sn.Check()
}

// Entry is one entry of the schema; Def is the caller's.
type Entry struct {
	Path string
	Def  []byte
}

// Catalog returns all entries and the version of the schema they are from.
func (s *Store) Catalog(ctx context.Context) (entries []Entry, schema uint64, err error) {
	s.mu.Lock()
	empty := !s.shared && s.seen == firstVersion
	s.mu.Unlock()
	if empty {
		return nil, firstVersion, nil
	}
	err = s.Write(ctx, func(w *Writer) error { // one consistent view of meta and entries
		schema = w.schema
		entries, err = w.c.entries()
		return err
	})
	return entries, schema, err
}
