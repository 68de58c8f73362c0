package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// passed is a message that is not decoded.
type passed struct{ data mem.BufferSlice }

// passing is the codec of passed messages.
type passing struct{}

func (passing) Marshal(v any) (mem.BufferSlice, error) { return v.(*passed).data, nil }

func (passing) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref() // Marshal's reader frees it
	v.(*passed).data = data
	return nil
}

func (passing) Name() string { return "proto" }

// Forward is a proxy made of grpc-go's server and client, which hands messages on as
// they are, to the backends in turn, until ctx ends.
func Forward(ctx context.Context, listen string, backends []string) error {
	p := &forwarder{}
	for _, address := range backends {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(passing{})))
		if err != nil {
			return fmt.Errorf("forward: %w", err)
		}
		defer conn.Close()
		p.to = append(p.to, conn)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(passing{}), grpc.UnknownServiceHandler(p.handle))
	end := context.AfterFunc(ctx, s.Stop)
	defer end()
	return s.Serve(listener)
}

type forwarder struct {
	to   []*grpc.ClientConn
	turn atomic.Uint64
}

func (p *forwarder) handle(_ any, client grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(client)
	if !ok {
		return status.Error(codes.Internal, "the call has no method")
	}
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	if headers, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, headers)
	}
	to := p.to[p.turn.Add(1)%uint64(len(p.to))]
	node, err := to.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	go func() { // it ends with client, whose context ends when this function returns
		if errors.Is(pass(client.RecvMsg, node.SendMsg), io.EOF) {
			_ = node.CloseSend() // the answer tells what is wrong
		}
	}()
	headers, err := node.Header()
	if err != nil {
		return err
	}
	if err := client.SetHeader(headers); err != nil {
		return err
	}
	err = pass(node.RecvMsg, client.SendMsg)
	client.SetTrailer(node.Trailer())
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// pass hands messages on until one cannot be received, or sent.
func pass(receive, send func(any) error) error {
	for {
		var m passed
		if err := receive(&m); err != nil {
			return err
		}
		if send(&m) != nil {
			return nil // the other direction knows why
		}
	}
}
