package devcluster

import (
	"errors"
	"net"
	"testing"
)

// A connection that comes at the moment in which its node is killed is reset, and Accept returns.
func TestAConnectionThatComesToAClosedListener(t *testing.T) {
	below, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer below.Close()
	l := newListener(below)
	l.closed = true // as kill leaves it, while a connection is already in the queue of the system
	client, err := net.Dial("tcp", below.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept = %v; want net.ErrClosed", err)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
}
