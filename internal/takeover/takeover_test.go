package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// meet returns the two ends of a link: of the process that asks, and of the one
// that is asked.
func meet(t *testing.T) (asks, asked *Link) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "s")
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Publish(path); err != nil {
		t.Fatal(err)
	}
	if asks, err = Dial(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if asked, err = s.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = asks.Close(), asked.Close() })
	return asks, asked
}

// A connection that waits in the queue is served by the new process, though it
// came to the old one, which has closed its listener.
func TestWaitingConnectionIsNotLost(t *testing.T) {
	asks, asked := meet(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ready := make(chan Process, 1)
	go func() {
		if who, err := asked.Asked(); err != nil || who.PID != 2 || who.Version != "new" {
			t.Errorf("asked by %+v, %v", who, err)
		}
		who, err := asked.Offer(
			Process{PID: 1, Version: "old", Instance: "one"}, []Listener{{"grpc.listen", "127.0.0.1:0", l}}, time.Minute,
		)
		if err != nil {
			t.Errorf("Offer: %v", err)
		}
		ready <- who
	}()
	old, got, err := asks.Ask(Process{PID: 2, Version: "new"})
	if err != nil || old != (Process{PID: 1, Version: "old", Instance: "one"}) {
		t.Fatalf("Ask = %+v, %v", old, err)
	}
	if len(got) != 1 || got[0].Setting != "grpc.listen" || got[0].Listen != "127.0.0.1:0" || got[0].Addr().String() != l.Addr().String() {
		t.Fatalf("got %+v", got)
	}
	if err := asks.Ready(Process{PID: 2, Version: "new", Instance: "two"}); err != nil {
		t.Fatal(err)
	}
	if who := <-ready; who.Instance != "two" {
		t.Errorf("ready: %+v", who)
	}
	_ = l.Close()
	conn, err := got[0].Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Close(), got[0].Close()
	if _, err := io.ReadAll(client); err != nil {
		t.Errorf("the client read %v; want an orderly end", err)
	}
}

// A connection moves with what its client has sent and nobody has read.
func TestConnectionMovesWithWhatIsUnread(t *testing.T) {
	asks, asked := meet(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := asked.Hand("http", conn.(*net.TCPConn)); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	_ = asked.Close()
	var moved []net.Conn
	if err := asks.Receive(func(place string, conn net.Conn) {
		if place != "http" {
			t.Errorf("for %q", place)
		}
		moved = append(moved, conn)
	}); err != nil || len(moved) != 1 {
		t.Fatalf("Receive: %d connections, %v", len(moved), err)
	}
	defer moved[0].Close()
	text := make([]byte, 8)
	if _, err := io.ReadFull(moved[0], text); err != nil || string(text) != "question" {
		t.Errorf("read %q, %v", text, err)
	}
	if _, err := moved[0].Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, text[:6]); err != nil || string(text[:6]) != "answer" {
		t.Errorf("the client read %q, %v", text[:6], err)
	}
}

func TestConnectJoinsTheTwo(t *testing.T) {
	asks, asked := meet(t)
	got := make(chan net.Conn, 1)
	done := make(chan error, 1)
	go func() { done <- asked.Receive(func(_ string, conn net.Conn) { got <- conn }) }()
	ours, err := asks.Connect("calls")
	if err != nil {
		t.Fatal(err)
	}
	theirs := <-got
	if _, err := ours.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = ours.Close()
	if text, err := io.ReadAll(theirs); err != nil || string(text) != "x" {
		t.Errorf("read %q, %v", text, err)
	}
	_ = theirs.Close()
	_ = asks.Close()
	if err := <-done; err != nil {
		t.Errorf("Receive: %v; want nil when the other end closed", err)
	}
}

func TestOtherVersionsAreRefusedInWords(t *testing.T) {
	for _, first := range []string{`{"hello":{"protocol":2,"pid":7,"news":[1]}}`, `{"something":"else"}`} {
		asks, asked := meet(t)
		if _, err := asks.conn.Write([]byte(first)); err != nil {
			t.Fatal(err)
		}
		_, err := asked.Asked()
		if _, ok := errors.AsType[*RefusedError](err); !ok {
			t.Errorf("%s: Asked: %v; want a refusal", first, err)
		}
		m, _, err := asks.receive()
		if err != nil || !strings.Contains(m.Refused, "protocol 1") {
			t.Errorf("%s: answered %+v, %v", first, m, err)
		}
	}
}

func TestAskEndsWithoutAnAnswer(t *testing.T) {
	for name, answer := range map[string]func(*Link){
		"refused":  func(l *Link) { _ = l.Refuse("it is stopping") },
		"ended":    func(l *Link) { _ = l.Close() },
		"nonsense": func(l *Link) { _, _ = l.conn.Write([]byte("?")) },
		"newer": func(l *Link) {
			body, _ := json.Marshal(message{Hello: &hello{Protocol: 2}})
			_, _ = l.conn.Write(body)
		},
		"no descriptor": func(l *Link) {
			_ = l.send(message{Hello: &hello{Protocol: protocol, Listeners: []listener{{"a", "b"}}}})
		},
	} {
		asks, asked := meet(t)
		answer(asked)
		_, got, err := asks.Ask(Process{PID: 2})
		if err == nil || len(got) != 0 {
			t.Errorf("%s: got %v, %v; want an error", name, got, err)
		}
		if _, ok := errors.AsType[*RefusedError](err); ok != (name == "refused") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A process that ends before it is ready changes nothing.
func TestOfferEndsWithTheOther(t *testing.T) {
	asks, asked := meet(t)
	go func() {
		_, _, _ = asks.Ask(Process{PID: 2})
		_ = asks.Close()
	}()
	if _, err := asked.Asked(); err != nil {
		t.Fatal(err)
	}
	if who, err := asked.Offer(Process{PID: 1}, nil, time.Minute); err == nil {
		t.Errorf("ready: %+v", who)
	}
}

// A process that is not ready in time does not keep others from taking over, and is told so when it
// comes to be ready, however it looks.
func TestOfferEndsWithAProcessThatHangs(t *testing.T) {
	for name, ends := range map[string]func(*Link) error{
		"ready_too_late":  func(l *Link) error { return l.Ready(Process{PID: 2, Instance: "two"}) },
		"ready_meanwhile": func(l *Link) error { return l.Receive(func(string, net.Conn) {}) },
	} {
		t.Run(name, func(t *testing.T) {
			asks, asked := meet(t)
			done := make(chan error, 1)
			go func() {
				_, _, err := asks.Ask(Process{PID: 2, Wait: time.Hour})
				done <- err
			}()
			if who, err := asked.Asked(); err != nil || who.Wait != time.Hour {
				t.Fatalf("asked by %+v, %v", who, err)
			}
			_, err := asked.Offer(Process{PID: 1}, nil, time.Millisecond)
			if _, ok := errors.AsType[*RefusedError](err); !ok {
				t.Fatalf("Offer: %v; want a refusal", err)
			}
			_ = asked.Close()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			err = ends(asks)
			if _, ok := errors.AsType[*RefusedError](err); !ok {
				t.Errorf("%v; want a refusal", err)
			}
		})
	}
}

// Ready that comes at the very moment at which the other process gives up is not lost on it: both know
// who serves.
func TestReadyAtTheLastMoment(t *testing.T) {
	asks, asked := meet(t)
	if err := asks.Ready(Process{PID: 2}); err != nil { // it is here, and will not be read
		t.Fatal(err)
	}
	asked.deafen()
	_ = asked.Refuse("too late") // as Offer does
	_ = asked.Close()
	err := asks.Receive(func(string, net.Conn) {})
	if _, ok := errors.AsType[*RefusedError](err); !ok {
		t.Errorf("Receive: %v; want a refusal", err)
	}
}

func TestSocketsInOnePlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "s")
	there := func() bool { _, err := os.Lstat(path); return err == nil }
	nobody := func(why string) {
		t.Helper()
		if l, err := Dial(context.Background(), path); !errors.Is(err, ErrNobody) {
			t.Errorf("%s: Dial = %v, %v; want ErrNobody", why, l, err)
		}
	}
	nobody("no socket")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	nobody("not published")
	if err := first.Publish(path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Publish(path); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil || !there() {
		t.Errorf("the end of the first removed the socket of the second, %v", err)
	}
	if l, err := Dial(t.Context(), path); err != nil {
		t.Errorf("the second: %v", err)
	} else {
		_ = l.Close()
	}
	if err := second.Close(); err != nil || there() {
		t.Errorf("the socket is still there, %v", err)
	}
	// What a process that was killed left behind is nobody.
	left, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	_ = left.Close()
	nobody("left behind")
}

func TestValidate(t *testing.T) {
	for socket, good := range map[string]bool{
		"": true, "/run/a/b.sock": true, "b.sock": false, "/run/a/": false, "/run/../b": false, "/" + strings.Repeat("a", maxPath): false,
	} {
		if err := (Config{Socket: socket}).Validate(); (err == nil) != good {
			t.Errorf("%q: %v", socket, err)
		}
	}
}
