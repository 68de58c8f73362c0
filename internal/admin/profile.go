package admin

import (
	"net/http"
	"net/http/pprof"
	"runtime"
	"sync"
	"time"
)

// How much is sampled while somebody asks for a profile of contention: so little that
// the profile of the CPU beside it does not change.
const (
	mutexFraction = 10               // one in ten waits for a lock
	blockRate     = time.Millisecond // one wait of a goroutine for each millisecond of waiting; longer ones all
)

// contention has the runtime sample waits while requests with seconds= are being answered, and only then.
type contention struct {
	set func(rate int) // runtime.SetMutexProfileFraction or runtime.SetBlockProfileRate
	to  int

	mu     sync.Mutex // guards asking
	asking int        // requests being answered
}

func (c *contention) ask(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.asking
	c.asking += by
	switch {
	case before == 0:
		c.set(c.to)
	case c.asking == 0:
		c.set(0)
	}
}

// serve answers with the profile of that name, of the seconds that the request names.
func (c *contention) serve(name string) http.Handler {
	profile := pprof.Handler(name)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("seconds") == "" {
			writeText(w, http.StatusBadRequest,
				"say for how long: "+r.URL.Path+"?seconds=5 samples the waits of five seconds; otherwise none are sampled\n")
			return
		}
		c.ask(1)
		defer c.ask(-1)
		profile.ServeHTTP(w, r)
	})
}

func mutexes() http.Handler {
	return (&contention{set: func(rate int) { runtime.SetMutexProfileFraction(rate) }, to: mutexFraction}).serve("mutex")
}

func blocks() http.Handler {
	return (&contention{set: runtime.SetBlockProfileRate, to: int(blockRate)}).serve("block")
}
