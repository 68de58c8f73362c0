package client

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// stream is a call as a grpc.ClientStream.
type stream call

// Header implements grpc.ClientStream. It returns what is here: there are no headers that anybody waits for.
func (s *stream) Header() (metadata.MD, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.header, nil
}

// Trailer implements grpc.ClientStream.
func (s *stream) Trailer() metadata.MD {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trailer
}

// CloseSend implements grpc.ClientStream: the one request ends the sending.
func (s *stream) CloseSend() error { return nil }

// Context implements grpc.ClientStream.
func (s *stream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ClientStream.
func (s *stream) SendMsg(m any) error { return (*call)(s).send(m) }

// RecvMsg implements grpc.ClientStream. What it read before is not to be used any more.
func (s *stream) RecvMsg(m any) error {
	k := (*call)(s)
	err := k.receive(m)
	if err != nil || k.whole {
		k.tell()
	}
	return err
}
