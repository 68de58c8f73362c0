package systemtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// Every class of error, on purpose, while all four apps work: refusals, lost
// sessions, conflicts, and answers that say nothing about a commit that was, or
// was not, carried out.
func TestAppsHandleEveryClassOfError(t *testing.T) {
	const quantity, products = 1000, 100
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil, "pool.max=30")
	python(t, "http://"+s.HTTP).run(t, "init", "--quantity", fmt.Sprint(quantity), "--products", fmt.Sprint(products))
	running := startApps(t, s, products)
	for _, fault := range []map[string]any{
		{"status": "UNDETERMINED", "after": true}, // it ran
		{"status": "UNDETERMINED"},                // it did not
		{"status": "grpc:UNAVAILABLE", "after": true},
		{"status": "ABORTED"},
		{"status": "BAD_SESSION"},
		{"status": "OVERLOADED"},
	} {
		fault["share"], fault["methods"] = 0.2, []string{"ExecuteQuery", "CommitTransaction"}
		c.everywhere(t, "errors", fault)
		running.placeMore(t, 12)
		c.everywhere(t, "clear", nil)
		// A sidecar that took the nodes for bad must come to think well of them again.
		running.placeMore(t, 1)
	}
	met := running.finish(t)
	for _, class := range []string{"OUTCOME_UNKNOWN unknown", "YDB_ABORTED safe"} {
		if !met.has("place " + class) {
			t.Errorf("no app met %q while placing orders: %v", class, met)
		}
	}
	checkBooks(t, s, quantity, running.ledgers)
}

// The shop as a service: it places, processes and shows an order over HTTP,
// and refuses nonsense.
func TestAppsServe(t *testing.T) {
	c := startCluster(t, nil)
	s := startSidecar(t, c, nil)
	all := apps(t, s)
	all[0].run(t, "init")
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			address := standtest.Ready(t, a.start(t, nil, "serve", "--port", "0"))["serving"]
			customer := strings.ReplaceAll(a.name, " ", "%20")
			var placed struct{ ID string }
			if status := callJSON(t, "POST", "http://"+address+"/orders",
				`{"customer":"`+a.name+`","lines":{"p000001":2,"p000002":1}}`, &placed); status != 201 || placed.ID == "" {
				t.Fatalf("placing an order: %d, id %q", status, placed.ID)
			}
			var done struct{ Outcome string }
			if status := callJSON(
				t, "POST", "http://"+address+"/orders/"+placed.ID+"/process", "", &done,
			); status != 200 || done.Outcome != "processed" {
				t.Errorf("processing it: %d, %q; want 200, processed", status, done.Outcome)
			}
			var history struct{ Orders []map[string]any }
			if status := callJSON(
				t, "GET", "http://"+address+"/customers/"+customer+"/orders", "", &history,
			); status != 200 || len(history.Orders) != 1 {
				t.Errorf("the history: %d, %v; want the order", status, history.Orders)
			} else if o := history.Orders[0]; o["customer"] != a.name || o["processed"] == nil {
				t.Errorf("the history says %v; want a processed order of %q", o, a.name)
			}
			var refused struct{ Error string }
			if status := callJSON(t, "POST", "http://"+address+"/orders", "nonsense", &refused); status != 400 || refused.Error == "" {
				t.Errorf("nonsense: %d, %q; want 400 and why", status, refused.Error)
			}
			if status := callJSON(t, "GET", "http://"+address+"/nothing", "", &refused); status != 404 {
				t.Errorf("a page that is not there: %d; want 404", status)
			}
		})
	}
	for _, a := range all {
		if said := a.run(t, "check"); said["processed"] != float64(len(all)) {
			t.Errorf("%s: %v orders processed; want %d", a.name, said["processed"], len(all))
		}
	}
}
