package lab

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// weights is the index of the values of a profile's samples that count: CPU time, waiting time, allocated bytes.
func weights(p *profile.Profile) int {
	for i, t := range p.SampleType {
		if t.Type == "alloc_space" {
			return i
		}
	}
	return len(p.SampleType) - 1
}

// Total is the sum of a profile's values: nanoseconds, or allocated bytes.
func Total(p *profile.Profile) (sum int64) {
	i := weights(p)
	for _, s := range p.Sample {
		sum += s.Value[i]
	}
	return sum
}

// stack returns the names of a sample's functions, the outermost first.
func stack(s *profile.Sample) (names []string) {
	for _, l := range s.Location {
		for _, line := range l.Line {
			if line.Function != nil {
				names = append(names, line.Function.Name)
			}
		}
	}
	slices.Reverse(names)
	return names
}

// Shares returns the part of a profile's values that each function has itself, without
// those that it calls; or another name, if by makes one of the stack, the outermost function first.
func Shares(p *profile.Profile, by func(stack []string) string) map[string]float64 {
	all, i, sum := map[string]float64{}, weights(p), float64(Total(p))
	for _, s := range p.Sample {
		if names := stack(s); len(names) > 0 && sum > 0 {
			all[by(names)] += float64(s.Value[i]) / sum
		}
	}
	return all
}

// Leaf is the function that was running.
func Leaf(stack []string) string { return stack[len(stack)-1] }

// Package is the package of the function that was running.
func Package(stack []string) string { return packageOf(Leaf(stack)) }

// Waiter is the function that waits or lets go, behind those of the runtime that do it for it.
func Waiter(stack []string) string {
	for i := len(stack) - 1; i > 0; i-- {
		switch packageOf(stack[i]) {
		case "runtime", "sync", "internal/sync", "internal/poll", "sync/atomic":
		default:
			return stack[i]
		}
	}
	return stack[0]
}

// packageOf cuts the package out of a function's name: a/b.(*T).f is of a/b.
func packageOf(name string) string {
	slash := strings.LastIndexByte(strings.SplitN(name, "[", 2)[0], '/') + 1
	if dot := strings.IndexByte(name[slash:], '.'); dot >= 0 {
		return name[:slash+dot]
	}
	return name
}

// frame is a function under those that called it.
type frame struct {
	share, before float64
	under         map[string]*frame
}

func (f *frame) add(stack []string, to func(*frame) *float64, share float64) {
	*to(f) += share
	for _, name := range stack {
		next := f.under[name]
		if next == nil {
			next = &frame{under: map[string]*frame{}}
			f.under[name] = next
		}
		f = next
		*to(f) += share
	}
}

// The look of a flame graph, in pixels.
const (
	flameWidth   = 1200
	frameHeight  = 16
	letterWidth  = 6
	leastFrame   = 0.01 // of the whole width: narrower frames, and what is above them, are left out
	strongChange = 0.05 // a change of the share that gets the full colour
)

// Flame is a flame graph of a profile as SVG: callers above those that they call, as wide as their
// part of all values. With the profile of before it shows the difference: red has become more, blue less.
func Flame(title string, p, before *profile.Profile) []byte {
	root := &frame{under: map[string]*frame{}}
	fill := func(p *profile.Profile, to func(*frame) *float64) {
		i, sum := weights(p), float64(max(1, Total(p)))
		for _, s := range p.Sample {
			root.add(stack(s), to, float64(s.Value[i])/sum)
		}
	}
	fill(p, func(f *frame) *float64 { return &f.share })
	if before != nil {
		fill(before, func(f *frame) *float64 { return &f.before })
	}
	var body bytes.Buffer
	deep := root.draw(&body, "all", 0, 1, before != nil)
	var b bytes.Buffer
	height := (deep+2)*frameHeight + 8
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="monospace" font-size="10"><rect width="100%%" height="100%%" fill="#fff"/><text x="4" y="12" font-size="12">%s</text>`+"\n",
		flameWidth, height, escaped(title))
	b.Write(body.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// draw writes a frame and those under it and returns how deep they go.
func (f *frame) draw(b *bytes.Buffer, name string, x float64, depth int, differs bool) int {
	left, width := x*flameWidth, f.share*flameWidth
	color, change := "#f5b971", ""
	if differs {
		by := f.share - f.before
		pale := 255 - int(160*min(1, max(by, -by)/strongChange))
		color = fmt.Sprintf("#ff%02x%02x", pale, pale)
		if by < 0 {
			color = fmt.Sprintf("#%02x%02xff", pale, pale)
		}
		change = fmt.Sprintf(", %+.1f points", 100*by)
	}
	y := depth*frameHeight + 4
	fmt.Fprintf(b, `<g><title>%s: %.1f %%%s</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="#fff" stroke-width=".5"/>`, escaped(name), 100*f.share, change, left, y, width, frameHeight-1, color)
	if letters := int(width/letterWidth) - 1; letters > 3 {
		short := name[strings.LastIndexByte(strings.SplitN(name, "[", 2)[0], '/')+1:]
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`, left+2, y+11, escaped(short[:min(len(short), letters)]))
	}
	b.WriteString("</g>\n")
	deep := depth
	names := slices.SortedFunc(maps.Keys(f.under), func(a, b string) int {
		return cmp.Or(cmp.Compare(f.under[b].share, f.under[a].share), strings.Compare(a, b))
	})
	for _, name := range names {
		next := f.under[name]
		if next.share < leastFrame {
			break
		}
		deep = max(deep, next.draw(b, name, x, depth+1, differs))
		x += next.share
	}
	return deep
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes all
	return b.String()
}
