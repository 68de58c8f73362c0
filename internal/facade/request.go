package facade

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

// values are the named values of a request, as its face decoded them: the
// parameters of a statement, or the columns of a row.
type values interface {
	names() []string
	// typed converts one value. Without a type, the value's own or the plain rule counts.
	typed(name string, t *Ydb.Type) (*Ydb.TypedValue, error)
	// addScalar adds one value to the parameters of a statement, by its full name, without a message in between. False: typed has to make a
	// message of it.
	addScalar(p *upstream.Params, name, full string, t *Ydb.Type) bool
}

// spec is one statement as a request has it.
type spec struct {
	sql    string
	params values
	types  map[string]string
	stats  string
	limits limits
}

// prepare checks a statement and gives its parameters their types. learnt says
// whether those count that earlier calls have learnt.
func (s *coreService) prepare(in spec, learnt bool) (*statement, error) {
	return s.prepareWith(in, learnt, nil)
}

// prepareWith is prepare with what was learnt just now, which the caches may have no room for.
func (s *coreService) prepareWith(in spec, learnt bool, now map[string]*Ydb.Type) (*statement, error) {
	if in.sql == "" {
		return nil, badRequest("sql is empty")
	}
	stats, err := parseStats(in.stats)
	if err != nil {
		return nil, err
	}
	params, typed, err := s.bind(in, learnt, now)
	if err != nil {
		return nil, err
	}
	return &statement{
		sql: in.sql, params: params, stats: stats, typed: typed, limits: in.limits,
	}, nil
}

// bind types the parameters: by the request's types, else by the statement's own
// declarations, else by the plain rule; of its integers, by what was learnt. typed is how many bytes the types take that no cache holds, and the parameters.
func (s *coreService) bind(in spec, learnt bool, now map[string]*Ydb.Type) (params *upstream.Params, typed int, err error) {
	names := in.params.names()
	if len(names) > s.cfg.API.MaxParams {
		return nil, 0, overLimit("params", len(names), s.cfg.API.MaxParams, "api.max_params")
	}
	types, typed, err := parseTypes(in.types, s.cfg.API.MaxParams, "api.max_params")
	if err != nil {
		return nil, 0, err
	}
	if len(names) == 0 {
		return nil, 0, nil
	}
	declared, apart, err := s.cached.declarations(in.sql)
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
			return nil, 0, badRequest("params: %.64q is not a parameter's name; write letters, digits and _, with or without one $ before them", name)
		}
		t := types[bare]
		if t == nil {
			t = declared.types[bare]
		}
		var to *Ydb.Type
		if learnt && t == nil {
			to = cmp.Or(now[bare], declared.learnt[bare])
		}
		if bare == before {
			return nil, 0, badRequest("params: %q is given twice, with and without $", bare)
		}
		before = bare
		if err := bindOne(params, in.params, name, t, to); err != nil {
			return nil, 0, yql.At(yql.At(err, bare), "params")
		}
	}
	return params, typed + params.Size(), nil
}

// bindOne adds a value to the parameters, by its type, or by the one that was learnt, if that only has other integers and the value fits it.
func bindOne(params *upstream.Params, in values, name string, t, learnt *Ydb.Type) error {
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
func addTo(params *upstream.Params, in values, name, full string, t *Ydb.Type) error {
	if in.addScalar(params, name, full, t) {
		return nil
	}
	v, err := in.typed(name, t)
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
		return nil, 0, overLimit("types", len(in), limit, setting)
	}
	if len(in) == 0 {
		return nil, 0, nil
	}
	most := 0
	for _, text := range in {
		if most += yql.MostTypes(text); most > mostTypes {
			return nil, 0, faultf(codeLimit, "types: those of one statement name more than %d types, those within others included", mostTypes)
		}
	}
	types = make(map[string]*Ydb.Type, len(in))
	for name, text := range in {
		t, err := yql.ParseType(text)
		if err != nil {
			return nil, 0, yql.At(yql.At(err, yql.ParamName(name)), "types")
		}
		if types[yql.ParamName(name)] != nil {
			return nil, 0, badRequest("types: %.64q is given twice, with and without $", yql.ParamName(name))
		}
		types[yql.ParamName(name)] = t
	}
	return types, typeCost * most, nil
}

var printSeed = maphash.MakeSeed()

// print is a fingerprint of a statement, to know a repeat from another one.
func (st *statement) print(control string) uint64 {
	var h maphash.Hash
	h.SetSeed(printSeed)
	part := func(b []byte) {
		maphash.WriteComparable(&h, len(b))
		_, _ = h.Write(b)
	}
	part([]byte(control))
	part([]byte(st.sql))
	part(st.params.Encoded())
	return h.Sum64()
}

// priorityOf reads the class of a call from its headers. Priority is also a
// header of HTTP itself (RFC 9218: "u=1, i"), which says nothing to us.
func priorityOf(get func(string) string) string {
	return priorityOfHeaders(get(headerPriority), get("Priority"))
}

func priorityOfHeaders(own, general string) string {
	if own == "" && general != "i" && !strings.Contains(general, "=") {
		return general
	}
	return own
}

// classOf is the class of a call: what its message names, or else its headers; but not above
// the highest of its app.
func classOf(c *call, priority string) (pool.Class, error) {
	if priority == "" {
		priority = c.priority
	}
	class, err := pool.ParseClass(priority)
	if err != nil {
		return class, badRequest("%v", err)
	}
	if class == pool.System && (c.lowered || !c.app.System()) {
		class, c.lowered = pool.Interactive, true
	}
	return class, nil
}

// begin gives a call its deadline and its place in the order of callers.
func (s *coreService) begin(ctx context.Context, c *call, timeout, priority string) (context.Context, context.CancelFunc, upstream.Call, error) {
	class, err := classOf(c, priority)
	if err != nil {
		return nil, nil, upstream.Call{}, err
	}
	c.class = class
	ctx, cancel, err := s.cfg.API.deadline(ctx, c.work, timeout, c.timeout)
	return ctx, cancel, upstream.Call{Class: class, Name: c.name, App: c.app, From: c.from, Work: kindOf(c.name)}, err
}
