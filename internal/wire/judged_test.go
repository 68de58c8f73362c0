package wire

import (
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

// A question for the places of partitions, which the sidecar asks itself, is judged by what came of it: a node that cannot be
// reached has done no work.
func TestQuestionsForPlacesAreJudged(t *testing.T) {
	judge := &outcomes{new: make(chan struct{}, 1)}
	h := newHouseWith(t, 1, nil, nil, nil, func(d *Deps) { d.Health = judge })
	g := h.guest("app")
	ask := func() (Ydb.StatusIds_StatusCode, error) {
		out := new(Ydb_Topic.DescribeTopicResponse)
		err := g.conn.Invoke(g.with(h.ctx), "/Ydb.Topic.V1.TopicService/DescribeTopic",
			&Ydb_Topic.DescribeTopicRequest{Path: "/local/topic", IncludeLocation: true}, out)
		return out.GetOperation().GetStatus(), err
	}
	if status, err := ask(); err == nil { // the nodes of the test have no such service
		t.Fatal(status)
	}
	if o := judge.wait(t, "the question",
		func(o cluster.Outcome) bool {
			return o.Detail != "SUCCESS" || o.Blame == cluster.BlameSuccess
		}); o.Blame != cluster.BlameNone || o.Detail != "UNIMPLEMENTED" {
		t.Errorf("%+v", o)
	}
	for _, node := range h.nodes {
		node.Stop()
	}
	if status, err := ask(); err != nil || status != Ydb.StatusIds_UNAVAILABLE {
		t.Fatalf("%v, %v", status, err)
	}
	if o := judge.wait(t, "the question to a dead node", func(cluster.Outcome) bool { return true }); o.Blame != cluster.BlameTransport {
		t.Errorf("%+v", o)
	}
}

// What the sidecar refuses of a call that was on its way says nothing of the node.
func TestRefusedMessagesSayNothingOfTheNode(t *testing.T) {
	judge := &outcomes{new: make(chan struct{}, 1)}
	h := newHouseWith(t, 1, nil, nil, nil, func(d *Deps) { d.Health = judge })
	s := h.guest("app").session()
	stream, err := s.conn.NewStream(
		s.with(h.ctx), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		"/Ydb.Query.V1.QueryService/ExecuteQuery",
	)
	if err != nil {
		t.Fatal(err)
	}
	request := &Ydb_Query.ExecuteQueryRequest{SessionId: s.id, ExecMode: Ydb_Query.ExecMode_EXEC_MODE_EXECUTE,
		Query: &Ydb_Query.ExecuteQueryRequest_QueryContent{QueryContent: &Ydb_Query.QueryContent{Text: "select"}}}
	if err := stream.SendMsg(request); err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(request); err != nil {
		t.Fatal(err)
	}
	part := new(Ydb_Query.ExecuteQueryResponsePart)
	if err := stream.RecvMsg(part); err != nil || part.Status != Ydb.StatusIds_BAD_REQUEST {
		t.Fatalf("%v, %v", part, err)
	}
	o := judge.wait(t, "the call", func(o cluster.Outcome) bool { return o.Kind == cluster.CallExecute })
	if o.Blame != cluster.BlameNone || o.Detail != "BAD_REQUEST" {
		t.Errorf("%+v", o)
	}
}
