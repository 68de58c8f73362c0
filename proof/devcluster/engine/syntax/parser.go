package syntax

import "strings"

// The bounds of a text.
const (
	MaxText  = 1 << 20 // bytes
	maxDepth = 100     // expressions, queries and types within each other
	maxChain = 1000    // operators of one kind in a row, which nest to the left
)

// Parse reads a whole text. The error, if any, is an *Error.
func Parse(text string) (s *Script, err error) {
	if len(text) > MaxText {
		return nil, fail(Pos{1, 1}, "the text has %d bytes; the limit is %d", len(text), MaxText)
	}
	tokens, lexErr := tokenize(text)
	if lexErr != nil {
		return nil, lexErr
	}
	p := &parser{cursor{tokens: tokens}}
	defer func() { // the parser leaves a faulty text by panic(*Error)
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			s, err = nil, e
		}
	}()
	return p.script(), nil
}

// parser reads the grammar from a cursor.
type parser struct{ cursor }

// reserved words are no names unless they stand in backticks.
var reserved = map[string]bool{}

func init() { // a constant set
	for _, w := range strings.Fields(`SELECT FROM WHERE GROUP ORDER LIMIT HAVING UNION JOIN LEFT INNER CROSS RIGHT FULL ON USING AS AND OR
		XOR NOT IN IS NULL LIKE ILIKE BETWEEN CASE WHEN THEN ELSE END VALUES INTO DISTINCT EXCEPT INTERSECT EXISTS CAST ASC DESC DECLARE PRAGMA
		INSERT UPSERT REPLACE CREATE TRUE FALSE BY ESCAPE`) {
		reserved[w] = true
	}
}

// clause words end a SELECT item or a source, so they are no alias without AS.
var clause = map[string]bool{"OFFSET": true, "WINDOW": true, "FLATTEN": true, "SAMPLE": true, "TABLESAMPLE": true,
	"WITHOUT": true, "RETURNING": true,
	"ASSUME": true, "VIEW": true, "WITH": true, "SET": true, "REGEXP": true, "RLIKE": true, "MATCH": true,
	"ISNULL": true, "NOTNULL": true, "OVER": true,
	"COLLATE": true, "SEMI": true, "ONLY": true, "ANY": true, "EXCLUSION": true, "COMPACT": true}

// name takes an identifier, with or without backticks.
func (p *parser) name(what string) Name {
	t := p.peek()
	if t.kind == tName || t.kind == tWord && !reserved[strings.ToUpper(t.text)] {
		p.at++
		return Name{t.pos, t.text}
	}
	p.unexpected(what)
	return Name{}
}

// alias takes AS name, or a bare name where none of the clauses begins.
func (p *parser) alias() string {
	if p.word("AS") {
		if t := p.peek(); t.kind == tWord { // after AS even keywords are names
			p.at++
			return t.text
		}
		return p.name("a name").Text
	}
	if t := p.peek(); t.kind == tName || t.kind == tWord && !reserved[strings.ToUpper(t.text)] && !clause[strings.ToUpper(t.text)] {
		p.at++
		return t.text
	}
	return ""
}

// names takes (a, b, ...).
func (p *parser) names(what string) []Name {
	p.expect("(")
	out := []Name{p.name(what)}
	for p.punct(",") {
		out = append(out, p.name(what))
	}
	p.expect(")")
	return out
}

// table takes the name of a table.
func (p *parser) table() Name {
	if t := p.peek(); t.kind == tString {
		p.fail(t.pos, "String literal can not be used here")
	}
	n := p.name("the name of a table")
	if p.peek().punct(".") {
		p.fail(p.peek().pos,
			"names of clusters and schemas before a table are outside of the subset of YQL that the development cluster knows")
	}
	return n
}

func (p *parser) script() *Script {
	s := &Script{}
	for {
		for p.punct(";") {
		}
		if p.peek().kind == tEOF {
			return s
		}
		s.Statements = append(s.Statements, p.statement())
		if p.peek().kind != tEOF && !p.peek().punct(";") {
			p.unexpected("';' or the end of the text")
		}
	}
}

func (p *parser) statement() Statement {
	t := p.peek()
	if t.kind == tParam {
		return p.assign()
	}
	switch strings.ToUpper(t.text) {
	case "SELECT":
		return &SelectStmt{Pos: t.pos, Query: p.query()}
	case "PRAGMA":
		return p.pragma()
	case "DECLARE":
		return p.declare()
	case "INSERT", "UPSERT", "REPLACE":
		return p.write()
	case "UPDATE":
		return p.update()
	case "DELETE":
		return p.delete()
	case "CREATE":
		return p.createTable()
	case "DROP":
		return p.dropTable()
	case "ALTER":
		return p.alterTable()
	}
	p.unexpected("a statement")
	return nil
}

func (p *parser) pragma() *Pragma {
	s := &Pragma{Pos: p.next().pos}
	s.Name = p.name("the name of a pragma").Text
	if p.punct(".") {
		s.Name += "." + p.name("the name of a pragma").Text
	}
	literal := func() string {
		if t := p.peek(); t.kind == tEOF || t.punct(";") {
			p.unexpected("a value")
		}
		t := p.next()
		if t.kind == tString {
			return t.val.S
		}
		return t.text
	}
	switch {
	case p.punct("="):
		s.Value = literal()
	case p.punct("("):
		s.Value = literal()
		p.expect(")")
	}
	return s
}

func (p *parser) declare() *Declare {
	s := &Declare{Pos: p.next().pos}
	t := p.peek()
	if t.kind != tParam {
		p.unexpected("a parameter such as $name")
	}
	p.at++
	s.Name = t.text
	p.expectWord("AS")
	s.Type = p.typ()
	return s
}

func (p *parser) assign() *Assign {
	t := p.next()
	s := &Assign{Pos: t.pos, Name: t.text}
	p.expect("=")
	if q := p.peek(); q.word("SELECT") {
		s.X = &Sub{Pos: q.pos, Query: p.query()}
		return s
	}
	s.X = p.expr()
	return s
}

func (p *parser) write() *Write {
	t := p.next()
	s := &Write{Pos: t.pos}
	switch strings.ToUpper(t.text) {
	case "INSERT":
		s.Verb = Insert
	case "UPSERT":
		s.Verb = Upsert
	default:
		s.Verb = Replace
	}
	if p.peek().word("OR") {
		p.fail(p.peek().pos, "INSERT OR is outside of the subset of YQL that the development cluster knows")
	}
	p.expectWord("INTO")
	s.Table = p.table()
	if p.peek().punct("(") {
		s.Columns = p.names("the name of a column")
	}
	s.Source = p.source()
	return s
}

func (p *parser) source() *Source {
	if !p.word("VALUES") {
		if !p.peek().word("SELECT") {
			p.unexpected("'VALUES' or 'SELECT'")
		}
		return &Source{Query: p.query()}
	}
	src := &Source{}
	for {
		p.expect("(")
		row := []Expr{p.expr()}
		for p.punct(",") {
			row = append(row, p.expr())
		}
		p.expect(")")
		src.Values = append(src.Values, row)
		if !p.punct(",") {
			return src
		}
	}
}

func (p *parser) update() *Update {
	s := &Update{Pos: p.next().pos, Table: p.table()}
	if p.word("ON") {
		s.OnColumns, s.On = p.on()
		return s
	}
	p.expectWord("SET")
	for {
		c := p.name("the name of a column")
		p.expect("=")
		s.Set = append(s.Set, SetItem{c, p.expr()})
		if !p.punct(",") {
			break
		}
	}
	if p.word("WHERE") {
		s.Where = p.expr()
	}
	return s
}

func (p *parser) delete() *Delete {
	pos := p.next().pos
	p.expectWord("FROM")
	s := &Delete{Pos: pos, Table: p.table()}
	switch {
	case p.word("ON"):
		s.OnColumns, s.On = p.on()
	case p.word("WHERE"):
		s.Where = p.expr()
	}
	return s
}

func (p *parser) on() (columns []Name, src *Source) {
	if p.peek().punct("(") {
		columns = p.names("the name of a column")
	}
	return columns, p.source()
}
