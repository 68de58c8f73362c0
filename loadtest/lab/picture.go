package lab

import (
	"bytes"
	"image/color"

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
	Marks []Mark   `json:"marks,omitempty"`
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
	p.Y.Min = 0
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
			points[j] = plotter.XY{X: line.X[j], Y: line.Y[j]}
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
	// Room above, so that the legend hides little.
	p.Y.Max *= 1.25
	if err := c.mark(p); err != nil {
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

// mark draws the marks, from the bottom to the top.
func (c *Picture) mark(p *plot.Plot) error {
	for _, m := range c.Marks {
		line, err := plotter.NewLine(plotter.XYs{{X: m.At, Y: 0}, {X: m.At, Y: p.Y.Max}})
		if err != nil {
			return err
		}
		line.Color, line.Dashes = color.Gray{0x99}, plotutil.Dashes(1)
		label, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: m.At, Y: 0.95 * p.Y.Max}}, Labels: []string{" " + m.Name}})
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
