package httpapi

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

// What the first piece of a body shows to be wrong is answered before the rest has come.
func TestTheRestOfAWrongBodyIsNotWaitedFor(t *testing.T) {
	cfg := facadetest.Small()
	cfg.MaxBody = 4 * pieceSize
	b := start(t, cfg, &facadetest.Driver{})
	var waiting sync.WaitGroup // for the ends of the connections, each of which takes linger
	defer waiting.Wait()
	for _, tc := range []struct{ path, begins, repeats, want string }{
		{"/v1/batch", `{"statements":[`, `{"sql":"S"},`, "api.max_statements"},
		{"/v1/query", "", "[", "api.max_depth"},
		{"/v1/bulk", `{"Table":"items","rows":[`, `{"a":1},`, `"Table" is unknown`},
	} {
		waiting.Go(func() {
			t.Run(tc.path, func(t *testing.T) {
				conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(bodyTimeout / 2)) // it is open
				start := tc.begins + strings.Repeat(tc.repeats, pieceSize/len(tc.repeats)+1)
				if _, err := fmt.Fprintf(
					conn,
					"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
					tc.path, 2*len(start), start,
				); err != nil {
					t.Fatal(err)
				}
				answer, err := io.ReadAll(conn)
				if err != nil || !strings.Contains(string(answer), strings.ReplaceAll(tc.want, `"`, `\"`)) {
					t.Errorf("%v: %s; want %s", err, answer, tc.want)
				}
			})
		})
	}
}
