package wire

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// What a connection keeps of its last call is short: longer tickets and names are refused, where they would be kept.
func TestLongTicketsAndNamesAreRefused(t *testing.T) {
	ticket := func(size int) []string {
		return []string{"x-ydb-auth-ticket", "alice/" + strings.Repeat("x", size-len("alice/"))}
	}
	app := func(size int) []string { return []string{"x-ydb-application-name", strings.Repeat("x", size)} }
	database := func(size int) []string {
		return []string{"x-ydb-database", strings.Repeat("/", size-len("local")) + "local"}
	}
	for _, c := range []struct {
		name, mode, auth string
		headers          []string
		want             Ydb.StatusIds_StatusCode
	}{
		{"a ticket", ModeTransaction, AuthCaller, ticket(mostTicket), success},
		{"a long ticket", ModeTransaction, AuthCaller, ticket(mostTicket + 1), Ydb.StatusIds_UNAUTHORIZED},
		{"a long ticket that is not kept", ModeTransaction, AuthOwn, ticket(mostTicket + 1), success},
		{"a long ticket for the node to judge", ModePassthrough, AuthCaller, ticket(mostTicket + 1), Ydb.StatusIds_BAD_SESSION},
		{"an app", ModeTransaction, AuthCaller, app(mostName), success},
		{"a long name of an app", ModeTransaction, AuthCaller, app(mostName + 1), Ydb.StatusIds_BAD_REQUEST},
		{"a long name of an app, passed through", ModePassthrough, AuthCaller, app(mostName + 1), Ydb.StatusIds_BAD_REQUEST},
		{"a database", ModeTransaction, AuthCaller, database(mostName), success},
		{"a long name of a database", ModeTransaction, AuthCaller, database(mostName + 1), Ydb.StatusIds_BAD_REQUEST},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t, func(config *Config, _ *pool.Config) { config.Mode, config.Auth = c.mode, c.auth })
			out, err := h.guest("a").query.ExecuteQuery(
				metadata.AppendToOutgoingContext(h.ctx, c.headers...), &Ydb_Query.ExecuteQueryRequest{
					Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "select"}}},
			)
			if err != nil {
				t.Fatal(err)
			}
			if part, err := out.Recv(); err != nil || part.GetStatus() != c.want {
				t.Errorf("%v, %v; want %v", part, err, c.want)
			}
		})
	}
}

func TestBadTickets(t *testing.T) {
	h := newInn(t, nil)
	began := time.Now()
	for _, c := range []struct {
		ticket string
		want   Ydb.StatusIds_StatusCode
	}{{"bad/1", Ydb.StatusIds_UNAUTHORIZED}, {"away/1", Ydb.StatusIds_UNAVAILABLE}, {"late/1", Ydb.StatusIds_UNAUTHORIZED}} {
		g := h.comes("a", c.ticket)
		s := g.session() // needs no node
		for range 2 {
			s.must(c.want, "select", nil)
		}
		if st, _, err := g.run(h.ctx, "", "select", nil); st != c.want || err != nil {
			t.Errorf("%s, without a session: %v, %v; want %v", c.ticket, st, err, c.want)
		}
	}
	if most := 3 + int(time.Since(began)/time.Second); h.questions() > most { // once each, and again after a second
		t.Errorf("asked %d times; want at most %d", h.questions(), most)
	}
	h.comes("b", "alice/1").session().must(success, "select", nil)
}

// A call whose ticket is refused does not take those with it that have a good one.
func TestRefusedTicketEndsTheWaitOfItsCallsAlone(t *testing.T) {
	h := newInn(t, func(_ *Config, p *pool.Config) { p.Max = 1 })
	a := h.comes("a", "alice/1").session()
	tx := a.must(success, "select", beginTx)
	g := h.comes("b", "alice/2")
	b := g.session()
	var wg sync.WaitGroup
	wg.Go(func() { b.must(Ydb.StatusIds_UNAUTHORIZED, "select", nil) })
	c := h.comes("c", "alice/3").session()
	wg.Go(func() { c.must(success, "select", nil) })
	alice := h.identity("alice/1")
	h.eventually("both wait", func() string {
		if n := h.pools()["user alice/local"].Waiting; n != 2 {
			return fmt.Sprint(n)
		}
		return ""
	})
	h.server.refused(alice, "alice/2")
	h.eventually("one waits", func() string {
		if n := h.pools()["user alice/local"].Waiting; n != 1 {
			return fmt.Sprint(n)
		}
		return ""
	})
	a.must(success, "select", inTx(tx, true))
	wg.Wait()
}

// While nobody knows whose a ticket is its calls wait, and one question serves them all.
func TestCallsWaitForTheirIdentity(t *testing.T) {
	h := newInn(t, nil)
	open := h.shut()
	var wg sync.WaitGroup
	for i := range 8 {
		s := h.comes(fmt.Sprint(i), "alice/1").session()
		wg.Go(func() { s.must(success, "select", nil) })
	}
	h.eventually("all wait", func() string {
		if held := h.server.State().Held; held != 8 {
			return fmt.Sprint(held)
		}
		return ""
	})
	// One of them goes.
	ctx, cancel := context.WithCancel(h.ctx)
	g := h.comes("9", "alice/1")
	s := g.session()
	gone := make(chan struct{})
	go func() { defer close(gone); s.run(ctx, s.id, "select", nil) }()
	h.eventually("another waits", func() string {
		if held := h.server.State().Held; held != 9 {
			return fmt.Sprint(held)
		}
		return ""
	})
	cancel()
	<-gone
	open()
	wg.Wait()
	if h.questions() != 1 {
		t.Errorf("asked %d times", h.questions())
	}
}

// New tickets of one connection are asked about one after the other, and no more than a bound of them wait.
func TestTooManyNewTickets(t *testing.T) {
	h := newInn(t, nil)
	open := h.shut()
	const most = 32 // of one connection
	h.limit *= most
	var wg sync.WaitGroup
	mallory := h.comes("a", "")
	for i := range most {
		g := *mallory // over the same connection
		g.ticket = fmt.Sprintf("user%d/1", i)
		s := g.session()
		wg.Go(func() { s.must(success, "select", nil) })
	}
	h.eventually("all wait", func() string {
		if held := h.server.State().Held; held != most {
			return fmt.Sprint(held)
		}
		return ""
	})
	g := *mallory
	g.ticket = "more/1"
	g.session().must(Ydb.StatusIds_OVERLOADED, "select", nil)
	s := h.comes("b", "more/2").session()
	wg.Go(func() { s.must(success, "select", nil) })
	h.eventually("another connection's ticket is asked about", func() string {
		if n := h.questions(); n != 2 {
			return fmt.Sprint(n)
		}
		return ""
	})
	open()
	wg.Wait()
}
