package devcluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// message is one message of a client's stream; the last one has an error, io.EOF if the
// client has no more to say.
type message[M proto.Message] struct {
	m   M
	err error
}

// inbox receives the messages that follow the first one. Its goroutine ends with the call: gRPC
// ends the receiving when the handler returns, so the node and not the handler waits for it.
func inbox[M proto.Message](c *call) <-chan message[M] {
	out := make(chan message[M])
	c.serving.Go(func() {
		for {
			var f frame
			in := message[M]{m: c.method.request.New().Interface().(M)}
			if in.err = c.stream.RecvMsg(&f); in.err == nil {
				if err := f.decode(in.m); err != nil {
					in.err = fail(Ydb.StatusIds_BAD_REQUEST, "%v", err)
				}
				f.free()
			} else if !errors.Is(in.err, io.EOF) {
				in.err = &transportError{in.err}
			}
			select {
			case out <- in:
			case <-c.stream.Context().Done():
				return
			}
			if in.err != nil {
				return
			}
		}
	})
	return out
}

// streamWrite takes the messages of one producer for one partition.
func streamWrite(c *call, request proto.Message) error {
	init := request.(*Ydb_Topic.StreamWriteMessage_FromClient).GetInitRequest()
	if init == nil {
		return fail(Ydb.StatusIds_BAD_REQUEST, "the first message must be init_request")
	}
	t, err := c.topic(init.GetPath())
	if err != nil {
		return err
	}
	w := &writeStream{call: c, init: init, topic: t}
	if err := w.open(); err != nil {
		return err
	}
	in := inbox[*Ydb_Topic.StreamWriteMessage_FromClient](c)
	for {
		select {
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		case <-c.ending:
			return c.farewell
		case m := <-in:
			switch {
			case errors.Is(m.err, io.EOF):
				return nil
			case m.err != nil:
				return m.err
			}
			if err := w.serve(m.m); err != nil {
				return err
			}
		}
	}
}

type writeStream struct {
	*call
	init      *Ydb_Topic.StreamWriteMessage_InitRequest
	topic     *engine.Topic
	partition int64
}

// open chooses the partition: the one that is asked for, else by the producer's name, which so
// always comes to the same one.
func (w *writeStream) open() error {
	switch p := w.init.GetPartitioning().(type) {
	case *Ydb_Topic.StreamWriteMessage_InitRequest_PartitionId:
		w.partition = p.PartitionId
	case *Ydb_Topic.StreamWriteMessage_InitRequest_PartitionWithGeneration:
		w.partition = p.PartitionWithGeneration.GetPartitionId()
		if w.topic.CheckPartition(w.partition) == nil &&
			(w.home(w.partition) != int32(w.id) || p.PartitionWithGeneration.GetGeneration() != generation) {
			return fail(Ydb.StatusIds_UNAVAILABLE, "pipe to partition's %d tablet is dead", w.partition)
		}
	default:
		name := w.init.GetMessageGroupId()
		if name == "" {
			name = w.init.GetProducerId()
		}
		if name == "" {
			name = rand.Text()
		}
		h := fnv.New32a()
		fmt.Fprint(h, name) // a hash never fails to write
		w.partition = int64(h.Sum32()) % w.topic.Partitions
	}
	if err := w.topic.CheckPartition(w.partition); err != nil {
		return err
	}
	last := int64(0)
	if w.init.GetProducerId() != "" {
		var err error
		if last, err = w.topic.LastSeqNo(w.ctx, w.partition, w.init.GetProducerId()); err != nil {
			return err
		}
	}
	codecs := w.topic.Spec.GetSupportedCodecs()
	if codecs == nil {
		codecs = &Ydb_Topic.SupportedCodecs{}
	}
	return w.answer(&Ydb_Topic.StreamWriteMessage_FromServer{ServerMessage: &Ydb_Topic.StreamWriteMessage_FromServer_InitResponse{
		InitResponse: &Ydb_Topic.StreamWriteMessage_InitResponse{
			LastSeqNo: last, SessionId: "write_" + rand.Text(), PartitionId: w.partition, SupportedCodecs: codecs,
		},
	}})
}

func (w *writeStream) answer(m *Ydb_Topic.StreamWriteMessage_FromServer) error {
	m.Status = Ydb.StatusIds_SUCCESS
	return w.send(m)
}

func (w *writeStream) serve(m *Ydb_Topic.StreamWriteMessage_FromClient) error {
	switch m := m.GetClientMessage().(type) {
	case *Ydb_Topic.StreamWriteMessage_FromClient_UpdateTokenRequest:
		return w.answer(
			&Ydb_Topic.StreamWriteMessage_FromServer{ServerMessage: &Ydb_Topic.StreamWriteMessage_FromServer_UpdateTokenResponse{
				UpdateTokenResponse: &Ydb_Topic.UpdateTokenResponse{},
			}},
		)
	case *Ydb_Topic.StreamWriteMessage_FromClient_WriteRequest:
		response, err := w.write(m.WriteRequest)
		if err != nil {
			return err
		}
		return w.answer(&Ydb_Topic.StreamWriteMessage_FromServer{ServerMessage: response})
	}
	return fail(Ydb.StatusIds_BAD_REQUEST, "unexpected message %T", m.GetClientMessage())
}

func (w *writeStream) write(r *Ydb_Topic.StreamWriteMessage_WriteRequest) (*Ydb_Topic.StreamWriteMessage_FromServer_WriteResponse, error) {
	if codecs := w.topic.Spec.GetSupportedCodecs().GetCodecs(); len(codecs) > 0 && !slices.Contains(codecs, r.GetCodec()) {
		return nil, fail(Ydb.StatusIds_BAD_REQUEST, "topic %s does not support codec %d", w.topic.Path, r.GetCodec())
	}
	var tx *engine.Tx
	if id := r.GetTx(); id.GetSession() != "" {
		owner, err := ownerOf(id.GetSession())
		switch {
		case err != nil:
			return nil, err
		case owner != w.id && w.from:
			return nil, errBadSession(id.GetSession())
		case owner != w.id:
			w.counters.relayed.Add(1)
			return w.relay(owner, r)
		}
		if tx, err = w.topicTx(id); err != nil {
			return nil, err
		}
	}
	var batches []*engine.Batch
	for _, m := range r.GetMessages() {
		if p, ok := m.GetPartitioning().(*Ydb_Topic.StreamWriteMessage_WriteRequest_MessageData_PartitionId); ok &&
			p.PartitionId != w.partition {
			return nil, fail(Ydb.StatusIds_UNSUPPORTED,
				"a message for partition %d in a stream to partition %d is not supported", p.PartitionId, w.partition)
		}
		batches = append(batches, &engine.Batch{
			ProducerId: w.init.GetProducerId(), WriteSessionMeta: w.init.GetWriteSessionMeta(), Codec: r.GetCodec(),
			MessageData: []*Ydb_Topic.StreamReadMessage_ReadResponse_MessageData{{
				SeqNo: m.GetSeqNo(), CreatedAt: m.GetCreatedAt(), Data: m.GetData(), UncompressedSize: m.GetUncompressedSize(),
				MessageGroupId: w.init.GetMessageGroupId(), MetadataItems: m.GetMetadataItems(),
			}},
		})
	}
	acks, err := w.topic.Write(w.ctx, tx, w.partition, batches)
	if err != nil {
		return nil, err
	}
	return &Ydb_Topic.StreamWriteMessage_FromServer_WriteResponse{WriteResponse: &Ydb_Topic.StreamWriteMessage_WriteResponse{
		PartitionId: w.partition, WriteStatistics: &Ydb_Topic.StreamWriteMessage_WriteResponse_WriteStatistics{},
		Acks: written(r.GetMessages(), acks, tx != nil),
	}}, nil
}

type writeAck = Ydb_Topic.StreamWriteMessage_WriteResponse_WriteAck

// written says what became of each message; in a transaction that is known when it ends.
func written(messages []*Ydb_Topic.StreamWriteMessage_WriteRequest_MessageData, acks []engine.Ack, inTx bool) []*writeAck {
	var list []*writeAck
	for i, m := range messages {
		ack := &writeAck{SeqNo: m.GetSeqNo()}
		switch {
		case inTx:
			ack.MessageWriteStatus = &Ydb_Topic.StreamWriteMessage_WriteResponse_WriteAck_WrittenInTx_{
				WrittenInTx: &Ydb_Topic.StreamWriteMessage_WriteResponse_WriteAck_WrittenInTx{},
			}
		case acks[i].Skipped:
			ack.MessageWriteStatus = &Ydb_Topic.StreamWriteMessage_WriteResponse_WriteAck_Skipped_{
				Skipped: &Ydb_Topic.StreamWriteMessage_WriteResponse_WriteAck_Skipped{
					Reason: Ydb_Topic.StreamWriteMessage_WriteResponse_WriteAck_Skipped_REASON_ALREADY_WRITTEN,
				},
			}
		default:
			ack.MessageWriteStatus = &Ydb_Topic.StreamWriteMessage_WriteResponse_WriteAck_Written_{
				Written: &Ydb_Topic.StreamWriteMessage_WriteResponse_WriteAck_Written{Offset: acks[i].Offset},
			}
		}
		list = append(list, ack)
	}
	return list
}

// relay writes messages through the node of their transaction's session.
func (w *writeStream) relay(owner uint32, r *Ydb_Topic.StreamWriteMessage_WriteRequest) (
	*Ydb_Topic.StreamWriteMessage_FromServer_WriteResponse, error,
) {
	m, ok := w.topology.find(owner)
	if !ok || !m.Alive {
		return nil, errBadSession(r.GetTx().GetSession())
	}
	if err := w.hop(m); err != nil {
		return nil, err
	}
	hop := *w.call
	var cancel context.CancelFunc
	hop.ctx, cancel = context.WithCancel(w.ctx)
	defer cancel()
	stream, err := hop.open(m)
	if err != nil {
		return nil, w.hopFailed(owner, err, false)
	}
	init := proto.Clone(w.init).(*Ydb_Topic.StreamWriteMessage_InitRequest)
	init.Partitioning = &Ydb_Topic.StreamWriteMessage_InitRequest_PartitionId{PartitionId: w.partition}
	init.GetLastSeqNo = false
	for _, request := range []*Ydb_Topic.StreamWriteMessage_FromClient{
		{ClientMessage: &Ydb_Topic.StreamWriteMessage_FromClient_InitRequest{InitRequest: init}},
		{ClientMessage: &Ydb_Topic.StreamWriteMessage_FromClient_WriteRequest{WriteRequest: r}},
	} {
		if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) { // EOF: RecvMsg has the reason
			return nil, w.hopFailed(owner, err, false)
		}
	}
	for {
		answer := &Ydb_Topic.StreamWriteMessage_FromServer{}
		if err := stream.RecvMsg(answer); err != nil {
			return nil, w.hopFailed(owner, err, false)
		}
		if answer.GetStatus() != Ydb.StatusIds_SUCCESS {
			return nil, &statusError{status: answer.GetStatus(), issues: answer.GetIssues()}
		}
		if written, ok := answer.GetServerMessage().(*Ydb_Topic.StreamWriteMessage_FromServer_WriteResponse); ok {
			return written, nil
		}
	}
}
