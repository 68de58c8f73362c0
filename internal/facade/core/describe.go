package core

import (
	"context"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Absolute makes the path of a table absolute: names are relative to the
// database, as in YQL.
func (s *Service) Absolute(table, field string) (string, error) {
	if table == "" {
		return "", BadRequest("%s is empty", field)
	}
	if !utf8.ValidString(table) {
		return "", BadRequest("%s is not valid UTF-8", field)
	}
	if len(table) > maxPath {
		return "", BadRequest("%s has %d bytes; at most %d are allowed", field, len(table), maxPath)
	}
	if !strings.HasPrefix(table, "/") || !within(table, s.Deps.Database) {
		table = s.Deps.Database + "/" + table
	}
	table = path.Clean(table)
	if !within(table, s.Deps.Database) {
		return "", BadRequest("%s is outside the database %s", field, s.Deps.Database)
	}
	return table, nil
}

const maxPath = 1 << 10

// InDatabase reports whether an absolute path is in the database.
func (s *Service) InDatabase(path string) bool { return within(path, s.Deps.Database) }

func within(table, database string) bool {
	rest, ok := strings.CutPrefix(table, database)
	return ok && (rest == "" || rest[0] == '/')
}

// Describe describes the table at an absolute path; the answer is not from the
// cache, but goes there.
func (s *Service) Describe(ctx context.Context, c *Call, call upstream.Call, table string) (*Ydb_Table.DescribeTableResult, error) {
	call.Name, call.Method, call.Idempotent = "DescribeTable", methodDescribeTable, true
	result := new(Ydb_Table.DescribeTableResult)
	// nodes need no session for it
	report, err := s.Deps.Driver.Any(ctx, call, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		r, err := Ydb_Table_V1.NewTableServiceClient(conn).DescribeTable(ctx, &Ydb_Table.DescribeTableRequest{Path: table})
		if err != nil {
			return err
		}
		if err := upstream.CheckOperation(r.GetOperation()); err != nil {
			return err
		}
		return r.GetOperation().GetResult().UnmarshalTo(result)
	})
	c.Note(report)
	if err != nil {
		s.Cached.ForgetTable(table)
		return nil, FaultOf(err, Deed{Harmless: true})
	}
	s.Cached.keepTable(table, result)
	return result, nil
}

// DescribeTable is the call Describe, over either API.
func (s *Service) DescribeTable(ctx context.Context, c *Call, table, timeout string) (*sidecarv1.DescribeResponse, error) {
	full, err := s.Absolute(table, "path")
	if err != nil {
		return nil, err
	}
	if err := s.Allow(c, Wish{Kind: apps.Describe, Table: full}); err != nil {
		return nil, err
	}
	ctx, cancel, call, err := s.Begin(ctx, c, timeout, "")
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := s.Fresh(c); err != nil {
		return nil, err
	}
	d, err := s.Describe(ctx, c, call, full)
	if err != nil {
		return nil, FaultOf(err, Deed{Harmless: true}).OfPath()
	}
	out := &sidecarv1.DescribeResponse{Path: full, PrimaryKey: d.GetPrimaryKey()}
	for _, col := range d.GetColumns() {
		out.Columns = append(out.Columns, &sidecarv1.ColumnDescription{
			Name: col.GetName(), Type: yql.FormatType(col.GetType()),
			NotNull: col.GetNotNull() || col.GetType().GetOptionalType() == nil,
		})
	}
	for _, index := range d.GetIndexes() {
		out.Indexes = append(out.Indexes, &sidecarv1.IndexDescription{
			Name: index.GetName(), Columns: index.GetIndexColumns(), Covered: index.GetDataColumns(),
		})
	}
	return out, nil
}

// ExplainRequest is the call Explain, over either API.
type ExplainRequest struct {
	SQL      string
	Types    map[string]string
	Timeout  string
	Priority string
}

// explained is a plan as the server gave it.
type explained struct{ Plan, AST string }

// Explain asks for the plan of a statement without running it.
func (s *Service) Explain(ctx context.Context, c *Call, in ExplainRequest) (explained, error) {
	c.states(in.SQL)
	if in.SQL == "" {
		return explained{}, BadRequest("sql is empty")
	}
	if err := s.Allow(c, Wish{Kind: apps.Statements, Text: in.SQL, Plans: true}); err != nil {
		return explained{}, err
	}
	types, takes, err := parseTypes(in.Types, s.Cfg.API.MaxParams, "api.max_params")
	if err == nil {
		err = TooMuch(c.Reserved.Take(takes))
	}
	if err != nil {
		return explained{}, err
	}
	ctx, cancel, call, err := s.Begin(ctx, c, in.Timeout, in.Priority)
	if err != nil {
		return explained{}, err
	}
	defer cancel()
	if err := s.Fresh(c); err != nil {
		return explained{}, err
	}
	key := explainKey(in.SQL, types)
	if plan, ok := s.Cached.plan(key); ok {
		return plan, nil
	}
	call.Idempotent, call.Work = true, call.Work*31+kindOf(in.SQL)
	var plan explained
	report, err := s.Deps.Driver.Do(ctx, call, func(ctx context.Context, session Session) (err error) {
		plan, err = explainOn(ctx, session, upstream.Statement{
			Text: in.SQL, Params: upstream.ParamsOf(samples(types)), Explain: true, Stats: Ydb_Query.StatsMode_STATS_MODE_FULL,
		})
		return err
	})
	c.Note(report)
	if err != nil {
		return explained{}, FaultOf(err, Deed{Harmless: true})
	}
	s.Cached.keepPlan(key, plan)
	return plan, nil
}

// explainOn reads a plan out of the statistics of the answer.
func explainOn(ctx context.Context, session Session, st upstream.Statement) (explained, error) {
	answer, err := session.Execute(ctx, st)
	if err != nil {
		return explained{}, err
	}
	defer answer.Close()
	var plan explained
	for part, err := range parts(answer) {
		if err != nil {
			return explained{}, err
		}
		if stats := part.GetExecStats(); stats != nil {
			plan = explained{Plan: stats.GetQueryPlan(), AST: stats.GetQueryAst()}
		}
	}
	return plan, nil
}
