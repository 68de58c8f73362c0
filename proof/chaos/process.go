package chaos

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// sigterm: the sidecar is told to stop under load.
func sigterm(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	delay := 50 * time.Millisecond
	if r.o.Quick { // fewer calls: some that are no reads must be among those under way
		delay = 300 * time.Millisecond
	}
	if err := r.underWay(ctx, delay, 500*time.Millisecond); err != nil {
		return nil, err
	}
	at := r.rec.now()
	r.over = true
	r.line.event("SIGTERM to the sidecar")
	r.log("SIGTERM to the sidecar")
	r.line.watch(nil)
	if err := r.sidecar.Signal(syscall.SIGTERM); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	code, err := r.sidecar.Wait(wait)
	if err != nil {
		return nil, err
	}
	took := r.rec.now() - at
	if err := r.noSessions(ctx, 0); err != nil {
		return nil, err
	}
	said := stand.LastLines(r.sidecar.Log(), 5)
	if err := sleep(ctx, 500*time.Millisecond); err != nil {
		return nil, err
	}
	return func() {
		r.figure("exit after", took)
		r.exits(code, said)
		var cut []sample
		for _, s := range r.failures(at) {
			switch s.failed.code {
			case "DRAINING", absent, unread: // the books show whether what was unread did run
			default:
				cut = append(cut, s)
			}
		}
		r.goal("no answer is cut", len(cut) == 0, "%s", describe(cut))
	}, nil
}

// replace: another sidecar takes the place of the one that runs, twice.
func replace(ctx context.Context, r *run) (func(), error) {
	normal, err := r.normal(ctx)
	if err != nil {
		return nil, err
	}
	at := r.rec.now()
	r.event = at
	var codes []int
	var took []float64
	var said string
	for range 2 {
		begun := r.rec.now()
		r.line.event("serve -takeover")
		r.log("serve -takeover")
		old := r.sidecar
		heir, err := r.stack.sidecar(ctx, r.flags(), "-takeover")
		if err != nil {
			return nil, err
		}
		heir.close() // callers keep the connections that they have
		heir.faces = old.faces
		if heir.GRPC != old.GRPC || heir.HTTP != old.HTTP {
			return nil, fmt.Errorf("the new sidecar listens on %s and %s; want the same as before, %s and %s", heir.GRPC, heir.HTTP, old.GRPC, old.HTTP)
		}
		r.sidecar = heir
		r.line.watch(heir)
		wait, cancel := context.WithTimeout(ctx, patience)
		code, err := old.Wait(wait)
		cancel()
		if err != nil {
			return nil, err
		}
		codes, took, said = append(codes, code), append(took, ms(r.rec.now()-begun)), stand.LastLines(old.Log(), 3)
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	after, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	return func() {
		r.figure("from the start of the new one to the end of the old one, ms", took)
		r.noErrors("no call fails", at)
		r.goal("the old sidecars exit 0", codes[0] == 0 && codes[1] == 0, "%v %s", codes, said)
		r.show(normal, after)
	}, nil
}

// murder: a sidecar that is killed leaves nothing on the nodes, and the next one starts
// clean. Callers lose what was in flight.
func murder(ctx context.Context, r *run) (func(), error) {
	if _, err := r.normal(ctx); err != nil {
		return nil, err
	}
	at := r.rec.now()
	r.event, r.deaf = at, true
	r.load.ledger.kill()
	r.line.event("SIGKILL to the sidecar")
	r.line.watch(nil)
	old := r.sidecar
	if err := old.Signal(syscall.SIGKILL); err != nil {
		return nil, err
	}
	gone, clean, err := r.until(ctx, at, 10*time.Second, func() (bool, error) {
		sessions, err := r.stack.control.Sessions(ctx)
		return len(sessions) == 0, err
	})
	if err != nil {
		return nil, err
	}
	begun := r.rec.now()
	r.line.event("serve")
	next, err := r.stack.sidecar(ctx, r.flags(), "-grpc", old.GRPC, "-http", old.HTTP)
	if err != nil {
		return nil, err
	}
	next.close() // callers come back by themselves
	next.faces = old.faces
	r.sidecar = next
	r.line.watch(next)
	ready := r.rec.now()
	if err := sleep(ctx, 3*time.Second); err != nil {
		return nil, err
	}
	return func() {
		r.figure("sessions gone after", gone)
		r.figure("ready after", ready-begun)
		r.goal("no session of the dead process is left", clean, "after %v", gone)
		r.timed("within 1 s", clean && gone <= time.Second, "after %v", gone)
		r.fullService(ready)
	}, nil
}
