package core

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// slowRows are a list of JSON, each row of which takes a part of a slice.
type slowRows []byte

func (r slowRows) Each(f func(row []byte) error) error { return yql.Items(r, f) }

func (r slowRows) First([]byte) error { return ErrSome }

func (r slowRows) Read(columns *yql.Rows, row []byte, into *yql.Cells) error {
	time.Sleep(lane.Slice / lookEach)
	return columns.JSON(row, into)
}

// A large bulk gives its place in the lane to others every lane.Slice.
func TestLongBulksLetOthersWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rows = 10 * lookEach
		given := map[string]*Ydb.Type{"a": {Type: &Ydb.Type_TypeId{TypeId: Ydb.Type_INT64}}}
		text := slowRows("[" + strings.Repeat(`{"a":1},`, rows-1) + `{"a":1}]`)
		l := lane.New(1)
		s := &Service{Cfg: Config{API: DefaultAPI()}, Deps: Deps{Lane: l}, large: l.NewDoor()}
		u := &upsert{s: s, c: &Call{Large: true}, columns: newColumns(nil, given), rows: text}
		begun, waited := time.Now(), time.Duration(0)
		var other sync.WaitGroup
		other.Go(func() {
			time.Sleep(time.Millisecond)
			place, err := l.NewDoor().Enter(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			waited = time.Since(begun)
			place.Leave()
		})
		if err := u.encode(t.Context()); err != nil || u.read != rows {
			t.Errorf("%d rows: %v", u.read, err)
		}
		other.Wait()
		if waited > 2*lane.Slice {
			t.Errorf("the other waited %v of %v", waited, time.Since(begun))
		}
	})
}
