package chaos

import (
	"bytes"
	"fmt"
	"html"
	"maps"
	"math"
	"slices"
)

// The picture has a strip for the worst run of each row: throughput, p99, errors by
// class, and what the sidecar thought of each node, over time.
const (
	wide     = 1100
	left     = 130 // for the names
	right    = 20
	panel    = 56 // height of a curve
	gap      = 16
	bar      = 9 // height of a node's line
	headline = 26
)

var stateColour = map[string]string{
	"healthy": "#7cb87c", "suspect": "#e8c547", "ejected": "#c0392b", "probing": "#e08a3c", "leaving": "#8e6bbf", "": "#eeeeee",
}

var classColour = map[string]string{"idempotent": "#c0392b", "safe": "#5b8fd6", "unknown": "#e08a3c", "final": "#222222"}

// strip draws one run below y.
type strip struct {
	*bytes.Buffer
	y           float64
	first, last float64 // of the time, seconds
}

func (s *strip) x(at float64) float64 { return left + (wide-left-right)*(at-s.first)/(s.last-s.first) }

func (s *strip) text(x, y float64, style, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" %s>%s</text>`+"\n", x, y, style, html.EscapeString(text))
}

// picture draws the worst run of each row.
func (r *Report) picture() []byte {
	var body bytes.Buffer
	s := &strip{Buffer: &body, y: 10}
	s.text(10, s.y+9, `fill="#333"`, "nodes:")
	for i, name := range []string{"healthy", "suspect", "ejected", "probing", "leaving"} {
		s.legend(float64(left+i*80), name, stateColour[name])
	}
	s.text(left+430, s.y+9, `fill="#333"`, "errors:")
	for i, name := range slices.Sorted(maps.Keys(classColour)) {
		s.legend(float64(left+480+i*90), name, classColour[name])
	}
	s.y += headline
	for _, one := range r.Rows {
		if one.Worst != nil && len(one.Worst.Seconds) > 0 {
			s.draw(one.Worst)
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" font-family="sans-serif" font-size="11">`+"\n",
		wide, s.y+20)
	fmt.Fprintf(&out, `<rect width="%d" height="%.0f" fill="white"/>`+"\n", wide, s.y+20)
	out.Write(body.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func (s *strip) legend(x float64, name, colour string) {
	fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="10" height="10" fill="%s"/>`+"\n", x, s.y, colour)
	s.text(x+14, s.y+9, `fill="#333"`, name)
}

func (s *strip) draw(r *Result) {
	seconds := slices.DeleteFunc(slices.Clone(r.Seconds), func(one Second) bool { return one.At < r.Begun })
	if len(seconds) == 0 {
		return
	}
	s.first, s.last = seconds[0].At, seconds[len(seconds)-1].At+grain.Seconds()
	verdict := "good"
	if !r.OK {
		verdict = "missed: " + some(names(r.Failed()))
	}
	s.text(10, s.y+14, `font-size="14" font-weight="bold"`,
		fmt.Sprintf("%s (seed %d, %d operations a second): %s", r.Event, r.Seed, r.Rate, verdict))
	s.y += headline
	top := s.y
	var good, p99 []float64
	for _, one := range seconds {
		good, p99 = append(good, one.Good), append(p99, math.Log10(max(1, one.P99)))
	}
	s.curve(seconds, "good calls /s", good, slices.Max(good), fmt.Sprintf("%.0f", slices.Max(good)), "#5b8fd6")
	highest := max(1, math.Ceil(slices.Max(p99)))
	s.curve(seconds, "p99 (log)", p99, highest, fmt.Sprintf("%.0f ms", math.Pow(10, highest)), "#444444")
	s.errors(seconds)
	s.nodes(r)
	for _, e := range r.Events {
		if e.At < s.first || e.At > s.last {
			continue
		}
		fmt.Fprintf(s,
			`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#999" stroke-dasharray="2,2"><title>%.2f s: %s</title></line>`+"\n",
			s.x(e.At), s.x(e.At), top, s.y, e.At, html.EscapeString(e.What))
	}
	s.text(left, s.y+9, `font-size="9" fill="#999"`, "0 s")
	s.text(wide-right-30, s.y+9, `font-size="9" fill="#999"`, fmt.Sprintf("%.0f s", s.last-s.first))
	if len(r.Events) <= 8 {
		for i, e := range r.Events {
			s.text(s.x(e.At)+3, top+float64(9+10*(i%4)), `font-size="9" fill="#777"`, e.What)
		}
	}
	s.y += 2 * gap
}

func names(goals []Goal) (out []string) {
	for _, g := range goals {
		out = append(out, g.Name)
	}
	return out
}

// frame begins a panel.
func (s *strip) frame(name, most string) {
	fmt.Fprintf(s, `<rect x="%d" y="%.1f" width="%d" height="%d" fill="none" stroke="#ddd"/>`+"\n", left, s.y, wide-left-right, panel)
	s.text(10, s.y+12, `fill="#333"`, name)
	s.text(10, s.y+26, `fill="#999"`, "up to "+most)
}

func (s *strip) curve(seconds []Second, name string, values []float64, most float64, label, colour string) {
	s.frame(name, label)
	fmt.Fprintf(s, `<polyline fill="none" stroke="%s" points="`, colour)
	for i, v := range values {
		fmt.Fprintf(s, "%.1f,%.1f ", s.x(seconds[i].At+grain.Seconds()/2), s.y+panel*(1-v/max(most, 1e-9)))
	}
	s.WriteString(`"/>` + "\n")
	s.y += panel + gap
}

func (s *strip) errors(seconds []Second) {
	most := 1
	for _, one := range seconds {
		sum := 0
		for _, n := range one.Failed {
			sum += n
		}
		most = max(most, sum)
	}
	s.frame("errors by class", fmt.Sprint(most))
	for _, one := range seconds {
		base := s.y + panel
		for _, class := range slices.Sorted(maps.Keys(one.Failed)) {
			high := float64(panel) * float64(one.Failed[class]) / float64(most)
			base -= high
			fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n",
				s.x(one.At), base, max(1.5, s.x(one.At+grain.Seconds())-s.x(one.At)-0.5), high, classColour[class])
		}
	}
	s.y += panel + gap
}

func (s *strip) nodes(r *Result) {
	seen := map[uint32]bool{}
	for _, tick := range r.Ticks {
		for id := range tick.Nodes {
			seen[id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		s.text(10, s.y+bar, `fill="#333"`, fmt.Sprintf("node %d", id))
		for i := 0; i < len(r.Ticks); { // equal neighbours are one bar
			j, state := i, r.Ticks[i].Nodes[id]
			for j < len(r.Ticks) && r.Ticks[j].Nodes[id] == state {
				j++
			}
			until := s.last
			if j < len(r.Ticks) {
				until = min(s.last, r.Ticks[j].At)
			}
			if from := max(s.first, min(s.last, r.Ticks[i].At)); until > from {
				fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"/>`+"\n", s.x(from), s.y,
					s.x(until)-s.x(from), bar, stateColour[state])
			}
			i = j
		}
		s.y += bar + 3
	}
}
