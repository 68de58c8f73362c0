package findings

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// calm is a sidecar of three good nodes at second i, with calls going on.
func calm(i int) Picture {
	p := Picture{
		At: noon.Add(time.Duration(i) * time.Second), Stage: "serving", HeldLong: 10 * time.Second,
		Pool: Pool{Max: 20, Limit: 20, Sessions: 10, Busy: 3, Idle: 7},
	}
	for id := range uint32(3) {
		p.Nodes = append(p.Nodes, Node{
			ID: id + 1, Address: fmt.Sprintf("ydb-%d:2136", id+1), Health: "healthy", Usable: true,
			Latency: 2 * time.Millisecond, Succeeded: uint64(1000 * i),
		})
	}
	return p
}

// full is a picture of a pool without a free session and with a line before it.
func full(p *Picture) {
	p.Pool.Sessions, p.Pool.Busy, p.Pool.Idle, p.Pool.Waiting, p.Pool.Oldest = 20, 20, 0, 7, 1200*time.Millisecond
}

func TestFindings(t *testing.T) {
	out := func(n *Node, cause, reason string) {
		n.Health, n.Cause, n.Reason, n.Usable, n.Unreachable = "ejected", cause, reason, false, cause == "transport"
		n.Since = noon.Add(15 * time.Second)
	}
	for _, tc := range []struct {
		name   string
		change func(i int, p *Picture) // of second i, from 15 on
		code   Code                    // of the worst finding; "": there is none
		text   string                  // a part of it
		only   bool                    // there is no other
	}{
		{"all_is_well", func(int, *Picture) {}, "", "nothing is wrong", true},
		{"a_full_pool_without_a_line", func(_ int, p *Picture) { full(p); p.Pool.Waiting = 0 }, "", "nothing is wrong", true},
		{"a_line_for_a_moment", func(i int, p *Picture) {
			if i%4 == 0 {
				full(p)
			}
		}, "", "nothing is wrong", true},
		{"a_dead_node", func(_ int, p *Picture) { out(&p.Nodes[1], "transport", "connection refused on execute") },
			NodeDead, "node 2 (ydb-2:2136) does not answer for 9.0 s: connection refused", true},
		{"a_node_that_returns", func(_ int, p *Picture) {
			out(&p.Nodes[1], "silence", "silent")
			p.Nodes[1].Health = "probing"
		}, NodeDead, "node 2", true},
		{"a_node_that_vanished", func(_ int, p *Picture) {
			p.Nodes[1].Leaving, p.Nodes[1].Gone, p.Nodes[1].Reason = true, true, "left discovery"
		},
			NodeDead, "node 2 (ydb-2:2136) is gone from the list of nodes", true},
		{"a_dead_node_that_vanished", func(_ int, p *Picture) {
			out(&p.Nodes[1], "transport", "connection refused on execute")
			p.Nodes[1].Leaving, p.Nodes[1].Gone = true, true
		}, NodeDead, "does not answer", true},
		{"a_slow_node", func(_ int, p *Picture) { p.Nodes[1].Latency = 80 * time.Millisecond },
			NodeSlow, "node 2 (ydb-2:2136) is 40 times slower than the others (80 ms against 2.0 ms)", true},
		{"an_ejected_slow_node", func(_ int, p *Picture) { out(&p.Nodes[1], "latency", "execute calls take 81 ms") }, NodeSlow, "execute calls take 81 ms", true},
		{"a_slow_node_without_calls", func(_ int, p *Picture) { p.Nodes[1].Latency, p.Nodes[1].Succeeded = 80*time.Millisecond, 14000 }, "", "nothing", true},
		{"a_node_that_is_only_a_little_slower", func(_ int, p *Picture) { p.Nodes[1].Latency = 6 * time.Millisecond }, "", "nothing", true},
		{"a_node_that_refuses", func(_ int, p *Picture) { out(&p.Nodes[0], "refusals", "OVERLOADED on execute") }, NodeRefuses, "node 1", true},
		{"a_small_pool", func(_ int, p *Picture) { full(p) },
			PoolSmall, "all 20 sessions are in use while the nodes are fast (2.0 ms a call): pool.max is too small for this load; 7 callers wait, the first for 1.2 s", true},
		{"a_small_pool_that_turns_callers_away", func(i int, p *Picture) { full(p); p.Pool.Refused = uint64(10 * i) }, PoolSmall, "90 turned away in the last 9 s", true},
		{"overload", func(i int, p *Picture) {
			full(p)
			for n := range p.Nodes {
				p.Nodes[n].Latency = 40 * time.Millisecond
			}
			p.Pool.Shed = uint64(5 * i)
		}, Overload, "calls take 40 ms, 20 times as long as before, all 20 sessions are in use", true},
		{"overload_that_the_adaptive_limit_sees", func(_ int, p *Picture) { full(p); p.Pool.Limit, p.Pool.Busy = 8, 8 }, Overload, "the cluster bears 8 calls at a time", true},
		{"the_cluster_refuses", func(i int, p *Picture) {
			for n := range p.Nodes {
				p.Nodes[n].Refused = uint64(100 * (i - 14))
			}
		}, ClusterOverloaded, "the cluster refuses calls: 2700 of 29700 in the last 9 s", true},
		{"all_nodes_are_slow", func(_ int, p *Picture) {
			for n := range p.Nodes {
				p.Nodes[n].Latency = 40 * time.Millisecond
			}
		}, ClusterSlow, "all nodes are slower than they were: 40 ms against 2.0 ms", true},
		{"an_app_that_holds_sessions", func(i int, p *Picture) {
			full(p)
			for range 18 {
				p.Holders = append(p.Holders, Holder{App: "reports", Node: 2, Held: time.Duration(i-14) * time.Second, Transaction: true})
			}
			p.Holders[3].Held, p.Holders[3].Trace = 9*time.Second, "0af7"
		}, SessionsHeld, "app reports holds 18 of 20 sessions in open transactions, the longest for 10 s; 7 callers wait", false},
		{"a_session_held_for_long", func(i int, p *Picture) {
			p.Holders = []Holder{{Session: "a1b2c3d4", App: "reports", Node: 2, Trace: "0af7", Held: 42 * time.Second, Transaction: true}}
		}, HeldLong, "app reports has held session a1b2c3d4 on node 2 for 42 s, with a transaction, in which nothing runs now, trace 0af7", true},
		{"credentials", func(_ int, p *Picture) { p.Credentials = "UNAUTHENTICATED" }, CredentialsBad, "credentials do not work: UNAUTHENTICATED", true},
		{"credentials_refused_call_by_call", func(i int, p *Picture) {
			p.Denied = uint64(50 * i)
			for n := range p.Nodes {
				p.Nodes[n].Succeeded = 14000
			}
		}, CredentialsBad, "450 calls in the last 9 s", true},
		{"one_table_without_a_right", func(i int, p *Picture) { p.Denied = uint64(50 * i) }, "", "nothing", true},
		{"no_node_at_all", func(_ int, p *Picture) { p.Nodes, p.Discovery = nil, Discovery{1, "no route to host"} }, NoNode, "no node is known: no route to host", true},
		{"no_good_node", func(_ int, p *Picture) {
			for n := range p.Nodes {
				out(&p.Nodes[n], "transport", "refused")
			}
		}, NoNode, "none of 3 nodes is healthy", false},
		{"discovery", func(_ int, p *Picture) { p.Discovery = Discovery{5, "timeout"} }, DiscoveryFails, "5 times in a row: timeout", true},
		{"no_session", func(i int, p *Picture) { p.Pool.Failed, p.Pool.OpenError = uint64(i), "SCHEME_ERROR" }, SessionsFail, "no session can be opened: SCHEME_ERROR", true},
		{"a_quota", func(i int, p *Picture) { p.Apps = []App{{"reports", uint64(i), "sessions"}} }, QuotaReached, "app reports reached its limit (sessions): 9 calls refused", true},
		{"memory", func(_ int, p *Picture) { p.MemoryTight = true }, MemoryShort, "memory is short", true},
		{"orders_are_not_faults", func(_ int, p *Picture) {
			p.Pool.Paused, p.Nodes[0].Banned, p.Nodes[1].Leaving, p.Stage = true, true, true, "lame duck"
			p.Nodes[0].Reason = "banned by an operator: a disk"
		}, PoolPaused, "nothing is wrong", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := New()
			for i := range 25 {
				p := calm(i)
				if i >= 15 {
					tc.change(i, &p)
				}
				w.Look(p)
				if i == 14 && len(w.Report().Findings) > 0 {
					t.Fatalf("before anything happened: %v", w.Report())
				}
			}
			r := w.Report()
			codes := []Code{}
			for _, f := range r.Findings {
				codes = append(codes, f.Code)
				if f.Do == "" || f.Severity == "" || f.Since.Before(noon.Add(15*time.Second)) {
					t.Errorf("%+v lacks something", f)
				}
				if f.Node != 0 && strings.Contains(f.Do, " NODE ") {
					t.Errorf("%+v does not say which node", f)
				}
			}
			if tc.code == "" && len(codes) > 0 || tc.code != "" && (len(codes) == 0 || codes[0] != tc.code) || tc.only && len(codes) > 1 {
				t.Errorf("found %v; want %s", r.Findings, tc.code)
			}
			if !strings.Contains(r.Summary, strings.TrimSuffix(tc.text, "...")) {
				t.Errorf("it says %q; want %q", r.Summary, tc.text)
			}
			// What was found is over when its cause is.
			for i := 25; i < 45; i++ {
				p := calm(i)
				p.Denied, p.Pool.Failed = 50*24, 24
				p.Apps = []App{{"reports", 24, "sessions"}}
				for n := range p.Nodes {
					p.Nodes[n].Refused = 1000
				}
				p.Pool.Refused, p.Pool.Shed = 240, 120
				w.Look(p)
			}
			if r := w.Report(); len(r.Findings) > 0 {
				t.Errorf("afterwards: %v", r.Findings)
			}
		})
	}
}

func TestBeginAndEndAreToldOnce(t *testing.T) {
	w := New()
	var told []string
	for i := range 30 {
		p := calm(i)
		if i >= 10 && i < 20 {
			p.Nodes[1].Latency = 80 * time.Millisecond
			p.Holders = []Holder{{Session: "a1", App: "x", Node: 2, Held: time.Duration(i) * time.Second}, {Session: "b2", App: "x", Node: 2, Held: time.Duration(i) * time.Second}}
		}
		began, ended := w.Look(p)
		for _, f := range began {
			told = append(told, fmt.Sprintf("%d began %s %s", i, f.Code, f.Session))
		}
		for _, f := range ended {
			told = append(told, fmt.Sprintf("%d ended %s %s", i, f.Code, f.Session))
		}
	}
	want := []string{"10 began HELD_LONG a1", "10 began HELD_LONG b2", "12 began NODE_SLOW ", "20 ended NODE_SLOW ", "20 ended HELD_LONG a1", "20 ended HELD_LONG b2"}
	if len(told) != len(want) || !slices.Equal(told[:4], want[:4]) {
		t.Errorf("told %q; want %q", told, want)
	}
}

// Whatever is held, a report is bounded.
func TestManyHolders(t *testing.T) {
	w, p := New(), calm(0)
	for i := range 5000 {
		p.Holders = append(p.Holders, Holder{Session: fmt.Sprint(i), App: fmt.Sprint("app", i%100), Held: time.Minute, Transaction: true})
	}
	w.Look(p)
	if n := len(w.Report().Findings); n == 0 || n > maxFindings {
		t.Errorf("%d findings", n)
	}
}

func TestKinds(t *testing.T) {
	seen := map[Code]bool{}
	for _, k := range Kinds {
		if seen[k.Code] || k.Meaning == "" || k.Do == "" || k.Severity.rank() < 0 || k.hold < 1 {
			t.Errorf("%+v", k)
		}
		seen[k.Code] = true
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.01 ms", 340 * time.Microsecond: "0.34 ms", 2 * time.Millisecond: "2.0 ms", 81 * time.Millisecond: "81 ms",
		1200 * time.Millisecond: "1.2 s", 42 * time.Second: "42 s", 5 * time.Minute: "5 min", 3 * time.Hour: "3 h",
	} {
		if got := Span(d); got != want {
			t.Errorf("Span(%v) = %q; want %q", d, got, want)
		}
	}
}
