package app

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Query_V1"
	"github.com/ydb-platform/ydb-go-genproto/Ydb_Scheme_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Scheme"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/virtual"
	"github.com/ydb-sidecar/sidecar/proof/devcluster"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/clustertest"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// with is a context with the headers of an app that comes with this ticket.
func with(ctx context.Context, ticket string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-ydb-database", "/local", "x-ydb-auth-ticket", ticket)
}

// statementAs runs a statement as an app would that comes with this ticket.
func (s *sidecar) statementAs(ticket string) (*Ydb_Query.ExecuteQueryResponsePart, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := Ydb_Query_V1.NewQueryServiceClient(s.conn).ExecuteQuery(with(ctx, ticket), &Ydb_Query.ExecuteQueryRequest{
		ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query:    &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}},
	})
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// serves waits until statements of apps run: the data path hears of the nodes a moment later
// than the plain API.
func (s *sidecar) serves(ticket string) {
	s.Helper()
	s.eventually("a statement of an app runs", func() bool {
		part, err := s.statementAs(ticket)
		return err == nil && part.GetStatus() == Ydb.StatusIds_SUCCESS
	})
}

// A cluster that enforces no tickets fails WhoAmI for one that it cannot name a user of.
// The app works nevertheless, and has a pool of its own.
func TestTicketOfNoUser(t *testing.T) {
	s := start(t, newCluster(t).Endpoint())
	s.serves("of no user")
	for _, ticket := range []string{"of no user", "of no other user", "of no user"} {
		if part, err := s.statementAs(ticket); err != nil || part.GetStatus() != Ydb.StatusIds_SUCCESS {
			t.Errorf("%q: %v, %v", ticket, part, err)
		}
	}
	if pools := s.wire.State().Virtual.Pools; len(pools) != 2 {
		t.Errorf("pools: %+v; want one for each ticket", pools)
	}
}

// Where tickets are enforced a wrong one is refused, and a right one has its user's pool.
func TestEnforcedTickets(t *testing.T) {
	c := clustertest.Start(t, func(config *devcluster.Config) {
		config.Tokens = []string{"right"}
	})
	s := start(t, c.Endpoint(), "ydb.auth.kind=token", "ydb.auth.token=right")
	s.serves("right")
	if part, err := s.statementAs("right"); err != nil || part.GetStatus() != Ydb.StatusIds_SUCCESS {
		t.Errorf("%v, %v", part, err)
	}
	for _, ticket := range []string{"wrong", ""} {
		if part, err := s.statementAs(ticket); err != nil || part.GetStatus() != Ydb.StatusIds_UNAUTHORIZED {
			t.Errorf("%q: %v, %v", ticket, part, err)
		}
	}
	pools := s.wire.State().Virtual.Pools
	if !slices.ContainsFunc(pools, func(p virtual.PoolState) bool { return p.Identity == "user token" }) {
		t.Errorf("pools: %+v", pools)
	}
}

// A node whose address another database's node has taken is the cluster's affair: nothing is
// lost that was not open there, and no caller is told that it lacks a right.
func TestAddressOfANodeIsReused(t *testing.T) {
	c := clustertest.Start(t, func(config *devcluster.Config) {
		config.Tokens, config.Control = []string{"right"}, "127.0.0.1:0"
	})
	s := start(t, c.Endpoint(), "ydb.auth.kind=token", "ydb.auth.token=right", "pool.min=0")
	s.serves("right")
	if _, err := s.query("SELECT 1"); err != nil {
		t.Fatal(err)
	}
	if status, text := s.fetch(
		http.MethodPost, "http://"+c.Control()+"/faults", `{"kind":"wrong_tenant","node":2}`,
	); status != http.StatusOK {
		t.Fatal(status, text)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range short.Of(50, 15) {
				if _, err := s.query("SELECT 1"); err != nil {
					t.Error(err)
				}
				part, err := s.statementAs("right")
				if err != nil || part.GetStatus() != Ydb.StatusIds_SUCCESS && part.GetStatus() != Ydb.StatusIds_UNAVAILABLE {
					t.Errorf("%v, %v", part, err) // SDKs repeat UNAVAILABLE
				}
				if err == nil && part.GetStatus() == Ydb.StatusIds_UNAVAILABLE {
					if part, err = s.statementAs("right"); err != nil || part.GetStatus() != Ydb.StatusIds_SUCCESS {
						t.Errorf("again: %v, %v", part, err)
					}
				}
			}
		})
	}
	wg.Wait()
	s.eventually("the node gets nothing new", func() bool {
		// on any node
		r, err := Ydb_Scheme_V1.NewSchemeServiceClient(s.conn).ListDirectory(
			with(t.Context(), "right"), &Ydb_Scheme.ListDirectoryRequest{Path: "/local"},
		)
		if got := r.GetOperation().GetStatus(); err != nil || got != Ydb.StatusIds_SUCCESS && got != Ydb.StatusIds_UNAVAILABLE {
			t.Fatal(r, err)
		}
		var state struct {
			Nodes []struct {
				ID      uint32 `json:"id"`
				Leaving bool   `json:"leaving"`
			} `json:"nodes"`
		}
		s.state("/state/nodes", &state)
		for _, n := range state.Nodes {
			if n.ID == 2 {
				return n.Leaving
			}
		}
		return false
	})
}

// A missing right is told to its caller at once, in the words of the node, whoever's right it is.
func TestMissingRightToOpenASession(t *testing.T) {
	for _, row := range []struct {
		name string
		set  []string
	}{
		{"the caller's", nil},
		{"the sidecar's", []string{"wire.auth=own"}},
	} {
		t.Run(row.name, func(t *testing.T) { missingRight(t, row.set...) })
	}
}

func missingRight(t *testing.T, set ...string) {
	c := newCluster(t)
	for id := range uint32(3) {
		if err := c.Node(id + 1).Errors(
			devcluster.Errors{Status: "UNAUTHORIZED", Share: 1, Methods: []string{"CreateSession"}},
		); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, c.Endpoint(), append(set, "pool.min=0")...)
	began := time.Now()
	part, err := s.statementAs("of no user")
	s.eventually("the data path knows the nodes", func() bool { // it hears of them a moment later
		if err != nil || part.GetStatus() != Ydb.StatusIds_UNAVAILABLE {
			return true
		}
		began = time.Now()
		part, err = s.statementAs("of no user")
		return false
	})
	if err != nil || part.GetStatus() != Ydb.StatusIds_UNAUTHORIZED || len(part.GetIssues()) != 1 ||
		part.GetIssues()[0].GetMessage() != "asked for by the control API" {
		t.Errorf("%v, %v", part, err)
	}
	code, text := s.fetch(http.MethodPost, "http://"+s.at.HTTP+"/v1/query", `{"sql":"SELECT 1","timeout":"60s"}`)
	if code != http.StatusBadGateway || !strings.Contains(text, "asked for by the control API") {
		t.Errorf("%d %s", code, text)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to say so", took)
	}
}

// The server answers TIMEOUT while the session still rolls back. The next caller does not get it.
func TestNoCallerGetsTheSessionOfATimeout(t *testing.T) {
	c := newCluster(t)
	s := start(t, c.Endpoint(), "pool.min=0", "pool.max=1")
	s.serves("")
	for range 5 {
		for id := range uint32(3) {
			if err := c.Node(id + 1).Errors(devcluster.Errors{Status: "TIMEOUT", Share: 1, Methods: []string{"ExecuteQuery"}}); err != nil {
				t.Fatal(err)
			}
		}
		if part, err := s.statementAs(""); err != nil || part.GetStatus() != Ydb.StatusIds_TIMEOUT {
			t.Fatalf("%v, %v", part, err)
		}
		for id := range uint32(3) {
			if err := c.Node(id + 1).Clear(); err != nil {
				t.Fatal(err)
			}
		}
		if part, err := s.statementAs(""); err != nil || part.GetStatus() != Ydb.StatusIds_SUCCESS {
			t.Errorf("the call after a timeout: %v, %v", part, err)
		}
	}
}

// Sessions of mode session that keep all sessions of a caller's pool are a small pool, also between
// their statements: the next call is told so, and the operator.
func TestSessionsThatKeepThePool(t *testing.T) {
	t.Parallel()
	s := start(t, newCluster(t).Endpoint(), "wire.mode=session", "pool.max=2", "pool.min=0")
	client := Ydb_Query_V1.NewQueryServiceClient(s.conn)
	ctx, cancel := context.WithCancel(with(context.Background(), ""))
	run := func() (*Ydb_Query.ExecuteQueryResponsePart, error) {
		r, err := client.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{})
		if err != nil {
			return nil, err
		}
		attached, err := client.AttachSession(ctx, &Ydb_Query.AttachSessionRequest{SessionId: r.GetSessionId()})
		if err == nil {
			_, err = attached.Recv()
		}
		if err != nil {
			return nil, err
		}
		limited, done := context.WithTimeout(ctx, time.Minute)
		defer done()
		stream, err := client.ExecuteQuery(limited, &Ydb_Query.ExecuteQueryRequest{
			SessionId: r.GetSessionId(), ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
			Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "SELECT 1"}},
		})
		if err != nil {
			return nil, err
		}
		part, err := stream.Recv()
		if err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return part, err
	}
	for range 2 {
		s.eventually("a session works", func() bool {
			part, err := run()
			return err == nil && part.GetStatus() == Ydb.StatusIds_SUCCESS
		})
	}
	var late sync.WaitGroup
	defer late.Wait()
	defer cancel()
	late.Go(func() {
		for ctx.Err() == nil {
			if part, err := run(); ctx.Err() == nil && (err != nil || part.GetStatus() != Ydb.StatusIds_OVERLOADED) {
				t.Errorf("the third session is told %v, %v; want OVERLOADED", part, err)
				return
			}
		}
	})
	var last findings.Report
	s.eventually("the finding is a small pool", func() bool {
		last = s.App.findings.Report()
		return len(last.Findings) > 0 && last.Findings[0].Code == findings.PoolSmall
	})
	if !strings.Contains(last.Summary, "wire.mode=session") {
		t.Errorf("the summary is %q", last.Summary)
	}
}
