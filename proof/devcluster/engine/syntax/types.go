package syntax

import (
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// ParseType reads the text of one type.
func ParseType(text string) (t *value.Type, err error) {
	tokens, lexErr := tokenize(text)
	if lexErr != nil {
		return nil, lexErr
	}
	p := &parser{cursor{tokens: tokens}}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			t, err = nil, e
		}
	}()
	t = p.typ()
	if p.peek().kind != tEOF {
		p.unexpected("the end of the type")
	}
	return t, nil
}

// typ takes a type.
func (p *parser) typ() *value.Type {
	defer p.enter()()
	t := p.baseType()
	for {
		if t.TooLarge() {
			p.fail(p.peek().pos, "type of more than %d levels or %d bytes", value.MaxDepth, value.MaxText)
		}
		switch {
		case p.punct("?"):
			t = value.OptionalOf(t)
		case p.punct("??"):
			t = value.OptionalOf(value.OptionalOf(t))
		default:
			return t
		}
	}
}

func (p *parser) baseType() *value.Type {
	n := p.peek()
	if n.kind != tWord {
		p.unexpected("a type")
	}
	p.at++
	check := func(t *value.Type, err error) *value.Type {
		if err != nil {
			p.fail(n.pos, "%v", err)
		}
		return t
	}
	switch strings.ToLower(n.text) {
	case "optional":
		return value.OptionalOf(p.typeArgs(1)[0])
	case "list":
		return value.ListOf(p.typeArgs(1)[0])
	case "dict":
		a := p.typeArgs(2)
		return value.DictOf(a[0], a[1])
	case "set":
		return value.DictOf(p.typeArgs(1)[0], value.TypeVoid)
	case "tuple":
		return value.TupleOf(p.typeArgs(-1)...)
	case "struct":
		return check(value.StructOf(p.members()...))
	case "variant":
		if p.peekAt(1).kind != tEOF && p.peekAt(2).punct(":") {
			return check(value.VariantOf(check(value.StructOf(p.members()...))))
		}
		return check(value.VariantOf(value.TupleOf(p.typeArgs(-1)...)))
	case "tagged":
		p.expect("<")
		t := p.typ()
		p.expect(",")
		tag := p.next()
		name := tag.text
		if tag.kind == tString {
			name = tag.val.S
		}
		p.expect(">")
		return value.TaggedOf(t, name)
	case "decimal":
		p.expect("(")
		prec := p.smallInt()
		p.expect(",")
		scale := p.smallInt()
		p.expect(")")
		return check(value.DecimalOf(prec, scale))
	}
	t := value.Named(n.text)
	if t == nil {
		p.fail(n.pos, "unknown type: '%s'", n.text)
	}
	return t
}

func (p *parser) smallInt() uint32 {
	t := p.peek()
	if t.kind != tNumber || t.typ.Kind != value.Int32 {
		p.unexpected("a number")
	}
	p.at++
	return uint32(t.val.Lo)
}

// typeArgs takes <A, B, ...>; n is how many there must be, -1 for any number.
func (p *parser) typeArgs(n int) []*value.Type {
	var out []*value.Type
	if n < 0 && p.punct("<>") {
		return nil
	}
	p.expect("<")
	for !p.peek().punct(">") {
		out = append(out, p.typ())
		if !p.punct(",") {
			break
		}
	}
	if n >= 0 && len(out) != n {
		p.unexpected("another number of types")
	}
	p.expect(">")
	return out
}

// members takes <name: Type, ...>.
func (p *parser) members() []value.Member {
	var out []value.Member
	if p.punct("<>") {
		return nil
	}
	p.expect("<")
	for !p.peek().punct(">") {
		t := p.peek()
		name := t.text
		switch t.kind {
		case tWord, tName:
		case tString:
			name = t.val.S
		default:
			p.unexpected("the name of a member")
		}
		p.at++
		p.expect(":")
		out = append(out, value.Member{Name: name, Type: p.typ()})
		if !p.punct(",") {
			break
		}
	}
	p.expect(">")
	return out
}
