package app

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/hop"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
	"github.com/ydb-sidecar/sidecar/internal/statements"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// openCalls is GET /state/calls.
func (s *sidecar) openCalls(query string) (state snapshot.CallsState) {
	s.Helper()
	s.state("/state/calls"+query, &state)
	return state
}

// end ends calls as operators do.
func (s *sidecar) end(id string) (status int, text string) {
	return s.fetch(http.MethodPost, "http://"+s.at.Admin+"/calls/"+id+"/kill", "")
}

// Operators see the calls of every API while nodes have them, and end each: its caller is told so, its node that it is
// cancelled, and its session serves others.
func TestCallsAreListedAndEnded(t *testing.T) {
	for _, mode := range []string{"transaction", "session", "passthrough"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			s := start(t, c.Endpoint(), "wire.mode="+mode)
			s.knowsNodes()
			if _, err := s.query("CREATE TABLE paused (id Uint64, PRIMARY KEY (id))"); err != nil {
				t.Fatal(err)
			}
			session := s.sdk(t.Context(), "shop").session()
			delayAll(t, c, devcluster.Delay{Delay: time.Hour, Share: 1,
				Methods: []string{"ExecuteQuery", "BulkUpsert", "ListDirectory"}})
			for _, one := range pausables(session) {
				s.endOne(one)
			}
			s.eventually("nothing is left", func() bool {
				st := s.core.pool.Stats()
				return st.InUse == 0 && s.views.QuietState().Calls == 0 && len(s.openCalls("").Calls) == 0
			})
			delayAll(t, c, devcluster.Delay{})
			for _, one := range pausables(session)[:2] {
				if err := one.run(t.Context(), s); err != nil {
					t.Errorf("%s after its like was ended: %v", one.name, err)
				}
			}
		})
	}
}

// endOne makes a call that no node answers, and ends it.
func (s *sidecar) endOne(one pausable) {
	s.Helper()
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		done <- one.run(ctx, s)
	}()
	var call hop.OpenCall
	s.eventually(one.name+" is at a node", func() bool {
		list := s.openCalls("?limit=10").Calls
		i := slices.IndexFunc(list, func(c hop.OpenCall) bool { return c.Phase == "node" && c.Node != 0 })
		if i >= 0 {
			call = list[i]
		}
		return i >= 0
	})
	if strings.Contains(one.name, "SDK") && (call.API != "ydb" || call.App != "shop" || call.From == "") {
		s.Errorf("%s is listed as %+v", one.name, call)
	}
	if text := statements.Digest("SELECT 1").String(); strings.Contains(one.name, "statement") != (call.Digest == text) {
		s.Errorf("%s is listed with the digest %q; that of SELECT 1 is %s", one.name, call.Digest, text)
	}
	if status, text := s.end(call.ID); status != http.StatusOK || !strings.Contains(text, call.ID) {
		s.Errorf("%s: %d %s", one.name, status, text)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "ended by an operator") {
		s.Errorf("%s ended with %v", one.name, err)
	}
}

// Calls that a pause holds are listed as paused, and ended too. The list is bounded, and can be of one app, or of calls that have
// lasted for long. A trace id ends all calls of that trace.
func TestCallsOfOneTrace(t *testing.T) {
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	c := newCluster(t)
	s := start(t, c.Endpoint(), "pool.max=1")
	s.knowsNodes()
	if _, err := s.query("SELECT 1"); err != nil {
		t.Fatal(err)
	}
	if err := (pools{s.App}).Pause(true); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 3)
	for range 3 {
		go func() {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+traceID+"-b7ad6b7169203331-01",
				"x-sidecar-app", "shop")
			_, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			done <- err
		}()
	}
	s.eventually("all wait", func() bool {
		list := s.openCalls("?app=shop").Calls
		return len(list) == 3 && !slices.ContainsFunc(list, func(c hop.OpenCall) bool {
			return c.Phase != "paused" || c.Trace != traceID || c.App != "shop" || c.API != "grpc" ||
				c.Name != "Execute" || c.Class == "" || c.Mode != "implicit" ||
				c.Digest != statements.Digest("SELECT 2").String() // literals do not count
		})
	})
	for query, want := range map[string][2]int{
		"?app=shop&limit=2": {2, 1}, "?app=other": {0, 0}, "?min_ms=3600000": {0, 0}, "?app=shop&min_ms=0": {3, 0},
	} {
		if got := s.openCalls(query); len(got.Calls) != want[0] || got.More != want[1] {
			t.Errorf("%s: %d calls and %d more; want %v", query, len(got.Calls), got.More, want)
		}
	}
	for query, status := range map[string]int{"?min_ms=-1": 400, "?min_ms=x": 400, "?limit=0": 400} {
		if got, text := s.get("/state/calls" + query); got != status {
			t.Errorf("%s: %d %s", query, got, text)
		}
	}
	if status, text := s.end("1af7651916cd43dd8448eb211c80319c"); status != http.StatusNotFound {
		t.Errorf("a trace without a call: %d %s", status, text)
	}
	if status, text := s.end(traceID); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	for range 3 {
		if err := <-done; err == nil || !strings.Contains(err.Error(), "ended by an operator") {
			t.Error(err)
		}
	}
	if events, _ := s.events.After(0); !strings.Contains(fmt.Sprint(events), "was ended by an operator") {
		t.Errorf("no event: %v", events)
	}
}
