package syntax

import (
	"slices"
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// expr takes an expression. From weak to strong: OR, AND, NOT, equality with IN, IS
// and BETWEEN, order, + -, * / %, signs, calls.
func (p *parser) expr() Expr {
	defer p.enter()()
	return p.logic("OR", func() Expr {
		return p.logic("AND", p.not)
	})
}

// logic takes a chain of one operator as one node, however long it is.
func (p *parser) logic(op string, operand func() Expr) Expr {
	x := operand()
	if !p.isWords(op) {
		return x
	}
	l := &Logic{Pos: p.peek().pos, Op: op, Args: []Expr{x}}
	for p.word(op) {
		l.Args = append(l.Args, operand())
	}
	return l
}

func (p *parser) not() Expr {
	t := p.peek()
	if !p.word("NOT") {
		return p.equality()
	}
	defer p.enter()()
	return &Unary{Pos: t.pos, Op: "NOT", X: p.not()}
}

func (p *parser) equality() Expr {
	x := p.order()
	for n := 0; ; n++ {
		t := p.peek()
		p.bound(n, t)
		switch {
		case t.kind == tPunct && (t.text == "=" || t.text == "==" || t.text == "!=" || t.text == "<>"):
			p.at++
			op := map[string]string{"=": "=", "==": "=", "!=": "!=", "<>": "!="}[t.text]
			x = &Binary{Pos: t.pos, Op: op, L: x, R: p.order()}
		case p.word("IS", "NOT", "NULL"):
			x = &IsNull{Pos: t.pos, X: x, Not: true}
		case p.word("IS", "NULL"):
			x = &IsNull{Pos: t.pos, X: x}
		case p.isWords("IS"):
			p.fail(t.pos, "IS with anything but [NOT] NULL is outside of the subset of YQL that the development cluster knows")
		default:
			neg := p.isWords("NOT") && (p.peekAt(1).word("IN") || p.peekAt(1).word("BETWEEN"))
			if neg {
				p.at++
			}
			switch t := p.peek(); {
			case p.word("IN"):
				x = p.in(t.pos, x, neg)
			case p.word("BETWEEN"):
				b := &Between{Pos: t.pos, X: x, Not: neg, Lo: p.order()}
				p.expectWord("AND")
				b.Hi = p.order()
				x = b
			default:
				return x
			}
		}
	}
}

// bound ends chains that would nest too deep in later stages.
func (p *parser) bound(n int, t token) {
	if n > maxChain {
		p.fail(t.pos, "more than %d operators in a row", maxChain)
	}
}

func (p *parser) in(pos Pos, x Expr, neg bool) Expr {
	in := &In{Pos: pos, X: x, Not: neg}
	if !p.peek().punct("(") {
		in.Over = p.unary()
		return in
	}
	p.at++
	for !p.peek().punct(")") {
		in.List = append(in.List, p.expr())
		if !p.punct(",") {
			break
		}
	}
	p.expect(")")
	return in
}

// binary takes a chain of left-associative operators.
func (p *parser) binary(ops []string, operand func() Expr) Expr {
	x := operand()
	for n := 0; ; n++ {
		t := p.peek()
		p.bound(n, t)
		op := p.operator(ops)
		if op == "" {
			return x
		}
		x = &Binary{Pos: t.pos, Op: op, L: x, R: operand()}
	}
}

func (p *parser) operator(ops []string) string {
	t := p.peek()
	if t.kind != tPunct {
		return ""
	}
	if !slices.Contains(ops, t.text) {
		return ""
	}
	p.at++
	return t.text
}

func (p *parser) order() Expr   { return p.binary([]string{"<", "<=", ">", ">="}, p.sum) }
func (p *parser) sum() Expr     { return p.binary([]string{"+", "-"}, p.product) }
func (p *parser) product() Expr { return p.binary([]string{"*", "/", "%"}, p.unary) }

func (p *parser) unary() Expr {
	t := p.peek()
	if t.kind == tPunct && (t.text == "-" || t.text == "+") {
		defer p.enter()()
		p.at++
		return &Unary{Pos: t.pos, Op: t.text, X: p.unary()}
	}
	if p.isWords("NOT") { // stronger than the operator to its left: a = NOT b
		defer p.enter()()
		p.at++
		return &Unary{Pos: t.pos, Op: "NOT", X: p.unary()}
	}
	return p.atom()
}

func (p *parser) memberName() string {
	switch t := p.peek(); {
	case t.kind == tWord || t.kind == tName:
		p.at++
		return t.text
	case t.kind == tNumber && t.typ.Kind == value.Int32:
		p.at++
		return t.text
	}
	p.unexpected("the name of a member")
	return ""
}

func (p *parser) atom() Expr {
	t := p.peek()
	switch t.kind {
	case tNumber, tString:
		p.at++
		return &Literal{Pos: t.pos, Type: t.typ, Value: t.val}
	case tParam:
		p.at++
		return &Param{Pos: t.pos, Name: t.text}
	case tName:
		p.at++
		return p.columnOf(t)
	case tWord:
		return p.wordAtom(t)
	}
	switch {
	case p.punct("("):
		return p.brackets1(t)
	case p.punct("["):
		return &ListOf{Pos: t.pos, Items: p.until("]")}
	case p.punct("<|"):
		s := &StructOf{Pos: t.pos}
		for !p.peek().punct("|>") {
			s.Names = append(s.Names, p.memberName())
			p.expect(":")
			s.Items = append(s.Items, p.order())
			if !p.punct(",") {
				break
			}
		}
		p.expect("|>")
		return s
	}
	p.unexpected("an expression")
	return nil
}

// until takes expressions with commas between them, also after the last one, up to the bracket.
func (p *parser) until(bracket string) []Expr {
	var out []Expr
	for !p.peek().punct(bracket) {
		out = append(out, p.expr())
		if !p.punct(",") {
			break
		}
	}
	p.expect(bracket)
	return out
}

// brackets1 takes what follows '(': a query, an expression or a tuple.
func (p *parser) brackets1(t token) Expr {
	if p.isWords("SELECT") {
		q := p.query()
		p.expect(")")
		return &Sub{Pos: t.pos, Query: q}
	}
	tuple := &TupleOf{Pos: t.pos}
	for !p.peek().punct(")") {
		tuple.Items = append(tuple.Items, p.expr())
		if !p.punct(",") {
			p.expect(")")
			if len(tuple.Items) == 1 {
				return tuple.Items[0]
			}
			return tuple
		}
	}
	p.expect(")")
	return tuple
}

func (p *parser) columnOf(t token) Expr {
	if p.peek().punct(".") && (p.peekAt(1).kind == tWord || p.peekAt(1).kind == tName) {
		p.at++
		return &Column{Pos: t.pos, Table: t.text, Name: p.next().text}
	}
	return &Column{Pos: t.pos, Name: t.text}
}

func (p *parser) wordAtom(t token) Expr {
	switch up := strings.ToUpper(t.text); up {
	case "NULL":
		p.at++
		return &Literal{Pos: t.pos, Type: value.TypeNull, Value: value.NullValue}
	case "TRUE", "FALSE":
		p.at++
		return &Literal{Pos: t.pos, Type: value.TypeBool, Value: value.Truth(up == "TRUE")}
	case "CAST", "BITCAST":
		if p.peekAt(1).punct("(") && up == "CAST" {
			p.at += 2
			c := &Cast{Pos: t.pos, X: p.expr()}
			p.expectWord("AS")
			c.Type = p.typ()
			p.expect(")")
			return c
		}
		if up == "BITCAST" && p.peekAt(1).punct("(") {
			p.fail(t.pos, "BITCAST is outside of the subset of YQL that the development cluster knows")
		}
	}
	if p.peekAt(1).punct("::") || p.peekAt(1).punct("(") && (!reserved[strings.ToUpper(t.text)] || strings.EqualFold(t.text, "REPLACE")) {
		return p.call(t)
	}
	if reserved[strings.ToUpper(t.text)] {
		p.unexpected("an expression")
	}
	p.at++
	return p.columnOf(t)
}

func (p *parser) call(t token) Expr {
	p.at++
	c := &Call{Pos: t.pos, Name: t.text}
	if p.punct("::") {
		c.Name += "::" + p.name("the name of a function").Text
	}
	p.expect("(")
	takesType := strings.EqualFold(c.Name, "nothing")
	for !p.peek().punct(")") {
		at := p.peek()
		switch {
		case at.punct("*") && len(c.Args) == 0:
			p.at++
			c.Star = true
		case takesType:
			c.Args = append(c.Args, &TypeArg{Pos: at.pos, Type: p.typ()})
		default:
			c.Args = append(c.Args, p.expr())
		}
		if !p.punct(",") {
			break
		}
	}
	p.expect(")")
	if p.isWords("OVER") {
		p.unexpected("an operator")
	}
	return c
}
