package hostile

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

const (
	queryService = "/Ydb.Query.V1.QueryService/"
	tableService = "/Ydb.Table.V1.TableService/"
	plainService = "/sidecar.v1.Sidecar/"
)

// The row of answers that the attacker does not read. It is one, so that the attack is on who keeps the answer: what statements that are
// much work take of the nodes' processors, quotas of apps decide.
const (
	LargeTable  = "soak"
	LargeID     = 2_000_000
	LargeSize   = 100_000 // bytes
	SelectLarge = "SELECT payload FROM soak WHERE id = 2000000"
)

// Attacks are all that there are.
var Attacks = []Attack{
	{"bombs-of-nobody", "ExecuteQuery without a ticket, 64 KB of gzip that are 60 MB of text; 20 at a time",
		func(ctx context.Context, a *attacker) {
			a.bombs(ctx, queryService+"ExecuteQuery", "", bomb(statement(strings.Repeat("temp/*", 10_000_000))))
		}},
	{"bombs", "the same with a ticket", func(ctx context.Context, a *attacker) {
		a.bombs(ctx, queryService+"ExecuteQuery", a.Ticket, bomb(statement(strings.Repeat("temp/*", 10_000_000))))
	}},
	{"bombs-of-the-plain-api", "Execute of the plain gRPC API, the same size", func(ctx context.Context, a *attacker) {
		a.bombs(ctx, plainService+"Execute", "", bomb(&sidecarv1.ExecuteRequest{Sql: strings.Repeat("SELECT", 10_000_000)}))
	}},
	{"bombs-of-parameters", "Execute of the plain gRPC API, 1 MB of gzip that are 300,000 parameters",
		func(ctx context.Context, a *attacker) {
			r := &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Params: map[string]*sidecarv1.Value{}}
			for i := range 300_000 {
				r.Params[fmt.Sprint("p", i)] = &sidecarv1.Value{Kind: &sidecarv1.Value_Int64Value{Int64Value: 1}}
			}
			a.bombs(ctx, plainService+"Execute", "", bomb(r))
		}},
	{"barren-bombs",
		"ExecuteQuery without a ticket, 4 KB of gzip of blocks that hold nothing, for each of which tables are made; 20 at a time",
		func(ctx context.Context, a *attacker) {
			a.bombs(ctx, queryService+"ExecuteQuery", "", framed(1, barren(14)))
		}},
	{"held-headers", "calls without a body, whose 60 KB of headers are 100 bytes each time", heldHeaders},
	{"long-texts", "statements of 200 KB that are full of `temp/*`", func(ctx context.Context, a *attacker) {
		a.bombs(ctx, queryService+"ExecuteQuery", a.Ticket, message(statement(strings.Repeat("temp/*", 33_000))))
	}},
	{"small-holders",
		"Execute of the plain gRPC API, requests that stop after 15.9 KB and then get a byte every four seconds, " +
			"4,000 on each of 2 connections",
		smallHolders},
	{"parked-headers",
		"bare headers of calls that wait for a message, 4,000 on each of 10 connections, again as soon as they end",
		parkedHeaders},
	{"unfinished-headers", "connections that stop within 60 KB of headers, or within a frame of 16 KB; 2,000 of them", unfinishedHeaders},
	{"parts-of-messages", "messages of 1 MB that stop before their last byte, 100 on each of 20 connections",
		func(ctx context.Context, a *attacker) {
			a.parts(ctx, 1<<20, 100, a.Ticket, queryService+"ExecuteQuery")
		}},
	{"parts-of-plain-messages",
		"messages of 4 MB to Execute, ExecuteStream and Ingest of the plain gRPC API that stop before their last " +
			"byte, 30 on each of 20 connections",
		func(ctx context.Context, a *attacker) {
			a.parts(ctx, 4<<20, 30, "", plainService+"Execute", plainService+"ExecuteStream", "/sidecar.v1.Ingest/Ingest")
		}},
	{"sessions-of-nobody", "CreateSession of both services without a ticket",
		func(ctx context.Context, a *attacker) { a.sessions(ctx, "") }},
	{"sessions", "the same with a ticket", func(ctx context.Context, a *attacker) { a.sessions(ctx, a.Ticket) }},
	{"tickets", "calls with tickets by chance", func(ctx context.Context, a *attacker) {
		a.onPeers(ctx, 10, true, func(ctx context.Context, p *peer) error {
			var random [16]byte
			_, _ = rand.Read(random[:]) // it never fails
			return p.unary(ctx, queryService+"ExecuteQuery", hex.EncodeToString(random[:]), message(statement("SELECT 1")))
		})
	}},
	{"long-tickets", "a call with a ticket of 15 KB on each of 2,000 connections", func(ctx context.Context, a *attacker) {
		a.onPeers(ctx, 2000, true, func(ctx context.Context, p *peer) error {
			ticket := make([]byte, 7500)
			_, _ = rand.Read(ticket) // it never fails
			if err := p.unary(ctx, queryService+"ExecuteQuery", hex.EncodeToString(ticket), message(statement("SELECT 1"))); err != nil {
				return err
			}
			rest(ctx, 10*time.Second)
			return nil
		})
	}},
	{"hoards", "answers of 100 KB that nobody reads, 400 on each of 5 connections, of which each takes a byte every five seconds", hoards},
	{"resets", "calls that are reset at once", func(ctx context.Context, a *attacker) {
		a.onPeers(ctx, 10, true, func(_ context.Context, p *peer) error {
			id, err := p.open(false, call(queryService+"ExecuteQuery", "")...)
			if err == nil {
				err = p.write(func(f *http2.Framer) error { return f.WriteRSTStream(id, http2.ErrCodeCancel) })
			}
			return err
		})
	}},
	{"settings", "SETTINGS that change the window of 1,000 open calls", settingsStorm},
	{"pings", "PINGs, empty DATA and frames of no known type", func(ctx context.Context, a *attacker) {
		a.onPeers(ctx, 10, true, func(_ context.Context, p *peer) error {
			return p.write(func(f *http2.Framer) error {
				if err := f.WritePing(false, [8]byte{}); err != nil {
					return err
				}
				return f.WriteRawFrame(0xbe, 0, 1, make([]byte, 100))
			})
		})
	}},
	{"idle-connections", "connections that say nothing, as many as are let in, to all ports", idleConnections},
	{"connections", "connections that end as soon as they are made", func(ctx context.Context, a *attacker) {
		a.each(ctx, 20, func(ctx context.Context) error {
			for _, address := range []string{a.GRPC, a.HTTP} {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
				if err != nil {
					return err
				}
				_ = conn.Close() // it said nothing
			}
			return nil
		})
	}},
	{"slow-headers", "HTTP/1.1 requests whose headers come a byte at a time, on 200 connections", func(ctx context.Context, a *attacker) {
		a.each(ctx, 200, func(ctx context.Context) error {
			return a.slowly(ctx, "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 1000))
		})
	}},
	{"bodies-without-end", "HTTP/1.1 bodies of which the last byte does not come, 60 at a time", func(ctx context.Context, a *attacker) {
		a.posts(ctx, 60, "/v1/query", "application/json", 15<<20, `{"sql":"SELECT 1","x":"`+strings.Repeat("x", 1000), false)
	}},
	{"small-rows", "16 MB of `{\"a\":1}` to /v1/bulk, 10 at a time", func(ctx context.Context, a *attacker) {
		a.posts(ctx, 10, "/v1/bulk?table=bench", "application/x-ndjson", 16<<20, "{\"a\":1}\n", true)
	}},
	{"long-declarations", "statements of 1 MB with parameters to /v1/tx, each another one, 10 at a time", longDeclarations},
	{"open-posts", "POST /v1/query without a body over HTTP/2, 100 on each of 400 connections", openPosts},
	{"deep-json", "2 MB of JSON of brackets", func(ctx context.Context, a *attacker) {
		a.posts(ctx, 10, "/v1/query", "application/json", 2<<20, `[`, true)
	}},
	{"long-lists", "lists of 20,000 statements to /v1/batch", func(ctx context.Context, a *attacker) {
		body := `{"statements":[` + strings.Repeat(`{"sql":"SELECT 1"},`, 19_999) + `{"sql":"SELECT 1"}]}`
		a.posts(ctx, 10, "/v1/batch", "application/json", len(body), body, true)
	}},
	{"open-streams", "Ingest and Watch of gRPC's health service, begun and left open, 100 on each of 10 connections", openStreams},
	{"unread-answers", "answers of 100 KB over HTTP/1.1 that nobody reads, 100 at a time", unread},
	{"slow-bombs",
		"Execute of the plain gRPC API, 1 MB of gzip: 60 KB of blocks that hold nothing, 32 KB of text, and again; 20 at a time",
		func(ctx context.Context, a *attacker) {
			a.bombs(ctx, plainService+"Execute", "", framed(1, slow(1<<20)))
		}},
	{"nested-rows",
		"BulkUpsert of the plain gRPC API, 16 KB of gzip that are one row of 8,000,000 values within each other; 20 at a time",
		func(ctx context.Context, a *attacker) {
			a.bombs(ctx, plainService+"BulkUpsert", "", nestedRow(8_000_000))
		}},
	{"nested-json-rows", "a row with a Set of 1,000,000 items to /v1/bulk, 10 at a time", func(ctx context.Context, a *attacker) {
		body := `{"table":"bench","types":{"a":"Set<Int8>"},"rows":[{"a":[` + strings.Repeat("1,", 999_999) + `1]}]}`
		a.posts(ctx, 10, "/v1/bulk", "application/json", len(body), body, true)
	}},
	{"columns-of-ingest", "Ingest, 16 KB of gzip that name 8,000,000 columns; 20 at a time", ingestColumns},
	{"wide-objects", "12 MB of JSON whose objects have members without end, 10 at a time", func(ctx context.Context, a *attacker) {
		body := []byte(`{"params":{"a":{`)
		for i := range 1_200_000 {
			body = fmt.Appendf(body, `"%x":0,`, i)
		}
		a.posts(ctx, 10, "/v1/query", "application/json", len(body), string(body), true)
	}},
}
