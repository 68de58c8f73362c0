package findings

import (
	"testing"
	"time"
)

func TestFindingsOfStatements(t *testing.T) {
	slow := Statement{Digest: "0123456789ab", Kind: "SELECT", App: "shop", Took: 80 * time.Millisecond,
		Usual: 10 * time.Millisecond, Calls: 70}
	texts := Statement{Digest: "0123456789ab", Kind: "UPSERT", Texts: 170}
	for _, c := range []struct {
		name   string
		from   int // second from which it is shown
		latest time.Duration
		of     Statement
		want   string // "": no finding
	}{
		{"a slow statement", 5, 2 * time.Millisecond, slow,
			"statement 0123456789ab (SELECT) of app shop takes 80 ms at the nodes, 8 times as long as before (10 " +
				"ms); 70 calls in the last minute"},
		{"while all nodes are slow", 5, 4 * time.Millisecond, slow, ""},
		{"for a moment", 13, 2 * time.Millisecond, slow, ""},
		{"many texts", 5, 2 * time.Millisecond, texts,
			"app without a name sent about 170 different texts of statement 0123456789ab (UPSERT) in the last 5 minutes: " +
				"the values in them belong into parameters"},
		{"many texts while all nodes are slow", 5, 4 * time.Millisecond, texts, "app without a name sent about 170"},
		{"neither", 5, 2 * time.Millisecond, Statement{Digest: "0123456789ab", Usual: time.Second, Calls: 7}, ""},
	} {
		w := New()
		for i := range 15 {
			p := calm(i)
			if i >= c.from {
				all(&p, c.latest)
				p.Statements = []Statement{c.of}
			}
			w.Look(p)
		}
		got := ""
		for _, f := range w.Report().Findings {
			if f.Code != StatementSlow && f.Code != StatementTexts {
				continue
			}
			got = f.Text
			if f.Digest != c.of.Digest || f.App != c.of.App || f.Severity != Warning || f.Do == "" {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
		if c.want == "" && got != "" || len(got) < len(c.want) || got[:len(c.want)] != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
