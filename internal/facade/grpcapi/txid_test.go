package grpcapi

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Every request of the API with the id of a transaction is known here: a new one
// would not be handed over.
func TestEveryRequestWithATransactionIsKnown(t *testing.T) {
	const id = "tx_id"
	for _, req := range []proto.Message{
		&sidecarv1.ExecuteRequest{Tx: &sidecarv1.TxSelector{Id: id}},
		&sidecarv1.TransactRequest{Tx: &sidecarv1.TxSelector{Id: id}},
		&sidecarv1.CommitRequest{Id: id}, &sidecarv1.RollbackRequest{Id: id}, &sidecarv1.GetTransactionRequest{Id: id},
	} {
		if got := txID(req); got != id {
			t.Errorf("%T: id %q", req, got)
		}
	}
	messages := sidecarv1.File_sidecar_v1_sidecar_proto.Messages()
	for i := range messages.Len() {
		m := messages.Get(i)
		if !strings.HasSuffix(string(m.Name()), "Request") {
			continue
		}
		has := m.Fields().ByName("id") != nil || m.Fields().ByName("tx") != nil
		known := map[string]bool{"ExecuteRequest": true, "TransactRequest": true, "CommitRequest": true, "RollbackRequest": true,
			"GetTransactionRequest": true}[string(m.Name())]
		if has != known {
			t.Errorf("%s: has the id of a transaction: %v; known to txID: %v", m.Name(), has, known)
		}
	}
}
