package syntax

// Walk calls f for x and every expression in it, except those inside queries.
func Walk(x Expr, f func(Expr)) {
	if x == nil {
		return
	}
	f(x)
	for _, sub := range children(x) {
		Walk(sub, f)
	}
}

func children(x Expr) []Expr {
	switch x := x.(type) {
	case *Unary:
		return []Expr{x.X}
	case *Binary:
		return []Expr{x.L, x.R}
	case *Logic:
		return x.Args
	case *IsNull:
		return []Expr{x.X}
	case *Between:
		return []Expr{x.X, x.Lo, x.Hi}
	case *In:
		return append([]Expr{x.X, x.Over}, x.List...)
	case *Call:
		return x.Args
	case *Cast:
		return []Expr{x.X}
	case *ListOf:
		return x.Items
	case *TupleOf:
		return x.Items
	case *StructOf:
		return x.Items
	}
	return nil
}

// visitor goes through a whole script, queries included.
type visitor struct {
	expr func(Expr)
	from func(*From)
}

func (v visitor) script(s *Script) {
	for _, st := range s.Statements {
		switch st := st.(type) {
		case *Assign:
			v.in(st.X)
		case *SelectStmt:
			v.query(st.Query)
		case *Write:
			v.source(st.Source)
		case *Update:
			for _, set := range st.Set {
				v.in(set.X)
			}
			v.in(st.Where)
			v.source(st.On)
		case *Delete:
			v.in(st.Where)
			v.source(st.On)
		}
	}
}

func (v visitor) in(x Expr) {
	Walk(x, func(x Expr) {
		v.expr(x)
		if sub, ok := x.(*Sub); ok {
			v.query(sub.Query)
		}
	})
}

func (v visitor) items(items []SelectItem) {
	for _, it := range items {
		v.in(it.X)
	}
}

func (v visitor) source(s *Source) {
	if s == nil {
		return
	}
	v.query(s.Query)
	for _, row := range s.Values {
		for _, x := range row {
			v.in(x)
		}
	}
}

func (v visitor) query(q *Query) {
	if q == nil {
		return
	}
	for _, s := range q.Selects {
		v.items(s.Items)
		v.fromItem(s.From)
		v.in(s.Where)
	}
	for _, o := range q.OrderBy {
		v.in(o.X)
	}
	v.in(q.Limit)
}

func (v visitor) fromItem(f *From) {
	if f == nil {
		return
	}
	v.from(f)
	v.in(f.Rows)
	v.fromItem(f.Left)
	v.fromItem(f.Right)
	v.in(f.On)
}

// Undeclared returns the names ($name) that the script uses and neither declares nor
// assigns, each once.
func Undeclared(s *Script) []string {
	known := map[string]bool{}
	for _, st := range s.Statements {
		switch st := st.(type) {
		case *Declare:
			known[st.Name] = true
		case *Assign:
			known[st.Name] = true
		}
	}
	var out []string
	use := func(name string) {
		if name != "" && !known[name] {
			known[name] = true
			out = append(out, name)
		}
	}
	visitor{
		expr: func(x Expr) {
			if p, ok := x.(*Param); ok {
				use(p.Name)
			}
		},
		from: func(f *From) { use(f.Param) },
	}.script(s)
	return out
}

// NamesTables reports whether the script reads or writes tables.
func NamesTables(s *Script) bool {
	found := false
	for _, st := range s.Statements {
		switch st.(type) {
		case *Write, *Update, *Delete:
			return true
		}
	}
	visitor{expr: func(Expr) {}, from: func(f *From) { found = found || f.Table != nil }}.script(s)
	return found
}
