package syntax

import "strings"

// query takes a SELECT with all that may follow it.
func (p *parser) query() *Query {
	defer p.enter()()
	q := &Query{Pos: p.peek().pos, Selects: []*Select{p.selectCore()}}
	for p.word("UNION") {
		p.expectWord("ALL")
		q.Selects = append(q.Selects, p.selectCore())
	}
	if p.word("ORDER", "BY") {
		for {
			item := OrderItem{X: p.expr()}
			if !p.word("ASC") {
				item.Desc = p.word("DESC")
			}
			q.OrderBy = append(q.OrderBy, item)
			if !p.punct(",") {
				break
			}
		}
	}
	if p.word("LIMIT") {
		q.Limit = p.expr()
	}
	return q
}

func (p *parser) selectCore() *Select {
	s := &Select{Pos: p.peek().pos}
	p.expectWord("SELECT")
	s.Items = p.items()
	if p.word("FROM") {
		s.From = p.from()
	}
	if p.word("WHERE") {
		s.Where = p.expr()
	}
	return s
}

// items takes a SELECT list; a comma may stand at its end.
func (p *parser) items() []SelectItem {
	var out []SelectItem
	for {
		t := p.peek()
		item := SelectItem{Pos: t.pos}
		switch {
		case p.punct("*"):
			item.Star = true
		case (t.kind == tWord || t.kind == tName) && p.peekAt(1).punct(".") && p.peekAt(2).punct("*"):
			p.at += 3
			item.Star, item.Table = true, t.text
		default:
			item.X = p.expr()
			item.As = p.alias()
		}
		out = append(out, item)
		if !p.punct(",") {
			return out
		}
		if e := p.peek(); e.word("FROM") || e.kind == tEOF || e.punct(";") || e.punct(")") {
			return out
		}
	}
}

func (p *parser) from() *From {
	left := p.fromItem()
	for n := 0; ; n++ {
		if n > 50 {
			p.fail(p.peek().pos, "more than 50 joins")
		}
		pos := p.peek().pos
		kind := p.join()
		if kind == NoJoin {
			return left
		}
		right := p.fromItem()
		p.expectWord("ON")
		left = &From{Pos: pos, Join: kind, Left: left, Right: right, On: p.expr()}
	}
}

// join takes what stands between two sources; NoJoin: nothing does.
func (p *parser) join() JoinKind {
	t := p.peek()
	switch {
	case p.word("JOIN"), p.word("INNER", "JOIN"):
		return InnerJoin
	case p.word("LEFT", "JOIN"), p.word("LEFT", "OUTER", "JOIN"):
		return LeftJoin
	case p.isWords("LEFT"):
		p.fail(t.pos, "LEFT %s is outside of the subset of YQL that the development cluster knows", strings.ToUpper(p.peekAt(1).text))
	}
	return NoJoin
}

func (p *parser) fromItem() *From {
	t := p.peek()
	f := &From{Pos: t.pos}
	switch {
	case t.kind == tParam:
		p.at++
		f.Param = t.text
	case t.word("AS_TABLE") && p.peekAt(1).punct("("):
		p.at += 2
		f.Rows = p.expr()
		p.expect(")")
	default:
		n := p.table()
		f.Table = &n
		if p.peek().punct("(") {
			p.fail(t.pos, "the table function %s is outside of the subset of YQL that the development cluster knows", t.text)
		}
		if p.word("VIEW") {
			v := p.name("the name of an index")
			f.View = &v
		}
		if p.isWords("WITH") {
			p.fail(p.peek().pos, "hints after WITH are outside of the subset of YQL that the development cluster knows")
		}
	}
	f.Alias = p.alias()
	return f
}
