package syntax

import "strings"

// query takes a SELECT with all that may follow it; a query in brackets as well.
func (p *parser) query() *Query {
	defer p.enter()()
	q := &Query{Pos: p.peek().pos}
	if p.peek().punct("(") && p.bracketedQuery() {
		p.at++
		inner := p.query()
		p.expect(")")
		if !p.isWords("UNION") {
			return inner
		}
		if inner.Limit != nil || inner.Offset != nil || inner.OrderBy != nil {
			p.fail(inner.Pos, "ORDER BY and LIMIT of a part of a UNION are outside of the supported subset of YQL")
		}
		q.Selects = inner.Selects
	} else {
		q.Selects = []*Select{p.selectCore()}
	}
	for p.word("UNION") {
		p.expectWord("ALL")
		open := p.punct("(")
		q.Selects = append(q.Selects, p.selectCore())
		if open {
			p.expect(")")
		}
	}
	p.word("ASSUME")
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
		switch {
		case p.word("OFFSET"):
			q.Offset = p.expr()
		case p.punct(","): // LIMIT offset, count
			q.Offset, q.Limit = q.Limit, p.expr()
		}
	}
	return q
}

// bracketedQuery reports whether the brackets that open next hold a query.
func (p *parser) bracketedQuery() bool {
	n := 0
	for p.peekAt(n).punct("(") {
		n++
	}
	return n > 0 && p.peekAt(n).word("SELECT")
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
		p.fail(t.pos, "LEFT %s is outside of the supported subset of YQL", strings.ToUpper(p.peekAt(1).text))
	}
	return NoJoin
}

func (p *parser) fromItem() *From {
	t := p.peek()
	f := &From{Pos: t.pos}
	switch {
	case t.punct("("):
		p.at++
		f.Query = p.query()
		p.expect(")")
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
			p.fail(t.pos, "the table function %s is outside of the supported subset of YQL", t.text)
		}
		if p.punct(":") {
			v := p.name("the name of an index")
			f.View = &v
		} else if p.word("VIEW") {
			v := p.name("the name of an index")
			f.View = &v
		}
		if p.isWords("WITH") {
			p.fail(p.peek().pos, "hints after WITH are outside of the supported subset of YQL")
		}
	}
	f.Alias = p.alias()
	if f.View == nil && p.word("VIEW") { // FROM t AS a VIEW i is accepted as well
		v := p.name("the name of an index")
		f.View = &v
		if f.Table == nil {
			p.fail(v.Pos, "VIEW needs a table")
		}
	}
	return f
}
