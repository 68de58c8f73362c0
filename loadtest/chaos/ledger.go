package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/contract"
)

// outcome is what a caller was told of a write.
type outcome uint8

const (
	asked   outcome = iota // no answer yet
	kept                   // acknowledged
	nothing                // an error that says that nothing was kept
	maybe                  // an error that says that the outcome is unknown
)

// entry is one write. Its id is unique; the database counts how often it was applied.
type entry struct {
	table    string
	outcome  outcome
	told     string // the error
	from, to uint64 // of a transfer
	amount   int64
}

// ledger is what callers were told, outside the database.
type ledger struct {
	mu      sync.Mutex // guards the fields below
	last    uint64
	killed  bool // a sidecar was: a connection that ended before an answer says nothing
	entries map[uint64]*entry
}

// open notes a write before it is sent, and returns its id.
func (l *ledger) open(e entry) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	if l.entries == nil {
		l.entries = make(map[uint64]*entry)
	}
	l.entries[l.last] = &e
	return l.last
}

// kill says that from now on no lost connection proves anything.
func (l *ledger) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed = true
}

// note writes down the answer.
func (l *ledger) note(id uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[id]
	f, failed := err.(*failure)
	switch {
	case err == nil:
		e.outcome = kept
	case failed && !f.unknown && !(l.killed && f.code == unread):
		e.outcome, e.told = nothing, f.code
	default:
		e.outcome, e.told = maybe, err.Error()
	}
}

// Books is the comparison of the ledger with the tables.
type Books struct {
	Acknowledged int      `json:"acknowledged"`
	Refused      int      `json:"nothing_kept"`
	Unknown      int      `json:"outcome_unknown"`
	UnknownKept  int      `json:"outcome_unknown_and_kept"`
	Money        int64    `json:"money"`
	Wrong        []string `json:"wrong,omitempty"` // what must not be, at most twenty lines
	WrongCount   int      `json:"wrong_count"`
}

func (b *Books) wrong(format string, args ...any) {
	if b.WrongCount++; len(b.Wrong) < 20 {
		b.Wrong = append(b.Wrong, fmt.Sprintf(format, args...))
	}
}

// check reads the tables, to which nothing may write meanwhile.
func (l *ledger) check(ctx context.Context, f api) (*Books, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &Books{}
	times := map[uint64]int64{} // how often each write was applied
	for _, table := range []string{"written", "counted", "transfers"} {
		rows, err := readAll(ctx, f, "SELECT id, n FROM "+table)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			id := uint64(row[0])
			times[id] = row[1]
			if e := l.entries[id]; e == nil || e.table != table {
				b.wrong("%s has write %d, which was never asked for", table, id)
			}
		}
	}
	balance := map[uint64]int64{}
	for id, e := range l.entries {
		n := times[id]
		switch e.outcome {
		case kept:
			b.Acknowledged++
			if n == 0 {
				b.wrong("%s %d was acknowledged and is lost", e.table, id)
			}
		case nothing:
			b.Refused++
			if n > 0 {
				b.wrong("%s %d got %s, nothing kept, and is there", e.table, id, e.told)
			}
		case maybe:
			b.Unknown++
			if n > 0 {
				b.UnknownKept++
			}
		case asked:
			b.wrong("%s %d was never answered", e.table, id)
		}
		if n > 1 {
			b.wrong("%s %d was applied %d times", e.table, id, n)
		}
		if e.table == "transfers" {
			balance[e.from] -= n * e.amount
			balance[e.to] += n * e.amount
		}
	}
	if err := b.accounts(ctx, f, balance); err != nil {
		return nil, err
	}
	slices.Sort(b.Wrong)
	return b, nil
}

// accounts compares the accounts with what the transfers that are there moved.
func (b *Books) accounts(ctx context.Context, f api, balance map[uint64]int64) error {
	accounts, err := readAll(ctx, f, "SELECT id, balance FROM accounts")
	if err != nil {
		return err
	}
	for _, row := range accounts {
		b.Money += row[1]
		if want := initialBalance + balance[uint64(row[0])]; row[1] != want {
			b.wrong("account %d has %d; the transfers that are there say %d", row[0], row[1], want)
		}
	}
	if len(accounts) != accountCount || b.Money != accountCount*initialBalance {
		b.wrong("%d accounts with %d; want %d with %d", len(accounts), b.Money, accountCount, accountCount*initialBalance)
	}
	return nil
}

// readAll streams rows of two integers.
func readAll(ctx context.Context, f api, sql string) ([][2]int64, error) {
	reply, err := f.Stream(ctx, contract.Statement{SQL: sql, Timeout: time.Minute.String()})
	if err == nil && !slices.Contains(reply.Lines, "end") {
		err = errors.New("the stream stopped without its end")
	}
	if err != nil {
		return nil, fmt.Errorf("read the tables at the end: %w", err)
	}
	out := make([][2]int64, len(reply.Rows))
	for i, row := range reply.Rows {
		for j := range out[i] {
			text, _ := row[j].(string) // else it is null, which is no number
			if out[i][j], err = strconv.ParseInt(text, 10, 64); err != nil {
				return nil, fmt.Errorf("read the tables at the end: %w", err)
			}
		}
	}
	return out, nil
}
