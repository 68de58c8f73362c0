package yql

import (
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// Declarations returns the types of the parameters that a text declares
// (DECLARE $name AS Type), by name without the dollar; nil if there are none.
// A DECLARE that cannot be read is an error with its row and column; nothing
// else in the text is checked.
func Declarations(text string) (map[string]*Ydb.Type, error) {
	lex := NewLexer(text)
	if lex.pg {
		return nil, nil // the PostgreSQL dialect has parameters without declarations
	}
	var types map[string]*Ydb.Type
	p := newTypeParser(lex)
	for p.tok.Kind != EOF {
		if p.isWord("DECLARE") {
			at := p.tok.Start
			name, t, err := p.declaration()
			if err == nil && types[name] != nil && !EqualTypes(types[name], t) {
				err = &syntaxError{at, "it was declared " + FormatType(types[name]) + " before"}
			}
			if err != nil {
				row, column := Position(text, err.at)
				return nil, errorf("%d:%d: DECLARE%s: %s", row, column, spaced(name), err.msg)
			}
			if types == nil {
				types = make(map[string]*Ydb.Type)
			}
			types[name] = t
		}
		for p.tok.Kind != EOF && !p.is(";") {
			p.next()
		}
		for p.is(";") {
			p.next()
		}
	}
	return types, nil
}

func spaced(name string) string {
	if name == "" {
		return ""
	}
	return " $" + name
}

// declaration reads DECLARE $name AS Type up to the semicolon, or to a default
// value, which the server alone understands. The name is known before the type.
func (p *typeParser) declaration() (name string, t *Ydb.Type, err *syntaxError) {
	p.next()
	if p.is("$") { // space may stand between the dollar and the name
		p.next()
		name, err = p.name("a parameter's name")
	} else if p.tok.Kind == Name {
		var ok bool
		if name, ok = p.lex.unquote(p.tok); !ok {
			err = p.fail("the name is not valid UTF-8")
		}
		p.next()
	} else {
		err = p.unexpected("a parameter such as $id")
	}
	if err != nil {
		return "", nil, err
	}
	if !p.isWord("AS") {
		return name, nil, p.unexpected("AS")
	}
	p.next()
	if t, err = p.top(); err != nil {
		return name, nil, err
	}
	if p.tok.Kind != EOF && !p.is(";") && !p.is("=") {
		return name, nil, p.unexpected(`";"`)
	}
	return name, t, nil
}

// ParamName returns the name of a parameter without its dollar; the API takes
// names with and without.
func ParamName(name string) string { return strings.TrimPrefix(name, "$") }
