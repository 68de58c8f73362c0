package devcluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Topic"
	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine"
)

// readers deals the partitions of topics out to the read sessions of each consumer: each
// partition is read by one of them at a time. It knows the sessions of this process only.
type readers struct {
	mu     sync.Mutex // guards groups and what is in them
	groups map[groupKey]*group
}

type groupKey struct{ topic, consumer string }

type group struct {
	members []*reader // in the order they came
	owners  map[int64]*reader
}

// wake tells every session of the group to look again.
func (g *group) wakeLocked() {
	for _, r := range g.members {
		select {
		case r.wake <- struct{}{}:
		default: // it is told already
		}
	}
}

// dealLocked returns the session that should have the partition: those that want it, in turn. nil: none wants it.
func (g *group) dealLocked(partition int64) *reader {
	var want []*reader
	for _, r := range g.members {
		if r.wants(partition) {
			want = append(want, r)
		}
	}
	if len(want) == 0 {
		return nil
	}
	return want[partition%int64(len(want))]
}

// reader is one topic in one read session.
type reader struct {
	path     string // as the client wrote it
	topic    *engine.Topic
	settings *Ydb_Topic.StreamReadMessage_InitRequest_TopicReadSettings
	wake     chan struct{}
	parts    map[int64]*part // by partition
}

func (r *reader) wants(partition int64) bool {
	ids := r.settings.GetPartitionIds()
	return len(ids) == 0 || slices.Contains(ids, partition)
}

func (rs *readers) join(k groupKey, r *reader) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.groups == nil {
		rs.groups = map[groupKey]*group{}
	}
	g := rs.groups[k]
	if g == nil {
		g = &group{owners: map[int64]*reader{}}
		rs.groups[k] = g
	}
	g.members = append(g.members, r)
	g.wakeLocked()
}

func (rs *readers) leave(k groupKey, r *reader) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	g := rs.groups[k]
	g.members = slices.DeleteFunc(g.members, func(m *reader) bool { return m == r })
	for p, owner := range g.owners {
		if owner == r {
			delete(g.owners, p)
		}
	}
	if len(g.members) == 0 {
		delete(rs.groups, k)
	}
	g.wakeLocked()
}

// turn says which partitions the session takes now, which are its own from then on, and which
// it should give back.
func (rs *readers) turn(k groupKey, r *reader) (take, give []int64) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	g := rs.groups[k]
	for p := range r.topic.Partitions {
		switch mine := g.dealLocked(p) == r; {
		case mine && g.owners[p] == nil:
			g.owners[p] = r
			take = append(take, p)
		case !mine && g.owners[p] == r:
			give = append(give, p)
		}
	}
	return take, give
}

// release gives a partition back.
func (rs *readers) release(k groupKey, r *reader, partition int64) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	g := rs.groups[k]
	if g.owners[partition] == r {
		delete(g.owners, partition)
		g.wakeLocked()
	}
}

// part is a partition while a session reads it.
type part struct {
	id        int64 // of the partition session
	reader    *reader
	partition int64
	started   bool // the client has agreed; messages flow
	stopping  bool // the client is asked to give it back
	next      int64
	committed int64
	pending   []*Ydb_Topic.OffsetsRange // committed ahead of others
}

// readPoll is how often topics are looked at for what other processes wrote.
const readPoll = 100 * time.Millisecond

// readStream is one read session.
type readStream struct {
	*call
	consumer string
	topics   []*reader
	parts    map[int64]*part
	last     int64 // id of a partition session
	credit   int64 // bytes that the client has room for
	wake     chan struct{}
}

// streamRead sends the messages of topics to one client and takes its commits.
func streamRead(c *call, request proto.Message) error {
	init := request.(*Ydb_Topic.StreamReadMessage_FromClient).GetInitRequest()
	switch {
	case init == nil:
		return fail(Ydb.StatusIds_BAD_REQUEST, "the first message must be init_request")
	case init.GetDirectRead():
		return fail(Ydb.StatusIds_UNSUPPORTED, "direct reading is not supported")
	case len(init.GetTopicsReadSettings()) == 0:
		return fail(Ydb.StatusIds_BAD_REQUEST, "no topics are named")
	case c.config.Node != 0 && init.GetConsumer() != "":
		return fail(Ydb.StatusIds_UNSUPPORTED,
			"reading with a consumer is not supported where nodes are processes of their own: they would not share the partitions")
	}
	s := &readStream{call: c, consumer: init.GetConsumer(), parts: map[int64]*part{}, wake: make(chan struct{}, 1)}
	for _, settings := range init.GetTopicsReadSettings() {
		r := &reader{path: settings.GetPath(), settings: settings, wake: s.wake, parts: map[int64]*part{}}
		var err error
		if r.topic, err = c.topic(r.path); err != nil {
			return err
		}
		for _, p := range settings.GetPartitionIds() {
			if err := r.topic.CheckPartition(p); err != nil {
				return err
			}
		}
		if s.consumer != "" && !r.topic.HasConsumer(s.consumer) {
			return fail(Ydb.StatusIds_SCHEME_ERROR, "topic %s has no consumer %q", r.path, s.consumer)
		}
		s.topics = append(s.topics, r)
	}
	id := "read_" + rand.Text()
	err := s.answer(&Ydb_Topic.StreamReadMessage_FromServer{ServerMessage: &Ydb_Topic.StreamReadMessage_FromServer_InitResponse{
		InitResponse: &Ydb_Topic.StreamReadMessage_InitResponse{SessionId: id},
	}})
	if err != nil {
		return err
	}
	for _, r := range s.topics {
		k := s.key(r, id)
		c.readers.join(k, r)
		defer c.readers.leave(k, r)
	}
	return s.run(id)
}

// key names the sessions that share the topic's partitions with this one. Without a consumer there are none.
func (s *readStream) key(r *reader, id string) groupKey {
	if s.consumer == "" {
		return groupKey{r.topic.Path, "\x00" + id}
	}
	return groupKey{r.topic.Path, s.consumer}
}

func (s *readStream) answer(m *Ydb_Topic.StreamReadMessage_FromServer) error {
	m.Status = Ydb.StatusIds_SUCCESS
	return s.send(m)
}

func (s *readStream) run(id string) error {
	in := inbox[*Ydb_Topic.StreamReadMessage_FromClient](s.call)
	var poll <-chan time.Time
	if s.config.Node != 0 {
		ticker := time.NewTicker(readPoll)
		defer ticker.Stop()
		poll = ticker.C
	}
	for {
		changed := s.db.TopicsChanged() // before looking, so that nothing is missed
		if err := s.rebalance(id); err != nil {
			return err
		}
		if err := s.deliver(); err != nil {
			return err
		}
		select {
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-s.ending:
			return s.farewell
		case <-changed:
		case <-s.wake:
		case <-poll:
		case m := <-in:
			switch {
			case errors.Is(m.err, io.EOF):
				return nil
			case m.err != nil:
				return m.err
			}
			if err := s.serve(m.m, id); err != nil {
				return err
			}
		}
	}
}

// rebalance starts what fell to this session and asks for what it should give back.
func (s *readStream) rebalance(id string) error {
	for _, r := range s.topics {
		t, err := s.topic(r.path)
		if err != nil {
			return err // dropped, for one
		}
		r.topic = t
		take, give := s.readers.turn(s.key(r, id), r)
		for _, p := range take {
			if err := s.start(r, p); err != nil {
				return err
			}
		}
		for _, n := range give {
			p := r.parts[n]
			if p.stopping {
				continue
			}
			p.stopping = true
			err := s.answer(
				&Ydb_Topic.StreamReadMessage_FromServer{ServerMessage: &Ydb_Topic.StreamReadMessage_FromServer_StopPartitionSessionRequest{
					StopPartitionSessionRequest: &Ydb_Topic.StreamReadMessage_StopPartitionSessionRequest{
						PartitionSessionId: p.id, Graceful: true, CommittedOffset: p.committed,
					},
				}},
			)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *readStream) start(r *reader, partition int64) error {
	end, err := r.topic.End(s.ctx, partition)
	if err != nil {
		return err
	}
	committed := int64(0)
	if s.consumer != "" {
		if committed, err = r.topic.Committed(s.ctx, partition, s.consumer); err != nil {
			return err
		}
	}
	s.last++
	p := &part{id: s.last, reader: r, partition: partition, next: committed, committed: committed}
	s.parts[p.id], r.parts[partition] = p, p
	return s.answer(
		&Ydb_Topic.StreamReadMessage_FromServer{ServerMessage: &Ydb_Topic.StreamReadMessage_FromServer_StartPartitionSessionRequest{
			StartPartitionSessionRequest: &Ydb_Topic.StreamReadMessage_StartPartitionSessionRequest{
				PartitionSession: &Ydb_Topic.StreamReadMessage_PartitionSession{PartitionSessionId: p.id, Path: r.path,
					PartitionId: partition},
				CommittedOffset: committed, PartitionOffsets: &Ydb_Topic.OffsetsRange{End: end},
				PartitionLocation: &Ydb_Topic.PartitionLocation{NodeId: s.home(partition), Generation: 1},
			},
		}},
	)
}

// deliver sends messages as long as there are some and the client has room.
func (s *readStream) deliver() error {
	for any := true; any && s.credit > 0; {
		any = false
		for _, p := range s.inOrder() {
			if !p.started || p.stopping || s.credit <= 0 {
				continue
			}
			batches, err := p.reader.topic.Read(s.ctx, p.partition, p.next, int(min(s.credit, maxPartBytes)))
			if err != nil {
				return err
			}
			if len(batches) == 0 {
				continue
			}
			any = true
			p.next = batches[len(batches)-1].GetMessageData()[0].GetOffset() + 1
			if batches = p.reader.recent(batches); len(batches) == 0 {
				continue
			}
			response := &Ydb_Topic.StreamReadMessage_ReadResponse{
				PartitionData: []*Ydb_Topic.StreamReadMessage_ReadResponse_PartitionData{{PartitionSessionId: p.id, Batches: batches}},
			}
			response.BytesSize = int64(proto.Size(response))
			s.credit -= response.BytesSize
			err = s.answer(
				&Ydb_Topic.StreamReadMessage_FromServer{
					ServerMessage: &Ydb_Topic.StreamReadMessage_FromServer_ReadResponse{ReadResponse: response},
				},
			)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *readStream) inOrder() []*part {
	out := make([]*part, 0, len(s.parts))
	for _, p := range s.parts {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *part) int { return cmp.Compare(a.id, b.id) })
	return out
}

// recent leaves out what is older than the session wants.
func (r *reader) recent(batches []*engine.Batch) []*engine.Batch {
	var from time.Time
	if f := r.settings.GetReadFrom(); f != nil {
		from = f.AsTime()
	}
	if lag := r.settings.GetMaxLag().AsDuration(); lag > 0 {
		if t := time.Now().Add(-lag); t.After(from) {
			from = t
		}
	}
	return slices.DeleteFunc(batches, func(b *engine.Batch) bool { return b.GetWrittenAt().AsTime().Before(from) })
}

// part finds a partition session. One that ended meanwhile is nil without an error.
func (s *readStream) part(id int64) (*part, error) {
	p := s.parts[id]
	if p == nil && (id < 1 || id > s.last) {
		return nil, fail(Ydb.StatusIds_BAD_REQUEST, "no partition session %d", id)
	}
	return p, nil
}

func (s *readStream) serve(m *Ydb_Topic.StreamReadMessage_FromClient, id string) error {
	switch m := m.GetClientMessage().(type) {
	case *Ydb_Topic.StreamReadMessage_FromClient_ReadRequest:
		s.credit += m.ReadRequest.GetBytesSize()
		return nil
	case *Ydb_Topic.StreamReadMessage_FromClient_UpdateTokenRequest:
		return s.answer(&Ydb_Topic.StreamReadMessage_FromServer{ServerMessage: &Ydb_Topic.StreamReadMessage_FromServer_UpdateTokenResponse{
			UpdateTokenResponse: &Ydb_Topic.UpdateTokenResponse{},
		}})
	case *Ydb_Topic.StreamReadMessage_FromClient_CommitOffsetRequest:
		return s.commitOffsets(m.CommitOffsetRequest)
	case *Ydb_Topic.StreamReadMessage_FromClient_StartPartitionSessionResponse:
		return s.agreed(m.StartPartitionSessionResponse)
	case *Ydb_Topic.StreamReadMessage_FromClient_StopPartitionSessionResponse:
		p, err := s.part(m.StopPartitionSessionResponse.GetPartitionSessionId())
		if err != nil || p == nil {
			return err
		}
		delete(s.parts, p.id)
		delete(p.reader.parts, p.partition)
		s.readers.release(s.key(p.reader, id), p.reader, p.partition)
		return nil
	case *Ydb_Topic.StreamReadMessage_FromClient_PartitionSessionStatusRequest:
		return s.status(m.PartitionSessionStatusRequest.GetPartitionSessionId())
	}
	return fail(Ydb.StatusIds_BAD_REQUEST, "unexpected message %T", m.GetClientMessage())
}

func (s *readStream) agreed(r *Ydb_Topic.StreamReadMessage_StartPartitionSessionResponse) error {
	p, err := s.part(r.GetPartitionSessionId())
	if err != nil || p == nil {
		return err
	}
	p.started = true
	if r.CommitOffset != nil {
		if err := p.reader.topic.Commit(s.ctx, p.partition, s.consumer, r.GetCommitOffset()); err != nil {
			return err
		}
		p.committed = r.GetCommitOffset()
		p.next = max(p.next, p.committed)
	}
	if r.ReadOffset != nil {
		p.next = r.GetReadOffset()
	}
	return nil
}

// commitOffsets moves the committed offsets over what is committed without a gap; the rest waits.
func (s *readStream) commitOffsets(r *Ydb_Topic.StreamReadMessage_CommitOffsetRequest) error {
	if s.consumer == "" {
		return fail(Ydb.StatusIds_BAD_REQUEST, "a session without a consumer cannot commit")
	}
	response := &Ydb_Topic.StreamReadMessage_CommitOffsetResponse{}
	for _, c := range r.GetCommitOffsets() {
		p, err := s.part(c.GetPartitionSessionId())
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		p.pending = append(p.pending, c.GetOffsets()...)
		slices.SortFunc(p.pending, func(a, b *Ydb_Topic.OffsetsRange) int { return cmp.Compare(a.GetStart(), b.GetStart()) })
		if p.committed, err = p.reader.topic.Committed(s.ctx, p.partition, s.consumer); err != nil {
			return err // it may have moved in a transaction
		}
		to := p.committed
		for len(p.pending) > 0 && p.pending[0].GetStart() <= to {
			to = max(to, p.pending[0].GetEnd())
			p.pending = p.pending[1:]
		}
		if to == p.committed {
			continue
		}
		if err := p.reader.topic.Commit(s.ctx, p.partition, s.consumer, to); err != nil {
			return err
		}
		p.committed = to
		response.PartitionsCommittedOffsets = append(response.PartitionsCommittedOffsets,
			&Ydb_Topic.StreamReadMessage_CommitOffsetResponse_PartitionCommittedOffset{PartitionSessionId: p.id, CommittedOffset: to})
	}
	if len(response.PartitionsCommittedOffsets) == 0 {
		return nil
	}
	return s.answer(
		&Ydb_Topic.StreamReadMessage_FromServer{
			ServerMessage: &Ydb_Topic.StreamReadMessage_FromServer_CommitOffsetResponse{CommitOffsetResponse: response},
		},
	)
}

func (s *readStream) status(id int64) error {
	p, err := s.part(id)
	if err != nil || p == nil {
		return err
	}
	end, err := p.reader.topic.End(s.ctx, p.partition)
	if err != nil {
		return err
	}
	return s.answer(
		&Ydb_Topic.StreamReadMessage_FromServer{ServerMessage: &Ydb_Topic.StreamReadMessage_FromServer_PartitionSessionStatusResponse{
			PartitionSessionStatusResponse: &Ydb_Topic.StreamReadMessage_PartitionSessionStatusResponse{
				PartitionSessionId: p.id, PartitionOffsets: &Ydb_Topic.OffsetsRange{End: end},
				CommittedOffset: p.committed, ReadOffset: p.next,
			},
		}},
	)
}
