package discovery

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

func TestEndpointsAreReadAndWritten(t *testing.T) {
	for text, want := range map[string]cluster.Node{
		"1=127.0.0.1:21001":    {ID: 1, Address: "127.0.0.1:21001"},
		"70000=[::1]:2@zone-a": {ID: 70000, Address: "[::1]:2", Zone: "zone-a"},
	} {
		var e Endpoint
		if err := e.UnmarshalText([]byte(" " + text)); err != nil || e.Node != want {
			t.Errorf("%s: %+v, %v; want %+v", text, e.Node, err, want)
		}
		if back, err := e.MarshalText(); err != nil || string(back) != text {
			t.Errorf("%s is written as %s, %v", text, back, err)
		}
	}
	for _, text := range []string{"", "1", "1=", "0=a:1", "x=a:1", "1=a", "1=a:70000", "1=:5", "4294967296=a:1", "-1=a:1", "a:1"} {
		if err := new(Endpoint).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestStaticNodes(t *testing.T) {
	list := func(texts ...string) (all []Endpoint) {
		for _, text := range texts {
			var e Endpoint
			if err := e.UnmarshalText([]byte(text)); err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		return all
	}
	for name, c := range map[string]struct {
		mode  string
		nodes []Endpoint
		good  bool
	}{
		"two":           {ModeStatic, list("2=b:2@z", "1=a:1"), true},
		"none":          {ModeStatic, nil, false},
		"one id twice":  {ModeStatic, list("1=a:1", "1=b:1"), false},
		"address twice": {ModeStatic, list("1=a:1", "2=a:1"), false},
		"not static":    {ModeYDB, list("1=a:1"), false},
		"discovered":    {ModeYDB, nil, true},
		"other mode":    {"consul", nil, false},
	} {
		config := Default()
		config.Mode, config.Nodes = c.mode, c.nodes
		if err := config.Validate(); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
	config := Default()
	config.Mode, config.Nodes = ModeStatic, list("2=b:2@z", "1=a:1")
	s := NewStatic(config, "/local")
	got, err := s.ListEndpoints(context.Background())
	want := cluster.Topology{Nodes: []cluster.Node{{ID: 1, Address: "a:1"}, {ID: 2, Address: "b:2", Zone: "z"}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" || s.Database() != "/local" {
		t.Errorf("%v, %q\n%s", err, s.Database(), diff)
	}
}
