package knee

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/ydb-sidecar/sidecar/loadtest/lab"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == lab.ChildCommand { // this program started by itself: the backend
		if err := lab.RunChild(context.Background(), []lab.Experiment{Experiment()}, os.Args[2:]); err != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
