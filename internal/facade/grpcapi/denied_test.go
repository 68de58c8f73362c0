package grpcapi

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ydb-sidecar/sidecar/internal/apps"
	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

func TestWhatACallSaysOfItsApp(t *testing.T) {
	for _, tc := range []struct {
		name    string
		headers []string
		want    apps.Caller
	}{
		{"nothing", nil, apps.Caller{Prove: true}},
		{"name", []string{"x-sidecar-app", "a b"}, apps.Caller{Name: "a b", Prove: true, Strict: true}},
		{"name of an SDK", []string{"x-ydb-application-name", "a"}, apps.Caller{Name: "a", Prove: true}},
		{"both", []string{"x-ydb-application-name", "a", "x-sidecar-app", "b"}, apps.Caller{Name: "b", Prove: true, Strict: true}},
		{"token", []string{"authorization", "bearer  xyz "}, apps.Caller{Token: "xyz", Prove: true}},
		{"token behind another scheme", []string{"authorization", "Basic xyz", "authorization", "Bearer xyz"},
			apps.Caller{Token: "xyz", Prove: true}},
		{"one token twice", []string{"authorization", "bearer xyz", "authorization", "Bearer xyz"}, apps.Caller{Token: "xyz", Prove: true}},
		{"two tokens", []string{"authorization", "Bearer xyz", "authorization", "Bearer abc"}, apps.Caller{Tokens: true, Prove: true}},
		{"another scheme", []string{"authorization", "Basic xyz"}, apps.Caller{Prove: true}},
	} {
		md := metadata.Pairs(tc.headers...)
		get := incoming(md).Get
		tc.want.Strict = tc.want.Strict && tc.want.Name != ""
		if got := core.CallerOf(
			t.Context(), get, md.Get(core.HeaderToken),
		); got.Tokens != tc.want.Tokens || got.Name != tc.want.Name || got.Token != tc.want.Token ||
			got.Prove != tc.want.Prove || got.Name != "" && got.Strict != tc.want.Strict || got.Local {
			t.Errorf("%s: %+v; want %+v", tc.name, got, tc.want)
		}
	}
	none := func(string) string { return "" }
	if got := core.CallerOf(core.WithUser(t.Context(), 7), none, nil); !got.Local || got.User != 7 {
		t.Errorf("a user: %+v", got)
	}
	if got := core.CallerOf(context.WithValue(t.Context(), core.FromOther{}, true), none, nil); !got.Peer {
		t.Errorf("the other process: %+v", got)
	}
}

// Denied answers as each method does, to the last detail, and knows the calls by the same names.
func TestDenialsAreThoseOfTheMethods(t *testing.T) {
	all, err := apps.New(apps.Config{Max: 5, Token: []string{"web=" + secretOfWeb}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &facadetest.Driver{Answer: facadetest.Echo}
	b := compose(t, facadetest.Small(), core.Deps{Driver: d, Apps: all}).serve(t, d)
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	methods := 0
	b.grpc.Denied(func(path string, run func(context.Context, func(any) error) (any, error)) {
		methods++
		for name, headers := range map[string][]string{
			"no token":         nil,
			"an unknown token": {"authorization", "Bearer another"},
			"two tokens":       {"authorization", "Bearer " + secretOfWeb + ", Bearer another"},
			"its name":         {"x-sidecar-app", "web"},
			"no name":          {"x-sidecar-app", "no name"},
		} {
			md := metadata.Pairs(headers...)
			stream, err := b.conn.NewStream(metadata.NewOutgoingContext(t.Context(), md), desc, path)
			if err != nil {
				t.Fatal(err)
			}
			_ = stream.SendMsg(&emptypb.Empty{}) // RecvMsg says why not
			_ = stream.CloseSend()
			want := status.Convert(stream.RecvMsg(&emptypb.Empty{}))
			_, err = run(metadata.NewIncomingContext(t.Context(), md), nil)
			same := func(a, b any) bool { return proto.Equal(a.(proto.Message), b.(proto.Message)) }
			if got := status.Convert(err); err == nil || got.Code() != want.Code() || got.Message() != want.Message() ||
				!slices.EqualFunc(got.Details(), want.Details(), same) {
				t.Errorf("%s, %s:\n%v; the method says\n%v", path, name, got.Proto(), want.Proto())
			}
		}
		if job, ok := jobs[path]; ok && job.name != nameOf(path) {
			t.Errorf("%s is named %s; want %s", path, nameOf(path), job.name)
		}
		// The app has got its token between two looks.
		md := metadata.Pairs("authorization", "Bearer "+secretOfWeb)
		if _, err := run(metadata.NewIncomingContext(t.Context(), md), nil); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s, the right token: %v", path, err)
		}
	})
	if want := 17; methods < want {
		t.Errorf("%d methods; there are at least %d", methods, want)
	}
	if name := nameOf(sidecarv1.Ingest_Ingest_FullMethodName); name != core.CallIngest {
		t.Errorf("Ingest is named %s", name)
	}
}
