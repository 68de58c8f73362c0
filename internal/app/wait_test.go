package app

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/proof/short"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// startTaken starts a sidecar whose four sessions are held by transactions. commit commits these.
func startTaken(t *testing.T, settings ...string) (s *sidecar, commit func()) {
	t.Helper()
	s = start(t, newCluster(t).Endpoint(), append([]string{"pool.min=4", "pool.max=4", "pool.shed=false", "tx.idle=5m"}, settings...)...)
	s.eventually("sessions are idle", func() bool { return s.core.pool.Stats().Idle == 4 })
	s.reachNodes()
	var txs []string
	for range 4 {
		res, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{})
		if err != nil {
			t.Fatal(err)
		}
		txs = append(txs, res.Tx.Id)
	}
	return s, func() {
		for _, id := range txs {
			if _, err := s.client.Commit(t.Context(), &sidecarv1.CommitRequest{Id: id}); err != nil {
				t.Error(err)
			}
		}
	}
}

// waiting is how many calls wait for a session.
func (s *sidecar) waiting() int {
	stats := s.core.pool.Stats()
	return stats.InLine()
}

// Calls that wait for a session need no goroutine, and are served as sessions come free; those whose callers leave wait no longer.
func TestWaitingCallsHoldNoGoroutine(t *testing.T) {
	short.Skip(t, "it counts goroutines of the whole process")
	t.Run("gRPC", waitingOverGRPC)
	t.Run("HTTP", waitingOverHTTP)
}

func waitingOverGRPC(t *testing.T) {
	const open = 200
	s, commit := startTaken(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended, left := make(chan error, open), make(chan error, open)
	for i := range open {
		go func() {
			_, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "1m"})
			ended <- err
		}()
		go func() {
			var err error
			if i%2 == 0 {
				_, err = s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 2", Timeout: "1m"})
			} else {
				_, err = s.client.Begin(ctx, &sidecarv1.BeginRequest{Timeout: "1m"})
			}
			left <- err
		}()
	}
	s.eventually("they wait", func() bool { return s.waiting() == 2*open })
	if n := atWork(); n > 0 {
		t.Errorf("%d goroutines serve %d calls that wait", n, 2*open)
	}
	leave()
	for range open {
		if err := <-left; status.Code(err) != codes.Canceled {
			t.Errorf("%v; want %s", err, codes.Canceled)
		}
	}
	s.eventually("half of them wait", func() bool { return s.waiting() == open && s.api.State().OpenCalls == open })
	commit()
	for range open {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	s.eventually("nothing is left", func() bool { return s.core.pool.Stats().InUse == 0 && s.api.State().OpenCalls == 0 && atWork() == 0 })
}

func waitingOverHTTP(t *testing.T) {
	const open = 200
	if runtime.GOOS != "linux" {
		t.Log("connections are parked on Linux alone")
		return
	}
	s, commit := startTaken(t)
	var all []*asker
	for range open {
		a := dialAsker(t, "tcp", s.at.HTTP)
		a.say(ordinary("POST", "/v1/query", `{"sql":"SELECT 1","timeout":"1m"}`))
		all = append(all, a)
	}
	s.eventually("they wait", func() bool { return s.waiting() == open })
	if n := httpAtWork(); n > 0 {
		t.Errorf("%d goroutines serve %d requests that wait", n, open)
	}
	for _, a := range all[open/2:] {
		_ = a.Close()
	}
	s.eventually("half of them wait", func() bool { return s.waiting() == open/2 && s.api.State().OpenCalls == open/2 })
	commit()
	for _, a := range all[:open/2] {
		a.hears(http.StatusOK)
	}
	s.eventually("nothing is left", func() bool {
		return s.core.pool.Stats().InUse == 0 && s.api.State().OpenCalls == 0 && httpAtWork() == 0
	})
}

// waited is the header of a call that waited for 100 ms or more.
var waited = regexp.MustCompile(`queue;dur=\d{3}`)

// lengths matches durations in errors.
var lengths = regexp.MustCompile(`\d+(\.\d+)?(ms|s)\b`)

// Calls that get no session in time get the same error, whether a turn or a goroutine waited.
func TestWaitsInVainAreAnsweredAlike(t *testing.T) {
	s, commit := startTaken(t, kvSetting)
	defer commit()
	for _, request := range []string{
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1","timeout":"200ms"}`),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1","timeout":"200ms","tx":{"begin":{}}}`),
		ordinary("POST", "/v1/query", `{"sql":"SELECT 1","priority":"batch"}`, "Request-Timeout: 0.2s"),
		ordinary("POST", "/v1/tx/begin", `{"timeout":"200ms"}`),
	} {
		var told [2]string
		for i, form := range []string{request, strange(request)} {
			a := dialAsker(t, "tcp", s.at.HTTP)
			a.say(form)
			res, err := http.ReadResponse(a.answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if timing := res.Header.Get("Server-Timing"); !waited.MatchString(timing) {
				t.Errorf("%q: the time of the wait is not told: %s", form, timing)
			}
			for _, name := range []string{"Date", "Server-Timing", "Content-Length"} { // of what changes
				res.Header.Del(name)
			}
			var head strings.Builder
			_ = res.Header.Write(&head)
			told[i] = res.Status + "\n" + lengths.ReplaceAllString(changing.ReplaceAllString(head.String()+string(body), "$1"), "some time")
		}
		if told[0] != told[1] {
			t.Errorf("%q:\n%s\nnet/http:\n%s", request, told[0], told[1])
		}
	}
	// The same over gRPC, where a request that is larger than what is read in a turn has a goroutine.
	var told [2]string
	for i, sql := range []string{"SELECT 1", "SELECT 1" + strings.Repeat(" ", 20<<10)} {
		_, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: sql, Timeout: "200ms"})
		told[i] = lengths.ReplaceAllString(status.Convert(err).Proto().String(), "some time")
	}
	if ids := regexp.MustCompile(`[0-9a-f]{32}`); ids.ReplaceAllString(told[0], "") != ids.ReplaceAllString(told[1], "") {
		t.Errorf("%s\nby a goroutine:\n%s", told[0], told[1])
	}
}

// A stop waits for calls that wait for a session, and ends them when its time is up.
func TestStopWithWaitingCalls(t *testing.T) {
	const open = 20
	for _, c := range []struct {
		name, grace string
	}{{"served", "1m"}, {"cut off", "100ms"}} {
		t.Run(c.name, func(t *testing.T) {
			s, commit := startTaken(t, "drain.grace="+c.grace)
			var ended sync.WaitGroup
			calls := 0
			for range open {
				calls++
				ended.Go(func() {
					_, err := s.client.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "1m"})
					if served := err == nil; served != (c.name == "served") {
						t.Error(err)
					}
				})
				if runtime.GOOS != "linux" {
					continue
				}
				calls++
				a := dialAsker(t, "tcp", s.at.HTTP)
				a.say(ordinary("POST", "/v1/query", `{"sql":"SELECT 1","timeout":"1m"}`))
				ended.Go(func() {
					res, err := http.ReadResponse(a.answers, nil)
					if served := err == nil && res.StatusCode == http.StatusOK; served != (c.name == "served") {
						t.Errorf("%v, %v", res, err)
					}
				})
			}
			s.eventually("they wait", func() bool { return s.waiting() == calls })
			stopped := make(chan error, 1)
			go func() { stopped <- s.stop() }()
			s.eventually("it drains", func() bool { return s.phase.get() >= draining })
			if c.name == "served" {
				commit()
			}
			ended.Wait()
			if err := <-stopped; (err == nil) != (c.name == "served") {
				t.Errorf("the stop: %v", err)
			}
		})
	}
}

// A transaction that is open for too long ends although its node does not answer, whether a step of it has a goroutine or not.
func TestTxMaxEndsAStepOnASilentNode(t *testing.T) {
	for name, step := range map[string]func(s *sidecar, tx string) error{
		"statement": func(s *sidecar, tx string) error {
			_, err := s.client.Execute(
				t.Context(),
				&sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "1h", Tx: &sidecarv1.TxSelector{Id: tx}},
			)
			return err
		},
		"commit": func(s *sidecar, tx string) error {
			_, err := s.client.Commit(t.Context(), &sidecarv1.CommitRequest{Id: tx, Timeout: "1h"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			s := start(t, c.Endpoint(), "tx.max=1s", "health.silence=1h")
			tx, err := s.client.Begin(t.Context(), &sidecarv1.BeginRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for node := range uint32(3) {
				if err := c.Act(t.Context(), node+1, "blackhole", nil); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			err = step(s, tx.GetTx().GetId())
			if took := time.Since(began); !strings.Contains(status.Convert(err).Message(), "tx.max") || took > 10*time.Second {
				t.Errorf("after %v: %v; want an error that names tx.max", took, err)
			}
		})
	}
}
