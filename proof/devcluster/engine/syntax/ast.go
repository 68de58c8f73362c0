// Package syntax reads the text of the YQL subset: it cuts it into tokens and
// builds a tree. It knows no tables and no types of expressions.
//
// Parse never panics and always ends: the text, the nesting and the length of
// chains are bounded. Every node knows its place, every error names the
// construct and the place.
package syntax

import "github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"

// Script is a whole text.
type Script struct{ Statements []Statement }

// Statement is one of the statement types below.
type Statement interface{ At() Pos }

// At returns the place itself; nodes get the method by embedding their Pos.
func (p Pos) At() Pos { return p }

// Statements.
type (
	// Pragma is PRAGMA Name = Value, or PRAGMA Name("Value").
	Pragma struct {
		Pos
		Name, Value string
	}
	// Declare is DECLARE $name AS type.
	Declare struct {
		Pos
		Name string // with the dollar sign
		Type *value.Type
	}
	// Assign is $name = expression, or $name = SELECT ...
	Assign struct {
		Pos
		Name string
		X    Expr
	}
	// SelectStmt is a query whose rows are a result set.
	SelectStmt struct {
		Pos
		Query *Query
	}
	// Write is INSERT, UPSERT or REPLACE INTO table.
	Write struct {
		Pos
		Verb    Verb
		Table   Name
		Columns []Name // empty: by the names of the source
		Source  *Source
	}
	// Update is UPDATE table SET ... WHERE, or UPDATE table ON source.
	Update struct {
		Pos
		Table     Name
		Set       []SetItem
		Where     Expr
		On        *Source
		OnColumns []Name
	}
	// Delete is DELETE FROM table WHERE, or DELETE FROM table ON source.
	Delete struct {
		Pos
		Table     Name
		Where     Expr
		On        *Source
		OnColumns []Name
	}
	// CreateTable is CREATE TABLE.
	CreateTable struct {
		Pos
		Table       Name
		IfNotExists bool
		Columns     []ColumnDef
		Key         []Name
		Indexes     []IndexDef
		KeyBloom    *bool // KEY_BLOOM_FILTER; nil: not said
	}
	// DropTable is DROP TABLE.
	DropTable struct {
		Pos
		Table    Name
		IfExists bool
	}
	// AlterTable is ALTER TABLE with ADD of columns and SET of settings.
	AlterTable struct {
		Pos
		Table    Name
		Add      []ColumnDef
		KeyBloom *bool // KEY_BLOOM_FILTER; nil: not said
	}
)

// Verb is how a write treats existing rows.
type Verb uint8

// The verbs.
const (
	Insert  Verb = iota + 1 // an existing key is an error
	Upsert                  // other columns of an existing row stay
	Replace                 // other columns get NULL
)

func (v Verb) String() string { return [...]string{"", "INSERT", "UPSERT", "REPLACE"}[v] }

// Name is an identifier with its place.
type Name struct {
	Pos
	Text string
}

// ColumnDef is a column in CREATE TABLE.
type ColumnDef struct {
	Name    Name
	Type    *value.Type
	NotNull bool
}

// IndexDef is an index in CREATE TABLE.
type IndexDef struct {
	Name    Name
	Async   bool
	Columns []Name
	Cover   []Name
}

// SetItem is column = expression.
type SetItem struct {
	Column Name
	X      Expr
}

// Source is where a write takes its rows from: exactly one field is set.
type Source struct {
	Query  *Query
	Values [][]Expr
}

// Query is one SELECT, or several joined by UNION ALL, with order and limit.
type Query struct {
	Pos
	Selects []*Select
	OrderBy []OrderItem
	Limit   Expr
}

// OrderItem is one expression of ORDER BY.
type OrderItem struct {
	X    Expr
	Desc bool
}

// Select is one SELECT without order and limits.
type Select struct {
	Pos
	Items []SelectItem
	From  *From
	Where Expr
}

// SelectItem is one expression of a SELECT list, or a star.
type SelectItem struct {
	Pos
	Star  bool
	Table string // of table.*
	X     Expr
	As    string
}

// From is a source of rows: a join if Join is set, else one of Table, Param and Rows.
type From struct {
	Pos
	Alias string
	Table *Name  // a table by its path
	View  *Name  // and the index to read it through
	Param string // FROM $name
	Rows  Expr   // FROM AS_TABLE(expression)

	Join        JoinKind
	Left, Right *From
	On          Expr
}

// JoinKind is the kind of a join.
type JoinKind uint8

// The joins of the subset.
const (
	NoJoin JoinKind = iota
	InnerJoin
	LeftJoin // rows of the left side without a match come out as well
)

// Expr is one of the expression types below.
type Expr interface{ At() Pos }

// Expressions.
type (
	// Literal is a constant with its type.
	Literal struct {
		Pos
		Type  *value.Type
		Value value.Value
	}
	// Param is $name: a parameter or a named expression.
	Param struct {
		Pos
		Name string
	}
	// Column is name or table.name.
	Column struct {
		Pos
		Table, Name string
	}
	// Unary is an operator before an expression: - + NOT.
	Unary struct {
		Pos
		Op string
		X  Expr
	}
	// Binary is an operator between two expressions.
	Binary struct {
		Pos
		Op   string
		L, R Expr
	}
	// Logic is a chain of AND or OR.
	Logic struct {
		Pos
		Op   string
		Args []Expr
	}
	// IsNull is x IS [NOT] NULL.
	IsNull struct {
		Pos
		X   Expr
		Not bool
	}
	// Between is x [NOT] BETWEEN Lo AND Hi.
	Between struct {
		Pos
		X, Lo, Hi Expr
		Not       bool
	}
	// In is x [NOT] IN (list), or IN over one expression, a list.
	In struct {
		Pos
		X    Expr
		List []Expr
		Over Expr
		Not  bool
	}
	// Call is a function or an aggregate.
	Call struct {
		Pos
		Name string // as written, with :: if qualified
		Args []Expr
		Star bool // COUNT(*)
	}
	// Cast is CAST(x AS type).
	Cast struct {
		Pos
		X    Expr
		Type *value.Type
	}
	// TypeArg is a type where a function takes one, as in Nothing(Int32?).
	TypeArg struct {
		Pos
		Type *value.Type
	}
	// Sub is a query in brackets.
	Sub struct {
		Pos
		Query *Query
	}
	// ListOf is [a, b].
	ListOf struct {
		Pos
		Items []Expr
	}
	// TupleOf is (a, b).
	TupleOf struct {
		Pos
		Items []Expr
	}
	// StructOf is <|a: 1, b: 2|>.
	StructOf struct {
		Pos
		Names []string
		Items []Expr
	}
)
