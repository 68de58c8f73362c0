package pool

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// checkStock compares the bits of nodes with their stacks, while nothing moves.
func checkStock(t *testing.T, p *Pool) (stocked int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	numbers := map[int]bool{}
	for _, n := range p.order {
		w := n.word.Load()
		if w == nil {
			t.Fatalf("node %d has no bit", n.id)
		}
		if numbers[n.number] {
			t.Errorf("number %d belongs to two nodes", n.number)
		}
		numbers[n.number] = true
		if n.idle.len() > 0 {
			stocked++
			if w.Load()&n.bit() == 0 {
				t.Errorf("node %d has %d idle sessions and no bit", n.id, n.idle.len())
			}
		}
	}
	if len(p.stock.free)+len(numbers) != p.stock.made {
		t.Errorf("%d numbers were made; %d are free and %d in use", p.stock.made, len(p.stock.free), len(numbers))
	}
	return stocked
}

// Of many nodes with few sessions a choice looks at those that have any.
func TestFewSessionsOnManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions = 50
		var ids []cluster.NodeID
		for id := range cluster.NodeID(2 * manyNodes) {
			ids = append(ids, id+1)
		}
		f := newServers(ids...)
		p := start(t, config(sessions), f, view(ids[:manyNodes]...))
		checkOut(t, p, sessions)()
		for round := range 10 { // nodes come and go
			if stocked, idle := checkStock(t, p), p.Stats().Idle; stocked == 0 || idle != sessions {
				t.Fatalf("round %d: %d idle sessions, %d nodes have some on their stacks", round, idle, stocked)
			}
			set, x := 0, &p.table.Load().index[0]
			for i := range x.at {
				if c := x.stocked(i, nil); c == nil || c.idle.len() == 0 {
					t.Fatalf("round %d: found no session from node %d on", round, i)
				}
				if x.words[i/64].Load()&(1<<(i%64)) != 0 {
					set++
				}
			}
			if set > sessions {
				t.Errorf("round %d: %d nodes are looked at; want at most %d", round, set, sessions)
			}
			back := checkOut(t, p, sessions)
			if c := x.stocked(0, nil); c != nil {
				t.Errorf("round %d: node %d has an idle session; want none", round, c.id)
			}
			back()
			p.SetView(view(ids[manyNodes/10*round : manyNodes+manyNodes/10*round]...))
			time.Sleep(time.Second)
			checkOut(t, p, sessions)()
		}
	})
}

// A caller comes while a node's bit is clear although it has a session: Run finds that for it.
func TestBitIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []cluster.NodeID
		for id := range cluster.NodeID(fewNodes + 1) {
			ids = append(ids, id+1)
		}
		cfg := config(1)
		p := start(t, cfg, newServers(ids...), view(ids...))
		checkOut(t, p, 1)()
		synctest.Wait()
		p.mu.Lock()
		p.unslotLocked(nil)
		p.mu.Unlock()
		s := p.pick() // by the one who took the last session
		n := s.node
		w := n.word.Load()
		n.push(s.index) // by another one, who had it meanwhile and laid it down
		w.And(^n.bit())
		got := waiting(t, p)
		synctest.Wait()
		if got() {
			t.Fatal("the caller found a session without a bit: the test tests nothing")
		}
		n.restock(w)
		synctest.Wait()
		if !got() {
			t.Error("a caller waits while a session is idle")
		}
	})
}

// Few sessions of many nodes are taken and laid down by many at once.
func TestStockStress(t *testing.T) {
	const sessions, workers = 20, 16
	turns := short.Of(20_000, 5000)
	var ids []cluster.NodeID
	for id := range cluster.NodeID(200) {
		ids = append(ids, id+1)
	}
	p := start(t, config(sessions), newServers(ids...), view(ids...))
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(9, uint64(i)))
			for range turns {
				g, err := p.Acquire(context.Background(), Ask{Class: Normal})
				if err != nil {
					t.Error(err)
					return
				}
				for range r.IntN(3) {
					runtime.Gosched()
				}
				if r.IntN(1000) == 0 {
					p.Discard(g.Session)
				} else {
					p.Release(g.Session)
				}
			}
		})
	}
	wg.Wait()
	checkStock(t, p)
}
