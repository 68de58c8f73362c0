package lease

import "time"

// ActiveStep is the right to run one step on a lease, alone. It is used by one
// goroutine and must be ended by exactly one of Keep, Undo, End and Drop.
type ActiveStep[V, O any] struct {
	table *Table[V, O]
	lease *lease[V, O]
	step  Step
	count bool // the step takes a number
}

// Token returns the lease's token.
func (t *ActiveStep[V, O]) Token() string { return t.lease.token }

// Value returns what is leased.
func (t *ActiveStep[V, O]) Value() V { return t.lease.value }

// Seq returns the number of the last step that was run before this turn.
func (t *ActiveStep[V, O]) Seq() uint64 { return t.lease.seq }

// Deadline returns when the lease ends whatever happens; the step should not last longer.
func (t *ActiveStep[V, O]) Deadline() time.Time { return t.lease.granted.Add(t.table.cfg.Max) }

// Grant puts the value into a lease that Open made.
func (t *ActiveStep[V, O]) Grant(v V) {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	t.lease.value = v
}

// Count makes the turn of Open a step of its own: the first.
func (t *ActiveStep[V, O]) Count(s Step) {
	s.Seq = max(s.Seq, 1)
	t.step, t.count = s, true
}

// Keep ends the turn after a step that was run, with its outcome, or nil if that
// is too large to be kept. It returns the time until the lease ends if nothing is
// sent, or 0 if it just did, because its time was up or the table is closed.
func (t *ActiveStep[V, O]) Keep(outcome *O) time.Duration {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	t.ranLocked(outcome)
	return t.backLocked()
}

// Undo ends the turn of a step that surely was not run: its number may be used again.
func (t *ActiveStep[V, O]) Undo() {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	t.backLocked()
}

// End ends the turn and the lease after a step that was run, with its outcome,
// and gives the value back before it returns.
func (t *ActiveStep[V, O]) End(why Reason, outcome *O) {
	tab, l := t.table, t.lease
	tab.end(l.value, why)
	tab.mu.Lock()
	defer tab.mu.Unlock()
	t.ranLocked(outcome)
	t.doneLocked()
	tab.buryLocked(l, why)
}

// Drop ends the turn of Open when nothing could be leased; no trace is left.
func (t *ActiveStep[V, O]) Drop() {
	tab, l := t.table, t.lease
	tab.mu.Lock()
	defer tab.mu.Unlock()
	t.doneLocked()
	delete(tab.leases, l.token)
	tab.open--
	tab.emptyLocked()
}

// ranLocked notes the step as the last one.
func (t *ActiveStep[V, O]) ranLocked(outcome *O) {
	l := t.lease
	var none O
	l.last, l.outcome, l.kept = t.step, none, outcome != nil
	if outcome != nil {
		l.outcome = *outcome
	}
	if t.count {
		l.seq++
	}
}

// backLocked ends the turn, and the lease if it must not live on.
func (t *ActiveStep[V, O]) backLocked() time.Duration {
	tab, l := t.table, t.lease
	l.touched = time.Now()
	t.doneLocked()
	why := tab.over(l, l.touched)
	if tab.closed {
		why = Closed
	}
	if why != Open {
		tab.endLocked(l, why)
		return 0
	}
	return tab.left(l, l.touched)
}

func (t *ActiveStep[V, O]) doneLocked() {
	close(t.lease.busy)
	t.lease.busy = nil
}
