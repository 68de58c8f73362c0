package discovery

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

const (
	nearestNodes   = 3           // connected to in each zone, at random
	nearestZones   = 16          // looked at; nobody has more
	nearestTimeout = time.Second // for a whole measurement, half of it for names

	// A zone is clearly nearer if its time is less than half of another's, and
	// less by more than nearestMargin: between zones of one region lies about a
	// millisecond, on one machine the noise of its scheduler.
	nearestFactor = 2
	nearestMargin = 250 * time.Microsecond
)

// nearest finds the zone whose nodes accept a TCP connection soonest. It belongs
// to Run. It does not flap: a zone stays the nearest until the same other one was
// clearly nearer twice in a row.
type nearest struct {
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	lookup func(ctx context.Context, host string) ([]string, error)

	zone  string // the nearest; "" if not known yet
	rival string // clearly nearer at the last measurement; "" if none was
}

func newNearest() *nearest {
	return &nearest{dial: new(net.Dialer).DialContext, lookup: net.DefaultResolver.LookupHost}
}

// measure returns the nearest zone of t. Where nobody answers it is the former one.
func (n *nearest) measure(ctx context.Context, t cluster.Topology) string {
	zones := zonesOf(t)
	if len(zones) == 1 {
		for n.zone = range zones {
			n.rival = ""
		}
	}
	if len(zones) < 2 {
		return n.zone
	}
	ctx, cancel := context.WithTimeout(ctx, nearestTimeout)
	defer cancel()
	if ties := n.race(ctx, n.resolve(ctx, zones)); len(ties) > 0 {
		n.decide(ties, t.Zone)
	}
	return n.zone
}

// decide takes the zones that no other is clearly nearer than, and that of the
// node that answered discovery, which wins a first tie.
func (n *nearest) decide(ties []string, answered string) {
	slices.Sort(ties)
	best := ties[0]
	for _, z := range []string{answered, n.rival, n.zone} {
		if slices.Contains(ties, z) {
			best = z
		}
	}
	switch {
	case best == n.zone:
		n.rival = ""
	case n.zone == "", best == n.rival:
		n.zone, n.rival = best, ""
	default:
		n.rival = best
	}
}

// zonesOf returns the addresses of some nodes of each zone that has a name. An address that
// nodes of several zones share is one of each.
func zonesOf(t cluster.Topology) map[string][]string {
	zones := map[string][]string{}
	for _, i := range rand.Perm(len(t.Nodes)) {
		node := t.Nodes[i]
		for _, zone := range node.Zones() {
			known := zones[zone]
			if len(known) == nearestNodes || known == nil && len(zones) == nearestZones {
				continue
			}
			zones[zone] = append(known, node.Address)
		}
	}
	return zones
}

// target is a node to connect to.
type target struct{ zone, address string }

// resolve turns names into numbers, so that the race is not one of name servers.
// What cannot be resolved, or not in time, is left out.
func (n *nearest) resolve(ctx context.Context, zones map[string][]string) (targets []target) {
	ctx, cancel := context.WithTimeout(ctx, nearestTimeout/2)
	defer cancel()
	var mu sync.Mutex // guards targets
	var wait sync.WaitGroup
	for zone, addresses := range zones {
		for _, address := range addresses {
			wait.Go(func() {
				defer panics.Go("a lookup of a host")
				host, port, err := net.SplitHostPort(address)
				if err != nil {
					return
				}
				if found, err := n.lookup(ctx, host); err == nil && len(found) > 0 {
					mu.Lock()
					defer mu.Unlock()
					targets = append(targets, target{zone, net.JoinHostPort(found[0], port)})
				}
			})
		}
	}
	wait.Wait()
	return targets
}

// race connects to all targets at once and returns the zone that accepted first
// and those that came so soon after it that it is not clearly nearer.
func (n *nearest) race(ctx context.Context, targets []target) (ties []string) {
	var wait sync.WaitGroup
	defer wait.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan string, len(targets)) // the zone; "" after a failure
	start := time.Now()
	for _, t := range targets {
		wait.Go(func() {
			zone := ""
			defer func() { done <- zone }()
			defer panics.Go("a connection to a node of a zone")
			if c, err := n.dial(ctx, "tcp", t.address); err == nil {
				c.Close()
				zone = t.zone
			}
		})
	}
	var window <-chan time.Time // nil until the first one accepted
	for range targets {
		select {
		case zone := <-done:
			if zone == "" || slices.Contains(ties, zone) {
				continue
			}
			ties = append(ties, zone)
			if window == nil {
				took := time.Since(start)
				window = time.After(max(nearestFactor*took, took+nearestMargin) - took)
			}
		case <-window:
			return ties
		case <-ctx.Done():
			return ties
		}
	}
	return ties
}
