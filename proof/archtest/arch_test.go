package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ydb-sidecar/sidecar/"

// tiers is the table of ARCHITECTURE.md. A package may import those of lower tiers. Packages below one
// of these belong to it: proof/devcluster/engine is part of proof/devcluster. Tier 2 is for what joins
// mechanisms. Tier 5 is for what the process shows of itself, and how it is replaced. The product ends
// at tier 7: what proves it stands above, so that nothing of the product can import it.
var tiers = map[string]int{
	"proof/archtest": 9, "proof/cmd/devcluster": 9, "proof/cmd/devtrace": 9, "proof/cmd/realtest": 9,
	"proof/cmd/steps": 9, "proof/datapathtest": 9, "proof/sdktest": 9, "proof/systemtest": 9,
	"loadtest": 9, "deploy": 9,

	"proof/await": 8, "proof/certtest": 8, "proof/conformance": 8, "proof/docstest": 8, "proof/doctable": 8,
	"proof/short": 8, "proof/contract": 8, "proof/devcluster": 8, "proof/stand": 8, "proof/rules": 8, "proof/stepcount": 8,

	"cmd/sidecar": 7,

	"internal/app": 6,

	"internal/doctor": 5, "internal/restart": 5, "internal/snapshot": 5,

	"internal/facade": 4, "internal/wire": 4, "internal/admin": 4, "internal/xds": 4,

	"internal/upstream": 3, "internal/discovery": 3, "internal/h2": 2, "internal/ingest": 3, "internal/listen": 3,

	"internal/hop": 2, "internal/virtual": 2,

	"internal/adaptive": 1, "internal/callctx": 1, "internal/certs": 1, "internal/lane": 1, "internal/memguard": 1,
	"internal/pool": 1, "internal/routing": 1, "internal/pessimize": 1, "internal/lease": 1,
	"internal/lifecycle": 1, "internal/takeover": 1, "internal/telemetry": 1, "internal/accesslog": 1, "internal/audit": 1,
	"internal/cache": 1, "internal/history": 1, "internal/apps": 1, "internal/statements": 1,

	"internal/awake": 0, "internal/panics": 0, "internal/cluster": 0, "internal/ydbstatus": 0, "internal/protocol": 0,
	"internal/yql": 0, "internal/config": 0,
	"internal/http1": 0, "internal/loopback": 0, "internal/latency": 0, "internal/tracing": 0, "proto/sidecar": 0,
}

// productTop is the highest tier of the product.
const productTop = 7

// sideways are the imports within a tier that are allowed, and why.
var sideways = map[[2]string]string{
	{"internal/ydbstatus", "internal/cluster"}: "the table speaks of blame in the words of cluster",
	{
		"internal/protocol", "internal/cluster",
	}: "methods say what their failure says of a node, and ids name nodes, in the words of cluster",
	{"internal/protocol", "internal/yql"}: "comments end where the lexer of YQL says",
	{"internal/yql", "proto/sidecar"}:     "values are converted to and from the plain API's messages",
}

// only names who alone may import a package, whatever the tiers say.
var only = map[string][]string{
	"internal/telemetry": {"internal/app"},
	"internal/lifecycle": {"internal/app"},
	"internal/takeover":  {"internal/app", "internal/listen", "internal/restart"},
	"internal/app":       {"cmd/sidecar"},
	"proof/devcluster":   {"proof/cmd/devcluster"},
	"proof/stand":        {"loadtest", "proof/cmd/realtest"},
}

// apart names proofs that are oracles: they may import of internal/ only what
// is listed. Code that they shared with the product would be wrong in both
// alike, and no test would show it (docs/dev/decisions/0004).
var apart = map[string][]string{
	"proof/devcluster": {"internal/loopback"},
}

// forbidden must not get into the product's program.
var forbidden = []string{"modernc.org/sqlite", module + "proof/devcluster", "github.com/ydb-platform/ydb-go-sdk/v3", "testing"}

// excused may import them, and why.
var excused = map[string]string{
	"github.com/envoyproxy/go-control-plane/pkg/log": "it has a logger for tests beside that for servers; nothing of testing runs",
}

type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

// lists are the answers of go list that were asked for, by the arguments.
var lists = map[string][]listed{}

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	key := strings.Join(args, " ")
	if known, ok := lists[key]; ok {
		return known
	}
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Dir,GoFiles,Imports"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	var packages []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			lists[key] = packages
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// unit returns the entry of tiers that an import path belongs to.
func unit(path string) (string, bool) {
	name, ours := strings.CutPrefix(path, module)
	for ours {
		if _, ok := tiers[name]; ok {
			return name, true
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			break
		}
		name = name[:i]
	}
	return "", false
}

// fault says what is wrong with an import, or "".
func fault(from, to string) string {
	switch {
	case from == to || sideways[[2]string{from, to}] != "":
		return ""
	case tiers[from] <= productTop && tiers[to] > productTop:
		return "the product imports nothing of what proves it: proof, loadtest and deploy use the product, not the other way round"
	case tiers[to] >= tiers[from]:
		return fmt.Sprintf(
			"tier %d imports tier %d; imports point down only. Define an interface where it is used, and join the two in internal/app",
			tiers[from], tiers[to],
		)
	case only[to] != nil && !slices.Contains(only[to], from):
		return fmt.Sprintf("only %s may import it", strings.Join(only[to], ", "))
	case apart[from] != nil && strings.HasPrefix(to, "internal/") && !slices.Contains(apart[from], to):
		return fmt.Sprintf("of the product's packages it may import only %s, so that it stays an oracle", strings.Join(apart[from], ", "))
	default:
		return ""
	}
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range list(t, "./...") {
		from, ok := unit(p.ImportPath)
		if !ok {
			t.Errorf("%s has no tier: add it to the table here and in ARCHITECTURE.md", p.ImportPath)
			continue
		}
		for _, path := range p.Imports {
			to, ok := unit(path)
			if !ok {
				continue // another module's, or reported above
			}
			if wrong := fault(from, to); wrong != "" {
				t.Errorf("%s imports %s: %s", p.ImportPath, path, wrong)
			}
		}
	}
}

func TestFault(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		wrong    bool
	}{
		{"internal/facade", "internal/pool", false},
		{"internal/upstream", "internal/hop", false},
		{"internal/hop", "internal/routing", false},
		{"internal/hop", "internal/h2", true},
		{"internal/pool", "internal/routing", true},
		{"internal/admin", "internal/facade", true},
		{"internal/pool", "internal/upstream", true},
		{"internal/facade", "internal/telemetry", true},
		{"internal/ydbstatus", "internal/cluster", false},
		{"internal/cluster", "internal/ydbstatus", true},
		{"internal/pool", "proof/stand", true},
		{"internal/app", "loadtest", true},
		{"cmd/sidecar", "proof/devcluster", true},
		{"proof/devcluster", "internal/loopback", false},
		{"proof/devcluster", "internal/yql", true},
		{"proof/contract", "internal/yql", false},
		{"loadtest", "proof/stand", false},
		{"proof/devcluster", "loadtest", true},
	} {
		if got := fault(tc.from, tc.to); (got != "") != tc.wrong {
			t.Errorf("%s imports %s: %q; want a fault: %v", tc.from, tc.to, got, tc.wrong)
		}
	}
}

func TestTheProductIsFreeOfDevelopmentTools(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/sidecar") {
		for _, imported := range p.Imports {
			for _, bad := range forbidden {
				if (imported == bad || strings.HasPrefix(imported, bad+"/")) && excused[p.ImportPath] == "" &&
					!strings.HasPrefix(p.ImportPath, bad) {
					t.Errorf("cmd/sidecar depends on %s, by %s", imported, p.ImportPath)
				}
			}
		}
	}
}
