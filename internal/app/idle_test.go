package app

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/proof/short"
)

// Idle connections, and requests whose body does not come, which come again whenever they are
// closed, keep neither probes nor operators out, and requests under way go on.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin")
	s := start(t, nowhere, "admin.probes=127.0.0.1:0", "admin.socket="+socket)
	for _, to := range []struct {
		network, address string
		events           bool
	}{{"tcp", s.at.Probes, false}, {"tcp", s.at.Admin, true}, {"unix", socket, true}} {
		t.Run(to.network+" "+filepath.Base(to.address), func(t *testing.T) {
			client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, to.network, to.address)
				}}}
			var stream *bufio.Reader
			if to.events {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/events", nil)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Accept", "text/event-stream")
				response, err := (&http.Client{Transport: client.Transport}).Do(request) // for as long as the test
				if err != nil || response.StatusCode != http.StatusOK {
					t.Fatalf("/events: %v, %v", response, err)
				}
				defer response.Body.Close()
				stream = bufio.NewReader(response.Body)
			}
			for _, sent := range []string{"", "GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"} {
				stop := crowd(t, to.network, to.address, sent, listen.AdminConnections+16)
				defer stop()
				for n := range short.Of(20, 5) {
					response, err := client.Get("http://localhost/livez")
					// On a busy machine a request may come later than idleLeast after its connection,
					// which has then given way to others: who comes again is let in.
					for last := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(last); {
						response, err = client.Get("http://localhost/livez")
					}
					if err != nil {
						t.Fatalf("after %q: /livez %d: %v", sent, n, err)
					}
					text, _ := io.ReadAll(response.Body)
					_ = response.Body.Close()
					if response.StatusCode != http.StatusOK {
						t.Errorf("/livez %d: %s %s", n, response.Status, text)
					}
				}
				stop()
			}
			if stream == nil {
				return
			}
			reason := "still here over " + to.network
			s.events.Add(admin.Event{Kind: "finding", Reason: reason})
			for {
				line, err := stream.ReadString('\n')
				if err != nil {
					t.Fatalf("the stream of events was cut: %v", err)
				}
				if strings.Contains(line, reason) {
					return
				}
			}
		})
	}
}

// crowd holds n connections that send no more than text, and makes each again when it is closed.
func crowd(t *testing.T, network, address, text string, n int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var here sync.WaitGroup
	for range n {
		here.Add(1)
		wg.Go(func() {
			first := sync.OnceFunc(here.Done)
			defer first()
			for ctx.Err() == nil {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				if err != nil {
					continue // the backlog of a Unix socket is full
				}
				first()
				free := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = io.WriteString(conn, text)
				_, _ = conn.Read(make([]byte, 1))
				free()
				_ = conn.Close()
			}
		})
	}
	here.Wait()
	return func() { cancel(); wg.Wait() }
}
