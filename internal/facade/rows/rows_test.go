package rows

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/ingest"
	"github.com/ydb-sidecar/sidecar/internal/memguard"
)

// A small part that waits for memory counts as refused once, and goes on when there is some.
func TestIngestWaitsAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := memguard.OfBytes(1000)
		var other memguard.Reservation
		other.Begin(budget, nil, 0)
		other.Take(1000)
		took := &intake{rows: new(ingest.Stream)}
		took.reserved.Begin(budget, nil, 0)
		time.AfterFunc(time.Minute, other.Release)
		if err := took.take(t.Context(), 100); err != nil {
			t.Error(err)
		}
		if st := budget.State(); st.Refused != 1 || st.Held != 100 {
			t.Errorf("%+v", st)
		}
		took.added()
		if held := budget.State().Held; held != 0 {
			t.Errorf("%d bytes are held of a part whose rows are added", held)
		}
	})
}
