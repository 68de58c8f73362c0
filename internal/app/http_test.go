package app

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestTheHTTPServerIsBounded: the bounds of the server that listens, not of one that tests make.
func TestTheHTTPServerIsBounded(t *testing.T) {
	s := start(t, nowhere, "api.max_headers=8KiB", "api.max_open=21", "http.header_timeout=3s", "http.idle_timeout=4s")
	for size, want := range map[int]int{
		100: http.StatusOK, 9 << 10: http.StatusRequestEntityTooLarge, 1 << 20: http.StatusRequestHeaderFieldsTooLarge,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.at.HTTP+"/openapi.yaml", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Long", strings.Repeat("x", size))
		response, err := s.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		// What exceeds the setting a little is told so in the form of the API.
		if problem := response.Header.Get("Content-Type") == "application/problem+json"; response.StatusCode != want || problem != (size == 9<<10) {
			t.Errorf("%d bytes of headers: %s, %s", size, response.Status, response.Header.Get("Content-Type"))
		}
	}
	server := s.newHTTP()
	if server.ReadHeaderTimeout != 3*time.Second || server.IdleTimeout != 4*time.Second || server.HTTP2.MaxConcurrentStreams != 42 || server.ErrorLog == nil {
		t.Errorf("header timeout %v, idle timeout %v, %d streams", server.ReadHeaderTimeout, server.IdleTimeout, server.HTTP2.MaxConcurrentStreams)
	}
	if n := start(t, nowhere).newHTTP().HTTP2.MaxConcurrentStreams; n != httpStreams {
		t.Errorf("%d streams by default; want %d", n, httpStreams)
	}
}
