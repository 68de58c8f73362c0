package findings

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Whatever is wrong, a report is bounded.
func TestManyHolders(t *testing.T) {
	w, p := New(), calm(0)
	for i := range 5 {
		p.SessionUses = append(p.SessionUses, SessionUse{Session: fmt.Sprint(i), App: "x", Held: time.Duration(9+2*i) * time.Second})
	}
	w.Look(p)
	if all := w.Report().Findings; len(all) != maxLongApp ||
		!strings.HasSuffix(all[0].Text+all[1].Text, "; 2 more of its sessions have been held for long, too") {
		t.Errorf("four sessions of one app are held for long: %v", all)
	}
	w, p = New(), calm(0)
	for i := range 5000 {
		p.SessionUses = append(p.SessionUses,
			SessionUse{Session: fmt.Sprint(i), App: fmt.Sprint("app", i%100), Held: time.Minute, Transaction: true})
	}
	w.Look(p)
	if n := len(w.Report().Findings); n != maxLong {
		t.Errorf("%d findings; want %d", n, maxLong)
	}
	for i := range uint32(1000) {
		p.Nodes = append(p.Nodes, Node{ID: 10 + i, Health: "ejected", Cause: "transport"})
	}
	w.Look(p)
	if n := len(w.Report().Findings); n != maxFindings {
		t.Errorf("%d findings; want %d", n, maxFindings)
	}
}

func TestKinds(t *testing.T) {
	seen := map[Code]bool{}
	for _, k := range Kinds {
		if seen[k.Code] || k.Meaning == "" || k.Do == "" || k.Severity.rank() < 0 || k.hold < 1 {
			t.Errorf("%+v", k)
		}
		seen[k.Code] = true
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.01 ms", 340 * time.Microsecond: "0.34 ms", 2 * time.Millisecond: "2.0 ms", 81 * time.Millisecond: "81 ms",
		1200 * time.Millisecond: "1.2 s", 42 * time.Second: "42 s", 5 * time.Minute: "5 min", 3 * time.Hour: "3 h",
	} {
		if got := Span(d); got != want {
			t.Errorf("Span(%v) = %q; want %q", d, got, want)
		}
	}
}
