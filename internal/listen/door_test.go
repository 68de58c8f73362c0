package listen

import (
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// What fails for a while is tried again, ever less often, counted, and logged once.
func TestAcceptIsTriedAgain(t *testing.T) {
	for _, cause := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EPERM} {
		synctest.Test(t, func(t *testing.T) {
			log := new(strings.Builder)
			d := newDoor("grpc.listen", slog.New(slog.NewTextHandler(log, nil)))
			here, there := net.Pipe()
			defer here.Close()
			defer there.Close()
			began, last := time.Now(), time.Now()
			var pauses []time.Duration
			next := func() (net.Conn, error) {
				pauses, last = append(pauses, time.Since(last)), time.Now()
				if len(pauses) <= 12 {
					return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", cause)}
				}
				return there, nil
			}
			if conn, err := d.accept(next); conn != there || err != nil {
				t.Fatalf("%v: %v, %v", cause, conn, err)
			}
			for i, p := range pauses[1:] {
				if want := min(5*time.Millisecond<<i, time.Second); p != want {
					t.Errorf("%v: pause %d is %v; want %v", cause, i, p, want)
				}
			}
			if n := d.failures.Load(); n != 12 {
				t.Errorf("%v: %d failures counted; want 12", cause, n)
			}
			for range 2 { // soon after, and long after
				pauses = pauses[:0]
				if _, err := d.accept(next); err != nil {
					t.Fatal(err)
				}
				if pauses[1] != 5*time.Millisecond {
					t.Errorf("%v: after a success the first pause is %v", cause, pauses[1])
				}
				time.Sleep(2 * time.Minute)
			}
			if n := strings.Count(log.String(), "\n"); n != 2 || time.Since(began) < time.Minute {
				t.Errorf("%v: logged %d times; want once for each of two episodes:\n%s", cause, n, log)
			}
		})
	}
}

// A listener that is closed ends Accept, also during a pause.
func TestAcceptEndsWithItsListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor("grpc.listen", slog.New(slog.DiscardHandler))
		began := time.Now()
		var closed atomic.Bool
		go func() {
			time.Sleep(10 * time.Second)
			closed.Store(true)
			d.shut()
			d.shut() // again changes nothing
		}()
		_, err := d.accept(func() (net.Conn, error) {
			if closed.Load() {
				return nil, net.ErrClosed
			}
			return nil, syscall.EMFILE
		})
		if err != net.ErrClosed || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %v; want ErrClosed after 10s", err, time.Since(began))
		}
	})
}
