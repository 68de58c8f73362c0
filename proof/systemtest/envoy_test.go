package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ydb-sidecar/sidecar/proof/stand"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// upstream is the header by which an Envoy of the tests tells which node answered.
const upstream = "x-upstream"

// envoy is an Envoy with the shipped configuration.
type envoy struct {
	process *stand.Process
	admin   string
	conn    *grpc.ClientConn
}

// startEnvoy starts an Envoy that gets its nodes from a sidecar. Only addresses differ from the shipped configuration, except
// the header upstream, and what edit says: pairs of a text and what takes its place.
func startEnvoy(t *testing.T, s *sidecar, edit ...string) *envoy {
	t.Helper()
	shipped, err := os.ReadFile(filepath.Join(standtest.Root(t), "deploy", "envoy", "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, xds, _ := strings.Cut(s.XDS, ":")
	edit = append(
		[]string{"port_value: 9901", "port_value: 0", "port_value: 2135", "port_value: 0", "port_value: 7403", "port_value: " + xds,
			`domains: ["*"]`,
			"domains: [\"*\"]\n                      response_headers_to_add: [{header: {key: " + upstream +
				`, value: "%UPSTREAM_REMOTE_ADDRESS%"}}]`},
		edit...,
	)
	config := string(shipped)
	for i := 0; i < len(edit); i += 2 {
		if !strings.Contains(config, edit[i]) {
			t.Fatalf("the shipped configuration of Envoy does not say %q", edit[i])
		}
		config = strings.ReplaceAll(config, edit[i], edit[i+1])
	}
	dir := t.TempDir()
	file, told := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &envoy{process: standtest.Start(t, stand.Spec{
		Path: filepath.Join(standtest.Root(t), ".cache", "peers", "envoy", "envoy", "_bin", "envoy"), // make deps
		Args: []string{"-c", file, "--admin-address-path", told, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"},
	})}
	eventually(t, 60*time.Second, "Envoy serves", func() string {
		address, err := os.ReadFile(told)
		if err != nil || len(address) == 0 {
			return fmt.Sprint("no admin address: ", err, e.process.Log())
		}
		e.admin = string(address)
		text, err := e.get(t.Context(), "/ready")
		if err != nil {
			return err.Error()
		}
		return strings.TrimPrefix(strings.TrimSpace(text), "LIVE")
	})
	var listeners struct {
		All []struct {
			At struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	e.read(t, "/listeners?format=json", &listeners)
	if len(listeners.All) != 1 {
		t.Fatalf("Envoy has %d listeners; want 1", len(listeners.All))
	}
	at := listeners.All[0].At.Socket
	e.conn, _ = dial(t, at.Address+":"+strconv.Itoa(at.Port))
	return e
}

func (e *envoy) get(ctx context.Context, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.admin+path, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func (e *envoy) read(t *testing.T, path string, answer any) {
	t.Helper()
	text, err := e.get(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), answer); err != nil {
		t.Fatalf("%s: %v in %s", path, err, text)
	}
}

// health returns what the sidecar has told Envoy of each node, by address.
func (e *envoy) health(t *testing.T) map[string]string {
	t.Helper()
	var clusters struct {
		All []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
				Health struct {
					EDS string `json:"eds_health_status"`
				} `json:"health_status"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	e.read(t, "/clusters?format=json", &clusters)
	health := map[string]string{}
	for _, cluster := range clusters.All {
		if cluster.Name != xdsName {
			continue
		}
		for _, host := range cluster.Hosts {
			health[host.Address.Socket.Address+":"+strconv.Itoa(host.Address.Socket.Port)] = host.Health.EDS
		}
	}
	return health
}

// rejected returns the counters of updates that Envoy did not take, those that are not 0.
func (e *envoy) rejected(t *testing.T) (bad []string) {
	t.Helper()
	text, err := e.get(t.Context(), "/stats?filter=update_rejected|init_fetch_timeout")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) < 4 {
		t.Fatalf("Envoy counts %q; want the counters of its updates", text)
	}
	for _, line := range lines {
		if !strings.HasSuffix(line, ": 0") {
			bad = append(bad, line)
		}
	}
	return bad
}

// answeredBy returns the address of the node that answered, of what Envoy added to the answer.
func answeredBy(header metadata.MD) string {
	if at := header.Get(upstream); len(at) > 0 {
		return at[0]
	}
	return ""
}
