package config

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"nodes", "ban", "unban", "drain", "drain-node", "undrain-node", "log-level", "n", "o"}
	for name, want := range map[string]string{
		"bna": "ban", "nodse": "nodes", "node": "nodes", "unbann": "unban", "level": "log-level", "drain-nod": "drain-node",
		"un": "", "a": "", "x": "", "": "", "quit": "", "frobnicate": "", "log": "log-level",
	} {
		if got := Nearest(name, names); got != want {
			t.Errorf("Nearest(%q) = %q; want %q", name, got, want)
		}
	}
	if got := Nearest("anything", nil); got != "" {
		t.Errorf("of no names, %q is near", got)
	}
}

// A hint is given only where a name is near, or its section exists.
func TestHints(t *testing.T) {
	_, s := bind(t)
	for name, want := range map[string]string{
		"pool.maks": `"pool.maks" is not a setting; the nearest is pool.max`,
		"pol":       `"pol" is not a setting; the nearest section is pool`,
		"pol.any":   `"pol.any" is not a setting; the nearest section is pool`,
		"foo.bar":   `"foo.bar" is not a setting`,
		"a":         `"a" is not a setting`,
		"http.port": `"http.port" is not a setting; the nearest is http.`,
	} {
		got := s.unknown(name)
		if name == "http.port" { // some setting of that section
			got = got[:min(len(got), len(want))]
		}
		if got != want {
			t.Errorf("%q: %q; want %q", name, got, want)
		}
	}
	if got, want := s.unknownEnv("SIDECAR_", "POL"), "not a setting; the nearest section is SIDECAR_POOL_"; got != want {
		t.Errorf("of the environment: %q; want %q", got, want)
	}
	if got, want := s.unknownEnv("SIDECAR_", "FOO_BAR"), "not a setting"; got != want {
		t.Errorf("of the environment: %q; want %q", got, want)
	}
}
