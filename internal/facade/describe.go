package facade

import (
	"context"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Table_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Table"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// absolute makes the path of a table absolute: names are relative to the
// database, as in YQL.
func (s *coreService) absolute(table, field string) (string, error) {
	if table == "" {
		return "", badRequest("%s is empty", field)
	}
	if !utf8.ValidString(table) {
		return "", badRequest("%s is not valid UTF-8", field)
	}
	if len(table) > maxPath {
		return "", badRequest("%s has %d bytes; at most %d are allowed", field, len(table), maxPath)
	}
	if !strings.HasPrefix(table, "/") || !within(table, s.deps.Database) {
		table = s.deps.Database + "/" + table
	}
	table = path.Clean(table)
	if !within(table, s.deps.Database) {
		return "", badRequest("%s: it is not in the database %s", field, s.deps.Database)
	}
	return table, nil
}

const maxPath = 1 << 10

// inDatabase reports whether an absolute path is in the database.
func (s *coreService) inDatabase(path string) bool { return within(path, s.deps.Database) }

func within(table, database string) bool {
	rest, ok := strings.CutPrefix(table, database)
	return ok && (rest == "" || rest[0] == '/')
}

// describe describes the table at an absolute path; the answer is not from the
// cache, but goes there.
func (s *coreService) describe(ctx context.Context, c *call, call upstream.Call, table string) (*Ydb_Table.DescribeTableResult, error) {
	call.Name, call.Method, call.Idempotent = "DescribeTable", methodDescribeTable, true
	result := new(Ydb_Table.DescribeTableResult)
	report, err := s.deps.Driver.Any(ctx, call, func(ctx context.Context, conn grpc.ClientConnInterface) error { // nodes need no session for it
		r, err := Ydb_Table_V1.NewTableServiceClient(conn).DescribeTable(ctx, &Ydb_Table.DescribeTableRequest{Path: table})
		if err != nil {
			return err
		}
		if err := upstream.CheckOperation(r.GetOperation()); err != nil {
			return err
		}
		return r.GetOperation().GetResult().UnmarshalTo(result)
	})
	c.note(report)
	if err != nil {
		s.cached.forgetTable(table)
		return nil, faultOf(err, deed{harmless: true})
	}
	s.cached.keepTable(table, result)
	return result, nil
}

// describeTable is the call Describe, from either face.
func (s *coreService) describeTable(ctx context.Context, c *call, table, timeout string) (*sidecarv1.DescribeResponse, error) {
	full, err := s.absolute(table, "path")
	if err != nil {
		return nil, err
	}
	ctx, cancel, call, err := s.begin(ctx, c, timeout, "")
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := s.fresh(c); err != nil {
		return nil, err
	}
	d, err := s.describe(ctx, c, call, full)
	if err != nil {
		return nil, err
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

// explainRequest is the call Explain, from either face.
type explainRequest struct {
	sql      string
	types    map[string]string
	timeout  string
	priority string
}

// explained is a plan as the server gave it.
type explained struct{ plan, ast string }

// explain asks for the plan of a statement without running it.
func (s *coreService) explain(ctx context.Context, c *call, in explainRequest) (explained, error) {
	c.sql = in.sql
	if in.sql == "" {
		return explained{}, badRequest("sql is empty")
	}
	types, takes, err := parseTypes(in.types, s.cfg.API.MaxParams, "api.max_params")
	if err == nil {
		err = tooMuch(c.reserved.Take(takes))
	}
	if err != nil {
		return explained{}, err
	}
	ctx, cancel, call, err := s.begin(ctx, c, in.timeout, in.priority)
	if err != nil {
		return explained{}, err
	}
	defer cancel()
	if err := s.fresh(c); err != nil {
		return explained{}, err
	}
	key := explainKey(in.sql, types)
	if plan, ok := s.cached.plan(key); ok {
		return plan, nil
	}
	call.Idempotent, call.Work = true, call.Work*31+kindOf(in.sql)
	var plan explained
	report, err := s.deps.Driver.Do(ctx, call, func(ctx context.Context, session Session) (err error) {
		plan, err = explainOn(ctx, session, upstream.Statement{
			Text: in.sql, Params: upstream.ParamsOf(samples(types)), Explain: true, Stats: Ydb_Query.StatsMode_STATS_MODE_FULL,
		})
		return err
	})
	c.note(report)
	if err != nil {
		return explained{}, faultOf(err, deed{harmless: true})
	}
	s.cached.keepPlan(key, plan)
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
			plan = explained{plan: stats.GetQueryPlan(), ast: stats.GetQueryAst()}
		}
	}
	return plan, nil
}
