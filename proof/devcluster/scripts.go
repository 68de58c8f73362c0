package devcluster

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The bounds of scripts; beyond, the oldest ones are forgotten.
const (
	maxScripts     = 100
	maxScriptBytes = 256 << 20 // of the results of all
	maxScriptRows  = 1000      // of one answer of FetchScriptResults
)

// scriptKind is the kind of the one sort of operation there is.
const scriptKind = "scriptexec"

// scripts keeps what ExecuteScript ran: the texts run while it answers, so that every
// operation is ready when its client hears of it.
type scripts struct {
	mu    sync.Mutex // guards what follows
	byID  map[string]*finished
	order []string // the oldest first
	bytes int
}

// finished is a script that ran. It is immutable.
type finished struct {
	operation *Ydb_Operations.Operation
	sets      []*Ydb.ResultSet
	bytes     int
}

func (s *scripts) keep(id string, f *finished) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]*finished{}
	}
	s.byID[id] = f
	s.order = append(s.order, id)
	s.bytes += f.bytes
	for len(s.order) > maxScripts || s.bytes > maxScriptBytes && len(s.order) > 1 {
		s.forgetLocked(s.order[0])
	}
}

func (s *scripts) forgetLocked(id string) bool {
	f := s.byID[id]
	if f == nil {
		return false
	}
	delete(s.byID, id)
	s.order = slices.DeleteFunc(s.order, func(o string) bool { return o == id })
	s.bytes -= f.bytes
	return true
}

func (s *scripts) find(id string) (*finished, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.byID[id]; f != nil {
		return f, nil
	}
	return nil, fail(Ydb.StatusIds_NOT_FOUND, "Operation not found: %s", id)
}

// executeScript runs a text as one transaction and keeps its results.
func executeScript(c *call, r *Ydb_Query.ExecuteScriptRequest) (*Ydb_Operations.Operation, error) {
	if c.config.Node != 0 {
		return nil, fail(Ydb.StatusIds_UNSUPPORTED,
			"scripts are not supported where nodes are processes of their own: the others would not know them")
	}
	leave, err := c.enterImplicit()
	if err != nil {
		return nil, err
	}
	defer leave()
	request, err := c.queryRequest(&Ydb_Query.ExecuteQueryRequest{
		ExecMode:   r.GetExecMode(),
		Query:      &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: r.GetScriptContent()},
		Parameters: r.GetParameters(),
	})
	if err != nil {
		return nil, err
	}
	id := "ydb://scriptexec/9?node_id=" + strconv.FormatUint(uint64(c.id), 10) + "&id=" + rand.Text()
	about := &Ydb_Query.ExecuteScriptMetadata{
		ExecutionId: id, ScriptContent: r.GetScriptContent(), ExecMode: r.GetExecMode(),
		ExecStatus: Ydb_Query.ExecStatus_EXEC_STATUS_COMPLETED,
	}
	f := &finished{operation: &Ydb_Operations.Operation{Id: id, Ready: true, Status: Ydb.StatusIds_SUCCESS}}
	collect := join(&f.sets)
	stats, err := c.execute(nil, txControl{}, request, func(string) {}, func(set int, part *Ydb.ResultSet) error {
		if f.bytes += proto.Size(part); f.bytes > maxScriptBytes {
			return fail(Ydb.StatusIds_PRECONDITION_FAILED, "the results of a script are larger than %d bytes", maxScriptBytes)
		}
		return collect(set, part)
	})
	if err != nil {
		e := statusOf(c.ctx, err)
		f.operation.Status, f.operation.Issues, f.sets, f.bytes = e.status, e.issues, nil, 0
		about.ExecStatus = Ydb_Query.ExecStatus_EXEC_STATUS_FAILED
	}
	for _, set := range f.sets {
		about.ResultSetsMeta = append(about.ResultSetsMeta, &Ydb_Query.ResultSetMeta{Columns: set.GetColumns()})
	}
	if r.GetStatsMode() >= Ydb_Query.StatsMode_STATS_MODE_BASIC {
		about.ExecStats = stats.Proto()
	}
	if f.operation.Metadata, err = anypb.New(about); err != nil {
		return nil, fmt.Errorf("pack %T: %w", about, err)
	}
	c.scripts.keep(id, f)
	about.ExecStatus, about.ResultSetsMeta, about.ExecStats = Ydb_Query.ExecStatus_EXEC_STATUS_STARTING, nil, nil
	first := &Ydb_Operations.Operation{Id: id, Status: Ydb.StatusIds_SUCCESS}
	if first.Metadata, err = anypb.New(about); err != nil {
		return nil, fmt.Errorf("pack %T: %w", about, err)
	}
	return first, nil
}

func fetchScriptResults(c *call, r *Ydb_Query.FetchScriptResultsRequest) (*Ydb_Query.FetchScriptResultsResponse, error) {
	f, err := c.scripts.find(r.GetOperationId())
	if err != nil {
		return nil, err
	}
	if f.operation.GetStatus() != Ydb.StatusIds_SUCCESS {
		return nil, &statusError{status: f.operation.GetStatus(), issues: f.operation.GetIssues()}
	}
	n := r.GetResultSetIndex()
	if n < 0 || n >= int64(len(f.sets)) {
		return nil, fail(Ydb.StatusIds_BAD_REQUEST, "the script has no result set %d", n)
	}
	set, from := f.sets[n], 0
	if token := r.GetFetchToken(); token != "" {
		if from, err = strconv.Atoi(token); err != nil || from < 0 || from > len(set.GetRows()) {
			return nil, fail(Ydb.StatusIds_BAD_REQUEST, "invalid fetch_token %q", token)
		}
	}
	limit := int64(maxScriptRows)
	if r.GetRowsLimit() > 0 {
		limit = min(limit, r.GetRowsLimit())
	}
	to := min(len(set.GetRows()), from+int(limit))
	response := &Ydb_Query.FetchScriptResultsResponse{
		Status: Ydb.StatusIds_SUCCESS, ResultSetIndex: n,
		ResultSet: &Ydb.ResultSet{Columns: set.GetColumns(), Rows: set.GetRows()[from:to]},
	}
	if to < len(set.GetRows()) {
		response.NextFetchToken = strconv.Itoa(to)
	}
	return response, nil
}

func getOperation(c *call, request proto.Message) error {
	f, err := c.scripts.find(request.(*Ydb_Operations.GetOperationRequest).GetId())
	if err != nil {
		return err
	}
	return c.send(&Ydb_Operations.GetOperationResponse{Operation: f.operation})
}

// cancelOperation has nothing to do: all operations are over.
func cancelOperation(c *call, r *Ydb_Operations.CancelOperationRequest) (*Ydb_Operations.CancelOperationResponse, error) {
	if _, err := c.scripts.find(r.GetId()); err != nil {
		return nil, err
	}
	return &Ydb_Operations.CancelOperationResponse{Status: Ydb.StatusIds_SUCCESS}, nil
}

func forgetOperation(c *call, r *Ydb_Operations.ForgetOperationRequest) (*Ydb_Operations.ForgetOperationResponse, error) {
	c.scripts.mu.Lock()
	defer c.scripts.mu.Unlock()
	if !c.scripts.forgetLocked(r.GetId()) {
		return nil, fail(Ydb.StatusIds_NOT_FOUND, "Operation not found: %s", r.GetId())
	}
	return &Ydb_Operations.ForgetOperationResponse{Status: Ydb.StatusIds_SUCCESS}, nil
}

// listOperations lists all there are: they are never more than fit into one answer.
func listOperations(c *call, r *Ydb_Operations.ListOperationsRequest) (*Ydb_Operations.ListOperationsResponse, error) {
	response := &Ydb_Operations.ListOperationsResponse{Status: Ydb.StatusIds_SUCCESS}
	if r.GetKind() != scriptKind {
		return response, nil
	}
	c.scripts.mu.Lock()
	defer c.scripts.mu.Unlock()
	for _, id := range c.scripts.order {
		response.Operations = append(response.Operations, c.scripts.byID[id].operation)
	}
	return response, nil
}
