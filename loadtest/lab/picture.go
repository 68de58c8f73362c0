package lab

import (
	"bytes"
	"errors"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Picture is a chart: lines over numbers, or bars over names.
type Picture struct {
	Title string   `json:"title"`
	X     string   `json:"x,omitempty"` // what the axes show, with the unit
	Y     string   `json:"y,omitempty"`
	Names []string `json:"names,omitempty"` // of the groups of bars; none means lines
	Lines []Line   `json:"lines"`
	LogX  bool     `json:"log_x,omitempty"`
	LogY  bool     `json:"log_y,omitempty"` // values below 1 are drawn as 1
	Marks []Mark   `json:"marks,omitempty"`
	Bands []Band   `json:"bands,omitempty"` // below the lines, a row for each name
}

// Band is a state that something was in for a while.
type Band struct {
	Name  string  `json:"name"` // of what was in the state
	State string  `json:"state"`
	From  float64 `json:"from"`
	To    float64 `json:"to"`
}

// Mark is a vertical line with a word: what happens there.
type Mark struct {
	At   float64 `json:"at"`
	Name string  `json:"name"`
}

// Line is one row of points, or of bars: then only Y counts, one value for each name.
type Line struct {
	Name string    `json:"name"`
	X    []float64 `json:"x,omitempty"`
	Y    []float64 `json:"y"`
}

func (c *Picture) svg() ([]byte, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Title.Padding, p.Legend.Top = vg.Points(8), true
	p.Y.Min = c.least(0)
	p.Add(plotter.NewGrid())
	width := vg.Points(max(3, 260/float64(max(1, len(c.Names)*len(c.Lines)))))
	for i, line := range c.Lines {
		if len(c.Names) > 0 {
			bars, err := plotter.NewBarChart(plotter.Values(line.Y), width)
			if err != nil {
				return nil, err
			}
			bars.Color, bars.LineStyle.Width = plotutil.Color(i), 0
			bars.Offset = width * vg.Length(float64(i)-float64(len(c.Lines)-1)/2)
			p.Add(bars)
			p.Legend.Add(line.Name, bars)
			continue
		}
		points := make(plotter.XYs, len(line.Y))
		for j := range points {
			points[j] = plotter.XY{X: line.X[j], Y: c.least(line.Y[j])}
		}
		l, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		l.Color, dots.Color, dots.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
		p.Add(l, dots)
		p.Legend.Add(line.Name, l, dots)
	}
	if len(c.Names) > 0 {
		p.NominalX(c.Names...)
	}
	if c.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if c.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	// Room above, so that the legend hides little.
	p.Y.Max *= 1.25
	if err := errors.Join(c.mark(p), c.band(p)); err != nil {
		return nil, err
	}
	w, err := p.WriterTo(18*vg.Centimeter, 9*vg.Centimeter, "svg")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err = w.WriteTo(&b)
	return b.Bytes(), err
}

// least is a value, or the least one that the axis has.
func (c *Picture) least(y float64) float64 {
	if c.LogY {
		return max(1, y)
	}
	return y
}

// band draws the bands below the axis. Each state has a colour, which the legend names.
func (c *Picture) band(p *plot.Plot) error {
	if len(c.Bands) == 0 {
		return nil
	}
	high, from := 0.06*p.Y.Max, p.X.Min
	p.Y.Tick.Marker = plot.TickerFunc(func(_, most float64) []plot.Tick { return plot.DefaultTicks{}.Ticks(0, most) })
	var names, states []string
	for _, b := range c.Bands {
		if !slices.Contains(names, b.Name) {
			names = append(names, b.Name)
		}
		y := -high * float64(1+slices.Index(names, b.Name))
		area, err := plotter.NewPolygon(
			plotter.XYs{{X: b.From, Y: y}, {X: b.To, Y: y}, {X: b.To, Y: y + high*0.9}, {X: b.From, Y: y + high*0.9}},
		)
		if err != nil {
			return err
		}
		known := slices.Index(states, b.State)
		if known < 0 {
			known, states = len(states), append(states, b.State)
			p.Legend.Add(b.State, area)
		}
		area.Color, area.LineStyle.Width = plotutil.SoftColors[(1+known)%len(plotutil.SoftColors)], 0 // the first is green
		p.Add(area)
	}
	at := plotter.XYLabels{Labels: names}
	for i := range names {
		at.XYs = append(at.XYs, plotter.XY{X: from, Y: -high * (0.8 + float64(i))})
	}
	labels, err := plotter.NewLabels(at)
	if err == nil {
		p.Add(labels)
	}
	return err
}

// mark draws the marks, from the bottom to the top. The names of neighbours stand below each other.
func (c *Picture) mark(p *plot.Plot) error {
	for i, m := range c.Marks {
		line, err := plotter.NewLine(plotter.XYs{{X: m.At, Y: c.least(0)}, {X: m.At, Y: p.Y.Max}})
		if err != nil {
			return err
		}
		line.Color, line.Dashes = color.Gray{0x99}, plotutil.Dashes(1)
		label, err := plotter.NewLabels(
			plotter.XYLabels{XYs: plotter.XYs{{X: m.At, Y: (0.95 - 0.06*float64(i%4)) * p.Y.Max}}, Labels: []string{" " + m.Name}},
		)
		if err != nil {
			return err
		}
		p.Add(line, label)
	}
	return nil
}

// Bars is a picture of a figure over the variants of several tables.
func Bars(title, figure string, tables ...*Table) *Picture {
	c := &Picture{Title: title, Y: label(figure)}
	scale := 1.0
	if name := figure; len(name) > 3 {
		switch shown := show(name, 1e9); shown[len(shown)-1] {
		case 's':
			c.Y, scale = c.Y+", us", 1e-3
		case 'B':
			c.Y, scale = c.Y+", MB", 1e-6
		}
	}
	lines := map[string]int{}
	for _, t := range tables {
		if t == nil {
			continue
		}
		c.Names = append(c.Names, t.Name)
		for _, r := range t.Rows {
			i, ok := lines[r.Variant]
			if !ok {
				i = len(c.Lines)
				lines[r.Variant] = i
				c.Lines = append(c.Lines, Line{Name: r.Variant})
			}
			for len(c.Lines[i].Y) < len(c.Names)-1 {
				c.Lines[i].Y = append(c.Lines[i].Y, 0) // it is not in the tables before
			}
			c.Lines[i].Y = append(c.Lines[i].Y, r.Figures[figure].Median*scale)
		}
	}
	for i := range c.Lines {
		for len(c.Lines[i].Y) < len(c.Names) {
			c.Lines[i].Y = append(c.Lines[i].Y, 0)
		}
	}
	return c
}
