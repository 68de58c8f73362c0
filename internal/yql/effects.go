package yql

import (
	"cmp"
	"slices"
	"strings"
)

// Effects is what a text may leave behind when its answer is lost, or is an error.
type Effects uint8

// The effects.
const (
	Whole  Effects = iota // all of it is kept or nothing; also what is not known to be one of the others
	Reads                 // nothing: it certainly only reads
	Parts                 // some of it may be kept and the rest not: YDB runs statements outside of a transaction
	Schema                // one statement outside of a transaction, such as CREATE: YDB may go on with it after an error
)

// reading are the words with which a statement begins that reads, changing those that
// one transaction keeps or loses with all others of the text, and telling those of statements about others, which change nothing.
var (
	reading  = []string{"SELECT", "VALUES", "FROM"}
	changing = []string{"INSERT", "UPSERT", "UPDATE", "DELETE", "REPLACE", "DISCARD"}
	telling  = []string{"EXPLAIN", "SHOW"}
)

// acting are words that no text has which only reads. Names without quotes count as well:
// a text with a column called update is not certain. A name in quotes counts if a bracket
// follows: it may be the name of a function.
var acting = words(changing, []string{
	"CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE", "ANALYZE", "BACKUP", "RESTORE", "COMMIT",
	"ROLLBACK", "BATCH", "EVALUATE",
	"DO", "DEFINE", "IMPORT", "EXPORT", "LIBRARY", "PROCESS", "REDUCE", "INTO", "MERGE", "CALL", "EXECUTE", "LOCK", "USE", "KILL", "SET",
	"UDF", "PGCALL", "CALLABLE", "EVALUATEEXPR", "EVALUATEATOM", "EVALUATECODE", "EVALUATETYPE", "PARSEFILE",
})

// steps are words of texts that run in steps of their own, in whatever statement they are.
var steps = words([]string{"BATCH", "COMMIT", "ROLLBACK", "EVALUATE", "DO", "DEFINE"})

// schema are the words of statements that YDB runs outside of the transaction of the text; they
// stand in for the statements of a text that cannot be read.
var schema = words([]string{"CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE", "ANALYZE", "BACKUP", "RESTORE", "OBJECT"})

// modules are those whose functions only calculate.
var modules = words([]string{
	"DateTime", "Digest", "Histogram", "Hyperscan", "Ip", "Json", "Json2", "Knn", "Math", "Pcre", "Pire", "Re2",
	"Roaring", "Stat", "String",
	"TopFreq", "Unicode", "Url", "Yson",
})

// pragmas are those that only say how to read.
var pragmas = words([]string{
	"TablePathPrefix", "AnsiInForEmptyOrNullableItemsCollections", "AnsiLike", "AnsiCurrentRow",
	"AnsiOrderByLimitInUnionAll", "AnsiOptionalAs",
	"AnsiRankForNullableKeys", "AnsiImplicitCrossJoin", "ClassicDivision", "CoalesceJoinKeysOnQualifiedAll",
	"SimpleColumns", "DisableSimpleColumns",
	"OrderedColumns", "PositionalUnionAll", "DistinctOverKeys", "JsonQueryReturnsJsonDocument", "Warning", "CheckedOps", "UnicodeLiterals",
	"ydb.CostBasedOptimizationLevel", "ydb.OptimizerHints", "ydb.OverrideStatistics", "ydb.HashJoinMode", "kikimr.UseNewEngine",
})

// known are all words above, and the others that matter, in capitals.
var known = func() map[string]string {
	all := map[string]string{}
	for _, list := range []map[string]bool{acting, steps, schema, modules, pragmas,
		words(reading, telling, []string{"DECLARE", "PRAGMA", "VIEW", "TABLE", "AS"})} {
		for name := range list {
			for w := range strings.SplitSeq(name, ".") {
				all[w] = w
			}
		}
	}
	return all
}()

// longest is the length of the longest word that is known, or more.
const longest = 48

// wordOf is a name or keyword in capitals; "" if it is not known. It allocates nothing.
func wordOf(text string) string {
	var b [longest]byte
	if len(text) > longest {
		return ""
	}
	for i := range len(text) {
		if b[i] = text[i]; 'a' <= b[i] && b[i] <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return known[string(b[:len(text)])]
}

func words(lists ...[]string) map[string]bool {
	all := map[string]bool{}
	for _, list := range lists {
		for _, w := range list {
			all[strings.ToUpper(w)] = true
		}
	}
	return all
}

// EffectsOf reads a text for what it may leave behind, by its words alone: what it cannot
// tell is not Reads, and Parts or Schema where statements outside of a transaction are possible.
func EffectsOf(text string) Effects {
	s := survey{lex: NewLexer(text), pure: true, begins: true}
	if s.lex.pg {
		return ofWords(text)
	}
	for {
		tok := s.lex.Next()
		if tok.Kind == EOF {
			break
		}
		if tok.Kind == Bad {
			return ofWords(text)
		}
		s.see(tok)
	}
	s.end()
	switch {
	case s.parts || s.others > 0 && s.statements > 1:
		return Parts
	case s.others > 0:
		return Schema
	case s.pure && s.statements > 0:
		return Reads
	}
	return Whole
}

// ofWords is EffectsOf for a text that the lexer does not understand.
func ofWords(text string) Effects {
	for text := range strings.FieldsFuncSeq(text, func(r rune) bool { return r > 'z' || !isLetter(byte(r)) && !isDigit(byte(r)) }) {
		if word := wordOf(text); schema[word] || steps[word] {
			return Parts
		}
	}
	return Whole
}

// survey is what is known of a text up to a token.
type survey struct {
	lex        *Lexer
	begins     bool   // a statement begins
	first      string // word of this statement; "$" of a named expression, "" of none that is known
	braces     int    // around what is next: a lambda has statements of its own
	colons     int    // just before
	before     string // the word before those; "" if it was none that is known
	quoted     string // the word of the name in quotes just before, which may be a function's; "" if it is none that is known
	pragma     string // its name so far
	named      bool   // name is whole
	created    int    // how much of TABLE ... AS has come of this CREATE; -1: it makes a view
	statements int    // statements that read or change something
	others     int    // statements that are not known to be of one transaction with the rest
	pure       bool
	parts      bool
}

func (s *survey) see(tok Token) {
	text := s.lex.Text(tok)
	word := ""
	if tok.Kind == Ident {
		word = wordOf(text)
	}
	if tok.Kind == Punct {
		switch text {
		case ";":
			if s.braces == 0 {
				s.end()
				return
			}
		case "{":
			s.braces++
		case "}":
			s.braces = max(0, s.braces-1)
		}
	}
	if s.quoted != "" && tok.Kind == Punct && text == "(" {
		s.pure = s.pure && !acting[s.quoted]
	}
	s.quoted = ""
	if tok.Kind == QuotedIdent {
		name, _ := s.lex.unquote(tok)
		s.quoted = wordOf(name)
	}
	if s.begins && !(tok.Kind == Punct && text == "(") {
		s.begin(tok, word)
	}
	if word == "OBJECT" && s.first == "UPSERT" && s.before == "UPSERT" {
		s.others++
	}
	s.pure = s.pure && !acting[word]
	s.parts = s.parts || steps[word]
	s.module(tok, text, word)
	s.option(tok, text, word)
	s.create(word)
}

// begin looks at the first token of a statement behind its brackets.
func (s *survey) begin(tok Token, word string) {
	s.begins = false
	switch {
	case tok.Kind == Name:
		s.first = "$"
	case word == "DECLARE", word == "PRAGMA":
		s.first, s.pragma, s.named = word, "", false
	case slices.Contains(reading, word):
		s.first = word
		s.statements++
	case slices.Contains(changing, word), slices.Contains(telling, word):
		s.first, s.pure = word, false
		s.statements++
	default:
		s.first, s.pure = word, false
		s.statements++
		s.others++
	}
}

// end ends a statement.
func (s *survey) end() {
	if s.first == "PRAGMA" {
		s.pure = s.pure && pragmas[s.pragma]
	}
	s.begins, s.first, s.colons, s.before, s.created = true, "", 0, "", 0
}

// module looks for functions of modules that may do more than calculate: module::function.
func (s *survey) module(tok Token, text, word string) {
	if tok.Kind == Punct && text == ":" {
		if s.colons++; s.colons >= 2 {
			s.pure = s.pure && modules[s.before]
		}
		return
	}
	s.colons, s.before = 0, word
}

// option looks at the name of a PRAGMA: up to "=", a bracket or the end.
func (s *survey) option(tok Token, text, word string) {
	switch {
	case s.first != "PRAGMA" || s.named || word == "PRAGMA":
	case tok.Kind == Punct && (text == "=" || text == "("):
		s.named = true
	case len(s.pragma) < longest && (word != "" || text == "."):
		s.pragma += cmp.Or(word, text)
	default:
		s.pure = false
	}
}

// create looks for CREATE TABLE ... AS SELECT, which makes a table and then fills it.
func (s *survey) create(word string) {
	if s.first != "CREATE" {
		return
	}
	switch {
	case word == "VIEW" && s.created == 0:
		s.created = -1 // AS belongs to it
	case word == "TABLE" && s.created == 0:
		s.created = 1
	case word == "AS" && s.created > 0:
		s.created = 2
	case s.created == 2 && slices.Contains(reading, word):
		s.parts = true
	}
}
