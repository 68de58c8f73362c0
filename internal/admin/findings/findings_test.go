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
			Latency: 2 * time.Millisecond, Median: 2 * time.Millisecond, Timed: uint64(900 * i), Succeeded: uint64(1000 * i),
		})
	}
	return p
}

// all gives every node a latency.
func all(p *Picture, latency time.Duration) {
	for n := range p.Nodes {
		p.Nodes[n].Latency, p.Nodes[n].Median = latency, latency
	}
}

// slow gives one node a latency.
func slow(p *Picture, node int, latency time.Duration) {
	p.Nodes[node].Latency, p.Nodes[node].Median = latency, latency
}

// hold has an app hold sessions in transactions.
func hold(p *Picture, app string, sessions int, since time.Duration) {
	for range sessions {
		p.SessionUses = append(p.SessionUses, SessionUse{App: app, Node: 2, Held: since, Transaction: true})
	}
}

// lost has no node answer.
func lost(p *Picture) {
	for n := range p.Nodes {
		p.Nodes[n].Health, p.Nodes[n].Cause, p.Nodes[n].Reason, p.Nodes[n].Unreachable = "ejected", "transport", "refused", true
		p.Nodes[n].Usable = false
	}
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
		only   bool                    // there is no other code
	}{
		{"all_is_well", func(int, *Picture) {}, "", "nothing is wrong", true},
		{"a_full_pool_without_a_line", func(_ int, p *Picture) { full(p); p.Pool.Waiting = 0 }, "", "nothing is wrong", true},
		{"a_line_for_a_moment", func(i int, p *Picture) {
			if i%4 == 0 {
				full(p)
			}
		}, "", "nothing is wrong", true},
		{"a_dead_node", func(_ int, p *Picture) { out(&p.Nodes[1], "transport", "connection refused on execute") },
			NodeDead, "node 2 (ydb-2:2136) has not answered for 9.0 s: connection refused", true},
		{"a_node_that_returns", func(_ int, p *Picture) {
			out(&p.Nodes[1], "silence", "silent")
			p.Nodes[1].Health = "probing"
		}, NodeDead, "node 2", true},
		{"a_node_that_vanished", func(_ int, p *Picture) {
			p.Nodes[1].Draining, p.Nodes[1].Gone, p.Nodes[1].Reason = true, true, "left discovery"
		},
			NodeDead, "node 2 (ydb-2:2136) vanished from discovery without announcing its shutdown", true},
		{"a_dead_node_that_vanished", func(_ int, p *Picture) {
			out(&p.Nodes[1], "transport", "connection refused on execute")
			p.Nodes[1].Draining, p.Nodes[1].Gone = true, true
		}, NodeDead, "has not answered", true},
		{"a_node_whose_mean_is_slow", func(_ int, p *Picture) { p.Nodes[1].Latency = 80 * time.Millisecond }, "", "nothing is wrong", true},
		{"a_node_whose_median_is_slow", func(_ int, p *Picture) { p.Nodes[1].Median = 80 * time.Millisecond }, "",
			"nothing is wrong", true},
		{"slow_statements_in_one_moment",
			func(_ int, p *Picture) { slow(p, 1, 80*time.Millisecond); p.Nodes[1].Timed = 5 }, "", "nothing is wrong",
			true},
		{"slow_statements_in_two_moments", func(i int, p *Picture) { slow(p, 1, 80*time.Millisecond); p.Nodes[1].Timed = uint64(i / 4) },
			NodeSlow, "node 2 (ydb-2:2136) is 40 times slower", true},
		{"a_node_that_is_slow_at_times", func(i int, p *Picture) {
			if i%3 < 2 {
				slow(p, 1, 80*time.Millisecond)
			}
		}, "", "nothing is wrong", true},
		{"a_probed_slow_node", func(_ int, p *Picture) {
			out(&p.Nodes[1], "latency", "execute calls take 81 ms")
			p.Nodes[1].Health, p.Nodes[1].Latency, p.Nodes[1].Median = "probing", 0, 0
		}, NodeSlow, "execute calls take 81 ms", true},
		{"a_slow_node", func(_ int, p *Picture) { slow(p, 1, 80*time.Millisecond) },
			NodeSlow, "node 2 (ydb-2:2136) is 40 times slower than the others (80 ms against 2.0 ms on average)", true},
		{"an_ejected_slow_node", func(_ int, p *Picture) { out(&p.Nodes[1], "latency", "execute calls take 81 ms") },
			NodeSlow, "execute calls take 81 ms", true},
		{"a_node_that_is_only_a_little_slower", func(_ int, p *Picture) { slow(p, 1, 6900*time.Microsecond) }, "", "nothing", true},
		{"a_node_that_is_slower_but_not_by_much",
			func(_ int, p *Picture) { all(p, 6*time.Millisecond); slow(p, 1, 14*time.Millisecond) }, "", "nothing", true},
		{"two_of_three_nodes_are_slow", func(_ int, p *Picture) { all(p, 80*time.Millisecond); slow(p, 0, 2*time.Millisecond) },
			NodeSlow, "node 2 (ydb-2:2136) is 40 times slower than the others", false},
		{"a_node_that_leaves_and_was_ejected",
			func(_ int, p *Picture) { out(&p.Nodes[1], "silence", "silent"); p.Nodes[1].Draining = true }, "", "nothing",
			true},
		{"a_node_that_leaves", func(_ int, p *Picture) { p.Nodes[1].Draining = true }, NodeDraining, "nothing is wrong", true},
		{"a_banned_node", func(_ int, p *Picture) { p.Nodes[1].Banned = true }, NodeBanned, "nothing is wrong", true},
		{"a_lame_duck", func(_ int, p *Picture) { p.Stage = "lame duck" }, NotServing, "nothing is wrong", true},
		{"a_paused_pool", func(_ int, p *Picture) { full(p); p.Pool.Paused = true }, PoolPaused, "nothing is wrong", true},
		{"a_panic", func(_ int, p *Picture) { p.Panic = true }, NodePanic, "only 3 of 3 nodes are healthy", true},
		{"latency_of_dead_nodes_is_none", func(_ int, p *Picture) {
			for n := range 2 {
				out(&p.Nodes[n], "transport", "refused")
				p.Nodes[n].Latency = 80 * time.Millisecond
			}
		}, NodeDead, "node 1 (ydb-1:2136) has not answered", true},
		{"a_node_that_refuses", func(_ int, p *Picture) { out(&p.Nodes[0], "refusals", "OVERLOADED on execute") },
			NodeRefuses, "node 1", true},
		{"a_small_pool", func(_ int, p *Picture) { full(p) },
			PoolSmall,
			"all 20 sessions are in use while the nodes are fast (2.0 ms a call): pool.max is too small for this " +
				"load; 7 callers wait, the first for 1.2 s",
			true},
		{"a_small_pool_since_five_seconds", func(i int, p *Picture) {
			if i >= 20 {
				full(p)
			}
		}, PoolSmall, "all 20 sessions are in use", true},
		{"a_line_while_sessions_are_opened", func(_ int, p *Picture) { p.Pool.Waiting = 7 }, "", "nothing", true},
		{"a_problem_comes_before_a_warning",
			func(_ int, p *Picture) { full(p); p.Discovery = Discovery{Failures: 5, Error: "timeout"} }, PoolSmall,
			"all 20 sessions are in use", false},
		{"short_transactions", func(_ int, p *Picture) { full(p); hold(p, "reports", 18, time.Second) }, PoolSmall,
			"all 20 sessions", true},
		{"long_calls", func(_ int, p *Picture) {
			full(p)
			hold(p, "reports", 18, 5*time.Second)
			for h := range p.SessionUses {
				p.SessionUses[h].Transaction = false
			}
		}, PoolSmall, "all 20 sessions", true},
		{"transactions_of_many_apps", func(_ int, p *Picture) {
			full(p)
			for app := range 6 {
				hold(p, fmt.Sprint("app", app), 3, 5*time.Second)
			}
		}, PoolSmall, "all 20 sessions", true},
		{"transactions_that_leave_enough_for_others",
			func(_ int, p *Picture) { p.Pool.Busy = 12; hold(p, "reports", 10, 5*time.Second) }, "", "nothing", true},
		{"transactions_in_all_sessions_before_anybody_waits",
			func(_ int, p *Picture) { full(p); p.Pool.Waiting = 0; hold(p, "reports", 18, 5*time.Second) },
			SessionsHeld, "app reports holds 18 of 20 sessions", true},
		{"transactions_that_are_open_too_long", func(_ int, p *Picture) { p.Pool.Busy = 12; hold(p, "reports", 10, 12*time.Second) },
			SessionsHeld, "app reports holds 10 of 20 sessions", false},
		{"a_small_pool_that_turns_callers_away", func(i int, p *Picture) { full(p); p.Pool.Refused = uint64(10 * i) },
			PoolSmall, "90 were rejected in the last 9 s", true},
		{"sessions_that_keep_the_pool", func(i int, p *Picture) { all(p, 40*time.Millisecond); p.Pool.Starved = uint64(2 * i) },
			PoolSmall,
			"SDK sessions of wire.mode=session hold all sessions that pool.max (20) allows, also between " +
				"statements: 18 calls were rejected in the last 9 s",
			true},
		{"sessions_that_kept_the_pool_long_ago", func(_ int, p *Picture) { p.Pool.Starved = 7 }, "", "nothing", true},
		{"overload", func(i int, p *Picture) {
			full(p)
			for n := range p.Nodes {
				p.Nodes[n].Latency = 40 * time.Millisecond
			}
			p.Pool.Shed = uint64(5 * i)
		}, Overload, "a call takes 40 ms, 20 times as long as usual, and all 20 sessions are in use", true},
		{"a_full_pool_in_which_no_statement_ends", func(_ int, p *Picture) { full(p); all(p, 0) },
			Overload, "all 20 sessions are in use, and no statement has ended lately; 7 callers wait", true},
		{"overload_that_the_adaptive_limit_sees", func(_ int, p *Picture) { full(p); p.Pool.Limit, p.Pool.Busy = 8, 8 },
			Overload, "more calls come than the cluster can do: 8 at a time", true},
		{"the_cluster_refuses", func(i int, p *Picture) {
			for n := range p.Nodes {
				p.Nodes[n].Refused = uint64(100 * (i - 14))
			}
		}, ClusterOverloaded, "the cluster rejects calls: 2700 of 29700 in the last 9 s", true},
		{"all_nodes_are_slow", func(_ int, p *Picture) {
			for n := range p.Nodes {
				p.Nodes[n].Latency = 40 * time.Millisecond
			}
		}, ClusterSlow, "calls take longer than usual on all nodes: 40 ms against 2.0 ms", true},
		{"all_nodes_are_a_little_slower", func(_ int, p *Picture) { all(p, 6900*time.Microsecond) }, "", "nothing", true},
		{"a_hot_table", func(i int, p *Picture) {
			for n := range p.Nodes {
				p.Nodes[n].Tables = Congested{uint64(i), "/local/orders"}
			}
		}, TableOverloaded, "a table is overloaded (/local/orders): 27 of ", true},
		{"a_full_disk", func(i int, p *Picture) { p.Nodes[1].Disk = Congested{uint64(100 * i), "/local/orders"} },
			DiskFull, "no disk space left (/local/orders): 900 of ", true},
		{"a_spent_quota", func(i int, p *Picture) { p.Nodes[0].Quota.Calls = uint64(i) }, DatabaseQuota,
			"the database's quota of request units is used up: 9 of ", true},
		{"a_full_resource_pool", func(i int, p *Picture) { p.Nodes[2].Pools = Congested{uint64(i), "olap"} },
			ResourcePoolFull, "the queue of a resource pool is full (olap): 9 of ", true},
		{"a_table_that_was_hot_long_ago",
			func(_ int, p *Picture) { p.Nodes[0].Tables = Congested{1000, "/local/orders"} }, "", "nothing", true},
		{"a_few_refusals", func(i int, p *Picture) { p.Nodes[0].Refused = uint64(i) }, "", "nothing", true},
		{"an_app_that_holds_sessions", func(i int, p *Picture) {
			full(p)
			for range 18 {
				p.SessionUses = append(p.SessionUses,
					SessionUse{App: "reports", Node: 2, Held: time.Duration(i-14) * time.Second, Transaction: true})
			}
			p.SessionUses[3].Held, p.SessionUses[3].Trace = 9*time.Second, "0af7"
		}, SessionsHeld, "app reports holds 18 of 20 sessions in open transactions, the longest for 10 s on node 2", false},
		{"a_session_held_for_long", func(i int, p *Picture) {
			p.SessionUses = []SessionUse{
				{Session: "a1b2c3d4", App: "reports", Node: 2, Trace: "0af7", Held: 42 * time.Second, Transaction: true},
			}
		}, HeldLong,
			"app reports has held session a1b2c3d4 on node 2 for 42 s, with a transaction, in which nothing runs now, trace 0af7",
			true},
		{"credentials", func(_ int, p *Picture) { p.Credentials = "UNAUTHENTICATED" }, CredentialsBad,
			"credentials do not work: UNAUTHENTICATED", true},
		{"credentials_refused_call_by_call", func(i int, p *Picture) {
			p.Denied = uint64(50 * i)
			for n := range p.Nodes {
				p.Nodes[n].Succeeded = 14000
			}
		}, CredentialsBad, "450 calls in the last 9 s", true},
		{"two_calls_refused", func(i int, p *Picture) {
			if i >= 20 {
				p.Denied = 2
			}
			for n := range p.Nodes {
				p.Nodes[n].Succeeded = 14000
			}
		}, "", "nothing", true},
		{"discovery_fails_for_its_credentials", func(_ int, p *Picture) {
			p.Credentials, p.Discovery = "UNAUTHENTICATED", Discovery{Failures: 5, Error: "UNAUTHENTICATED"}
		},
			CredentialsBad, "credentials do not work", true},
		{"one_table_without_a_right", func(i int, p *Picture) { p.Denied = uint64(50 * i) }, "", "nothing", true},
		{"no_node_at_all",
			func(_ int, p *Picture) { p.Nodes, p.Discovery = nil, Discovery{Failures: 1, Error: "no route to host"} },
			NoNode, "no node is known: no route to host", true},
		{"no_good_node", func(_ int, p *Picture) {
			for n := range p.Nodes {
				out(&p.Nodes[n], "transport", "refused")
			}
		}, NoNode, "none of 3 nodes is healthy: node 1 (ydb-1:2136) has not answered for 9.0 s: refused; the same holds for 2, 3", true},
		{"no_good_node_and_what_follows", func(i int, p *Picture) {
			for n := range p.Nodes {
				out(&p.Nodes[n], "transport", "connection refused by ydb-1:2136")
				p.Nodes[n].Latency = 0
			}
			full(p)
			p.Panic, p.Discovery = true, Discovery{Failures: 5, Error: "connection refused by ydb-1:2136"}
			p.Pool.Failed, p.Pool.OpenError = uint64(i), "connection refused by ydb-1:2136"
		}, NoNode, "the same holds for 2, 3; the list of nodes could not be read, 5 times in a row; 7 callers wait", true},
		{"no_good_node_and_another_cause", func(_ int, p *Picture) {
			for n := range p.Nodes {
				out(&p.Nodes[n], "transport", "refused")
			}
			p.MemoryTight = true
		}, NoNode, "none of 3 nodes is healthy", false},
		{"no_good_node_for_two_causes", func(_ int, p *Picture) {
			out(&p.Nodes[0], "latency", "execute calls take 81 ms")
			out(&p.Nodes[1], "transport", "refused")
			p.Nodes[2].Banned, p.Nodes[2].Usable, p.Nodes[2].Reason = true, false, "banned by an operator: a disk"
		}, NoNode, "none of 3 nodes is healthy: node 2 (ydb-2:2136) has not answered for 9.0 s: refused", false},
		{"discovery", func(_ int, p *Picture) { p.Discovery = Discovery{Failures: 5, Error: "timeout"} }, DiscoveryFails,
			"could not be read, 5 times in a row: timeout", true},
		{"nodes_that_vanished_at_once", func(_ int, p *Picture) {
			p.Discovery.Grace = 15 * time.Second
			for n := range 2 {
				p.Nodes[n].Missing = true
			}
		}, NodesMissing, "the newest answer of discovery lacks 2 of 3 nodes: they keep their sessions and transactions for 15 s", true},
		{"no_session", func(i int, p *Picture) { p.Pool.Failed, p.Pool.OpenError = uint64(i), "SCHEME_ERROR" },
			SessionsFail, "no session can be opened: SCHEME_ERROR", true},
		{"a_session_now_and_then", func(i int, p *Picture) {
			p.Pool.Failed, p.Pool.Created, p.Pool.OpenError = uint64(i), uint64(i), "OVERLOADED"
		}, "", "nothing", true},
		{"a_session_that_was_not_opened_long_ago",
			func(_ int, p *Picture) { p.Pool.Failed, p.Pool.OpenError = 24, "OVERLOADED" }, "", "nothing", true},
		{"a_quota", func(i int, p *Picture) { p.Apps = []App{{Name: "reports", Limited: uint64(i), Limit: "sessions"}} }, QuotaReached,
			"app reports reached its limit sessions of apps.limits: 9 calls were rejected", true},
		{"a_shard_stands_still",
			func(i int, p *Picture) { p.Stalled = fmt.Sprintf("shard 1 of 2 has not turned for %d s", i) }, ShardStalled,
			"the data path is stalled: shard 1 of 2 has not turned for 2", true},
		{"panics", func(_ int, p *Picture) {
			p.Panics = Panics{Count: 3, Where: "a call of the plain API", At: p.At.Add(-time.Minute)}
		}, Panicked, "3 panics so far, the last one in a call of the plain API", true},
		{"a_panic_of_long_ago",
			func(_ int, p *Picture) { p.Panics = Panics{Count: 3, Where: "x", At: p.At.Add(-time.Hour)} }, "", "nothing",
			true},
		{"memory", func(_ int, p *Picture) { p.MemoryTight = true }, MemoryShort, "memory is short", true},
		{"orders_are_not_faults", func(_ int, p *Picture) {
			p.Pool.Paused, p.Nodes[0].Banned, p.Nodes[1].Draining, p.Stage = true, true, true, "lame duck"
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
			if tc.code == "" && len(codes) > 0 || tc.code != "" && (len(codes) == 0 || codes[0] != tc.code) ||
				tc.only && slices.ContainsFunc(codes, func(c Code) bool { return c != tc.code }) {
				t.Errorf("found %v; want %s", r.Findings, tc.code)
			}
			if !strings.Contains(r.Summary, strings.TrimSuffix(tc.text, "...")) {
				t.Errorf("it says %q; want %q", r.Summary, tc.text)
			}
			// What was found is over when its cause is.
			for i := 25; i < 45; i++ {
				p := calm(i)
				p.Denied, p.Pool.Failed = 50*24, 24
				p.Apps = []App{{Name: "reports", Limited: 24, Limit: "sessions"}}
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
		if i == 5 { // for so short a time it is not told, nor is its end
			slow(&p, 1, 80*time.Millisecond)
		}
		if i >= 10 && i < 20 {
			slow(&p, 1, 80*time.Millisecond)
			p.SessionUses = []SessionUse{{Session: "a1", App: "x", Node: 2, Held: time.Duration(i) * time.Second},
				{Session: "b2", App: "x", Node: 2, Held: time.Duration(i) * time.Second}}
		}
		began, ended := w.Look(p)
		for _, f := range began {
			told = append(told, fmt.Sprintf("%d began %s %s", i, f.Code, f.Session))
		}
		for _, f := range ended {
			told = append(told, fmt.Sprintf("%d ended %s %s", i, f.Code, f.Session))
		}
	}
	want := []string{"10 began HELD_LONG a1", "10 began HELD_LONG b2", "12 began NODE_SLOW ", "20 ended NODE_SLOW ",
		"20 ended HELD_LONG a1", "20 ended HELD_LONG b2"}
	if len(told) != len(want) || !slices.Equal(told[:4], want[:4]) {
		t.Errorf("told %q; want %q", told, want)
	}
}

// What is usual is what was usual in the last ten minutes.
func TestUsualLatency(t *testing.T) {
	w, i := New(), 0
	pass := func(latency, length time.Duration) {
		for range int(length / time.Second) {
			p := calm(i)
			all(&p, latency)
			w.Look(p)
			i++
		}
	}
	says := func(when string, want Code) {
		t.Helper()
		all := w.Report().Findings
		if (want == "") != (len(all) == 0) || want != "" && all[0].Code != want {
			t.Errorf("%s: %v; want %q", when, all, want)
		}
	}
	pass(20*time.Millisecond, 2*time.Minute)
	says("at first", "")
	pass(45*time.Millisecond, 2*time.Minute)
	says("not three times slower", "")
	pass(100*time.Millisecond, time.Minute)
	says("five times slower", ClusterSlow)
	pass(100*time.Millisecond, 5*time.Minute)
	says("for six minutes", ClusterSlow)
	pass(100*time.Millisecond, 6*time.Minute)
	says("for twelve", "")
	pass(20*time.Millisecond, time.Minute)
	pass(100*time.Millisecond, time.Minute)
	says("slow again", ClusterSlow)
	pass(0, time.Second)
	says("without calls", "")
	pass(0, 20*time.Minute)
	pass(100*time.Millisecond, time.Minute)
	says("after twenty minutes without calls", "")
}
