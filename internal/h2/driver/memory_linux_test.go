// The race detector takes memory of its own.
//go:build !race

package driver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/net/http2"

	"github.com/ydb-sidecar/sidecar/internal/h2"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

const (
	idleConnections = 10000     // with an open stream of a server each, fit in
	idleMemory      = 200 << 20 // bytes of anonymous memory
	forwarderOf     = "H2_TEST_FORWARDER_OF"
)

// anonymous returns a process's anonymous memory in bytes; 0: it cannot be told here.
func anonymous(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(b, []byte("\nAnonymous:"))
	kb := 0
	fmt.Sscan(string(rest), &kb)
	return kb << 10
}

// The forwarder is a process of its own, so that nothing else is in the figure.
func TestMemoryOfIdleConnections(t *testing.T) {
	short.Skip(t, "it measures the memory of the process")
	if addr := os.Getenv(forwarderOf); addr != "" {
		forwardUntilEOF(t, addr)
		return
	}
	connections := filesForIdle(t)
	var attached atomic.Int32
	addr := startNode(t, func(n *node, _ int) {
		for {
			fr, err := n.ReadFrame()
			if err != nil {
				return
			}
			switch fr := fr.(type) {
			case *http2.HeadersFrame:
				n.answer(fr.StreamID, false, ":status", "200", "content-type", "application/grpc", "x-ydb-session",
					fmt.Sprint("id-", fr.StreamID))
				n.WriteData(fr.StreamID, false, []byte("\x00\x00\x00\x00\x04\x08\x80\xb5\x18"))
				attached.Add(1)
			case *http2.PingFrame:
				n.WritePing(true, fr.Data)
			}
		}
	})
	child := exec.Command(os.Args[0], "-test.run=^TestMemoryOfIdleConnections$")
	child.Env = append(os.Environ(), forwarderOf+"="+addr)
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); child.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	front := strings.TrimSpace(line)
	empty := anonymous(child.Process.Pid)
	for i := range connections {
		defer attach(t, front, i).Close()
	}
	full := anonymous(child.Process.Pid)
	t.Logf("%d connections: %d MiB of anonymous memory, %d without any; %.1f KiB each", connections, full>>20, empty>>20,
		float64(full-empty)/1024/float64(connections))
	if full > idleMemory {
		t.Errorf("%d connections take %d bytes of anonymous memory; want at most %d", connections, full, idleMemory)
	}
}

// filesForIdle has this process open many files, and returns for how many idle connections that is enough.
func filesForIdle(t *testing.T) (connections int) {
	files := syscall.Rlimit{Cur: idleConnections + 1000, Max: idleConnections + 1000}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	files.Max = max(files.Max, limit.Max)
	files.Cur = max(files.Cur, limit.Cur)
	connections = idleConnections
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		connections = int(limit.Max) - 200
		t.Logf("this user may open %d files: %v", limit.Max, err)
	}
	return connections
}

// attach makes a connection with a stream that stays open.
func attach(t *testing.T, front string, i int) net.Conn {
	nc, err := net.Dial("tcp", front)
	if err != nil {
		t.Fatal(err)
	}
	c := newCaller(nc)
	c.callTo(fmt.Sprintf("/Ydb.Query.V1.QueryService/AttachSession%d", i%10), true)
	for {
		fr, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if fr.Header().Type == http2.FrameData {
			return nc
		}
	}
}

// forwardUntilEOF forwards to a node until its standard input ends.
func forwardUntilEOF(t *testing.T, addr string) {
	s, front := front(t, h2.Default(), addr)
	fmt.Println(front)
	io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Drain(ctx, nil)
}
