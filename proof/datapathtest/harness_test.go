package datapathtest

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ydb-sidecar/sidecar/proof/await"
	"github.com/ydb-sidecar/sidecar/proof/certtest"
	"github.com/ydb-sidecar/sidecar/proof/conformance"
	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// bin is where TestMain builds the programs.
var bin string

func TestMain(m *testing.M) {
	if id := os.Getenv(nodeEnv); id != "" {
		runNode(id)
		return
	}
	standtest.Main(m, &bin, "sidecar")
}

// sidecar is a running sidecar that passes calls through to static nodes.
type sidecar struct{ *stand.Sidecar }

// startSidecar starts one in front of nodes at those addresses, which get the ids 1, 2, 3 ...
func startSidecar(t testing.TB, nodes []string, settings ...string) *sidecar {
	t.Helper()
	list := make([]string, len(nodes))
	for i, address := range nodes {
		list[i] = fmt.Sprintf("%d=%s", i+1, address)
	}
	settings = append([]string{"discovery.mode=static", "discovery.nodes=" + strings.Join(list, ","),
		"wire.mode=passthrough", "pool.min=0",
		"health.idle_probe=0s"}, settings...)
	s := &sidecar{standtest.Sidecar(t, stand.Serve{Program: filepath.Join(bin, "sidecar"), Settings: settings})}
	eventually(t, patience, "the sidecar can use its nodes", func() string {
		for id := range nodes {
			if n := s.node(t, id+1); n.Use != "new" {
				return fmt.Sprintf("%+v", n)
			}
		}
		return ""
	})
	return s
}

// patience bounds waits for what comes at once on a machine with nothing else to do.
const patience = time.Minute

// eventually asks until the answer is "" (as it should be), or fails with the last
// answer. The sidecar is another process: there is no event to wait for.
func eventually(t testing.TB, within time.Duration, what string, ask func() (wrong string)) {
	t.Helper()
	if wrong := await.Within(within, ask); wrong != "" {
		t.Fatalf("%s: not within %v: %s", what, within, wrong)
	}
}

// get reads a page of the sidecar's admin port.
func (s *sidecar) get(t testing.TB, path string) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true // its connection must not count as one of the sidecar's
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %.200s", path, response.Status, err, body)
	}
	return body
}

// nodeState is what the sidecar says of one node.
type nodeState struct {
	ID                         int
	Health, Use, Reason, Cause string
	Calls                      int
}

// node asks the sidecar for its verdict about a node.
func (s *sidecar) node(t testing.TB, id int) nodeState {
	t.Helper()
	var state struct{ Nodes []nodeState }
	if err := json.Unmarshal(s.get(t, "/state/nodes"), &state); err != nil {
		t.Fatal(err)
	}
	for _, n := range state.Nodes {
		if n.ID == id {
			return n
		}
	}
	return nodeState{}
}

// holdings are what a process must not collect.
type holdings struct{ descriptors, goroutines int }

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// held asks the sidecar what it holds, without what serves the question.
func (s *sidecar) held(t testing.TB) (h holdings) {
	t.Helper()
	found := goroutines.FindSubmatch(s.get(t, "/metrics"))
	if found == nil {
		t.Fatal("/metrics has no go_goroutines")
	}
	h.goroutines, _ = strconv.Atoi(string(found[1])) // the expression has digits only
	var err error
	if h.descriptors, err = stand.Descriptors(s.Pid()); err != nil {
		t.Fatal(err)
	}
	return h
}

// backAt waits until the sidecar holds no more than before. Connections that h2spec
// leaves open are found by their silence, after 40 s.
func (s *sidecar) backAt(t testing.TB, before holdings) {
	t.Helper()
	eventually(t, time.Minute, "descriptors and goroutines are back at the start", func() string {
		if now := s.held(t); now.descriptors > before.descriptors || now.goroutines > before.goroutines {
			return fmt.Sprintf("%+v; before %+v", now, before)
		}
		return ""
	})
	for id := 1; s.node(t, id).ID != 0; id++ {
		eventually(t, patience, "no call counts as open after the last", func() string {
			if n := s.node(t, id); n.Calls != 0 {
				return fmt.Sprintf("%d on node %d", n.Calls, id)
			}
			return ""
		})
	}
}

// secure is a certificate of the sidecar for clients that speak TLS.
type secure struct {
	settings []string
	caFile   string
	client   *tls.Config
}

func newSecure(t testing.TB) *secure {
	t.Helper()
	c, dir := certtest.Of(t), t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := c.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	settings := []string{"grpc.cert_file=" + cert, "grpc.key_file=" + key}
	return &secure{settings, cert, &tls.Config{RootCAs: c.Pool(), ServerName: certtest.Name}}
}

// dial opens a connection of its own for as long as the test; config is nil for plaintext.
func dial(t testing.TB, address string, config *tls.Config, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(conformance.MaxMessage))}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// usage is the resident memory of a process, bytes.
func usage(pid int) (int64, error) {
	u, err := stand.ReadUsage(pid)
	return u.RSS, err
}
