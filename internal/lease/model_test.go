package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

// model says, in the plainest way, what may come of each call on one lease.
type model struct {
	seq     uint64
	last    Step
	ran     map[Step]int // how often each numbered step was run
	outcome *string
	ended   bool
	touched time.Time
	granted time.Time
}

const maxAge = 40 * time.Second

// TestWalk takes random steps on one lease and compares each answer with the model's.
func TestWalk(t *testing.T) {
	for seed := range uint64(short.Of(300, 60)) {
		synctest.Test(t, func(t *testing.T) { walk(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func walk(t *testing.T, r *rand.Rand) {
	cfg := Config{Idle: 10 * time.Second, Max: maxAge, Limit: 4}
	table, bank := start(t, cfg)
	token := grant(t, table, 1)
	m := &model{ran: make(map[Step]int), touched: time.Now(), granted: time.Now()}
	for i := range 60 {
		time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
		synctest.Wait()
		m.tick(cfg)
		step := m.random(r)
		turn, stored, err := table.Take(context.Background(), token, step)
		switch {
		case m.ended && time.Since(m.touched) >= cfg.Idle:
			if !errors.Is(err, ErrForeign) {
				t.Fatalf("%d: %+v on a forgotten lease: %v", i, step, err)
			}
			if n := len(bank.back); n != 1 {
				t.Fatalf("the value came back %d times: %q", n, bank.back)
			}
			return
		case step.repeats(m.last) && m.outcome != nil:
			if stored == nil || *stored != *m.outcome {
				t.Fatalf("%d: repeat %+v got %v, %v; want %q", i, step, stored, err, *m.outcome)
			}
		case step.repeats(m.last):
			if !errors.Is(err, ErrRepeated) {
				t.Fatalf("%d: repeat %+v got %v, %v; want a refusal", i, step, stored, err)
			}
		case m.ended:
			if _, ok := errors.AsType[*EndedError](err); !ok {
				t.Fatalf("%d: %+v on an ended lease: %v", i, step, err)
			}
		case step.Seq != 0 && step.Seq != m.seq+1:
			if !errors.Is(err, ErrOrder) {
				t.Fatalf("%d: %+v after %d: %v; want out of order", i, step, m.seq, err)
			}
		default:
			if turn == nil {
				t.Fatalf("%d: %+v after %d refused: %v", i, step, m.seq, err)
			}
			m.run(t, r, turn, step)
		}
	}
}

// tick ends the model's lease when its time is up.
func (m *model) tick(cfg Config) {
	if end := min(m.touched.Add(cfg.Idle).UnixNano(), m.granted.Add(cfg.Max).UnixNano()); !m.ended && time.Now().UnixNano() >= end {
		m.ended, m.touched = true, time.Unix(0, end)
	}
}

func (m *model) random(r *rand.Rand) Step {
	switch r.IntN(12) {
	case 0:
		return Step{Final: true, Print: uint64(r.IntN(2))}
	case 1:
		return Step{Print: 3}
	case 2:
		return Step{Seq: m.seq + 2}
	case 3, 4, 5:
		return m.last
	case 6:
		return Step{Seq: m.seq, Print: 99}
	default:
		return Step{Seq: m.seq + 1, Print: uint64(r.IntN(3))}
	}
}

// run is a step that got its turn: it must be one that never had it before.
func (m *model) run(t *testing.T, r *rand.Rand, turn *ActiveStep[int, string], step Step) {
	time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
	if step.Seq > 0 && r.IntN(8) == 0 {
		turn.Undo()
		m.touched = time.Now()
		m.ended = time.Since(m.granted) >= maxAge
		return
	}
	if step.Seq > 0 {
		if m.ran[step]++; m.ran[step] > 1 {
			t.Fatalf("%+v was run twice", step)
		}
	}
	m.last, m.outcome, m.touched = step, nil, time.Now()
	if r.IntN(3) > 0 {
		o := time.Now().String()
		m.outcome = &o
	}
	if !step.Final {
		m.seq++
	}
	if step.Final || r.IntN(10) == 0 {
		turn.End(Failed, m.outcome)
		m.ended = true
		return
	}
	if turn.Keep(m.outcome) == 0 {
		m.ended = true
	}
}
