package officialtest

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Topic_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicoptions"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicreader"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topictypes"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicwriter"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

func write(t testing.TB, db *ydb.Driver, topic string, data []string, options ...topicoptions.WriterOption) {
	t.Helper()
	w, err := db.Topic().StartWriter(topic, append(options, topicoptions.WithWriterWaitServerAck(true))...)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range data {
		if err := w.Write(testContext(t), topicwriter.Message{Data: strings.NewReader(d)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// next reads and commits one message.
func next(t testing.TB, r *topicreader.Reader) string {
	t.Helper()
	m, err := r.ReadMessage(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Commit(testContext(t), m); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTopics(t *testing.T) {
	cluster := startCluster(t, nil)
	db := open(t, cluster.Endpoint())
	ctx := testContext(t)
	err := db.Topic().Create(ctx, "dir/topic", topicoptions.CreateWithMinActivePartitions(2),
		topicoptions.CreateWithConsumer(topictypes.Consumer{Name: "c"}))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := db.Topic().Describe(ctx, "dir/topic"); err != nil || len(d.Partitions) != 2 || d.Consumers[0].Name != "c" {
		t.Errorf("%+v, %v", d, err)
	}
	// What is committed is not read again, by whatever reader.
	read := func(n int) (out []string) {
		r, err := db.Topic().StartReader("c", topicoptions.ReadTopic("dir/topic"))
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			out = append(out, next(t, r))
		}
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
		return out
	}
	write(t, db, "dir/topic", []string{"a", "b", "c"}, topicoptions.WithWriterProducerID("p"))
	got := read(2)
	write(t, db, "dir/topic", []string{"d"}, topicoptions.WithWriterProducerID("p"))
	if got = append(got, read(2)...); strings.Join(got, "") != "abcd" {
		t.Errorf("read %v", got)
	}
	if err := db.Topic().Alter(ctx, "dir/topic", topicoptions.AlterWithMinActivePartitions(3),
		topicoptions.AlterWithDropConsumers("c")); err != nil {
		t.Error(err)
	}
	if err := db.Topic().Drop(ctx, "dir/topic"); err != nil {
		t.Error(err)
	}
	_, err = db.Topic().Describe(ctx, "dir/topic")
	wantStatus(t, "a dropped topic", err, Ydb.StatusIds_SCHEME_ERROR)
}

// readAll sends what a reader reads to found, until stop is called, which waits for the reader's end.
func readAll(ctx context.Context, t *testing.T, db *ydb.Driver, found chan<- string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	r, err := db.Topic().StartReader("c", topicoptions.ReadTopic("topic"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			m, err := r.ReadMessage(ctx)
			if err != nil {
				continue
			}
			data, _ := io.ReadAll(m)
			found <- string(data)
			_ = r.Commit(context.WithoutCancel(ctx), m) // fails where the partition went to another reader
		}
	}()
	return func() {
		cancel()
		<-done
		if err := r.Close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}
}

// Two readers of one consumer share the partitions, also while they come and go: nothing is
// left out, and what is read twice is what was not committed before its partition moved.
func TestReadersShareATopic(t *testing.T) {
	const partitions, each = 5, 40
	cluster := startCluster(t, nil)
	db := open(t, cluster.Endpoint())
	ctx := testContext(t)
	err := db.Topic().Create(ctx, "topic", topicoptions.CreateWithMinActivePartitions(partitions),
		topicoptions.CreateWithConsumer(topictypes.Consumer{Name: "c"}))
	if err != nil {
		t.Fatal(err)
	}
	found := make(chan string, partitions*each)
	first := readAll(ctx, t, db, found)
	var want, got []string
	for i := range each {
		for p := range partitions {
			data := strconv.Itoa(p) + "." + strconv.Itoa(i)
			want = append(want, data)
			write(t, db, "topic", []string{data}, topicoptions.WithWriterPartitionID(int64(p)))
		}
		if i == each/2 {
			defer readAll(ctx, t, db, found)()
		}
	}
	seen := map[string]bool{}
	for len(seen) < partitions*each {
		select {
		case m := <-found:
			seen[m] = true
			got = append(got, m)
		case <-time.After(patience):
			t.Fatalf("%d messages of %d", len(seen), partitions*each)
		}
	}
	first()
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(slices.Compact(got), want) {
		t.Errorf("got %v", got)
	}
}

// A stream that names a partition's generation is for the partition's node alone.
func TestRuleDirectWritersGoToThePartitionsNode(t *testing.T) {
	cluster := startCluster(t, nil)
	db := open(t, cluster.Endpoint())
	ctx := testContext(t)
	if err := db.Topic().Create(ctx, "topic", topicoptions.CreateWithMinActivePartitions(5)); err != nil {
		t.Fatal(err)
	}
	for partition := range int64(5) {
		write(t, db, "topic", []string{"m"}, topicoptions.WithWriterPartitionID(partition), topicoptions.WithWriterDirectWrite(true))
	}
	topics := func(node uint32) Ydb_Topic_V1.TopicServiceClient {
		conn, err := grpc.NewClient(cluster.Node(node).Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return Ydb_Topic_V1.NewTopicServiceClient(conn)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "x-ydb-database", "/local")
	described, err := topics(1).DescribeTopic(ctx, &Ydb_Topic.DescribeTopicRequest{Path: "topic", IncludeLocation: true})
	var result Ydb_Topic.DescribeTopicResult
	if err == nil {
		err = described.GetOperation().GetResult().UnmarshalTo(&result)
	}
	if err != nil {
		t.Fatal(err)
	}
	place := result.GetPartitions()[0].GetPartitionLocation()
	begin := func(node uint32, generation int64) Ydb.StatusIds_StatusCode {
		t.Helper()
		stream, err := topics(node).StreamWrite(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&Ydb_Topic.StreamWriteMessage_FromClient{ClientMessage: &Ydb_Topic.StreamWriteMessage_FromClient_InitRequest{
			InitRequest: &Ydb_Topic.StreamWriteMessage_InitRequest{Path: "topic",
				Partitioning: &Ydb_Topic.StreamWriteMessage_InitRequest_PartitionWithGeneration{
					PartitionWithGeneration: &Ydb_Topic.PartitionWithGeneration{PartitionId: 0, Generation: generation},
				}},
		}}); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetStatus()
	}
	for node := range uint32(3) {
		want := Ydb.StatusIds_UNAVAILABLE
		if node+1 == uint32(place.GetNodeId()) {
			want = Ydb.StatusIds_SUCCESS
		}
		if got := begin(node+1, place.GetGeneration()); got != want {
			t.Errorf("node %d, of a partition on node %d: %v; want %v", node+1, place.GetNodeId(), got, want)
		}
	}
	if got := begin(uint32(place.GetNodeId()), place.GetGeneration()+1); got != Ydb.StatusIds_UNAVAILABLE {
		t.Errorf("another generation: %v; want UNAVAILABLE", got)
	}
}
