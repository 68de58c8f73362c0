package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
)

// body reads the request's body, within api.max_body.
func (a *API) body(x *exchange) ([]byte, error) {
	return a.bodyUpTo(x, a.core.Cfg.API.MaxBody, "api.max_body", nil)
}

// bodyOfJSON is body, which is to be JSON: the rest of one that begins with what no request may have is not waited for.
func (a *API) bodyOfJSON(x *exchange) ([]byte, error) {
	return a.bodyUpTo(x, a.core.Cfg.API.MaxBody, "api.max_body", func(start []byte) error {
		_, err := checkRequest(start, a.core.Cfg.API, nil)
		return err
	})
}

// bodyUpTo reads the request's body, within a limit of its own. A first piece that is not the whole body is looked at by check,
// if there is one.
func (a *API) bodyUpTo(x *exchange, limit int, setting string, check func(start []byte) error) ([]byte, error) {
	if x.r.ContentLength > int64(limit) {
		return nil, core.OverLimit("bytes of the body", int(x.r.ContentLength), limit, setting)
	}
	if err := a.core.RoomFor(int(x.r.ContentLength)); err != nil {
		return nil, err
	}
	ctx, slow := context.WithCancelCause(x.ctx)
	defer slow(nil)
	done := x.receive(ctx)
	b, err := a.readAll(x, io.LimitReader(x.r.Body, int64(limit)+1), func() { slow(errSlow) }, check)
	done()
	if !x.call.Reserved.Came() {
		err = core.TooMuch(x.call.Reserved.Take(1))
	}
	if err == nil && x.r.ContentLength < 0 {
		if err := a.core.RoomFor(len(b)); err != nil {
			return nil, err
		}
	}
	if err == nil {
		x.read = true
		x.here()
		err = a.core.Came(x.call)
	}
	_, refused := errors.AsType[*core.Fault](err)
	switch {
	case refused:
		return nil, err
	case err != nil && errors.Is(context.Cause(x.ctx), core.ErrCut):
		return nil, core.ErrCut
	case err != nil && errors.Is(context.Cause(x.ctx), context.DeadlineExceeded):
		return nil, core.Faultf(core.CodeDeadline, "the deadline ended before the whole body arrived").With(
			func(f *core.Fault) { f.Safe = true },
		)
	case err != nil:
		return nil, core.BadRequest("the body ended early: %v", err)
	case len(b) > limit:
		return nil, core.OverLimit("bytes of the body", limit, limit, setting)
	}
	x.call.Count(len(b))
	return b, nil
}

// discard reads what is left of a body, as far as the pace lets it until then.
func (a *API) discard(body io.Reader, until time.Time) {
	for left := 2 * a.core.Cfg.API.MaxBody; left > 0; {
		wait, ok := a.discards.Take(discardPiece, time.Until(until))
		if !ok {
			return
		}
		time.Sleep(wait)
		piece := discarded.Get().(*[discardPiece]byte)
		n, err := body.Read(piece[:])
		discarded.Put(piece)
		a.discards.Give(discardPiece - n)
		if err != nil {
			return
		}
		left -= n
	}
}

// errSlow ends the reading of a body that has to make room for others.
var errSlow = errors.New("facade: the body came too slowly")

// pieceSize is how much of a body is held before more of it has come, in bytes: what was announced may never come.
const pieceSize = 64 << 10

// bodyRate bounds the bytes of bodies a second that are read, for each processor, besides the first piece of each. A processor encodes
// rows at half of that; bodies that are rejected once they are whole come as fast as their callers send, and take all of it from others.
const bodyRate = 100 << 20

// waitForBody waits until one more piece of a body may be read.
func (a *API) waitForBody(ctx context.Context) error {
	wait, ok := a.bodies.Take(pieceSize, bodyTimeout)
	if !ok {
		wait = bodyTimeout
	}
	if wait < leastBodyWait { // a timer is no more exact
		return nil
	}
	return core.Rest(ctx, wait)
}

const leastBodyWait = time.Millisecond

// bodyPieces are used again: a body that does not come whole leaves no garbage.
var bodyPieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// readAll is io.ReadAll within the memory for requests. If that is short, and the body comes slowly, end is called.
func (a *API) readAll(x *exchange, r io.Reader, end func(), check func(start []byte) error) (all []byte, err error) {
	size := 512
	if x.r.ContentLength > 0 {
		size = int(min(x.r.ContentLength+1, pieceSize))
	}
	var full [][]byte
	var b []byte // what comes now
	defer func() {
		if all == nil || len(full) > 0 { // else b is what is returned
			recycle(append(full, b))
		}
	}()
	if x.route == nil || !x.route.OfTx() { // what ends a transaction makes no room for others
		x.call.Reserved.Coming(end)
	}
	for {
		if len(b) == cap(b) {
			if cap(b) == pieceSize {
				if check != nil && len(full) == 0 {
					if err := check(b); err != nil {
						return nil, err
					}
				}
				full, b = append(full, b), nil
				if err := a.waitForBody(x.ctx); err != nil {
					return nil, err
				}
			}
			if err := core.TakeRequest(&x.call.Reserved, size); err != nil {
				return nil, err
			}
			more := cap(b) + size
			if more == pieceSize {
				b = append(bodyPieces.Get().(*[pieceSize]byte)[:0], b...)
			} else {
				b = append(make([]byte, 0, more), b...)
			}
			size = more
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if len(full) == 0 {
		return b, nil
	}
	if err := core.TakeRequest(&x.call.Reserved, len(full)*pieceSize+len(b)); err != nil {
		return nil, err
	}
	all = bytes.Join(append(full, b), nil)
	x.call.Reserved.Take(-(len(full) + 1) * pieceSize) // it has room for less
	return all, nil
}

// recycle has pieces of a body used again.
func recycle(list [][]byte) {
	for _, p := range list {
		if cap(p) == pieceSize {
			bodyPieces.Put((*[pieceSize]byte)(p[:pieceSize]))
		}
	}
}
