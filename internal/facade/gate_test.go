package facade

import (
	"testing"
	"testing/synctest"
)

// Calls of open transactions come during a drain, which waits for those too: it does not matter
// that no call was open before.
func TestTheGateWaitsForCallsThatComeDuringADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(10)
		g.drain()
		if err := g.wait(t.Context()); err != nil {
			t.Errorf("no call is open: %v", err)
		}
		for range 2 {
			_, leave, err := g.enter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			waited := make(chan error, 1)
			go func() { waited <- g.wait(t.Context()) }()
			synctest.Wait()
			if len(waited) > 0 {
				t.Error("waited for no call although one is open")
			}
			leave()
			if err := <-waited; err != nil {
				t.Errorf("the call has ended: %v", err)
			}
		}
	})
}
