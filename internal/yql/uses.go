package yql

import (
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
)

// Use says where a text uses one parameter.
type Use struct {
	// Columns are those whose value it is, as it stands: in VALUES, in SET, or
	// named so behind AS. LIMIT and OFFSET count as the column "".
	Columns   []string
	Rows      bool // AS_TABLE($name)
	Elsewhere bool // in any other way
}

// maxSteps is how many tokens of a text are looked at. Those within parentheses count
// again for each VALUES and SET around them, so the bytes of a text set another bound: TestStepsOfTexts
// was led to texts of 6 KB whose tokens were looked at eighty times each.
const maxSteps = 1 << 19

// stepsOf is how many may be looked at of a text.
func stepsOf(text string) int { return min(maxSteps, 4*len(text)+256) }

// Uses returns how a text uses its parameters, by name without the dollar; what
// DECLARE says does not count. single reports whether the text is one statement,
// not counting DECLARE and PRAGMA. Of a text that takes more than stepsOf it
// returns nothing.
func Uses(text string) (uses map[string]*Use, single bool) {
	uses, single, _ = usesWithin(text, stepsOf(text))
	return uses, single
}

// usesWithin is Uses with a number of steps; left is how many of them it did not take,
// below 0 if they were too few.
func usesWithin(text string, steps int) (uses map[string]*Use, single bool, left int) {
	lex := NewLexer(text)
	uses = make(map[string]*Use)
	if lex.pg {
		return uses, false, steps
	}
	statements := 0
	for end := false; !end; {
		u := usage{lex: lex, steps: steps}
		for u.step() {
			t := lex.Next()
			if end = t.Kind == EOF; end || lex.Text(t) == ";" {
				break
			}
			u.tokens = append(u.tokens, t)
		}
		if len(u.tokens) > 0 && !u.isWord(0, "DECLARE") && !u.isWord(0, "PRAGMA") {
			statements++
			u.find(uses)
		}
		if steps = u.steps; steps < 0 {
			return nil, false, steps
		}
	}
	return uses, statements == 1, steps
}

// usage are the tokens of one statement.
type usage struct {
	lex    *Lexer
	tokens []Token
	column map[int]string // of a parameter that is all of a column's value, by its token
	steps  int            // how many are left; below 0: there were too few
}

// step reports whether one more token may be looked at.
func (u *usage) step() bool {
	u.steps--
	return u.steps >= 0
}

func (u *usage) is(i int, punct string) bool {
	return i >= 0 && i < len(u.tokens) && u.tokens[i].Kind == Punct && u.lex.Text(u.tokens[i]) == punct
}

// isWord reports whether a keyword stands there; "" is the end of the statement.
func (u *usage) isWord(i int, words ...string) bool {
	for _, w := range words {
		if i == len(u.tokens) && w == "" ||
			i >= 0 && i < len(u.tokens) && u.tokens[i].Kind == Ident && strings.EqualFold(u.lex.Text(u.tokens[i]), w) {
			return true
		}
	}
	return false
}

func (u *usage) isParam(i int) bool { return i < len(u.tokens) && u.tokens[i].Kind == Name }

// name returns the name that stands there; "" if none does.
func (u *usage) name(i int) string {
	if i < 0 || i >= len(u.tokens) || u.tokens[i].Kind != Ident && u.tokens[i].Kind != QuotedIdent {
		return ""
	}
	u.steps -= (u.tokens[i].End - u.tokens[i].Start) / 16 // all of it is read, each time
	name, _ := u.lex.unquote(u.tokens[i])
	return name
}

func (u *usage) find(uses map[string]*Use) {
	u.column = make(map[int]string)
	for i := range u.tokens {
		switch {
		case u.isWord(i, "VALUES"):
			u.values(i)
		case u.isWord(i, "SET"):
			u.set(i + 1)
		case u.isWord(i, "LIMIT", "OFFSET") && u.isParam(i+1) && (u.isWord(i+2, "", "OFFSET") || u.is(i+2, ")")):
			u.column[i+1] = ""
		case u.isParam(i) && (u.isWord(i-1, "SELECT") || u.is(i-1, ",")) && u.isWord(i+1, "AS") && u.name(i+2) != "" &&
			(u.isWord(i+3, "", "FROM") || u.is(i+3, ",") || u.is(i+3, ")")):
			u.column[i] = u.name(i + 2)
		}
	}
	for i, t := range u.tokens {
		if t.Kind != Name {
			continue
		}
		name, _ := u.lex.unquote(t)
		use := uses[name]
		if use == nil {
			use = new(Use)
			uses[name] = use
		}
		switch column, ok := u.column[i]; {
		case ok:
			use.Columns = append(use.Columns, column)
		case u.isWord(i-2, "AS_TABLE") && u.is(i-1, "(") && u.is(i+1, ")"):
			use.Rows = true
		default:
			use.Elsewhere = true
		}
	}
}

// values reads (columns) VALUES (row), (row): i is where VALUES stands.
func (u *usage) values(i int) {
	if !u.is(i-1, ")") { // looked at first, so that no list of names is read twice
		return
	}
	last := i - 2
	first := last
	for u.step() && u.name(first) != "" && u.is(first-1, ",") {
		first -= 2
	}
	if u.name(first) == "" || !u.is(first-1, "(") {
		return
	}
	for i++; u.is(i, "("); i++ {
		start, k := i+1, first
		for depth := 1; depth > 0; {
			if i++; i >= len(u.tokens) || !u.step() {
				return
			}
			switch {
			case u.is(i, "("):
				depth++
			case u.is(i, ")"):
				depth--
			}
			if depth == 0 || depth == 1 && u.is(i, ",") {
				if i == start+1 && u.isParam(start) && k <= last {
					u.column[start] = u.name(k)
				}
				start, k = i+1, k+2
			}
		}
		if i++; !u.is(i, ",") {
			return
		}
	}
}

// set reads name = value, name = value from token i on.
func (u *usage) set(i int) {
	for u.step() && u.name(i) != "" && u.is(i+1, "=") {
		if start, name := i+2, u.name(i); u.isParam(start) && (u.is(start+1, ",") || u.isWord(start+1, "", "WHERE", "ON", "RETURNING")) {
			u.column[start] = name
		}
		depth := 0
		for i += 2; i < len(u.tokens) && (depth > 0 || !u.is(i, ",")) && u.step(); i++ {
			switch {
			case u.is(i, "("):
				depth++
			case u.is(i, ")"):
				depth--
			}
		}
		i++
	}
}

// Returns reports whether a text has the word RETURNING, with which statements that change rows return them.
func Returns(text string) bool {
	lex := NewLexer(text)
	for {
		switch t := lex.Next(); {
		case t.Kind == EOF, t.Kind == Bad:
			return false
		case t.Kind == Ident && strings.EqualFold(lex.Text(t), "RETURNING"):
			return true
		}
	}
}

// WithIntegers reports whether t is like plain, a type of the plain rule, in all
// but its integers: where plain has Int64 or Uint64, t may have any integer type.
func WithIntegers(plain, t *Ydb.Type) bool {
	if EqualTypes(plain, t) {
		return true
	}
	switch x := plain.GetType().(type) {
	case *Ydb.Type_TypeId:
		return IsInteger(plain) && IsInteger(t)
	case *Ydb.Type_OptionalType:
		return isOptional(t) && WithIntegers(x.OptionalType.GetItem(), t.GetOptionalType().GetItem())
	case *Ydb.Type_ListType:
		return t.GetListType() != nil && WithIntegers(x.ListType.GetItem(), t.GetListType().GetItem())
	case *Ydb.Type_StructType:
		members := t.GetStructType().GetMembers()
		if t.GetStructType() == nil || len(members) != len(x.StructType.GetMembers()) {
			return false
		}
		for i, m := range x.StructType.GetMembers() {
			if m.GetName() != members[i].GetName() || !WithIntegers(m.GetType(), members[i].GetType()) {
				return false
			}
		}
		return true
	}
	return false
}

// IsInteger reports whether a type is one of the eight integers.
func IsInteger(t *Ydb.Type) bool {
	switch t.GetTypeId() {
	case Ydb.Type_INT8, Ydb.Type_INT16, Ydb.Type_INT32, Ydb.Type_INT64, Ydb.Type_UINT8, Ydb.Type_UINT16, Ydb.Type_UINT32, Ydb.Type_UINT64:
		return true
	}
	return false
}
