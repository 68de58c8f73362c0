package discovery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/panics"
)

// lookupsAtOnce is how many names of SRV records are looked up at a time.
const lookupsAtOnce = 16

// DNS is the Source of a name: each address that it stands for is a node. Names have
// no ids, so each node is asked for its own once: see identities. There are no zones.
type DNS struct {
	*identities
	database   string
	host, port string // port: "" for the name of SRV records
	server     string // the one that is asked; "": those of the system
	resolver   *net.Resolver
	last       map[string][]netip.Addr // of the hosts of SRV records, for when one cannot be looked up
}

// NewDNS returns the nodes of Config.DNSName, for a database of that name.
func NewDNS(config Config, database string, ask Identify, log *slog.Logger) *DNS {
	d := &DNS{identities: newIdentities(ask, log), database: database, host: config.DNSName, server: config.DNSHost,
		resolver: net.DefaultResolver}
	if host, port, err := net.SplitHostPort(config.DNSName); err == nil {
		d.host, d.port = host, port
	}
	if d.server != "" {
		d.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, d.server)
		}}
	}
	return d
}

// Database returns the name.
func (d *DNS) Database() string { return d.database }

// ListEndpoints looks the name up and returns the addresses whose ids are known.
func (d *DNS) ListEndpoints(ctx context.Context) (cluster.Topology, error) {
	nodes, err := d.lookup(ctx)
	if err != nil {
		return cluster.Topology{}, err
	}
	return d.topology(ctx, nodes)
}

func (d *DNS) run(ctx context.Context, changed func()) error {
	d.identities.run(ctx, changed)
	return nil
}

func (d *DNS) state() SourceState { return SourceState{Unidentified: d.unidentified()} }

// lookup returns the addresses without ids, in ascending order. Certificates are
// checked by the name that the address was found under.
func (d *DNS) lookup(ctx context.Context) ([]cluster.Node, error) {
	if d.port != "" {
		found, err := d.addresses(ctx, d.host)
		if err != nil {
			return nil, err
		}
		return nodesAt(d.host, d.port, found), nil
	}
	_, records, err := d.resolver.LookupSRV(ctx, "", "", d.host)
	if err != nil && len(records) == 0 { // else some of them are malformed
		return nil, d.named(err)
	}
	slices.SortFunc(records, func(a, b *net.SRV) int {
		return cmp.Or(strings.Compare(a.Target, b.Target), cmp.Compare(a.Port, b.Port))
	})
	hosts, err := d.hosts(ctx, records)
	if err != nil {
		return nil, err
	}
	var nodes []cluster.Node
	for _, r := range records {
		if r.Port > 0 {
			nodes = append(nodes, nodesAt(r.Target, strconv.Itoa(int(r.Port)), hosts[r.Target])...)
		}
	}
	return nodes, nil
}

// hosts looks up the hosts of SRV records, each once. A host that does not exist has
// no address. One that cannot be looked up keeps those of before, so that it is not
// taken to have left; without those it has none, and is the error if all are like that.
func (d *DNS) hosts(ctx context.Context, records []*net.SRV) (map[string][]netip.Addr, error) {
	var mu sync.Mutex // guards errs and all
	var errs []error
	all := map[string][]netip.Addr{}
	var looking errgroup.Group
	looking.SetLimit(lookupsAtOnce)
	for k, r := range records {
		if k > 0 && r.Target == records[k-1].Target {
			continue
		}
		looking.Go(func() error {
			var found []netip.Addr
			err := panics.Call("a lookup of a host", func() (err error) {
				found, err = d.addresses(ctx, r.Target)
				return err
			})
			if err != nil && !isNotFound(err) {
				found = d.last[r.Target]
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			}
			if len(found) > 0 {
				all[r.Target] = found
			}
			return nil
		})
	}
	_ = looking.Wait() // errors are in errs
	if len(all) == 0 {
		return nil, errors.Join(errs...)
	}
	d.last = all
	return all, nil
}

func isNotFound(err error) bool {
	e, ok := errors.AsType[*net.DNSError](err)
	return ok && e.IsNotFound
}

func (d *DNS) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	found, err := d.resolver.LookupNetIP(ctx, "ip", host)
	for i, a := range found {
		found[i] = a.Unmap()
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found), d.named(err)
}

// named has an error of the resolver name the server that was asked; by itself it
// names those of the system.
func (d *DNS) named(err error) error {
	if e, ok := errors.AsType[*net.DNSError](err); ok && d.server != "" {
		e.Server = d.server
	}
	return err
}

func nodesAt(host, port string, found []netip.Addr) (nodes []cluster.Node) {
	for _, a := range found {
		nodes = append(nodes, cluster.Node{Address: net.JoinHostPort(a.String(), port), TLSName: strings.TrimSuffix(host, ".")})
	}
	return nodes
}

// setDNS is the first setting of this mode that is set.
func (c Config) setDNS() string {
	return cmp.Or(textIf(c.DNSName != "", "dns_name"), textIf(c.DNSHost != "", "dns_server"))
}

func textIf(yes bool, text string) string {
	if yes {
		return text
	}
	return ""
}

func (c Config) validateDNS() error {
	var errs []error
	switch {
	case c.DNSName == "":
		errs = append(errs, config.Faultf("dns_name", " is empty; discovery.mode = dns needs host:port, or the name of SRV records"))
	case !isServiceName(c.DNSName) && !isHostPort(c.DNSName):
		errs = append(errs, config.Faultf("dns_name", " = %.100q; must be host:port, or the name of SRV records without a port", c.DNSName))
	}
	if c.DNSHost != "" && !isHostPort(c.DNSHost) {
		errs = append(errs, config.Faultf("dns_server", " = %.100q; must be host:port, or empty", c.DNSHost))
	}
	return errors.Join(errs...)
}

// isHostPort tells whether text is host:port, the port 1 to 65535.
func isHostPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, wrong := strconv.ParseUint(port, 10, 16)
	if _, ip := netip.ParseAddr(host); ip != nil && !isName(host) {
		return false
	}
	return err == nil && wrong == nil && n > 0
}

// isServiceName tells whether text can be the name of SRV records.
func isServiceName(text string) bool {
	_, ip := netip.ParseAddr(text)
	return ip != nil && isName(text)
}

// isName tells whether text can be the name of a host or of a service.
func isName(text string) bool {
	return text != "" && len(text) <= 255 && strings.Trim(text, ".") != "" && !strings.Contains(text, "..") &&
		strings.IndexFunc(text, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
		}) < 0
}
