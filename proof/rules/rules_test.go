package rules

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/clustertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ready starts a development cluster, opens it and makes the table of the rules.
func ready(t *testing.T, change func(*devcluster.Config), target Target) (*devcluster.Cluster, *Cluster) {
	t.Helper()
	cluster, c := opened(t, change, target)
	if err := c.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cluster, c
}

// opened starts a development cluster and opens it.
func opened(t *testing.T, change func(*devcluster.Config), target Target) (*devcluster.Cluster, *Cluster) {
	t.Helper()
	var database string
	cluster := clustertest.Start(t, func(c *devcluster.Config) {
		if change != nil {
			change(c)
		}
		database = c.Database
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ready, err := cluster.Ready(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(ready.Endpoint, "://")
	target.Address, _, _ = strings.Cut(rest, "/")
	target.Database, target.Directory = database, "a/test"
	c, err := Open(ctx, target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return cluster, c
}

func rule(t *testing.T, name string) Rule {
	t.Helper()
	all := All()
	i := slices.IndexFunc(all, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("there is no rule %q", name)
	}
	return all[i]
}

// The development cluster follows every rule, except for those that say how it differs.
func TestRules(t *testing.T) {
	cluster, c := ready(t, nil, Target{})
	for _, r := range All() {
		t.Run(r.Name, func(t *testing.T) {
			got := c.Ask(t.Context(), r)
			t.Logf("%s: %v, %v", got.Verdict, got.Seen, got.Took)
			want := Same
			switch {
			case len(r.Want) == 0:
				want = Told
			case r.Here != "":
				want = Differs
			}
			if got.Verdict == NotAsked && want == Told {
				return
			}
			if got.Verdict != want || r.Here != "" && got.Seen.Answer != r.Here {
				t.Errorf("%s: %v; want %s, %v with %q, here %q", got.Verdict, got.Seen, want, r.Want, r.Text, r.Here)
			}
			if (r.Here == "") != (r.Why == "") {
				t.Errorf("Here is %q, Why is %q; want both or none", r.Here, r.Why)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	left, err := until(ctx, func() (Seen, error) {
		if len(cluster.Sessions()) == 0 {
			return Seen{Answer: "none"}, nil
		}
		return Seen{Answer: "some"}, nil
	}, "some")
	if err != nil || left.Answer != "none" {
		t.Errorf("sessions left: %v, %v", cluster.Sessions(), err)
	}
	if list, err := c.List(ctx, ""); err != nil || !slices.Equal(list, []string{"a", "a/test", "a/test/rules"}) {
		t.Errorf("%v, %v in the database; want the directory and the table", list, err)
	}
	if err := c.Remove(ctx); err != nil {
		t.Error(err)
	}
	if list, err := c.List(ctx, ""); err != nil || !slices.Equal(list, []string{"a"}) {
		t.Errorf("%v, %v in the database after Remove; want the parent of the directory", list, err)
	}
}

// Every difference of the development cluster is in its page, and no other.
func TestDifferencesAreInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/dev/devcluster.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Where it differs from the server\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := max(0, strings.Count(section, "\n|")-2) // without the head
	for _, r := range All() {
		if r.Here == "" {
			continue
		}
		rows--
		if row := fmt.Sprintf("| %s | `%s` | %s |\n", r.Says, r.Here, r.Why); !strings.Contains(string(page), row) {
			t.Errorf("docs/dev/devcluster.md does not have the row\n%s", row)
		}
	}
	if !found || rows != 0 || strings.Contains(section, "every rule except") != strings.Contains(section, "\n|") {
		t.Errorf("docs/dev/devcluster.md has %d rows too many, or the wrong words before them:\n%s", rows, section)
	}
}

// A rule that is broken is seen.
func TestRulesCanFail(t *testing.T) {
	cluster, c := ready(t, nil, Target{})
	for _, tc := range []struct {
		rule    string
		status  string // of every answer to method
		method  string
		nodes   []uint32
		verdict Verdict
		answer  string
	}{
		{"DeleteSession of an unknown session", "BAD_SESSION", "DeleteSession", []uint32{1}, Differs, "BAD_SESSION"},
		{"DeleteSession without an id", "NOT_FOUND", "DeleteSession", []uint32{1}, Differs, "NOT_FOUND"},
		{"unknown session", "BAD_SESSION", "ExecuteQuery", []uint32{1}, Differs, "BAD_SESSION"}, // without its text
		{"id that cannot be parsed", "NOT_FOUND", "ExecuteQuery", []uint32{1}, Differs, "NOT_FOUND"},
		{"call through another node", "BAD_SESSION", "ExecuteQuery", []uint32{2, 3}, Differs, "BAD_SESSION"},
		{"operation_timeout", "CANCELLED", "ExecuteDataQuery", []uint32{1}, Differs, "CANCELLED"},
		{"calls that ignore the session", "BAD_SESSION", "DescribeTable", []uint32{1}, Differs, "BAD_SESSION"},
		{"cancelled attach stream", "NOT_FOUND", "KeepAlive", []uint32{1}, Differs, "NOT_FOUND"},
		{"rollback of no transaction", "SESSION_BUSY", "RollbackTransaction", []uint32{1}, Differs, "SESSION_BUSY"},
		{"rollback of no transaction", "BAD_SESSION", "ExecuteQuery", []uint32{1}, Differs, "NOT_FOUND, then BAD_SESSION"},
		{"rollback of no transaction over the table service", "SESSION_BUSY", "RollbackTransaction", []uint32{1}, Differs, "SESSION_BUSY"},
		{"rollback of no transaction over the table service", "BAD_SESSION", "ExecuteDataQuery", []uint32{1}, Differs,
			"NOT_FOUND, then BAD_SESSION"},
		{"rollback during a statement", "NOT_FOUND", "RollbackTransaction", []uint32{1}, Differs, "NOT_FOUND"},
		{"rollback after a cancelled statement", "BAD_SESSION", "RollbackTransaction", []uint32{1}, Differs, "BAD_SESSION"},
		{"eleventh transaction", "OVERLOADED", "BeginTransaction", []uint32{1}, Failed, ""},
		{"1000 rows", "UNAVAILABLE", "ExecuteDataQuery", []uint32{1}, Differs, "UNAVAILABLE"},
		{"WhoAmI without a ticket", "INTERNAL_ERROR", "WhoAmI", []uint32{1}, Differs, "INTERNAL_ERROR"},
		{"unknown database", "UNAVAILABLE", "ListEndpoints", []uint32{1}, Differs, "UNAVAILABLE"},
		{"two statements at a time", "OVERLOADED", "CreateSession", []uint32{1}, Failed, ""},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			for _, id := range tc.nodes {
				defer func() {
					if err := cluster.Node(id).Clear(); err != nil {
						t.Error(err)
					}
				}()
				if err := cluster.Node(id).Errors(
					devcluster.Errors{Status: tc.status, Share: 1, Methods: []string{tc.method}},
				); err != nil {
					t.Fatal(err)
				}
			}
			if got := c.Ask(t.Context(), rule(t, tc.rule)); got.Verdict != tc.verdict || got.Seen.Answer != tc.answer {
				t.Errorf("%s: %v; want %s, %s", got.Verdict, got.Seen, tc.verdict, tc.answer)
			}
		})
	}
	t.Run("load factor", func(t *testing.T) {
		if err := cluster.Node(2).SetLoad(0.5); err != nil {
			t.Fatal(err)
		}
		if got := c.Ask(t.Context(), rule(t, "load factor")); got.Verdict != Differs || got.Seen.Answer != "0.5 at node 2" {
			t.Errorf("%s: %v", got.Verdict, got.Seen)
		}
	})
}

// A cluster behind one address, where tickets are enforced.
func TestRulesBehindOneAddress(t *testing.T) {
	const ticket = "a-secret-ticket"
	_, c := ready(t, func(config *devcluster.Config) {
		config.Endpoints, config.Auth, config.Tokens = devcluster.EndpointsMerged, devcluster.AuthEnforced, []string{ticket}
	}, Target{Ticket: ticket})
	for name, want := range map[string]struct {
		verdict Verdict
		answer  string
	}{
		"session id":                      {Same, "ydb://session/3?node_id=N&id=..."},
		"stable node ids":                 {Differs, "no: one address has several ids"},
		"endpoints":                       {Told, "1 entries, 1 node ids, 1 addresses (0 by name), 1 locations"},
		"WhoAmI":                          {Told, "SUCCESS, a user"},
		"WhoAmI without a ticket":         {Same, "gRPC Unauthenticated"},
		"WhoAmI with a bad ticket":        {Same, "gRPC Unauthenticated"},
		"two statements at a time":        {Same, "SESSION_BUSY"},
		"no database in the header":       {Same, "SUCCESS"},
		"session of an unknown node":      {Same, "BAD_SESSION"},
		"unknown database":                {Same, "NOT_FOUND"},
		"statement without a session":     {Same, "SUCCESS"},
		"DeleteSession without an id":     {Same, "BAD_REQUEST"},
		"KeepAlive of a busy session":     {Same, "SESSION_STATUS_BUSY"},
		"one address, one node":           {Same, "yes"},
		"database without a slash":        {Same, "SUCCESS"},
		"cancelled attach stream":         {Same, "BAD_SESSION"},
		"end of the attach stream":        {Same, "SUCCESS, OK"},
		"transaction after an error":      {Same, "NOT_FOUND"},
		"KeepAlive of an unknown session": {Same, "BAD_SESSION"},
	} {
		if got := c.Ask(t.Context(), rule(t, name)); got.Verdict != want.verdict || got.Seen.Answer != want.answer {
			t.Errorf("%s: %s: %v; want %s, %s", name, got.Verdict, got.Seen, want.verdict, want.answer)
		}
	}
	told := c.Ask(t.Context(), Rule{ask: func(context.Context, *Cluster) (Seen, error) { return Seen{Text: "not " + ticket}, nil }})
	if told.Seen.Text != "not ***" {
		t.Errorf("%q; want the ticket masked", told.Seen.Text)
	}
}

// A cluster that discovery gives one node of: what needs another one is not asked.
func TestRulesOfOneNode(t *testing.T) {
	_, c := opened(t, func(config *devcluster.Config) { config.Nodes = 1 }, Target{})
	if got := c.Ask(t.Context(), rule(t, "call through another node")); got.Verdict != NotAsked {
		t.Errorf("%s: %v; want it not asked", got.Verdict, got.Seen)
	}
	if err := (&Cluster{}).Remove(t.Context()); err == nil {
		t.Error("without a directory everything would be removed")
	}
}

func TestLogin(t *testing.T) {
	_, c := opened(t, func(config *devcluster.Config) {
		config.Auth, config.Users, config.Tokens = devcluster.AuthEnforced, map[string]string{"me": "secret"}, []string{"for the test"}
	}, Target{Ticket: "for the test"})
	if ticket, err := Login(t.Context(), c.target, "me", "secret"); err != nil || strings.Count(ticket, ".") != 2 {
		t.Errorf("%q, %v; want a ticket", ticket, err)
	}
	if _, err := Login(t.Context(), c.target, "me", "wrong"); err == nil || !strings.Contains(err.Error(), "UNAUTHORIZED") {
		t.Errorf("%v; want UNAUTHORIZED", err)
	}
}
