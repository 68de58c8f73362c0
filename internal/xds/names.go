package xds

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	lookupEvery   = 30 * time.Second // pause until the addresses of a name are looked up again
	lookupRetry   = 2 * time.Second  // after a failure
	lookupTimeout = 5 * time.Second
	lookupsAtOnce = 8
)

// names finds the addresses of nodes that discovery knows by name: neither Envoy nor
// most gRPC clients take names in lists of endpoints. Addresses that were found once
// stay when a later look fails.
type names struct {
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	mu    sync.Mutex // guards hosts
	hosts map[string]*host
}

type host struct {
	ips  []netip.Addr
	next time.Time // when to look again
	seen bool      // somebody looked, or it is an address
}

func newNames(lookup func(context.Context, string) ([]netip.Addr, error)) *names {
	return &names{lookup: lookup, hosts: map[string]*host{}}
}

// of returns the addresses of a host: first the one to dial first.
func (n *names) of(name string) []netip.Addr {
	if ip, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{ip.Unmap().WithZone("")}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.hosts[name]; h != nil {
		return h.ips
	}
	return nil
}

// want makes known which hosts there are, and returns those to look up now. pending
// is how many of them nobody has looked up yet; wake is when more are due.
func (n *names) want(now time.Time, all []string) (due []string, pending int, wake time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	keep := make(map[string]*host, len(all))
	for _, name := range all {
		if _, err := netip.ParseAddr(name); err == nil || keep[name] != nil {
			continue
		}
		h := n.hosts[name]
		if h == nil {
			h = new(host)
		}
		keep[name] = h
		if !h.seen {
			pending++
		}
		if !now.Before(h.next) {
			due = append(due, name)
		} else if wake.IsZero() || h.next.Before(wake) {
			wake = h.next
		}
	}
	n.hosts = keep
	return due, pending, wake
}

// look looks hosts up, and returns how many of all have no address.
func (n *names) look(ctx context.Context, due []string) (unknown int) {
	var group errgroup.Group
	group.SetLimit(lookupsAtOnce)
	for _, name := range due {
		group.Go(func() error {
			bounded, cancel := context.WithTimeout(ctx, lookupTimeout)
			defer cancel()
			var ips []netip.Addr
			err := panics.Call("a lookup of a host", func() (err error) {
				ips, err = n.lookup(bounded, name)
				return err
			})
			n.mu.Lock()
			defer n.mu.Unlock()
			h := n.hosts[name]
			if h == nil {
				return nil // it left meanwhile
			}
			h.seen = true
			if err != nil || len(ips) == 0 {
				h.next = time.Now().Add(lookupRetry)
			} else {
				h.next, h.ips = time.Now().Add(lookupEvery), oneOfEach(ips)
			}
			return nil
		})
	}
	_ = group.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.hosts {
		if h.seen && len(h.ips) == 0 {
			unknown++
		}
	}
	return unknown
}

// oneOfEach returns the lowest address of each family, that of IPv4 first: the same
// whatever order a resolver has today.
func oneOfEach(ips []netip.Addr) (out []netip.Addr) {
	slices.SortFunc(ips, netip.Addr.Compare)
	for _, four := range []bool{true, false} {
		for _, ip := range ips {
			if ip = ip.Unmap(); ip.Is4() == four {
				out = append(out, ip.WithZone(""))
				break
			}
		}
	}
	return out
}
