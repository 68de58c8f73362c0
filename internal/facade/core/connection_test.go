package core

import (
	"net"
	"testing"

	"google.golang.org/grpc/peer"
)

type address struct{ network, text string }

func (a address) Network() string { return a.network }
func (a address) String() string  { return a.text }

// Only the data path is believed what connection a call came over.
func TestConnectionOf(t *testing.T) {
	says := func(string) string { return "7" }
	by := func(a net.Addr) uint64 { return ConnectionOf(peer.NewContext(t.Context(), &peer.Peer{Addr: a}), says) }
	if got := ConnectionOf(WithConnection(t.Context(), Connection{Number: 5}), nil); got != 5 {
		t.Errorf("over HTTP: %d; want 5", got)
	}
	if got := by(address{inProcess, "local"}); got != 7 {
		t.Errorf("by the data path: %d; want 7", got)
	}
	one, two := by(address{"tcp", "127.0.0.1:1"}), by(address{"tcp", "127.0.0.1:2"})
	if one == 7 || one == 0 || one == two {
		t.Errorf("without the data path: %d and %d; want two numbers, and not what the client says", one, two)
	}
	if got := ConnectionOf(t.Context(), says); got != 0 {
		t.Errorf("of nobody: %d; want 0", got)
	}
}
