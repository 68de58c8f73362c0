package overhead

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

// Connections stay open until the release, and an answer that is not right is told.
func TestIdleConnectionsHaveHadAnAnswer(t *testing.T) {
	open := make(chan http.ConnState, 64) // more than there are changes
	answer := http.StatusOK
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(answer)
		_, _ = w.Write([]byte("{}")) // seen by the client
	}))
	closed := 0
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) { open <- s }
	server.Start()
	defer server.Close()
	hold := idleConns(3, func(*lab.Sidecar) string { return strings.TrimPrefix(server.URL, "http://") }, greetHTTP)
	release, err := hold(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	release()
	for closed < 3 {
		if <-open == http.StateClosed {
			closed++
		}
	}
	answer = http.StatusTeapot
	if _, err := hold(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "HTTP 418") {
		t.Errorf("got %v; want the status of the answer", err)
	}
}
