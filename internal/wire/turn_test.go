package wire

import (
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/h2"
)

// parkedCall counts what becomes of a call that is parked.
type parkedCall struct {
	inlineState
	sent, wentOn int
	panics       bool
}

func (p *parkedCall) toGoroutine() { p.wentOn++ }

func (f *frames) parkedCall() *parkedCall {
	p := new(parkedCall)
	p.frames, p.rest = f, p
	p.Park(func() {
		if p.sent++; p.panics {
			panic("while it is sent")
		}
	})
	return p
}

// turnEnds reports whether the end of a turn panicked.
func (f *frames) turnEnds() (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f.inTurn.Store(true)
	f.TurnEnds(h2.New(h2.Default(), f))
	return false
}

// Calls that were parked go on in order at the ends of turns, some in each.
func TestParkedCallsGoOn(t *testing.T) {
	f := new(frames)
	f.uses.init()
	var all []*parkedCall
	for range mostWoken + 10 {
		p := f.parkedCall()
		if p.wait(); p.wentOn > 0 {
			t.Error("a call that is parked goes on")
		}
		f.inTurn.Store(true)
		p.Wake()
		all = append(all, p)
	}
	for turn, more := range []bool{true, false} {
		if f.turnEnds() {
			t.Error("a panic")
		}
		for i, p := range all {
			want := 0
			if turn == 1 || i < mostWoken {
				want = 1
			}
			if p.sent != want || p.wentOn != want { // there is no connection: a goroutine goes on
				t.Errorf("after turn %d call %d was sent %d times, and went on %d times; want %d", turn, i, p.sent, p.wentOn, want)
			}
		}
		select {
		case <-f.wake:
			if !more {
				t.Error("another turn is asked for, although nothing is left")
			}
		default:
			if more {
				t.Error("no other turn is asked for")
			}
		}
	}
}

// Of a parked call exactly one goroutine does the rest, also after a panic. A call whose caller has left is not sent.
func TestParkedCallsThatAreNotSent(t *testing.T) {
	f := new(frames)
	f.uses.init()
	left, broken, whole := f.parkedCall(), f.parkedCall(), f.parkedCall()
	for _, p := range []*parkedCall{left, broken, whole} {
		p.Wake()
	}
	if !left.stream.Stop() {
		t.Error("it cannot leave")
	}
	broken.panics = true
	if !f.turnEnds() {
		t.Error("the shard hears of no panic")
	}
	if len(f.wake) != 1 {
		t.Error("no other turn is asked for although a call is left")
	}
	if f.turnEnds() {
		t.Error("another panic")
	}
	if left.sent != 0 || left.wentOn != 0 {
		t.Errorf("the call whose caller has left was sent %d times, and went on %d times", left.sent, left.wentOn)
	}
	if broken.wentOn != 1 || whole.sent != 1 || whole.wentOn != 1 {
		t.Errorf("the call that panicked went on %d times; the one behind it was sent %d times, and went on %d times",
			broken.wentOn, whole.sent, whole.wentOn)
	}
}

// Mail that is read when the end of the turn may be over has another turn come.
func TestParkedCallsWhoseMailIsReadLate(t *testing.T) {
	f := new(frames)
	f.uses.init()
	p := f.parkedCall()
	f.inTurn.Store(true)
	p.Wake()
	if len(f.wake) != 0 {
		t.Error("a turn is asked for beside the one that is to read the mail")
	}
	f.read() // as giveBack may
	if len(f.wake) != 1 {
		t.Error("no other turn is asked for")
	}
	if f.turnEnds() || p.sent != 1 {
		t.Errorf("the call was sent %d times", p.sent)
	}
	<-f.wake
	again := f.parkedCall()
	f.inTurn.Store(true)
	again.Wake()
	if f.readBeforeTheEnd(); len(f.wake) != 0 {
		t.Error("a turn is asked for although this one comes to its end")
	}
	if f.turnEnds() || again.sent != 1 {
		t.Errorf("the other call was sent %d times", again.sent)
	}
}
