package chaos

import (
	"context"
	"slices"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// sigterm: the sidecar is told to stop under load.
func sigterm(r *script) func() {
	r.normal()
	delay := 50 * time.Millisecond
	if r.o.Quick { // fewer calls: some that are no reads must be among those under way
		delay = 300 * time.Millisecond
	}
	r.underWay(delay, 500*time.Millisecond)
	at := r.rec.now()
	r.over = true
	r.signal(syscall.SIGTERM, "SIGTERM")
	code := r.wait(r.sidecar.Process)
	took := r.rec.now() - at
	r.try(func(ctx context.Context) error { return r.noSessions(ctx, 0) })
	said := stand.LastLines(r.sidecar.Log(), 5)
	r.sleep(500 * time.Millisecond)
	return func() {
		r.figure("exit after", took)
		r.exits(code, said)
		r.none("no answer is cut", r.failing(at, func(s sample) bool { // the books show whether what was unread did run
			return !slices.Contains([]string{"DRAINING", absent, unread}, s.failed.code)
		}))
	}
}

// replace: another sidecar takes the place of the one that runs, twice.
func replace(r *script) func() {
	normal := r.normal()
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
		r.serve("-takeover")
		code := r.wait(old.Process)
		codes, took, said = append(codes, code), append(took, ms(r.rec.now()-begun)), stand.LastLines(old.Log(), 3)
		r.sleep(time.Second)
	}
	after := r.measure()
	return func() {
		r.figure("from the start of the new one to the end of the old one, ms", took)
		r.noErrors("no call fails", at)
		r.goal("the old sidecars exit 0", codes[0] == 0 && codes[1] == 0, "%v %s", codes, said)
		r.show(normal, after)
	}
}

// murder: a sidecar that is killed leaves nothing on the nodes, and the next one starts
// clean. Callers lose what was in flight.
func murder(r *script) func() {
	r.normal()
	at := r.rec.now()
	r.event, r.deaf = at, true
	r.load.ledger.kill()
	r.signal(syscall.SIGKILL, "SIGKILL")
	gone, clean := r.until(at, 10*time.Second, func() bool { return len(r.sessions()) == 0 })
	begun := r.rec.now()
	r.line.event("serve")
	r.serve("-grpc", r.sidecar.GRPC, "-http", r.sidecar.HTTP)
	ready := r.rec.now()
	r.sleep(3 * time.Second)
	return func() {
		r.figure("sessions gone after", gone)
		r.figure("ready after", ready-begun)
		r.goal("no session of the dead process is left", clean, "after %v", gone)
		r.timed("within 1 s", clean && gone <= time.Second, "after %v", gone)
		r.fullService(ready)
	}
}
