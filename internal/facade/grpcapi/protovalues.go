package grpcapi

import (
	"context"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// protoValues are values that came over gRPC.
type protoValues struct {
	byName map[string]*sidecarv1.Value
	depth  int // how deep they may nest
}

// protoParams finds parameters in the messages of statements.
type protoParams struct {
	depth int // how deep they may nest
}

func (a *API) params() protoParams { return protoParams{a.core.Cfg.API.MaxDepth} }

// Of implements core.Params.
func (p protoParams) Of(_ proto.Message, byName map[string]*sidecarv1.Value) core.Values {
	return protoValues{byName, p.depth}
}

func (p protoValues) Names() []string {
	names := make([]string, 0, len(p.byName))
	for name := range p.byName {
		names = append(names, name)
	}
	return names
}

func (p protoValues) Typed(name string, t *Ydb.Type) (*Ydb.TypedValue, error) {
	return protoTyped(name, p.byName[name], t, p.depth)
}

func (p protoValues) AddScalar(*upstream.Params, string, string, *Ydb.Type) bool { return false }

// protoTyped converts a value that came over gRPC, which may be that deep.
func protoTyped(name string, v *sidecarv1.Value, t *Ydb.Type, depth int) (*Ydb.TypedValue, error) {
	if deeper(v, depth) {
		return nil, core.OverLimit("depth of "+name, depth, depth, "api.max_depth")
	}
	return yql.Param(v, t)
}

// deeper tells whether a value nests deeper than n.
func deeper(v *sidecarv1.Value, n int) bool {
	if v == nil {
		return false
	}
	if n == 0 {
		return true
	}
	switch x := v.GetKind().(type) {
	case *sidecarv1.Value_ListValue:
		for _, item := range x.ListValue.GetItems() {
			if deeper(item, n-1) {
				return true
			}
		}
	case *sidecarv1.Value_StructValue:
		for _, f := range x.StructValue.GetFields() {
			if deeper(f.GetValue(), n-1) {
				return true
			}
		}
	case *sidecarv1.Value_DictValue:
		for _, pair := range x.DictValue.GetPairs() {
			if deeper(pair.GetKey(), n-1) || deeper(pair.GetValue(), n-1) {
				return true
			}
		}
	case *sidecarv1.Value_VariantValue:
		return deeper(x.VariantValue.GetValue(), n-1)
	case *sidecarv1.Value_TypedValue:
		return deeper(x.TypedValue.GetValue(), n-1)
	}
	return false
}

// protoSink gathers results for a gRPC reply.
type protoSink struct {
	sets    []*protoSet
	columns *yql.Columns // of the last set

	first protoSet // room for what most calls need
	one   [1]*protoSet
}

// protoSet is a result set whose rows are bytes of the field rows.
type protoSet struct {
	columns   []*sidecarv1.Column
	rows      []byte
	truncated bool
}

func (p *protoSink) Begin(_ context.Context, columns *yql.Columns) error {
	p.columns = columns
	set := &p.first
	if len(p.sets) == 0 {
		p.sets = p.one[:0]
	} else {
		set = new(protoSet)
	}
	set.columns = columns.Header()
	p.sets = append(p.sets, set)
	return nil
}

func (p *protoSink) Rows(_ context.Context, rows [][]byte) (err error) {
	last := p.sets[len(p.sets)-1]
	if last.rows == nil {
		last.rows = make([]byte, 0, roomOf(rows))
	}
	for _, row := range rows {
		if last.rows, err = p.columns.AppendRow(last.rows, row); err != nil {
			return core.BadAnswer(err)
		}
	}
	return nil
}

// roomOf is about how many bytes rows take in a reply: what they take now, and a few for each.
func roomOf(rows [][]byte) (n int) {
	for _, row := range rows {
		n += len(row) + len(row)/4 + 8
	}
	return n
}

func (p *protoSink) Cut() { p.sets[len(p.sets)-1].truncated = true }

// Held counts rows twice: gRPC copies them into the answer.
func (p *protoSink) Held() (n int) {
	for i, set := range p.sets {
		n += 2 * cap(set.rows)
		if i == 0 && len(p.sets) > 1 {
			n += len(set.rows) // they go out twice
		}
	}
	return n
}

func (p *protoSink) Again() bool {
	*p = protoSink{}
	return true
}

// result returns the first result set, and all of them if there is more than one.
func (p *protoSink) result() (first *protoSet, all []*sidecarv1.ResultSet) {
	switch len(p.sets) {
	case 0:
		return &protoSet{}, nil
	case 1:
		return p.sets[0], nil
	}
	for _, set := range p.sets {
		all = append(all, withRows(&sidecarv1.ResultSet{Columns: set.columns, Truncated: set.truncated}, set.rows))
	}
	return p.sets[0], all
}

// withRows gives a message that has a field rows the bytes of that field. They go out as
// they are, as those of an unknown field do: the rows are never messages here.
func withRows[M proto.Message](m M, rows []byte) M {
	if len(rows) > 0 {
		m.ProtoReflect().SetUnknown(rows)
	}
	return m
}
