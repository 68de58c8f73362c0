package core

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/pool"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// Values are the named values of a request, as its API decoded them: the
// parameters of a statement, or the columns of a row.
type Values interface {
	Names() []string
	// Typed converts one value. Without a type, the value's own or the plain rule counts.
	Typed(name string, t *Ydb.Type) (*Ydb.TypedValue, error)
	// AddScalar adds one value to the parameters of a statement, by its full name, without a message in between. False: typed has to make a
	// message of it.
	AddScalar(p *upstream.Params, name, full string, t *Ydb.Type) bool
}

// Spec is one statement as a request has it.
type Spec struct {
	SQL    string
	Params Values
	Types  map[string]string
	Stats  string
	Limits Limits
	Expect *uint64 // rows that it must return, in a list; nil: any number
}

// prepare checks a statement and gives its parameters their types. learnt says
// whether those count that earlier calls have learnt.
func (s *Service) prepare(in Spec, learnt bool) (*Statement, error) {
	return s.prepareWith(in, learnt, nil)
}

// prepareWith is prepare with what was learnt just now, which the caches may have no room for.
func (s *Service) prepareWith(in Spec, learnt bool, now map[string]*Ydb.Type) (*Statement, error) {
	if in.SQL == "" {
		return nil, BadRequest("sql is empty")
	}
	stats, err := parseStats(in.Stats)
	if err != nil {
		return nil, err
	}
	params, typed, err := s.Bind(in, learnt, now)
	if err != nil {
		return nil, err
	}
	return &Statement{
		SQL: in.SQL, Params: params, stats: stats, typed: typed, limits: in.Limits,
		expect: in.Expect, counts: mayChange(s.Cached.effectsOf(in.SQL, kindOf(in.SQL))),
	}, nil
}

// Bind types the parameters: by the request's types, else by the statement's own declarations, else by
// the plain rule; of its integers, by what was learnt. typed is how many bytes the types take that no
// cache holds, and the parameters.
func (s *Service) Bind(in Spec, learnt bool, now map[string]*Ydb.Type) (params *upstream.Params, typed int, err error) {
	names := in.Params.Names()
	if len(names) > s.Cfg.API.MaxParams {
		return nil, 0, OverLimit("params", len(names), s.Cfg.API.MaxParams, "api.max_params")
	}
	types, typed, err := parseTypes(in.Types, s.Cfg.API.MaxParams, "api.max_params")
	if err != nil {
		return nil, 0, err
	}
	if len(names) == 0 {
		return nil, 0, nil
	}
	declared, apart, err := s.Cached.declarations(in.SQL)
	if err != nil {
		return nil, 0, yql.At(err, "sql")
	}
	if apart {
		typed += declared.size
	}
	if len(names) > 1 { // in one order, whatever that of a map is: see print
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Or(strings.Compare(yql.ParamName(a), yql.ParamName(b)), strings.Compare(a, b))
		})
	}
	params, before := new(upstream.Params), ""
	for _, name := range names {
		bare := yql.ParamName(name)
		if !isName(bare) {
			return nil, 0, BadRequest(
				"params: %.64q is not a parameter's name; write letters, digits and _, with or without one $ before them",
				name,
			)
		}
		t, source := types[bare], fromTypes
		if t == nil {
			t, source = declared.types[bare], fromStatement
		}
		if t == nil {
			source = fromValue
		}
		var to *Ydb.Type
		if learnt && t == nil {
			to = cmp.Or(now[bare], declared.learnt[bare])
		}
		if bare == before {
			return nil, 0, BadRequest("params: %q is given twice, with and without $", bare)
		}
		before = bare
		if err := bindOne(params, in.Params, name, t, to); err != nil {
			return nil, 0, yql.At(yql.At(toWrite(err, bare, source), bare), "params")
		}
	}
	return params, typed + params.Size(), nil
}

// bindOne adds a value to the parameters, by its type, or by the one that was learnt, if that only has
// other integers and the value fits it.
func bindOne(params *upstream.Params, in Values, name string, t, learnt *Ydb.Type) error {
	full, before := name, params.Len()
	if !strings.HasPrefix(full, "$") {
		full = "$" + full
	}
	err := addTo(params, in, name, full, t)
	if err != nil || learnt == nil {
		return err
	}
	if _, own := params.At(before); !yql.WithIntegers(own, learnt) {
		return nil
	}
	params.Truncate(before)
	if addTo(params, in, name, full, learnt) == nil {
		return nil
	}
	return addTo(params, in, name, full, t)
}

// addTo adds a value to the parameters, by its full name.
func addTo(params *upstream.Params, in Values, name, full string, t *Ydb.Type) error {
	if in.AddScalar(params, name, full, t) {
		return nil
	}
	v, err := in.Typed(name, t)
	if err == nil {
		params.Add(full, v)
	}
	return err
}

// isName tells whether YQL can name a parameter so, behind its $.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

const (
	typeCost  = 160     // that a type takes, in bytes: an optional one is three objects of 128 in all
	mostTypes = 1 << 14 // that one statement of a request may name, those within others included
)

// parseTypes reads the types that a request names, by name without the dollar. They take so many bytes.
func parseTypes(in map[string]string, limit int, setting string) (types map[string]*Ydb.Type, takes int, err error) {
	if len(in) > limit {
		return nil, 0, OverLimit("types", len(in), limit, setting)
	}
	if len(in) == 0 {
		return nil, 0, nil
	}
	most := 0
	for _, text := range in {
		if most += yql.MostTypes(text); most > mostTypes {
			return nil, 0, Faultf(CodeLimit,
				"types: those of one statement name more than %d types, those within others included", mostTypes)
		}
	}
	types = make(map[string]*Ydb.Type, len(in))
	for name, text := range in {
		t, err := yql.ParseType(text)
		if err != nil {
			return nil, 0, yql.At(yql.At(err, yql.ParamName(name)), "types")
		}
		if types[yql.ParamName(name)] != nil {
			return nil, 0, BadRequest("types: %.64q is given twice, with and without $", yql.ParamName(name))
		}
		types[yql.ParamName(name)] = t
	}
	return types, typeCost * most, nil
}

var printSeed = maphash.MakeSeed()

// print is a fingerprint of a statement, to know a repeat from another one.
func (st *Statement) print(control string) uint64 {
	var h maphash.Hash
	h.SetSeed(printSeed)
	part := func(b []byte) {
		maphash.WriteComparable(&h, len(b))
		_, _ = h.Write(b)
	}
	part([]byte(control))
	part([]byte(st.SQL))
	part(st.Params.Encoded())
	return h.Sum64()
}

// PriorityOf reads the class of a call from its headers. Priority is also a
// header of HTTP itself (RFC 9218: "u=1, i"), which says nothing to us.
func PriorityOf(get func(string) string) string {
	return PriorityOfHeaders(get(headerPriority), get("Priority"))
}

// PriorityOfHeaders picks the class of a call from its own header and from the general one.
func PriorityOfHeaders(own, general string) string {
	if own == "" && general != "i" && !strings.Contains(general, "=") {
		return general
	}
	return own
}

// ClassOf is the class of a call: what its message names, or else its headers; but not above
// the highest of its app.
func ClassOf(c *Call, priority string) (pool.Class, error) {
	if priority == "" {
		priority = c.Priority
	}
	class, err := pool.ParseClass(priority)
	if err != nil {
		return class, BadRequest("%v", err)
	}
	highest := c.App.Highest()
	if slices.Index(descending[:], class) >= int(highest) {
		return class, nil
	}
	if priority != "" && !c.lowered {
		c.lowered = true
		c.App.Lower()
	}
	return descending[highest], nil
}

// descending are the classes as apps.App.Highest numbers them.
var descending = [pool.ClassSize]pool.Class{pool.System, pool.Interactive, pool.Normal, pool.Batch}

// Begin gives a call its deadline and its place in the order of callers.
func (s *Service) Begin(ctx context.Context, c *Call, timeout, priority string) (
	context.Context, context.CancelFunc, upstream.Call, error,
) {
	class, err := ClassOf(c, priority)
	if err != nil {
		return nil, nil, upstream.Call{}, err
	}
	c.Class = class
	c.shown.class.Store(uint32(class))
	ctx, cancel, err := s.Bounded(c).Deadline(ctx, c.Work, timeout, c.Timeout)
	call := upstream.Call{Class: class, Name: c.Name, App: c.App, From: c.From, Work: kindOf(c.Name), Progress: c.Progress()}
	return ctx, cancel, call, err
}
