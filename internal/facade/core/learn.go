package core

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Issue"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// The plain rule makes an untyped integer Int64, and YDB converts none to the
// column's type: the statement fails when it is compiled, and nothing has run. The
// refusal names the column and its type, so a statement that may be repeated is
// repeated with that type, and its text is remembered. Otherwise the hint says what
// to write.

// maxLearnt is from how many refusals one call learns: each teaches one column, or more.
const maxLearnt = 32

// issueTypeAnnotation is the code of YDB's issue that a text fails to compile.
const issueTypeAnnotation = 1030

// mismatch is a value of one type where the server wants another.
type mismatch struct {
	column   string // "": of LIMIT or OFFSET
	from, to *Ydb.Type
}

var mismatchText = regexp.MustCompile(`^Failed to convert (?:type|'(.+)'): (\S.*) to (\S.*)$`)

// mismatches returns what issues say of types. YDB puts the types of all columns of
// a row into one issue, and the first that does not fit into another, below it.
func mismatches(issues []*Ydb_Issue.IssueMessage, depth int) (exact, rows []mismatch) {
	if depth == maxIssueDepth {
		return nil, nil
	}
	for _, issue := range issues {
		if m := mismatchText.FindStringSubmatch(issue.GetMessage()); m != nil {
			from, errFrom := yql.ParseType(m[2])
			to, errTo := yql.ParseType(m[3])
			switch {
			case errFrom != nil || errTo != nil:
			case m[1] != "" || yql.IsInteger(from):
				exact = append(exact, mismatch{m[1], from, required(to)})
			default:
				rows = append(rows, columns(from, to)...)
			}
		}
		e, r := mismatches(issue.GetIssues(), depth+1)
		exact, rows = append(exact, e...), append(rows, r...)
	}
	return exact, rows
}

// columns compares the types of two rows, or of lists of them.
func columns(from, to *Ydb.Type) (all []mismatch) {
	if from.GetListType() != nil {
		from, to = from.GetListType().GetItem(), to.GetListType().GetItem()
	}
	for _, m := range from.GetStructType().GetMembers() {
		for _, other := range to.GetStructType().GetMembers() {
			if t := required(other.GetType()); other.GetName() == m.GetName() && !yql.EqualTypes(m.GetType(), t) {
				all = append(all, mismatch{m.GetName(), m.GetType(), t})
			}
		}
	}
	return all
}

// required is a type without Optional.
func required(t *Ydb.Type) *Ydb.Type {
	if o := t.GetOptionalType(); o != nil {
		return o.GetItem()
	}
	return t
}

// learn returns a statement with the types that the database's refusal teaches; nil
// if it teaches none. What it learns counts for the text from now on.
func (s *Service) learn(in Spec, st *Statement, err error) *Statement {
	e, ok := errors.AsType[*upstream.Error](err)
	if !ok || e.Status != Ydb.StatusIds_GENERIC_ERROR || st.Params.Len() == 0 ||
		!slices.ContainsFunc(e.Issues, func(i *Ydb_Issue.IssueMessage) bool { return i.GetIssueCode() == issueTypeAnnotation }) {
		return nil
	}
	exact, rows := mismatches(e.Issues, 0)
	all := slices.DeleteFunc(append(exact, rows...), func(m mismatch) bool { return !yql.IsInteger(m.from) || !yql.IsInteger(m.to) })
	if len(all) == 0 {
		return nil
	}
	uses, single := yql.Uses(in.SQL)
	if !single { // of several, the first ones may have run
		return nil
	}
	learnt := make(map[string]*Ydb.Type)
	for _, m := range all {
		for i := range st.Params.Len() {
			name, t := st.Params.At(i)
			if bare := yql.ParamName(name); servesAlone(uses[bare], t, m) {
				learnt[bare] = mended(cmp.Or(learnt[bare], t), m)
			}
		}
	}
	if len(learnt) == 0 {
		return nil
	}
	s.Cached.learn(in.SQL, learnt)
	again, err := s.prepareWith(in, true, learnt)
	if err != nil || sameTypes(st.Params, again.Params) {
		return nil
	}
	return again
}

// sameTypes reports whether parameters have the types of others of the same names.
func sameTypes(a, b *upstream.Params) bool {
	for i := range a.Len() {
		_, t := a.At(i)
		if _, other := b.At(i); !yql.EqualTypes(t, other) {
			return false
		}
	}
	return true
}

// serves reports whether a parameter of type t is what a mismatch is about.
func serves(u *yql.Use, t *Ydb.Type, m mismatch) bool {
	if u == nil {
		return false
	}
	member := func(x *Ydb.StructMember) bool {
		return x.GetName() == m.column && yql.EqualTypes(x.GetType(), m.from)
	}
	return slices.Contains(u.Columns, m.column) && yql.EqualTypes(t, m.from) ||
		u.Rows && slices.ContainsFunc(t.GetListType().GetItem().GetStructType().GetMembers(), member)
}

// servesAlone reports whether it also serves nothing else, so that another type
// changes nothing else.
func servesAlone(u *yql.Use, t *Ydb.Type, m mismatch) bool {
	return serves(u, t, m) && !u.Elsewhere && u.Rows == (len(u.Columns) == 0) &&
		!slices.ContainsFunc(u.Columns, func(c string) bool { return c != m.column })
}

// mended is the type t of a parameter with the type that a mismatch asks for.
func mended(t *Ydb.Type, m mismatch) *Ydb.Type {
	if t.GetListType() == nil {
		return m.to
	}
	t = proto.CloneOf(t)
	for _, member := range t.GetListType().GetItem().GetStructType().GetMembers() {
		if member.GetName() == m.column {
			member.Type = m.to
		}
	}
	return t
}

// maxHinted is how many parameters a hint names.
const maxHinted = 3

// hinted says in a fault what to write where a parameter has another type than its
// column.
func hinted(err error, st *Statement) error {
	f, ok := errors.AsType[*Fault](err)
	if !ok || f.YDB != Ydb.StatusIds_GENERIC_ERROR.String() || st.Params.Len() == 0 {
		return err
	}
	exact, rows := mismatches(f.issues, 0)
	exact = append(exact, rows...)
	if len(exact) == 0 {
		return err
	}
	m := exact[0]
	uses, _ := yql.Uses(st.SQL)
	having := func(fits func(name string, t *Ydb.Type) bool) (out []hintable) {
		for i := range st.Params.Len() {
			name, t := st.Params.At(i)
			if len(out) < maxHinted && fits(yql.ParamName(name), t) {
				out = append(out, hintable{name, t})
			}
		}
		return out
	}
	verb := "is"
	found := having(func(name string, t *Ydb.Type) bool { return serves(uses[name], t, m) })
	if len(found) == 0 {
		verb = "may be"
		found = having(func(_ string, t *Ydb.Type) bool { return yql.EqualTypes(t, m.from) })
	}
	return f.With(func(f *Fault) { f.hint = Clip(m.hint(found, verb), MaxMessage) })
}

// hintable is a parameter that a hint names.
type hintable struct {
	name string
	t    *Ydb.Type
}

// hint says what to write for the parameters that are, or may be, the cause.
func (m mismatch) hint(params []hintable, verb string) string {
	from, to := yql.FormatType(m.from), yql.FormatType(m.to)
	what := fmt.Sprintf("column %s is %s, and its value is %s", m.column, to, from)
	if m.column == "" {
		what = fmt.Sprintf("%s is wanted, and the value is %s", to, from)
	}
	if len(params) == 0 {
		return what + "; write CAST(... AS " + to + ")"
	}
	var names, declare, types []string
	for _, p := range params {
		name, t := p.name, yql.FormatType(mended(p.t, m))
		names = append(names, name)
		declare = append(declare, fmt.Sprintf("DECLARE %s AS %s;", name, t))
		types = append(types, fmt.Sprintf("%q: %q", yql.ParamName(name), t))
	}
	return fmt.Sprintf("%s, which %s %s; write %s in the statement, or name the type in the request: \"types\": {%s}",
		what, verb, strings.Join(names, " or "), strings.Join(declare, " "), strings.Join(types, ", "))
}
