package yql

import (
	"slices"
	"strings"
)

// Bounds of what Tables keeps of a text.
const (
	mostTables   = 64   // different ones
	mostNamed    = 1000 // parameters and named expressions
	mostBrackets = 256  // within each other
)

// Tables lists the tables that a text of data statements names, as it names them, each once. A
// name is absolute if the text or its PRAGMA TablePathPrefix makes it so. why is not empty if
// that cannot be told with certainty: it names the reason and quotes nothing. The list is
// complete otherwise: what YDB would find in another place of a text is such a reason.
//
// Data statements are SELECT, VALUES, INSERT, UPSERT, REPLACE, UPDATE and DELETE, with DECLARE,
// named expressions, and the PRAGMAs that only say how to read.
func Tables(text string) (tables []string, why string) {
	if strings.Contains(text, "--!") {
		return nil, "it has a line that begins with --! and may change the dialect"
	}
	s := tableSurvey{lex: NewLexer(text), begins: true, clauses: []bool{false}, named: map[string]meaning{}}
	for s.ahead = s.lex.Next(); s.why == "" && s.ahead.Kind != EOF; {
		s.before, s.beforeWord = s.token, s.word
		s.token, s.ahead, s.word = s.ahead, s.lex.Next(), ""
		if s.token.Kind == Ident {
			s.word = strings.ToUpper(s.lex.Text(s.token))
		}
		s.see()
	}
	if s.end(); s.why != "" {
		return nil, s.why
	}
	return s.tables, ""
}

// The reasons for which Tables gives up.
const (
	whyStatement = "it has another statement than SELECT, VALUES, INSERT, UPSERT, REPLACE, UPDATE, DELETE, DECLARE, a named " +
		"expression or a PRAGMA that says how to read"
	whyNoTable = "it has FROM, JOIN, INTO or UPDATE before something that is not simply the name of a table"
	whyWord    = "it has an unquoted word that may run something else (quote a column of that name)"
	whyModule  = "it calls a function of a module that may do more than calculate"
	whyNamed   = "it reads from a named expression that is not certainly a subquery"
	whyMany    = "it names too many tables or expressions"
	whyDeep    = "its brackets are nested too deeply"
	whyBad     = "it is not YQL that can be read"
	whyPrefix  = "its PRAGMA TablePathPrefix is not one absolute path before all tables"
	whyBraces  = "it has braces, and so statements within statements"
)

// meaning is what a name with $ certainly stands for.
type meaning uint8

const (
	unbound  meaning = iota
	subquery         // FROM may read it
	value            // anything else, such as a text that names a table
)

// expected is which kind of table comes next.
type expected uint8

const (
	noTable expected = iota
	source           // of FROM and JOIN
	target           // of INTO and UPDATE
)

// tableSurvey is what is known of a text up to a token.
//
// Wide: it is the state of one loop over the tokens of a text.
type tableSurvey struct {
	lex        *Lexer
	before     Token // before the one in hand
	beforeWord string
	token      Token  // in hand
	word       string // the token in capitals; "" if it is no name without quotes
	ahead      Token  // behind it

	begins  bool     // a statement begins
	needs   string   // the word that must come; "": any
	expects expected // which table must come
	clauses []bool   // for the statement and each open bracket, whether a clause FROM goes on there
	colons  int      // just before
	module  string   // the word before those

	pragma  int    // tokens of this PRAGMA so far; 0: it is another statement
	option  string // its name, and "=" once its values come
	prefix  string // of TablePathPrefix
	defines string // the name that this statement defines
	defined int    // how much of that has come, see define
	held    int    // brackets around its query, and one

	named  map[string]meaning
	reads  bool // FROM reads a named expression
	lambda bool // there is a lambda, whose arguments are names with $, too
	tables []string
	why    string // it gave up; "": it did not
}

func (s *tableSurvey) giveUp(why string) {
	if s.why == "" {
		s.why = why
	}
}

// is reports whether a token is that character.
func (s *tableSurvey) is(t Token, c byte) bool { return t.Kind == Punct && s.lex.text[t.Start] == c }

// aheadIs reports whether the next token is one of these words.
func (s *tableSurvey) aheadIs(words ...string) bool {
	return s.ahead.Kind == Ident && slices.Contains(words, strings.ToUpper(s.lex.Text(s.ahead)))
}

// see looks at the token in hand.
func (s *tableSurvey) see() {
	switch {
	case s.token.Kind == Bad:
		s.giveUp(whyBad)
		return
	case s.needs != "" && s.word != s.needs:
		s.giveUp(whyStatement)
		return
	case s.is(s.token, ';'):
		s.end()
		return
	case s.pragma > 0:
		s.ofPragma()
		return
	}
	s.needs = ""
	first := s.begins && !s.is(s.token, '(')
	if first {
		s.begin()
	}
	s.harmless()
	switch {
	case first:
	case s.expects != noTable:
		s.table()
		return
	case s.defined > 0:
		s.define()
	}
	switch s.token.Kind {
	case Punct:
		s.bracket()
	case Ident:
		s.clause(first)
	}
}

// begin looks at the first token of a statement behind its brackets.
func (s *tableSurvey) begin() {
	s.begins = false
	switch s.word {
	case "SELECT", "VALUES", "FROM":
	case "DECLARE":
		if s.ahead.Kind == Name {
			s.bind(s.nameOf(s.ahead), value)
		}
	case "DISCARD":
		s.begins = true
	case "INSERT":
		if !s.aheadIs("OR") {
			s.needs = "INTO"
		}
	case "UPSERT", "REPLACE":
		s.needs = "INTO"
	case "DELETE":
		s.needs = "FROM"
	case "UPDATE":
		s.expects = target
	case "PRAGMA":
		s.pragma, s.option = 1, ""
	default:
		if s.token.Kind != Name || !s.is(s.ahead, '=') {
			s.giveUp(whyStatement)
			return
		}
		s.defines, s.defined = s.nameOf(s.token), nameCame
	}
}

// end ends a statement.
func (s *tableSurvey) end() {
	switch {
	case len(s.clauses) > 1:
		s.giveUp(whyBad)
	case s.expects != noTable || s.needs != "":
		s.giveUp(whyNoTable)
	case s.pragma > 0:
		s.endPragma()
	case s.defined >= queryCame:
		s.bind(s.defines, subquery)
	case s.defined > 0:
		s.bind(s.defines, value)
	}
	s.begins, s.pragma, s.defined, s.colons, s.module = true, 0, 0, 0, ""
}

// How much has come of the definition of a named expression.
const (
	nameCame   = 1 + iota // and "=" is next
	equalsCame            // and brackets or SELECT, FROM or VALUES are next, or it is no subquery
	queryCame             // and there are no brackets around all of it
	queryHeld             // and there are
	queryOver             // and the innermost of these, where it began, were closed
)

// define follows the definition of a named expression. It is a subquery if it begins as one, and nothing is done with the result.
func (s *tableSurvey) define() {
	query := s.word == "SELECT" || s.word == "FROM" || s.word == "VALUES" && s.is(s.ahead, '(')
	switch {
	case s.defined == nameCame:
		s.defined = equalsCame
	case s.defined == equalsCame && s.is(s.token, '('):
	case s.defined == equalsCame && query && len(s.clauses) == 1:
		s.defined = queryCame
	case s.defined == equalsCame && query:
		s.defined, s.held = queryHeld, len(s.clauses)
	case s.defined == queryHeld && s.is(s.token, ')') && len(s.clauses) == s.held:
		s.defined = queryOver
	case s.defined == queryOver && s.is(s.token, ')'):
	case s.defined == equalsCame, s.defined == queryOver:
		s.bind(s.defines, value)
		s.defined = 0
	}
}

// bind notes what a name stands for. A name of two meanings could have either where it is read.
func (s *tableSurvey) bind(name string, to meaning) {
	if old := s.named[name]; old != unbound && old != to {
		s.giveUp(whyNamed)
	}
	if s.named[name] = to; len(s.named) > mostNamed {
		s.giveUp(whyMany)
	}
}

// nameOf is the name of a token of the kind Name, without $.
func (s *tableSurvey) nameOf(t Token) string {
	name, ok := s.lex.unquote(t)
	if !ok {
		s.giveUp(whyBad)
	}
	return name
}

// ofPragma looks at a token of a PRAGMA.
func (s *tableSurvey) ofPragma() {
	first := s.pragma == 1
	s.pragma++
	switch {
	case strings.HasSuffix(s.option, "="): // its values follow
		switch {
		case s.token.Kind == Number, s.is(s.token, ','), s.is(s.token, ')'):
		case s.token.Kind != String:
			s.giveUp(whyStatement)
		case s.option == "TABLEPATHPREFIX=":
			s.ofPrefix()
		}
	case s.is(s.token, '='), s.is(s.token, '('):
		s.option += "="
	case s.token.Kind == Ident && (first || strings.HasSuffix(s.option, ".")):
		s.option += s.word
	case s.is(s.token, '.') && !first:
		s.option += "."
	default:
		s.giveUp(whyStatement)
	}
	if len(s.option) > longest {
		s.giveUp(whyStatement)
	}
}

// ofPrefix takes the value of PRAGMA TablePathPrefix.
func (s *tableSurvey) ofPrefix() {
	path, ok := s.lex.unquote(s.token)
	last := s.lex.text[s.token.End-1] // or a letter behind the quotes gives it another type
	if !ok || path == "" || path[0] != '/' || last != '"' && last != '\'' || s.prefix != "" || s.tables != nil {
		s.giveUp(whyPrefix)
	}
	s.prefix = path
}

func (s *tableSurvey) endPragma() {
	name := strings.TrimSuffix(s.option, "=")
	switch {
	case !pragmas[name]:
		s.giveUp(whyStatement)
	case name == "TABLEPATHPREFIX" && s.prefix == "":
		s.giveUp(whyPrefix)
	}
}

// running reports whether a word may run something that the survey does not follow, wherever it is.
func running(word string) bool {
	switch word {
	case "INSERT", "UPSERT", "REPLACE", "UPDATE", "DELETE", "DISCARD", "INTO", "SET":
		return false // begin and clause follow these
	}
	return acting[word]
}

// harmless gives up at whatever may do more than calculate.
func (s *tableSurvey) harmless() {
	switch {
	case s.is(s.token, '{'), s.is(s.token, '}'):
		s.giveUp(whyBraces)
	case running(s.word):
		s.giveUp(whyWord)
	case s.is(s.token, '>') && s.is(s.before, '-') && s.before.End == s.token.Start:
		s.lambda = true
	}
	if s.lambda && s.reads { // the name that FROM reads may be an argument
		s.giveUp(whyNamed)
	}
	if s.is(s.token, ':') {
		if s.colons++; s.colons >= 2 && !modules[s.module] {
			s.giveUp(whyModule)
		}
		return
	}
	s.colons, s.module = 0, s.word
}

// table takes the table that was to come.
func (s *tableSurvey) table() {
	kind, at := s.expects, len(s.clauses)-1
	if kind == source && s.is(s.token, '(') { // a subquery, or a table that others are joined to
		s.open(true)
		return
	}
	s.expects = noTable
	switch {
	case kind == source && s.is(s.before, '(') && (s.word == "SELECT" || s.word == "FROM" || s.word == "VALUES" && s.is(s.ahead, '(')):
		s.clauses[at] = false
		s.clause(true)
		return
	case kind == source && s.word == "AS_TABLE" && s.is(s.ahead, '('): // rows of an expression
		return
	case kind == source && s.token.Kind == Name:
		if s.reads = true; s.named[s.nameOf(s.token)] != subquery {
			s.giveUp(whyNamed)
		}
	case s.token.Kind == Ident && s.word != "ANY", s.token.Kind == QuotedIdent:
		s.add()
	default:
		s.giveUp(whyNoTable)
	}
	// Nothing may follow that would make it a part of another name, or the name of a function.
	switch {
	case s.ahead.Kind == EOF, s.ahead.Kind == Ident, s.is(s.ahead, ';'):
	case kind == source && (s.ahead.Kind == QuotedIdent || s.is(s.ahead, ')') || s.is(s.ahead, ',')):
	case kind == target && s.is(s.ahead, '('): // its columns
	default:
		s.giveUp(whyNoTable)
	}
}

// add lists a table.
func (s *tableSurvey) add() {
	name, ok := s.lex.unquote(s.token)
	switch {
	case !ok || name == "":
		s.giveUp(whyBad)
		return
	case s.prefix != "" && name[0] != '/':
		name = strings.TrimRight(s.prefix, "/") + "/" + name
	}
	if slices.Contains(s.tables, name) {
		return
	}
	if s.tables = append(s.tables, name); len(s.tables) > mostTables {
		s.giveUp(whyMany)
	}
}

// open enters brackets.
func (s *tableSurvey) open(clause bool) {
	if s.clauses = append(s.clauses, clause); len(s.clauses) > mostBrackets {
		s.giveUp(whyDeep)
	}
}

// bracket looks at a character of punctuation.
func (s *tableSurvey) bracket() {
	at := len(s.clauses) - 1
	switch {
	case s.is(s.token, '('):
		s.open(false)
	case s.is(s.token, ')') && at == 0:
		s.giveUp(whyBad)
	case s.is(s.token, ')'):
		s.clauses = s.clauses[:at]
	case s.is(s.token, ',') && s.clauses[at]:
		s.expects = source
	}
}

// clause looks at a word for a table that must come next, and for the end of a clause FROM, in which commas stand
// between tables. first: the word begins a statement.
func (s *tableSurvey) clause(first bool) {
	at := len(s.clauses) - 1
	switch s.word {
	case "FROM", "JOIN":
		s.expects, s.clauses[at] = source, true
	case "INTO":
		s.expects = target
	case "INSERT", "UPSERT", "UPDATE", "DELETE":
		if !first {
			s.giveUp(whyStatement)
		}
	default:
		if !s.isName() && s.endsClause() {
			s.clauses[at] = false
		}
	}
}

// isName reports whether the word is a name, whatever it says: a column behind a dot, a function of a module, an
// alias, an index, a hint, a window. That is what YDB's grammar (SQLv1Antlr4.g.in) has between FROM and WHERE where it takes an id,
// which any keyword is.
func (s *tableSurvey) isName() bool {
	switch s.beforeWord {
	case "AS", "VIEW", "WITH", "OVER":
		return true
	}
	return s.is(s.before, '.') || s.is(s.before, ':')
}

// endsClause reports whether no table follows in the clause FROM. A word that could be an alias
// counts only with the word behind it, and not before a bracket, in which an alias names columns.
func (s *tableSurvey) endsClause() bool {
	switch s.word {
	case "WHERE", "SELECT", "RETURNING":
		return !s.is(s.ahead, ',')
	case "GROUP":
		return s.aheadIs("BY", "COMPACT")
	case "ORDER":
		return s.aheadIs("BY")
	case "ASSUME":
		return s.aheadIs("ORDER")
	case "LIMIT":
		return s.ahead.Kind == Number || s.ahead.Kind == Name
	case "UNION", "INTERSECT", "EXCEPT":
		return s.aheadIs("ALL", "DISTINCT", "SELECT", "FROM", "VALUES")
	}
	return false
}
