package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

// earlyRefusal is a request that is refused for what stands before its body.
type earlyRefusal struct {
	name, method, path string
	headers            []string
	status             int
}

// early are requests that are refused for what stands before their bodies.
var early = []earlyRefusal{
	{"content_type", "POST", "/v1/query", []string{"Content-Type", "text/plain"}, 415},
	{"content_type_of_ingest", "POST", "/v1/ingest/dir/items", []string{"Content-Type", "text/plain"}, 415},
	{"bad_token", "POST", "/v1/query", []string{"Content-Type", core.MediaJSON, "Authorization", "Bearer wrong"}, 401},
	{"too_large", "POST", "/v1/query", []string{"Content-Type", core.MediaJSON}, 413},
	{"no_path", "POST", "/v2/query", []string{"Content-Type", core.MediaJSON}, 404},
	{"no_method", "PUT", "/v1/query", []string{"Content-Type", core.MediaJSON}, 405},
	{"foreign_host", "POST", "/v1/query", []string{"Content-Type", core.MediaJSON, "Origin", "http://example.com"}, 403},
	{"over_quota", "POST", "/v1/bulk", []string{"Content-Type", core.MediaJSON, "Authorization", "Bearer " + secretOfGreedy}, 429},
	{"over_quota_of_ingest", "POST", "/v1/ingest/dir/items",
		[]string{"Content-Type", mediaNDJSON, "Authorization", "Bearer " + secretOfGreedy}, 429},
	{"bad_offset_of_ingest", "POST", "/v1/ingest/dir/items?offset=x", []string{"Content-Type", mediaNDJSON}, 400},
	{"no_such_kv_table", "PUT", "/v1/kv/nowhere?id=1", []string{"Content-Type", core.MediaOctets}, 403},
	{"bad_priority", "POST", "/v1/query", []string{"Content-Type", core.MediaJSON, "X-Ydb-Priority", "urgent"}, 400},
	{"bad_priority_of_ingest", "POST", "/v1/ingest/dir/items", []string{"Content-Type", mediaNDJSON, "X-Ydb-Priority", "urgent"}, 400},
	{"bad_timeout", "POST", "/v1/query", []string{"Content-Type", core.MediaJSON, "Request-Timeout", "soon"}, 400},
	{"bad_timeout_of_commit", "POST", "/v1/tx/tx_1/commit", []string{"Content-Type", core.MediaJSON, "Request-Timeout", "-1s"}, 400},
	{"bad_rows", "POST", "/v1/batch", []string{"Content-Type", core.MediaJSON, "X-Ydb-Rows", "lists"}, 400},
	{"bad_ints", "POST", "/v1/tx", []string{"Content-Type", core.MediaJSON, "X-Ydb-Ints", "words"}, 400},
	{"no_table_of_bulk", "POST", "/v1/bulk", []string{"Content-Type", mediaNDJSON}, 400},
	{"timeout", "POST", "/v1/query", []string{"Content-Type", core.MediaJSON, "Request-Timeout", "100ms"}, 504},
	// The last ones: nothing new begins after them.
	{"draining", "POST", "/v1/batch", []string{"Content-Type", core.MediaJSON}, 503},
	{"draining_ingest", "POST", "/v1/ingest/dir/items", []string{"Content-Type", mediaNDJSON}, 503},
}

const (
	secretOfWeb    = "0123456789abcdef0123456789abcdef"
	secretOfGreedy = "fedcba9876543210fedcba9876543210"
)

// soonRefused is what an early refusal may take although the body never ends: milliseconds on
// an idle machine, and on any machine far less than a body is waited for.
const soonRefused = bodyTimeout / 3

func refusing(t *testing.T) *service {
	all, err := apps.New(
		apps.Config{Max: 5, Token: []string{"web=" + secretOfWeb, "greedy=" + secretOfGreedy},
			Quotas: []string{"greedy bytes_per_second=1 bytes_burst=1"}},
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, facadetest.Small(), facadetest.NewWriter(t).Driver, func(d *core.Deps) { d.Apps = all })
	for range 2 { // uses up the quota for minutes
		facadetest.Send(t, "POST", b.base+"/v1/tx/begin", `{"timeout":"`+strings.Repeat("0", 1000)+`1s"}`,
			facadetest.Header("Authorization", "Bearer "+secretOfGreedy))
	}
	return b
}

// headOf is the head of a request, without what it says of its body.
func headOf(method, path string, headers []string) string {
	request := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path)
	if !slices.Contains(headers, "Authorization") {
		request += "Authorization: Bearer " + secretOfWeb + "\r\n"
	}
	for i := 0; i < len(headers); i += 2 {
		request += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	return request
}

// A refusal does not wait for a body that never ends, and the connection ends soon after it.
func TestEarlyRefusalsDoNotWaitForTheBody(t *testing.T) {
	b := refusing(t)
	all := func(draining bool) {
		var waiting sync.WaitGroup // for the ends of the connections, each of which takes linger
		for _, tc := range early {
			for _, how := range []string{"length", "chunked", "expect"} {
				if strings.HasPrefix(tc.name, "draining") != draining ||
					tc.name == "too_large" && how == "chunked" || // its length is not known before it has come
					tc.name == "timeout" && how == "expect" { // its body is asked for
					continue
				}
				waiting.Go(func() { t.Run(tc.name+"_"+how, func(t *testing.T) { refusedEarly(t, b, tc, how) }) })
			}
		}
		waiting.Wait()
	}
	all(false)
	b.RefuseNew()
	all(true)
}

// refusedEarly sends a request whose body does not come.
func refusedEarly(t *testing.T, b *service, tc earlyRefusal, how string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request := headOf(tc.method, tc.path, tc.headers)
	length := 50_000 // below api.max_body, and never comes
	if tc.name == "too_large" {
		length = 1 << 30
	}
	switch how {
	case "length":
		request += fmt.Sprintf("Content-Length: %d\r\n\r\n{", length)
	case "chunked":
		request += "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
	case "expect":
		request += fmt.Sprintf("Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", length)
	}
	began := time.Now()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(began.Add(bodyTimeout))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(body), `"code":`) {
		t.Errorf("body %q, %v", body, err)
	}
	if took := time.Since(began); took > soonRefused {
		t.Errorf("refused after %v; want less than %v", took, soonRefused)
	}
	if res.StatusCode != tc.status || !res.Close {
		t.Errorf("%d %s, close %v; want %d and the connection closed", res.StatusCode, body, res.Close, tc.status)
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the answer: %v; want its end", err)
	}
	if took := time.Since(began); took > linger+soonRefused {
		t.Errorf("the connection ended after %v; want less than %v", took, linger+soonRefused)
	}
}

// Over HTTP/2 the stream ends, and the connection goes on.
func TestEarlyRefusalsOverHTTP2(t *testing.T) {
	b := refusing(t)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: b.api.Handler(), Protocols: &protocols}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { _ = server.Close(); <-served }()
	dials := 0
	transport := &http.Transport{Protocols: &protocols, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dials++
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	for _, tc := range early {
		t.Run(tc.name, func(t *testing.T) {
			if strings.HasPrefix(tc.name, "draining") {
				b.RefuseNew()
			}
			body, more := io.Pipe()
			defer more.Close()
			ctx, cancel := context.WithTimeout(t.Context(), bodyTimeout)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, tc.method, "http://"+listener.Addr().String()+tc.path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+secretOfWeb)
			facadetest.Header(tc.headers...)(req)
			if tc.name == "too_large" {
				req.ContentLength = 1 << 30
			}
			began := time.Now()
			res, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if took := time.Since(began); took > soonRefused || res.StatusCode != tc.status {
				t.Errorf("%d after %v; want %d within %v", res.StatusCode, took, tc.status, soonRefused)
			}
		})
	}
	if dials != 1 {
		t.Errorf("%d connections were made; want one for all", dials)
	}
}
