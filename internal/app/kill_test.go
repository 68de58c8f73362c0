package app

import (
	"strings"
	"testing"

	"google.golang.org/grpc/status"

	"github.com/ydb-sidecar/sidecar/internal/snapshot/kill"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// A killed session whose transaction lies idle is free at once: a caller that waits gets its place, and the transaction knows why it ended.
func TestKillFreesTheSessionOfAForgottenTransaction(t *testing.T) {
	s := start(t, newCluster(t).Endpoint(), "pool.max=1")
	s.knowsNodes()
	api := sidecarv1.NewSidecarClient(s.conn)
	forgotten, err := api.Begin(t.Context(), &sidecarv1.BeginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		_, err := api.Execute(t.Context(), &sidecarv1.ExecuteRequest{Sql: "SELECT 1", Timeout: "20s"})
		served <- err
	}()
	s.eventually("the caller waits", func() bool { return s.views.OwnPools()[0].Stats().Waiting != [4]int{} })
	for _, l := range s.views.SessionLines(0) {
		if _, err := (kill.Killer{Views: &s.views.Source, Log: s.App.log}).Session(l.Session); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-served; err != nil {
		t.Errorf("the caller that waited: %v", err)
	}
	_, err = api.Commit(t.Context(), &sidecarv1.CommitRequest{Id: forgotten.GetTx().GetId()})
	if !strings.Contains(status.Convert(err).Message(), "killed by an operator") {
		t.Errorf("the commit of the killed transaction: %v", err)
	}
}
