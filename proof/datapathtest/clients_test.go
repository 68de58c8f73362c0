package datapathtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/conformance"
	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// target is what a client calls.
type target struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	CA      string `json:"ca,omitempty"` // a file; "": plaintext
}

// foreignCall is a call that clients of every stack make.
type foreignCall struct {
	Name        string            `json:"name"`
	Method      string            `json:"method"`
	Requests    [][]byte          `json:"requests"`
	Metadata    map[string]string `json:"metadata,omitempty"` // base64 in those named -bin
	TimeoutMS   int               `json:"timeout_ms,omitempty"`
	CancelAfter *int              `json:"cancel_after,omitempty"` // answers
	PingPong    bool              `json:"ping_pong,omitempty"`    // a request for each answer
	NeverEnds   bool              `json:"never_ends,omitempty"`   // the client's side stays open
}

func encode(t testing.TB, all ...proto.Message) [][]byte {
	t.Helper()
	out := [][]byte{} // null in JSON if it is nil
	for _, m := range all {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			b = []byte{}
		}
		out = append(out, b)
	}
	return out
}

func foreignCalls(t testing.TB) []foreignCall {
	const service = "/grpc.testing.TestService/"
	unary := func(in, out int32) proto.Message {
		return &testpb.SimpleRequest{ResponseSize: out, Payload: conformance.Payload(in)}
	}
	answers := func(sizes ...int32) proto.Message {
		return &testpb.StreamingOutputCallRequest{ResponseParameters: conformance.Output(sizes...)}
	}
	input := func(n int32) proto.Message {
		return &testpb.StreamingInputCallRequest{Payload: conformance.Payload(n)}
	}
	failing := func(text string) proto.Message {
		return &testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: 2, Message: text}}
	}
	none, one := 0, 1
	return []foreignCall{
		{Name: "empty", Method: service + "EmptyCall", Requests: encode(t, &testpb.Empty{})},
		{Name: "unary", Method: service + "UnaryCall", Requests: encode(t, unary(271828, 314159))},
		{Name: "large unary", Method: service + "UnaryCall", Requests: encode(t, unary(16<<20, 16<<20))},
		{Name: "client stream", Method: service + "StreamingInputCall",
			Requests: encode(t, input(27182), input(8), input(1828), input(300000))},
		{Name: "server stream", Method: service + "StreamingOutputCall", Requests: encode(t, answers(31415, 9, 2653, 3<<20, 0))},
		{Name: "ping pong", Method: service + "FullDuplexCall",
			Requests: encode(t, answers(31415), answers(9), answers(2653), answers(58979)), PingPong: true},
		{Name: "cancel after begin", Method: service + "StreamingInputCall", Requests: encode(t, input(10)),
			CancelAfter: &none, NeverEnds: true},
		{Name: "cancel after the first answer", Method: service + "FullDuplexCall", Requests: encode(t, answers(31415)),
			CancelAfter: &one, NeverEnds: true},
		{Name: "deadline", Method: service + "FullDuplexCall", Requests: encode(t), TimeoutMS: 50, NeverEnds: true},
		{Name: "metadata", Method: service + "UnaryCall", Requests: encode(t, unary(1, 1)), Metadata: map[string]string{
			"x-grpc-test-echo-initial": "test_initial_metadata_value", "x-grpc-test-echo-trailing-bin": "AKur/wE=",
			"x-long": strings.Repeat("long ", 1000)}},
		{Name: "status", Method: service + "UnaryCall",
			Requests: encode(t, failing("\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"))},
		{Name: "unimplemented", Method: service + "UnimplementedCall", Requests: encode(t, &testpb.Empty{})},
		{Name: "unknown service", Method: future, Requests: [][]byte{[]byte("\xff\x00not protobuf")}},
	}
}

// through is what every client calls: a node, and sidecars in front of it.
func through(t testing.TB) (targets []target, sidecars []*sidecar) {
	node := startNode(t, 1)
	targets = []target{{Name: "direct", Address: node}}
	plain, cert := startSidecar(t, []string{node}), newSecure(t)
	secured := startSidecar(t, []string{node}, cert.settings...)
	sidecars = append(sidecars, plain, secured)
	for i, config := range []*tls.Config{nil, cert.client} { // the connection to the node is there after that
		conn := dial(t, sidecars[len(sidecars)-2+i].GRPC, config)
		if err := echo(t.Context(), conn, future); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close() // it must not count
	}
	targets = append(targets, target{"plain", plain.GRPC, ""}, target{"tls", secured.GRPC, cert.caFile})
	return targets, sidecars
}

// commandLimit bounds the run of a client, in which nothing waits longer than a minute.
const commandLimit = 2 * time.Minute

// command runs a client to its end.
func command(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%.2000s\n%.4000s", filepath.Base(name), err, out, stderr.String())
	}
	return out
}

// Clients of other stacks see through the sidecar what they see without it.
func TestClientsOfOtherStacks(t *testing.T) {
	targets, sidecars := through(t)
	calls := foreignCalls(t)
	task, err := json.Marshal(map[string]any{"targets": targets, "calls": calls})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "calls.json")
	if err := os.WriteFile(file, task, 0o600); err != nil {
		t.Fatal(err)
	}
	before := make([]holdings, len(sidecars))
	for i, s := range sidecars {
		before[i] = s.held(t)
	}
	for name, args := range map[string][]string{
		"grpcio": {filepath.Join(standtest.Root(t), ".venv", "bin", "python"), filepath.Join("testdata", "client.py"), file},
		"grpc-js": {"node", filepath.Join("testdata", "client.mjs"), file,
			filepath.Join(standtest.Root(t), "examples", "node", "package.json")},
	} {
		t.Run(name, func(t *testing.T) {
			seen, results := map[string]map[string]any{}, 0
			for line := range bytes.Lines(command(t, args[0], args[1:]...)) {
				var got map[string]any
				if err := json.Unmarshal(line, &got); err != nil {
					t.Fatal(err)
				}
				at, call := got["target"].(string), got["call"].(string)
				delete(got, "target")
				if at == "direct" {
					seen[call] = got
				} else if diff := cmp.Diff(seen[call], got); diff != "" {
					t.Errorf("%s of %s differs from direct:\n%.1500s", call, at, diff)
				}
				results++
			}
			if results != len(calls)*len(targets) {
				t.Errorf("%d results of %d calls at %d targets", results, len(calls), len(targets))
			}
			for call, code := range map[string]string{"large unary": "OK", "ping pong": "OK", "status": "UNKNOWN",
				"deadline":                      "DEADLINE_EXCEEDED",
				"cancel after the first answer": "CANCELLED", "unimplemented": "UNIMPLEMENTED", "unknown service": "OK"} {
				if seen[call]["code"] != code {
					t.Errorf("%s: %v; want %s", call, seen[call], code)
				}
			}
		})
	}
	for i, s := range sidecars {
		s.backAt(t, before[i])
	}
}

// framed is a message as it goes over the wire.
func framed(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// Clients of HTTP/2 that know nothing of gRPC: bodies are the same, byte by byte.
func TestPlainHTTP2Clients(t *testing.T) {
	targets, _ := through(t)
	const path = "/grpc.testing.TestService/"
	headers := []string{"-H", "content-type: application/grpc", "-H", "te: trailers"}
	for name, call := range map[string]struct {
		method string
		body   []byte
	}{
		"empty": {"EmptyCall", framed(nil)},
		"unary": {"UnaryCall", framed(encode(t, &testpb.SimpleRequest{ResponseSize: 31415, Payload: conformance.Payload(100000)})[0])},
		"large": {"UnaryCall",
			framed(encode(t, &testpb.SimpleRequest{ResponseSize: 16 << 20, Payload: conformance.Payload(16 << 20)})[0])},
		"stream": {"StreamingOutputCall",
			framed(encode(t, &testpb.StreamingOutputCallRequest{ResponseParameters: conformance.Output(9, 100000, 0, 3<<20)})[0])},
	} {
		file := filepath.Join(t.TempDir(), "body")
		if err := os.WriteFile(file, call.body, 0o600); err != nil {
			t.Fatal(err)
		}
		for client, run := range map[string]func(*testing.T, target) []byte{
			"curl": func(t *testing.T, at target) []byte {
				args := append([]string{"-sS", "--fail", "--http2-prior-knowledge", "--data-binary", "@" + file}, headers...)
				if at.CA == "" {
					return command(t, "curl", append(args, "http://"+at.Address+path+call.method)...)
				}
				args[2] = "--http2"
				return command(t, "curl", append(args, "--cacert", at.CA, "https://"+at.Address+path+call.method)...)
			},
			"nghttp": func(t *testing.T, at target) []byte {
				scheme := "http://"
				if at.CA != "" {
					scheme = "https://"
				}
				return command(t, "nghttp",
					append(append([]string{"--no-verify-peer", "-t", "60", "-d", file}, headers...), scheme+at.Address+path+call.method)...)
			},
		} {
			t.Run(client+"/"+name, func(t *testing.T) {
				want := run(t, targets[0])
				if len(want) < 5 {
					t.Fatalf("direct: %q", want)
				}
				for _, at := range targets[1:] {
					if got := run(t, at); sha256.Sum256(got) != sha256.Sum256(want) {
						t.Errorf("%s: %d bytes, which differ from the %d without it", at.Name, len(got), len(want))
					}
				}
			})
		}
	}
}

var succeeded = regexp.MustCompile(`requests: (\d+) total, \d+ started, \d+ done, (\d+) succeeded`)

// Many streams on many connections of h2load: every call succeeds.
func TestManyCallsOfH2load(t *testing.T) {
	const calls = 20000
	nodes := startNodes(t)
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file,
		framed(encode(t, &testpb.SimpleRequest{ResponseSize: 1000, Payload: conformance.Payload(500)})[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startSidecar(t, nodes)
	for range 3 {
		if err := echo(t.Context(), dial(t, s.GRPC, nil), future); err != nil {
			t.Fatal(err)
		}
	}
	before := s.held(t)
	out := command(t, "h2load", "-n", fmt.Sprint(calls), "-c", "50", "-m", "100", "-t", "1", "-d", file, "-H",
		"content-type: application/grpc",
		"-H", "te: trailers", "http://"+s.GRPC+"/grpc.testing.TestService/UnaryCall")
	found := succeeded.FindSubmatch(out)
	if found == nil || string(found[1]) != fmt.Sprint(calls) || string(found[2]) != fmt.Sprint(calls) ||
		!bytes.Contains(out, []byte(" 0 failed, 0 errored, 0 timeout")) {
		t.Errorf("%s", out)
	}
	before.goroutines += 2 * len(nodes) // connections to nodes that had none yet
	before.descriptors += len(nodes)
	s.backAt(t, before)
}
