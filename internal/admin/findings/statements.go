package findings

import "cmp"

// slowerBy is how much slower nodes may have become for a slow statement to be worth a finding of its own, in tenths.
const slowerBy = 15

// statements finds statements that became slow or are not parameterised.
func (v *view) statements(add adder) {
	now := typical(v.Nodes, Node.latency)
	others := v.base > 0 && now > v.base*slowerBy/10 // then it is not the statement
	for _, s := range v.Statements {
		name, app := "statement "+s.Digest+" ("+cmp.Or(s.Kind, "no keyword")+")", cmp.Or(s.App, "without a name")
		f := Finding{App: s.App, Digest: s.Digest}
		if s.Took > 0 && !others {
			f.Code = StatementSlow
			add(f, "%s of app %s takes %s at the nodes, %.0f times as long as before (%s); %d calls in the last minute", name, app,
				Span(s.Took), float64(s.Took)/float64(max(s.Usual, 1)), Span(s.Usual), s.Calls)
		}
		if s.Texts > 0 {
			f.Code = StatementTexts
			add(f, "app %s sent about %d different texts of %s in the last 5 minutes: the values in them belong into parameters", app,
				s.Texts, name)
		}
	}
}
