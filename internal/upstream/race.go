package upstream

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// stagger is how long one address may be silent before the next is tried as
// well: the connection attempt delay of RFC 8305 (Happy Eyeballs).
const stagger = 250 * time.Millisecond

// race tries 0 to n-1 in order until one succeeds and returns its number and its
// result. The next try begins when one failed, or after pause(its number)
// without a result; those under way go on. When it returns, all tries have
// ended, and late results were handed to lose. The error joins those of all
// tries. A try must end when its ctx does.
func race[T any](ctx context.Context, n int, pause func(i int) time.Duration,
	try func(ctx context.Context, i int) (T, error), lose func(T)) (int, T, error) {
	type result struct {
		i     int
		value T
		err   error
	}
	results := make(chan result, n)
	var wait sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		wait.Wait()
		close(results)
		for r := range results {
			if r.err == nil {
				lose(r.value)
			}
		}
	}()

	var none T
	var errs []error
	next := time.NewTimer(0)
	defer next.Stop()
	begun := 0
	for len(errs) < begun || begun < n {
		select {
		case <-next.C:
			if begun == n {
				continue
			}
			i := begun
			begun++
			wait.Go(func() {
				r := result{i: i}
				r.err = panics.Call("a try of a race", func() (err error) {
					r.value, err = try(ctx, i)
					return err
				})
				results <- r
			})
			if begun < n {
				next.Reset(pause(begun))
			}
		case r := <-results:
			if r.err == nil {
				return r.i, r.value, nil
			}
			errs = append(errs, r.err)
			if ctx.Err() != nil {
				return 0, none, errors.Join(errs...)
			}
			next.Reset(0)
		}
	}
	return 0, none, errors.Join(errs...)
}

// dialAny connects to an address: to the first that accepts of those that the
// host's name stands for. Where some of them are dead, the dialer of package net
// would spend two seconds or more on each.
func dialAny(ctx context.Context, address string, lookup func(ctx context.Context, host string) ([]string, error),
	dial dialer) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	found, err := lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	_, c, err := race(ctx, len(found), func(int) time.Duration { return stagger },
		func(ctx context.Context, i int) (net.Conn, error) { return dial(ctx, net.JoinHostPort(found[i], port)) },
		func(c net.Conn) { c.Close() })
	return c, err
}
