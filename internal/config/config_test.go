package config

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// mode parses itself.
type mode int

func (m *mode) UnmarshalText(text []byte) error {
	for i, name := range []string{"fast", "safe"} {
		if string(text) == name {
			*m = mode(i)
			return nil
		}
	}
	return errors.New("want fast or safe")
}

func (m mode) MarshalText() ([]byte, error) { return []byte([]string{"fast", "safe"}[m]), nil }

type sample struct {
	Pool struct {
		Max        int           `yaml:"max"`
		MaxPerNode int           `yaml:"max_per_node"`
		Idle       time.Duration `yaml:"idle"`
		Share      float64       `yaml:"share"`
		Shares     struct {
			Batch uint8 `yaml:"batch"`
		} `yaml:"shares"`
	} `yaml:"pool"`
	Edge struct {
		HTTP struct {
			Hosts []string        `yaml:"hosts"`
			Waits []time.Duration `yaml:"waits"`
		} `yaml:"http"`
	} `yaml:",inline"`
	HTTP struct {
		Listen  string `yaml:"listen"`
		MaxBody int64  `yaml:"max_body"`
		H2C     bool   `yaml:"h2c"`
		Mode    mode   `yaml:"mode"`
	} `yaml:"http"`
	Auth struct {
		Password  string `yaml:"password"`
		TokenFile string `yaml:"token_file"`
	} `yaml:"auth"`
	hidden   int
	Computed int `yaml:"-"`
}

func newSample() *sample {
	c := &sample{hidden: 1}
	c.Pool.Max, c.Pool.Idle, c.Pool.Share = 50, 5*time.Minute, 0.5
	c.HTTP.Listen, c.HTTP.MaxBody = "127.0.0.1:7401", 16<<20
	return c
}

func bind(t testing.TB) (*sample, *Settings) {
	t.Helper()
	c := newSample()
	s, err := Bind(c)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

func TestFile(t *testing.T) {
	c, s := bind(t)
	err := s.YAML("c.yaml", []byte(`
# comment
pool:
  max: 70          # more
  idle: "90s"
  shares: {batch: 7}
http:
  hosts:
    - db.internal
    - 'b:1'
  waits: [1s, 500ms]
  max_body: 8MiB
  h2c: on
  mode: safe
http.listen: ":0"
auth:
`))
	if err != nil {
		t.Fatal(err)
	}
	want := newSample()
	want.Pool.Max, want.Pool.Idle, want.Pool.Shares.Batch = 70, 90*time.Second, 7
	want.Edge.HTTP.Hosts, want.Edge.HTTP.Waits = []string{"db.internal", "b:1"}, []time.Duration{time.Second, 500 * time.Millisecond}
	want.HTTP.MaxBody, want.HTTP.H2C, want.HTTP.Mode, want.HTTP.Listen = 8<<20, true, 1, ":0"
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(sample{})); diff != "" {
		t.Error(diff)
	}
}

func TestAllWaysSetTheSame(t *testing.T) {
	for _, tc := range []struct {
		name, value string
		get         func(c *sample) any
		want        any
	}{
		{"pool.max", "7", func(c *sample) any { return c.Pool.Max }, 7},
		{"pool.max_per_node", "8", func(c *sample) any { return c.Pool.MaxPerNode }, 8},
		{"pool.idle", "1m", func(c *sample) any { return c.Pool.Idle }, time.Minute},
		{"pool.share", "0.25", func(c *sample) any { return c.Pool.Share }, 0.25},
		{"pool.shares.batch", "255", func(c *sample) any { return c.Pool.Shares.Batch }, uint8(255)},
		{"http.hosts", "a(1,2) b,c)(,", func(c *sample) any { return strings.Join(c.Edge.HTTP.Hosts, "|") }, "a(1,2) b|c)(|"},
		{"http.hosts", "a,b", func(c *sample) any { return strings.Join(c.Edge.HTTP.Hosts, "|") }, "a|b"},
		{"http.max_body", "1GiB", func(c *sample) any { return c.HTTP.MaxBody }, int64(1 << 30)},
		{"http.h2c", "on", func(c *sample) any { return c.HTTP.H2C }, true},
		{"http.mode", "safe", func(c *sample) any { return c.HTTP.Mode }, mode(1)},
		{"auth.password", "a = b: c", func(c *sample) any { return c.Auth.Password }, "a = b: c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			variable := "SIDECAR_" + strings.ToUpper(strings.ReplaceAll(tc.name, ".", "_"))
			quoted, _ := json.Marshal(tc.value)
			for way, set := range map[string]func(*Settings) error{
				"file":        func(s *Settings) error { return s.YAML("f", []byte(tc.name+": "+string(quoted))) },
				"environment": func(s *Settings) error { return s.Environ("SIDECAR_", []string{variable + "=" + tc.value}) },
				"flag":        func(s *Settings) error { return s.Assign(tc.name+"="+tc.value, "-set") },
			} {
				c, s := bind(t)
				if err := set(s); err != nil {
					t.Errorf("%s: %v", way, err)
				}
				if got := tc.get(c); got != tc.want {
					t.Errorf("%s: got %v; want %v", way, got, tc.want)
				}
			}
		})
	}
}

func TestFaults(t *testing.T) {
	yaml := func(text string) func(*Settings) error {
		return func(s *Settings) error { return s.YAML("c.yaml", []byte(text)) }
	}
	environ := func(entries ...string) func(*Settings) error {
		return func(s *Settings) error { return s.Environ("SIDECAR_", entries) }
	}
	assign := func(text string) func(*Settings) error {
		return func(s *Settings) error { return s.Assign(text, "-set") }
	}
	for _, tc := range []struct {
		name string
		set  func(*Settings) error
		want string
	}{
		{"unknown_key_with_its_place", yaml("pool:\n  max: 5\n  maks: 6\n"),
			`c.yaml:3:3: "pool.maks" is not a setting; the nearest is pool.max`},
		{"unknown_section", yaml("pol: {max: 3}\n"), `c.yaml:1:1: "pol" is not a setting; the nearest section is pool`},
		{"all_faults_at_once", yaml("pool:\n  max: many\n  idle: 5\nhttp: {h2c: 3}"),
			"c.yaml:2:8: pool.max = \"many\"; want an integer, such as 50 or 8MiB\n" +
				"c.yaml:3:9: pool.idle = \"5\"; want a duration such as 500ms, 30s or 5m\n" +
				"c.yaml:4:13: http.h2c = \"3\"; want on or off"},
		{"a_section_where_a_value_belongs", yaml("pool:\n  max: {a: 1}"), `c.yaml:2:8: pool.max: want a value or a list of values`},
		{"a_list_where_a_value_belongs", yaml("pool:\n  max: [1]"), `c.yaml:2:8: pool.max takes one value, not a list`},
		{"a_value_where_a_section_belongs", yaml("pool: 3"), `c.yaml:1:7: want settings of the form name: value`},
		{"a_list_of_sections", yaml("http:\n  hosts: [{a: b}]"), `c.yaml:2:10: http.hosts: want a value or a list of values`},
		{"not_a_mapping", yaml("- a\n- b"), `c.yaml:1:1: want settings of the form name: value`},
		{"twice_in_two_forms", yaml("pool: {max: 1}\npool.max: 2"), `c.yaml:2:1: pool.max is set twice; first at c.yaml:1:8`},
		{"twice", yaml("pool:\n  max: 1\n  max: 2"), `c.yaml:3:3: mapping key "max" already defined at [2:3]`},
		{"an_anchor", yaml("pool: {max: &a 1}"), `c.yaml:1:13: pool.max: want a value or a list of values`},
		{"no_yaml", yaml("pool: [1, "), `c.yaml:1:7: sequence end token ']' not found`},
		{"a_tab", yaml("pool:\n\tmax: 5"), "c.yaml:2:1: a tab; YAML takes only spaces to indent"},
		{"no_yaml_and_others", yaml("pool:\n  max: 5\n\tidle: 1s\nhttp:\n  h2c: 3\n# no section\n\nauth: [1,\npoll.max: 3\n"),
			"c.yaml:3:1: a tab; YAML takes only spaces to indent\n" +
				"c.yaml:5:8: http.h2c = \"3\"; want on or off\n" +
				"c.yaml:8:7: sequence end token ']' not found\n" +
				`c.yaml:9:1: "poll.max" is not a setting; the nearest is pool.max`},
		{"no_yaml_as_a_whole", yaml("http: {h2c: 3}\nauth: {}\nauth: {}\n"),
			"c.yaml:1:13: http.h2c = \"3\"; want on or off\n" + `c.yaml:3:1: mapping key "auth" already defined at [2:1]`},
		{"nested_without_end", yaml(strings.Repeat("[", 1000)), `c.yaml: too large or nested too deeply for a configuration`},
		{"unknown_variable", environ("SIDECAR_POOL_MAXIMUM=3", "OTHER=1"),
			`SIDECAR_POOL_MAXIMUM: not a setting; the nearest is SIDECAR_POOL_MAX (pool.max)`},
		{"bad_variables", environ("SIDECAR_POOL_MAX=x", "SIDECAR_HTTP_MODE=slow"),
			"SIDECAR_POOL_MAX: pool.max = \"x\"; want an integer, such as 50 or 8MiB\n" +
				"SIDECAR_HTTP_MODE: http.mode = \"slow\"; want fast or safe"},
		{"unknown_name", assign("pool.min=1"), `-set: "pool.min" is not a setting; the nearest is pool.max`},
		{"no_value", assign("pool.max"), `-set "pool.max": want name=value`},
		{"too_large", assign("pool.shares.batch=256"), `-set: pool.shares.batch = "256"; out of range`},
		{"negative", assign("pool.shares.batch=-1"), `-set: pool.shares.batch = "-1"; out of range`},
		{"size_too_large", assign("http.max_body=9999999999TiB"), `-set: http.max_body = "9999999999TiB"; out of range`},
		{"not_a_number", assign("pool.share=NaN"), `-set: pool.share = "NaN"; want a number`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, s := bind(t)
			err := tc.set(s)
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
			if tc.name != "unknown_key_with_its_place" && !strings.HasPrefix(tc.name, "twice") {
				if diff := cmp.Diff(newSample(), c, cmp.AllowUnexported(sample{})); diff != "" {
					t.Errorf("changed something: %s", diff)
				}
			}
		})
	}
}

// A retired name without a field is a warning with its place, wherever it is set, and stays unknown to the list.
func TestRetiredNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("pool:\n  old: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var target struct {
		Pool struct {
			Max int `yaml:"max"`
		} `yaml:"pool"`
	}
	s, err := Bind(&target)
	if err != nil {
		t.Fatal(err)
	}
	s.Retire("pool.old", "max is enough")
	if err := errors.Join(s.File(file), s.Environ("SIDECAR_", []string{"SIDECAR_POOL_OLD=2"}), s.Assign("pool.old=3", "-set")); err != nil {
		t.Error(err)
	}
	got := s.Warnings()
	if len(got) != 3 {
		t.Fatalf("%d warnings %q; want 3", len(got), got)
	}
	for i, place := range []string{file + ":2:3", "SIDECAR_POOL_OLD", "-set"} {
		if want := place + ": pool.old has no effect any more: max is enough. "; !strings.HasPrefix(got[i], want) {
			t.Errorf("warning %q; want %q", got[i], want)
		}
	}
	if len(s.List()) != 1 {
		t.Errorf("the list has %v; want pool.max alone", s.List())
	}
	if err := s.Assign("pool.older=3", "-set"); err == nil {
		t.Error("a name that was never a setting is accepted")
	}
}

// A retired name that still has a field sets it and warns. No list and no hint leads to it.
func TestRetiredNamesThatStillCount(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("pool:\n  burst: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type pools struct {
		Pool struct {
			Max   int `yaml:"max"`
			Burst int `yaml:"burst"`
		} `yaml:"pool"`
	}
	var target, before pools
	s, err := Bind(&target)
	if err != nil {
		t.Fatal(err)
	}
	old, err := Bind(&before)
	if err != nil {
		t.Fatal(err)
	}
	s.Retire("pool.burst", "it is 16")
	if list := s.List(); len(list) != 1 || list[0].Name != "pool.max" {
		t.Errorf("the list has %v; want pool.max alone", list)
	}
	for i, set := range []func() error{
		func() error { return s.File(file) },
		func() error { return s.Environ("SIDECAR_", []string{"SIDECAR_POOL_BURST=2"}) },
		func() error { return s.Assign("pool.burst=3", "-set") },
	} {
		if err := set(); err != nil || target.Pool.Burst != i+1 {
			t.Errorf("pool.burst is %d (%v); want %d", target.Pool.Burst, err, i+1)
		}
	}
	got := s.Warnings()
	if len(got) != 3 {
		t.Fatalf("%d warnings %q; want 3", len(got), got)
	}
	for i, place := range []string{file + ":2:3", "SIDECAR_POOL_BURST", "-set"} {
		if want := place + ": pool.burst still counts, but the next version rejects it: it is 16. Remove it"; got[i] != want {
			t.Errorf("warning %q; want %q", got[i], want)
		}
	}
	if list := s.List(); len(list) != 2 || list[1].Name != "pool.burst" || list[1].Source != "-set" {
		t.Errorf("the list has %v; want pool.burst, too, now that it is set", list)
	}
	if changes := s.Changes(old); len(changes) != 1 || changes[0].Name != "pool.burst" {
		t.Errorf("changes %v; want pool.burst", changes)
	}
	if err := s.Assign("pool.burst=x", "-set"); err == nil || target.Pool.Burst != 3 || len(s.Warnings()) != 3 {
		t.Errorf("a faulty value: %v, pool.burst is %d, %d warnings; want an error, 3 and 3", err, target.Pool.Burst, len(s.Warnings()))
	}
	for _, err := range []error{
		s.Assign("pool.bursts=3", "-set"),
		s.Environ("SIDECAR_", []string{"SIDECAR_POOL_BURSTS=3"}),
	} {
		if err == nil || strings.HasSuffix(err.Error(), "pool.burst") || !strings.Contains(err.Error(), "pool.max") {
			t.Errorf("%v; want a hint to pool.max", err)
		}
	}
}

// A Service called "sidecar" makes kubelets set such variables in every pod.
func TestServiceLinksAreNoFault(t *testing.T) {
	_, s := bind(t)
	err := s.Environ("SIDECAR_", []string{
		"SIDECAR_SERVICE_HOST=10.0.0.1", "SIDECAR_SERVICE_PORT=7400", "SIDECAR_SERVICE_PORT_GRPC=7400",
		"SIDECAR_PORT=tcp://10.0.0.1:7400", "SIDECAR_PORT_7400_TCP=tcp://10.0.0.1:7400", "SIDECAR_PORT_7400_TCP_ADDR=10.0.0.1",
		"SIDECAR_ADMIN_SERVICE_HOST=10.0.0.1", "SIDECAR_ADMIN_PORT_7402_TCP_PROTO=tcp",
	})
	if err != nil {
		t.Error(err)
	}
	if err := s.Environ("SIDECAR_", []string{"SIDECAR_PORT=7400"}); err == nil {
		t.Error("SIDECAR_PORT=7400 was written by a person and must be refused")
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	c, s := bind(t)
	if err := s.Assign("auth.password=hunter2", "-set"); err != nil {
		t.Fatal(err)
	}
	if err := s.Assign("auth.token_file=/t", "-set"); err != nil {
		t.Fatal(err)
	}
	for _, set := range s.List() {
		if strings.Contains(set.Value, c.Auth.Password) {
			t.Errorf("%s shows %q", set.Name, set.Value)
		}
		if set.Name == "auth.token_file" && set.Value != "/t" {
			t.Errorf("the name of a file is hidden: %q", set.Value)
		}
	}
}

func TestListCanBeSetAgain(t *testing.T) {
	c, s := bind(t)
	if err := s.YAML("c.yaml",
		[]byte("http: {hosts: [a, b], waits: [90m, 1h1s], max_body: 3KiB}\npool: {idle: 1h, share: 0.125}")); err != nil {
		t.Fatal(err)
	}
	again, other := bind(t)
	for _, set := range s.List() {
		if err := other.Set(set.Name, set.Value, "again"); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(c, again, cmp.AllowUnexported(sample{})); diff != "" {
		t.Error(diff)
	}
	var got []string
	for _, set := range s.List() {
		got = append(got, set.Name+"="+set.Value+" ("+set.Default+", "+set.Source+")")
	}
	want := []string{
		"pool.max=50 (50, default)", "pool.max_per_node=0 (0, default)", "pool.idle=1h (5m, c.yaml:2:8)",
		"pool.share=0.125 (0.5, c.yaml:2:18)",
		"pool.shares.batch=0 (0, default)", "http.hosts=a,b (, c.yaml:1:8)", "http.waits=1h30m,1h0m1s (, c.yaml:1:23)",
		"http.listen=127.0.0.1:7401 (127.0.0.1:7401, default)", "http.max_body=3KiB (16MiB, c.yaml:1:43)", "http.h2c=off (off, default)",
		"http.mode=fast (fast, default)", "auth.password= (, default)", "auth.token_file= (, default)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestBindRefusesWhatCannotWork(t *testing.T) {
	for name, target := range map[string]any{
		"not_a_pointer": sample{},
		"no_tag":        &struct{ A int }{},
		"a_map": &struct {
			A map[string]int `yaml:"a"`
		}{},
		"two_of_one_name": &struct {
			A int `yaml:"a"`
			B int `yaml:"a"`
		}{},
		"two_of_one_name_in_the_environment": &struct {
			A struct {
				B int `yaml:"b"`
			} `yaml:"a"`
			C int `yaml:"a_b"`
		}{},
	} {
		if _, err := Bind(target); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestFileThatCannotBeRead(t *testing.T) {
	_, s := bind(t)
	if err := s.File(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("File = %v; want not exist", err)
	}
	path := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(path, []byte(strings.Repeat("#", MaxFile+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.File(path); err == nil {
		t.Error("read a file above the limit")
	}
}

func FuzzYAML(f *testing.F) {
	for _, seed := range []string{
		"pool: {max: 3}", "pool:\n  idle: 5s\n", "http:\n  hosts:\n  - a\n", "a: &b c\n<<: *b", "? [a]\n: b", "pool.max: !!int 3",
		"http: {waits: [1s, null], max_body: 8MiB}", "---\npool: {max: 1}\n---\npool: {max: 2}",
		"auth: {password: |\n  x\n}", "\xff", "%YAML 1.2\n---\n", "pool: {max: .inf}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, s := bind(t)
		if err := s.YAML("f", []byte(text)); err != nil {
			return
		}
		// What was taken can be shown and taken again.
		_, other := bind(t)
		for _, set := range s.List() {
			if set.Name == "auth.password" || strings.HasPrefix(set.Name, "http.hosts") {
				continue // hidden; an element may itself hold commas
			}
			if err := other.Set(set.Name, set.Value, "again"); err != nil {
				t.Errorf("%q: %v", text, err)
			}
		}
	})
}

func FuzzSet(f *testing.F) {
	f.Add("pool.max", "8MiB")
	f.Add("http.hosts", "a,,b")
	f.Add("pool.max", "1e3")
	f.Add("POOL_MAX", "")
	f.Fuzz(func(t *testing.T, name, value string) {
		_, s := bind(t)
		_ = s.Assign(name+"="+value, "-set")
		_ = s.Environ("SIDECAR_", []string{"SIDECAR_" + name + "=" + value})
	})
}

func TestChanges(t *testing.T) {
	_, old := bind(t)
	c, s := bind(t)
	if err := s.YAML("c.yaml", []byte("pool: {max: 7}\nauth: {password: hunter2}\nhttp: {hosts: []}")); err != nil {
		t.Fatal(err)
	}
	want := []Change{{"pool.max", "50", "7", "c.yaml:1:8"}, {"auth.password", "", "***", "c.yaml:2:8"}}
	if diff := cmp.Diff(want, s.Changes(old)); diff != "" {
		t.Error(diff)
	}
	s.Keep("pool.max", old)
	if got := s.Changes(old); len(got) != 1 || c.Pool.Max != 50 {
		t.Errorf("max %d, changes %v; want the old value", c.Pool.Max, got)
	}
	_, other := bind(t)
	if err := other.Assign("auth.password=hunter3", "x"); err != nil {
		t.Fatal(err)
	}
	if got := other.Changes(s); len(got) != 1 || got[0].Old != "***" || got[0].New != "***" {
		t.Errorf("another password: %v; want to hear of it without seeing it", got)
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "50": 50, "+7": 7, "8KiB": 8 << 10, "8 MiB": 8 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40,
		"3kB": 3e3, "3MB": 3e6, "3GB": 3e9, "1TB": 1e12, "9B": 9, "18446744073709551615": math.MaxUint64, "16777215TiB": 16777215 << 40,
	} {
		if n, ok := ParseSize(text); n != want || !ok {
			t.Errorf("%q is %d, %v; want %d", text, n, ok, want)
		}
		if n, err := parseSize(text); err != nil || n.Uint64() != want {
			t.Errorf("as a setting %q is %v, %v; want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "-1", "B", "MiB", "8mib", "8 MiB ", "1.5GiB", "1_000", "0x10", "8MiBB",
		"16777216TiB", "18446744073709551616"} {
		if n, ok := ParseSize(text); ok {
			t.Errorf("%q is %d; want none", text, n)
		}
	}
}
