package yql

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// ParseType reads the name of a type as YQL writes it: "Uint64",
// "List<Struct<product:Utf8,quantity:Int64>>", "Decimal(22,9)?", "pgint4".
// Names of types count in any case; Bytes and Text are String and Utf8. The
// result nests at most MaxTypeDepth deep.
func ParseType(name string) (*Ydb.Type, error) {
	p := newTypeParser(&Lexer{text: name})
	t, err := p.top()
	if err == nil && p.tok.Kind != EOF {
		err = p.unexpected("the end of the type")
	}
	if err != nil {
		_, column := Position(name, err.at)
		return nil, errorf("type %s: column %d: %s", clip(name), column, err.msg)
	}
	return t, nil
}

// maxTypes is how many types one text may name, those within others included: each
// takes many times as much as its name. A struct as wide as a table may be names 200.
const maxTypes = 1 << 14

// MostTypes is how many types a text names at most, those within others included, without reading it as a type.
func MostTypes(text string) int {
	n := 1
	for i := range len(text) {
		switch text[i] {
		case '?', '<', ',':
			n++
		}
	}
	return n
}

// typeParser reads types from a lexer by recursive descent; tok is the token
// not yet taken.
type typeParser struct {
	lex   *Lexer
	tok   Token
	types int // how many were named
}

// syntaxError is a fault at an offset of the text.
type syntaxError struct {
	at  int
	msg string
}

func newTypeParser(lex *Lexer) *typeParser {
	return &typeParser{lex: lex, tok: lex.Next()}
}

func (p *typeParser) fail(format string, args ...any) *syntaxError {
	return &syntaxError{at: p.tok.Start, msg: fmt.Sprintf(format, args...)}
}

// unexpected is the error for the present token where want had to stand.
func (p *typeParser) unexpected(want string) *syntaxError {
	if p.tok.Kind == EOF {
		return p.fail("expected %s, but the text ends", want)
	}
	return p.fail("expected %s, found %s", want, clip(p.lex.Text(p.tok)))
}

func (p *typeParser) next() { p.tok = p.lex.Next() }

func (p *typeParser) is(punct string) bool {
	return p.tok.Kind == Punct && p.lex.Text(p.tok) == punct
}

func (p *typeParser) isWord(word string) bool {
	return p.tok.Kind == Ident && strings.EqualFold(p.lex.Text(p.tok), word)
}

func (p *typeParser) expect(punct string) *syntaxError {
	if !p.is(punct) {
		return p.unexpected(strconv.Quote(punct))
	}
	p.next()
	return nil
}

// top reads one whole type.
func (p *typeParser) top() (*Ydb.Type, *syntaxError) {
	start := p.tok.Start
	t, depth, err := p.parse(1)
	if err == nil && depth > MaxTypeDepth {
		err = tooDeep(start)
	}
	return t, err
}

func tooDeep(at int) *syntaxError {
	return &syntaxError{at, fmt.Sprintf("the type nests more than %d deep", MaxTypeDepth)}
}

// parse reads a type and its question marks. level is how deep it stands, depth
// how deep it nests.
func (p *typeParser) parse(level int) (t *Ydb.Type, depth int, err *syntaxError) {
	if level > MaxTypeDepth {
		return nil, 0, tooDeep(p.tok.Start)
	}
	if p.types++; p.types > maxTypes {
		return nil, 0, p.fail("more than %d types", maxTypes)
	}
	if t, depth, err = p.base(level); err != nil {
		return nil, 0, err
	}
	for ; p.is("?"); p.next() {
		p.types++
		if depth++; depth > MaxTypeDepth {
			return nil, 0, tooDeep(p.tok.Start)
		}
		t = optional(t)
	}
	return t, depth, nil
}

// base reads a type without question marks.
func (p *typeParser) base(level int) (*Ydb.Type, int, *syntaxError) {
	if p.tok.Kind != Ident {
		return nil, 0, p.unexpected("a type")
	}
	at := p.tok.Start
	word := strings.ToLower(p.lex.Text(p.tok))
	p.next()
	if t, ok := simpleTypes[word]; ok {
		return t, 1, nil
	}
	switch word {
	case "decimal":
		t, err := p.decimal()
		return t, 1, err
	case "pg":
		t, err := p.pg()
		return t, 1, err
	case "optional":
		t, depth, err := p.one(level)
		return optional(t), depth, err
	case "list":
		t, depth, err := p.one(level)
		return &Ydb.Type{Type: &Ydb.Type_ListType{ListType: &Ydb.ListType{Item: t}}}, depth, err
	case "set":
		t, depth, err := p.one(level)
		return dict(t, typeVoid), depth, err
	case "tuple":
		return p.tuple(level)
	case "struct":
		return p.structure(level)
	case "dict":
		return p.dict(level)
	case "variant":
		return p.variant(level)
	case "tagged":
		return p.tagged(level)
	}
	if t, ok := pgType(word); ok {
		return t, 1, nil
	}
	meant := "names are those of YQL, such as Utf8, Int64, Double, Timestamp or Decimal(22,9)"
	if name := foreignTypes[word]; name != "" {
		meant = "in YQL it is " + name
	}
	return nil, 0, &syntaxError{at, "unknown type " + clip(word) + "; " + meant}
}

func optional(t *Ydb.Type) *Ydb.Type {
	return &Ydb.Type{Type: &Ydb.Type_OptionalType{OptionalType: &Ydb.OptionalType{Item: t}}}
}

func dict(key, payload *Ydb.Type) *Ydb.Type {
	return &Ydb.Type{Type: &Ydb.Type_DictType{DictType: &Ydb.DictType{Key: key, Payload: payload}}}
}

// decimal reads (precision,scale).
func (p *typeParser) decimal() (*Ydb.Type, *syntaxError) {
	if !p.is("(") {
		return nil, p.fail("a Decimal needs its precision and its scale, such as Decimal(22,9)")
	}
	p.next()
	at := p.tok.Start
	precision, err := p.integer()
	if err != nil {
		return nil, err
	}
	if err := p.expect(","); err != nil {
		return nil, err
	}
	scale, err := p.integer()
	if err != nil {
		return nil, err
	}
	if precision < 1 || precision > maxPrecision || scale > precision {
		return nil, &syntaxError{at,
			fmt.Sprintf("no such Decimal: the precision goes from 1 to %d, the scale from 0 to the precision", maxPrecision)}
	}
	return &Ydb.Type{Type: &Ydb.Type_DecimalType{DecimalType: &Ydb.DecimalType{
		Precision: precision, Scale: scale,
	}}}, p.expect(")")
}

// pg reads (object ID), the written form of a PostgreSQL type without a name.
func (p *typeParser) pg() (*Ydb.Type, *syntaxError) {
	if err := p.expect("("); err != nil {
		return nil, err
	}
	at := p.tok.Start
	oid, err := p.integer()
	if err != nil {
		return nil, err
	}
	if oid == 0 {
		return nil, &syntaxError{at, "0 is no object ID of a PostgreSQL type"}
	}
	return pgByID(oid), p.expect(")")
}

func (p *typeParser) integer() (uint32, *syntaxError) {
	n, err := strconv.ParseUint(p.lex.Text(p.tok), 10, 32)
	if p.tok.Kind != Number || err != nil {
		return 0, p.unexpected("an integer")
	}
	p.next()
	return uint32(n), nil
}

// one reads <T>. The depth that it and its siblings return is the container's.
func (p *typeParser) one(level int) (*Ydb.Type, int, *syntaxError) {
	if err := p.expect("<"); err != nil {
		return nil, 0, err
	}
	t, depth, err := p.parse(level + 1)
	if err != nil {
		return nil, 0, err
	}
	return t, depth + 1, p.expect(">")
}

func (p *typeParser) dict(level int) (*Ydb.Type, int, *syntaxError) {
	if err := p.expect("<"); err != nil {
		return nil, 0, err
	}
	key, keyDepth, err := p.parse(level + 1)
	if err != nil {
		return nil, 0, err
	}
	if err := p.expect(","); err != nil {
		return nil, 0, err
	}
	payload, depth, err := p.parse(level + 1)
	if err != nil {
		return nil, 0, err
	}
	return dict(key, payload), max(keyDepth, depth) + 1, p.expect(">")
}

func (p *typeParser) tagged(level int) (*Ydb.Type, int, *syntaxError) {
	if err := p.expect("<"); err != nil {
		return nil, 0, err
	}
	t, depth, err := p.parse(level + 1)
	if err != nil {
		return nil, 0, err
	}
	if err := p.expect(","); err != nil {
		return nil, 0, err
	}
	tag, err := p.name("a tag")
	if err != nil {
		return nil, 0, err
	}
	return &Ydb.Type{Type: &Ydb.Type_TaggedType{TaggedType: &Ydb.TaggedType{Tag: tag, Type: t}}}, depth + 1, p.expect(">")
}

func (p *typeParser) tuple(level int) (*Ydb.Type, int, *syntaxError) {
	if err := p.expect("<"); err != nil {
		return nil, 0, err
	}
	elements, depth, err := p.elements(level)
	return &Ydb.Type{Type: &Ydb.Type_TupleType{TupleType: &Ydb.TupleType{Elements: elements}}}, depth, err
}

func (p *typeParser) structure(level int) (*Ydb.Type, int, *syntaxError) {
	if err := p.expect("<"); err != nil {
		return nil, 0, err
	}
	members, depth, err := p.members(level)
	return &Ydb.Type{Type: &Ydb.Type_StructType{StructType: &Ydb.StructType{Members: members}}}, depth, err
}

// variant reads either form; a colon behind the first word tells them apart.
func (p *typeParser) variant(level int) (*Ydb.Type, int, *syntaxError) {
	if err := p.expect("<"); err != nil {
		return nil, 0, err
	}
	if p.is(">") {
		return nil, 0, p.unexpected("a type")
	}
	ahead := *p.lex
	colon := ahead.Next()
	var v Ydb.VariantType
	var depth int
	if colon.Kind == Punct && ahead.Text(colon) == ":" {
		members, d, err := p.members(level)
		if err != nil {
			return nil, 0, err
		}
		depth, v.Type = d, &Ydb.VariantType_StructItems{StructItems: &Ydb.StructType{Members: members}}
	} else {
		elements, d, err := p.elements(level)
		if err != nil {
			return nil, 0, err
		}
		depth, v.Type = d, &Ydb.VariantType_TupleItems{TupleItems: &Ydb.TupleType{Elements: elements}}
	}
	return &Ydb.Type{Type: &Ydb.Type_VariantType{VariantType: &v}}, depth, nil
}

// elements reads types up to the closing bracket; a comma may stand before it.
func (p *typeParser) elements(level int) (elements []*Ydb.Type, depth int, err *syntaxError) {
	for !p.is(">") {
		t, d, err := p.parse(level + 1)
		if err != nil {
			return nil, 0, err
		}
		elements, depth = append(elements, t), max(depth, d)
		if !p.is(",") {
			break
		}
		p.next()
	}
	return elements, depth + 1, p.expect(">")
}

// members is elements for pairs of name and type.
func (p *typeParser) members(level int) (members []*Ydb.StructMember, depth int, err *syntaxError) {
	seen := make(map[string]struct{})
	for !p.is(">") {
		at := p.tok.Start
		name, err := p.name("a name")
		if err != nil {
			return nil, 0, err
		}
		if _, ok := seen[name]; ok {
			return nil, 0, &syntaxError{at, fmt.Sprintf("the name %s appears twice", clip(name))}
		}
		seen[name] = struct{}{}
		if err := p.expect(":"); err != nil {
			return nil, 0, err
		}
		t, d, err := p.parse(level + 1)
		if err != nil {
			return nil, 0, err
		}
		members, depth = append(members, &Ydb.StructMember{Name: name, Type: t}), max(depth, d)
		if !p.is(",") {
			break
		}
		p.next()
	}
	return members, depth + 1, p.expect(">")
}

// name reads a member's name or a tag, with or without quotes.
func (p *typeParser) name(want string) (string, *syntaxError) {
	switch p.tok.Kind {
	case Ident, QuotedIdent, String:
	default:
		return "", p.unexpected(want)
	}
	s, ok := p.lex.unquote(p.tok)
	if !ok {
		return "", p.fail("%s is not valid UTF-8", want)
	}
	p.next()
	return s, nil
}
