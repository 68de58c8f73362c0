package app

import (
	"bytes"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/config"
)

var update = flag.Bool("update", false, "write the generated pages of docs/reference")

func TestDefaults(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
	c := Default()
	settings, err := config.Bind(&c)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range settings.List() {
		got[s.Name] = s.Default
	}
	// Names and defaults that others rely on.
	for name, want := range map[string]string{
		"pool.max": "50", "pool.max_per_node": "0", "pool.min": "0", "pool.queue": "1000", "pool.idle": "5m", "pool.age": "1h",
		"pool.create_timeout": "5s", "routing.affinity": "on", "routing.owner_unreachable": "forward",
		"routing.forward_silence": "5s", "api.timeout": "10s",
		"tx.idle": "30s", "tx.max": "5m", "drain.delay": "0s", "drain.grace": "25s", "startup.wait": "5s",
		"discovery.interval": "5s", "retry.share": "0.2", "retry.per_second": "10", "admin.probes": "", "http.hosts": "",
		"grpc.listen": "127.0.0.1:7400", "http.listen": "127.0.0.1:7401", "admin.listen": "127.0.0.1:7402", "log.format": "json",
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s = %q (there: %v); want %q", name, value, ok, want)
		}
	}
}

func TestAllFaultsOfAllLayersAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	if err := os.WriteFile(file, []byte("pool:\n  maks: 3\napi:\n  timeout: 5\nretry.share: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := Load(
		file, []string{"SIDECAR_TX_IDLE=0s", "SIDECAR_POOLMAX=3", "HOME=/"},
		[]Assignment{{"pool.max=0", "-set"}, {"grpc.listen=7400", "-grpc"}},
	)
	if err == nil {
		t.Fatal("no error")
	}
	line := FaultLine(err)
	for _, want := range []string{
		file + `:2:3: "pool.maks" is not a setting; the nearest is pool.max`,
		file + `:4:12: api.timeout = "5"; want a duration`,
		"SIDECAR_POOLMAX: not a setting; the nearest is SIDECAR_POOL_MAX (pool.max)",
		file + ":5:1: retry.share = 7; must be",
		"-set: pool.max = 0; must be",
		"SIDECAR_TX_IDLE: tx.idle = 0s; must be",
		`-grpc: grpc.listen = "7400"; must be host:port`,
	} {
		if !strings.Contains(line, want) {
			t.Errorf("faults lack %q:\n%s", want, line)
		}
	}
	if strings.Contains(line, "\n") {
		t.Errorf("more than one line:\n%s", line)
	}
}

// Every fault of every part says which setting it is about, whole, so that its reader knows what to change and where it was set.
func TestFaultsNameTheirSetting(t *testing.T) {
	c := Default()
	settings, err := config.Bind(&c)
	if err != nil {
		t.Fatal(err)
	}
	var bad Config
	faults := config.Faults(bad.Validate())
	if len(faults) < 20 {
		t.Errorf("%d faults in an empty configuration", len(faults))
	}
	for _, fault := range faults {
		of, ok := errors.AsType[*config.Fault](fault)
		if !ok || !slices.ContainsFunc(settings.List(), func(s config.Setting) bool { return s.Name == of.Setting }) ||
			!strings.HasPrefix(fault.Error(), of.Setting) {
			t.Errorf("no setting is named by %q", fault)
		}
	}
}

// A fault that no single Validate of an empty configuration finds has the place of its setting, too, wherever its name ends.
func TestFaultsSayWhereTheirSettingWasSet(t *testing.T) {
	for _, tc := range []struct {
		set  []string
		want string
	}{
		{[]string{"apps.limits=shop calls"}, `-set: apps.limits[0]: app shop: "calls"; must be`},
		{[]string{"discovery.xds_ca_file=/no/such/file", "discovery.mode=xds", "discovery.xds_url=grpcs://a:1"},
			"-set: discovery.xds_ca_file: "},
		{[]string{"discovery.mode=dns", "discovery.dns_name=a:b:c"}, "-set: discovery.dns_name = "},
		{[]string{"ydb.auth.kind=token_file", "ydb.auth.token_file=/no/such/file"}, "-set: ydb.auth.token_file: "},
		{[]string{"http.client_ca_file=/no/such/file"}, "-set: http.client_ca_file needs"},
		{[]string{"http.cert_file=/no/such/file", "http.key_file=/nor/this"}, "-set: http.cert_file: "},
		{[]string{"http.hosts=a b"}, "-set: http.hosts: "},
		{[]string{"tracing.ratio=2"}, "-set: tracing.ratio = 2; must be"},
		{[]string{"wire.apps=x"}, `-set: wire.apps = "x"; must be`},
		{[]string{"api.statuses=x"}, `-set: api.statuses = "x"; must be`},
		{[]string{"pool.shares.batch=0"}, "-set: pool.shares.batch = 0; must be"},
		{[]string{"http.socket=/a", "grpc.socket=/a"}, `-set: http.socket = "/a"; must be another path`},
	} {
		var all []Assignment
		for _, s := range tc.set {
			all = append(all, Assignment{s, "-set"})
		}
		_, _, err := Load("", nil, all)
		if !slices.ContainsFunc(config.Faults(err), func(e error) bool { return strings.HasPrefix(e.Error(), tc.want) }) {
			t.Errorf("%s: %v; want %s", tc.set, err, tc.want)
		}
	}
}

func TestLayers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	if err := os.WriteFile(file, []byte("pool: {max: 10, min: 1, queue: 5}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, settings, err := Load(file, []string{"SIDECAR_POOL_MIN=2", "SIDECAR_POOL_QUEUE=6"}, []Assignment{{"pool.queue=7", "-set"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Pool.Max != 10 || c.Pool.Min != 2 || c.Pool.Queue != 7 {
		t.Errorf("max %d, min %d, queue %d; want 10 (file), 2 (environment), 7 (-set)", c.Pool.Max, c.Pool.Min, c.Pool.Queue)
	}
	for _, s := range settings.List() {
		if s.Name == "pool.min" && s.Source != "SIDECAR_POOL_MIN" {
			t.Errorf("source %q", s.Source)
		}
	}
}

// collectDocs finds the comment of every setting's field in the source.
func collectDocs(t *testing.T, section string, structure reflect.Type, docs map[string]string) {
	t.Helper()
	comments := fieldComments(t, structure)
	for i := range structure.NumField() {
		field := structure.Field(i)
		key, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			collectDocs(t, section, field.Type, docs)
		case field.Type.Kind() == reflect.Struct:
			collectDocs(t, section+key+".", field.Type, docs)
		default:
			docs[section+key] = comments[field.Name]
		}
	}
}

const module = "github.com/ydb-sidecar/sidecar/"

// fieldComments reads the comments of one struct's fields.
func fieldComments(t *testing.T, structure reflect.Type) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", strings.TrimPrefix(structure.PkgPath(), module), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte(structure.Name()+" struct")) {
			continue // parsing every file of every package takes seconds with -race
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != structure.Name() {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					text := field.Comment.Text()
					if text == "" {
						text = field.Doc.Text()
					}
					for _, name := range field.Names {
						comments[name.Name] = strings.Join(strings.Fields(text), " ")
					}
				}
			}
			return false
		})
	}
	return comments
}
