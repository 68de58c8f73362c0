package systemtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// pictures is where TestPage leaves pictures of the page (make pictures); "": none.
var pictures = flag.String("pictures", "", "directory for pictures of the admin page")

// pictureAfter is how long there is load before pictures are taken, in seconds.
const pictureAfter = 150

// TestPage looks at the admin page in a headless Chromium while there is load:
// testdata/page/check.mjs has what must be seen, and says when a node is to be
// killed and the sidecar to be started again.
func TestPage(t *testing.T) {
	c := startCluster(t, nil, "-locations", "zone-a,zone-b,zone-c")
	// another process comes there
	addresses := []string{"-grpc", standtest.FreeAddress(t), "-http", standtest.FreeAddress(t), "-admin", standtest.FreeAddress(t)}
	const token = "a-token-of-the-test"
	serve := func(settings ...string) (*stand.Process, map[string]string) {
		args := append([]string{"serve", "-ydb", c.Endpoint()}, addresses...)
		for _, s := range append(settings, "pool.max=24", "admin.trace_link=https://traces.example/trace/{trace_id}") {
			args = append(args, "-set", s)
		}
		p := standtest.Start(t, stand.Spec{Path: filepath.Join(bin, "sidecar"), Args: args, Env: []string{"SIDECAR_ADMIN_TOKEN=" + token}})
		return p, standtest.Ready(t, p)
	}
	p, at := serve()
	stopLoad := startPageLoad(t, at["http"])
	defer stopLoad()

	dir := filepath.Join(standtest.Root(t), "proof", "systemtest", "testdata", "page")
	args := []string{filepath.Join(dir, "check.mjs"), "http://" + at["admin"] + "/", token}
	if *pictures != "" {
		args = append(args, *pictures, fmt.Sprint(pictureAfter))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	check := exec.CommandContext(ctx, "node", args...)
	check.Dir = dir
	var faults bytes.Buffer
	check.Stderr = &faults
	in, err := check.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := check.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := check.Start(); err != nil {
		t.Fatal(err)
	}
	all := func(act string) {
		for _, n := range c.Nodes {
			c.do(t, n.ID, act, nil)
		}
	}
	said := serveWishes(t, out, in, map[string]func(){
		"want kill":      func() { c.do(t, c.Nodes[1].ID, "kill", nil) },
		"want start":     func() { c.do(t, c.Nodes[1].ID, "start", nil) },
		"want kill all":  func() { all("kill") },
		"want start all": func() { all("start") },
		"want stop": func() {
			if code, err := p.Stop(ctx); err != nil || code != 0 {
				t.Errorf("the sidecar ended with %d, %v", code, err)
			}
		},
		"want serve": func() { serve("admin.control=token") },
	})
	if err := check.Wait(); err != nil || said != "ok" {
		t.Errorf("check.mjs: %v\n%s", err, faults.String())
	}
}

// serveWishes does what a program asks for, line by line, and tells it when that is done. It returns the last line.
func serveWishes(t *testing.T, out io.Reader, in io.Writer, wishes map[string]func()) (said string) {
	t.Helper()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = lines.Text()
		t.Log(said)
		grant := wishes[said]
		if grant == nil {
			continue
		}
		grant()
		if _, err := io.WriteString(in, "done\n"); err != nil {
			t.Fatal(err)
		}
	}
	return said
}

// pageAnswer is what the load of the page needs of an answer.
type pageAnswer struct{ Tx struct{ ID string } }

// askForPage makes a call of an app that a trace records. The answer is empty if the call fails.
func askForPage(ctx context.Context, t *testing.T, app, url string, body any) (answer pageAnswer) {
	text, err := json.Marshal(body)
	if err != nil {
		t.Error(err)
		return answer
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		t.Error(err)
		return answer
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Sidecar-App", app)
	request.Header.Set("Traceparent", fmt.Sprintf("00-%016x%016x-%016x-01", rand.Uint64(), rand.Uint64()|1, rand.Uint64()|1))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer
	}
	defer response.Body.Close()
	_ = json.NewDecoder(response.Body).Decode(&answer) // it may be cut off
	return answer
}

// startPageLoad has something happen of each kind that the page shows, until stop.
// Nothing is expected of the calls: nodes and the sidecar go away meanwhile.
func startPageLoad(t *testing.T, address string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	call := func(app, path string, body any) pageAnswer {
		return askForPage(ctx, t, app, "http://"+address+path, body)
	}
	every := func(pause time.Duration, f func(i int)) {
		work.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause):
					f(i)
				}
			}
		})
	}
	type object = map[string]any
	query := func(sql string) object { return object{"sql": sql, "stats": "basic"} }
	for i, app := range []string{"shop", "billing", "reports"} {
		every(40*time.Millisecond, func(j int) {
			work.Go(func() { call(app, "/v1/query", query("SELECT 1 AS x")) })
			if math.Sin(float64(j)/120+float64(i)) > 0 { // it comes in waves
				call(app, "/v1/query", query("SELECT "+strings.Repeat("1 + ", 200)+"1 AS x"))
			}
		})
		every(1700*time.Millisecond, func(j int) {
			tx := call(app, "/v1/query", object{"sql": "SELECT 1 AS x", "tx": object{"begin": object{}}}).Tx.ID
			work.Go(func() {
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(1+j%5) * 2 * time.Second):
				}
				if tx != "" {
					call(app, "/v1/tx/"+tx+"/commit", object{})
				}
			})
		})
	}
	every(2300*time.Millisecond, func(int) { call("reports", "/v1/query", query("SELECT x FROM nowhere")) })
	every(3100*time.Millisecond, func(int) { call("shop", "/v1/query", query("SELEC 1")) })
	return func() {
		cancel()
		work.Wait()
	}
}
