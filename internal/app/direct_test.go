package app

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicoptions"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topictypes"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicwriter"
)

// A writer that goes to the node of its partition finds it through the sidecar, in every mode, and
// its streams reach that node: the others refuse them.
func TestWritersThatGoToThePartitionsNode(t *testing.T) {
	for _, settings := range [][]string{{"wire.mode=transaction"}, {"wire.mode=session"},
		{"wire.mode=transaction", "wire.auth=own"}, {"wire.mode=passthrough"}} {
		t.Run(strings.Join(settings, " "), func(t *testing.T) {
			s := start(t, newCluster(t).Endpoint(), settings...)
			s.eventually("queries succeed", func() bool { _, err := s.query("SELECT 1"); return err == nil })
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			db, err := ydb.Open(ctx, "grpc://"+s.at.GRPC+"/local")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close(ctx) }() // the test has what it wants
			err = db.Topic().Create(ctx, "topic", topicoptions.CreateWithMinActivePartitions(5),
				topicoptions.CreateWithConsumer(topictypes.Consumer{Name: "c"}))
			if err != nil {
				t.Fatal(err)
			}
			for partition := range int64(5) { // more than there are nodes
				w, err := db.Topic().StartWriter(
					"topic", topicoptions.WithWriterPartitionID(partition), topicoptions.WithWriterDirectWrite(true),
					topicoptions.WithWriterWaitServerAck(true),
				)
				if err != nil {
					t.Fatal(err)
				}
				if err := w.Write(ctx, topicwriter.Message{Data: strings.NewReader("m")}); err != nil {
					t.Fatalf("partition %d: %v", partition, err)
				}
				if err := w.Close(ctx); err != nil {
					t.Error(err)
				}
			}
			r, err := db.Topic().StartReader("c", topicoptions.ReadTopic("topic"))
			if err != nil {
				t.Fatal(err)
			}
			seen := map[int64]bool{}
			for range 5 {
				m, err := r.ReadMessage(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if data, err := io.ReadAll(m); err != nil || string(data) != "m" {
					t.Errorf("%q, %v", data, err)
				}
				seen[m.PartitionID()] = true
			}
			if err := r.Close(ctx); err != nil {
				t.Error(err)
			}
			if len(seen) != 5 {
				t.Errorf("messages are in partitions %v; want one in each of 5", seen)
			}
		})
	}
}
