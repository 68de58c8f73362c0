package upstream

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
)

// blackHole returns an address that answers no attempt to connect: a listener
// whose queue is full drops what comes.
func blackHole(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for range 16 {
		c, err := net.DialTimeout("tcp", address, 100*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the queue of the listener takes more than 16 connections")
	return ""
}

// Of several addresses some may be dead: one refuses, one swallows attempts to
// connect, one accepts and keeps silent. Time limits of a minute each must not
// be waited for.
func TestStartsThoughAddressesAreDead(t *testing.T) {
	c, err := devcluster.Start(devcluster.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	shut, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shut.Close()
	dead := strings.Join([]string{blackHole(t), shut.Addr().String(), silent.Addr().String()}, ",")

	config := shipped()
	config.URL = strings.Replace(c.Endpoint(), "grpc://", "grpc://"+dead+",", 1)
	config.ConnectTimeout, config.DiscoveryTimeout = time.Minute, time.Minute
	d, err := New(config, Deps{Ways: hop.Ways{Router: newOpenRouter(), Health: &notes{}}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	topology, err := d.ListEndpoints(ctx)
	if err != nil || len(topology.Nodes) == 0 {
		t.Errorf("%v, %v; want the nodes, from the last address", topology, err)
	}
}
