package wire

import (
	"encoding/binary"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Operations"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ydb-sidecar/sidecar/internal/protocol"
)

func bytesOf(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func framedMessage(m []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

func operationOf(t testing.TB, s Ydb.StatusIds_StatusCode, result proto.Message) *Ydb_Operations.Operation {
	op := &Ydb_Operations.Operation{Ready: true, Status: s}
	if result != nil {
		var err error
		if op.Result, err = anypb.New(result); err != nil {
			t.Fatal(err)
		}
	}
	return op
}

// scanned is a scan of whole messages.
func scanned(wants *protocol.Fields, messages ...[]byte) *protocol.Scan {
	s := new(protocol.Scan)
	s.Start(wants)
	for _, m := range messages {
		s.Write(framedMessage(m))
	}
	return s
}

func txID(id string) uint64 { return protocol.Hash([]byte(id)) }

func allBytes(b []byte, number protowire.Number) (all [][]byte, ok bool) {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeField(b)
		if size < 0 {
			return nil, false
		}
		if n == number && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			value, _ := protowire.ConsumeBytes(b[tag:])
			all = append(all, value)
		}
		b = b[size:]
	}
	return all, true
}
