package devcluster

import (
	"net/http"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Bridge"
)

func TestPilesOverTheControlAPI(t *testing.T) {
	cluster := startCluster(t, func(c *Config) {
		c.Control = "127.0.0.1:0"
		c.Piles = []Pile{{"a", Ydb_Bridge.PileState_PRIMARY}, {"b", Ydb_Bridge.PileState_SYNCHRONIZED}}
	})
	states := func() string {
		var all []string
		for _, p := range cluster.pileStates() {
			all = append(all, p.GetPileName()+"="+p.GetState().String())
		}
		return strings.Join(all, ",")
	}
	if code, text := post(t, cluster, "/piles", `{"b":"PROMOTED"}`); code != http.StatusOK || states() != "a=PRIMARY,b=PROMOTED" {
		t.Errorf("%d %s; piles %s", code, text, states())
	}
	for body, want := range map[string]int{
		`{"c":"PRIMARY"}`:                 http.StatusNotFound,
		`{"a":"PRIMAL"}`:                  http.StatusBadRequest,
		`{"a":"UNSPECIFIED"}`:             http.StatusBadRequest,
		`{"b":"SUSPENDED","c":"PRIMARY"}`: http.StatusNotFound,
		`["a"]`:                           http.StatusBadRequest,
	} {
		if code, text := post(t, cluster, "/piles", body); code != want || states() != "a=PRIMARY,b=PROMOTED" {
			t.Errorf("%s: %d %s, piles %s; want %d and no change", body, code, text, states(), want)
		}
	}
}

func TestParsePiles(t *testing.T) {
	if piles, err := ParsePiles("a=PRIMARY,b=DISCONNECTED"); err != nil || len(piles) != 2 ||
		piles[1] != (Pile{"b", Ydb_Bridge.PileState_DISCONNECTED}) {
		t.Errorf("%v, %v", piles, err)
	}
	for _, text := range []string{"", "a", "a=", "a=primary", "=PRIMARY", "a=PRIMARY,a=SYNCHRONIZED", "a=PRIMARY,"} {
		if piles, err := ParsePiles(text); err == nil {
			t.Errorf("%q: %v", text, piles)
		}
	}
}
