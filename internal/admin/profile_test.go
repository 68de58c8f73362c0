package admin

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

func TestWaitsAreSampledWhileSomebodyAsks(t *testing.T) {
	var set []int
	c := &contention{set: func(rate int) { set = append(set, rate) }, to: 7}
	for _, by := range []int{1, 1, -1, -1, 1, -1} {
		c.ask(by)
	}
	if want := []int{7, 0, 7, 0}; !slices.Equal(set, want) {
		t.Errorf("set to %v; want %v", set, want)
	}
}

func TestProfilesOfContention(t *testing.T) {
	config := Default()
	config.Pprof = true
	server := new(world).server(config)
	for _, path := range []string{"/debug/pprof/mutex", "/debug/pprof/block"} {
		if code, text := get(server.Handler(), path); code != http.StatusBadRequest || !strings.Contains(text, "seconds=") {
			t.Errorf("%s without seconds: %d %q; want 400 that says what to do", path, code, text)
		}
		if code, _ := get(server.Handler(), path+"?seconds=-1"); code != http.StatusBadRequest {
			t.Errorf("%s of -1 seconds: %d; want 400", path, code)
		}
		if code, _ := get(new(world).server(Default()).Handler(), path+"?seconds=1"); code != http.StatusNotFound {
			t.Errorf("%s without admin.pprof: %d; want 404", path, code)
		}
	}
	// Five of the bubble's seconds take none of ours.
	synctest.Test(t, func(t *testing.T) {
		sampled := make(chan int)
		handler := server.Handler()
		go func() {
			r := httptest.NewRequest("GET", "/debug/pprof/mutex?seconds=5", nil)
			r.Host = "localhost"
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			sampled <- w.Body.Len()
		}()
		synctest.Wait()
		if rate := runtime.SetMutexProfileFraction(-1); rate != mutexFraction {
			t.Errorf("while it is being taken one of %d waits is sampled; want %d", rate, mutexFraction)
		}
		if <-sampled == 0 {
			t.Error("the profile is empty")
		}
		if rate := runtime.SetMutexProfileFraction(-1); rate != 0 {
			t.Errorf("one of %d waits is sampled afterwards; want none", rate)
		}
	})
}
