package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/config"
)

// Modes of discovery.mode.
const (
	ModeYDB    = "ydb"
	ModeStatic = "static"
	ModeDNS    = "dns"
	ModeXDS    = "xds"
)

// Endpoint is one node of a static list. Its text is ID=host:port, or
// ID=host:port@zone.
type Endpoint struct{ cluster.Node }

// UnmarshalText reads the text of an endpoint.
func (e *Endpoint) UnmarshalText(text []byte) error {
	id, rest, ok := strings.Cut(strings.TrimSpace(string(text)), "=")
	number, err := strconv.ParseUint(id, 10, 32)
	address, zone, _ := strings.Cut(rest, "@")
	host, port, wrong := net.SplitHostPort(address)
	if _, bad := strconv.ParseUint(port, 10, 16); !ok || err != nil || wrong != nil || bad != nil || number == 0 || host == "" {
		return fmt.Errorf("%q; must be ID=host:port or ID=host:port@zone, the ID above 0", text)
	}
	e.Node = cluster.Node{ID: cluster.NodeID(number), Address: address, Zone: zone}
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (e Endpoint) MarshalText() ([]byte, error) {
	text := strconv.FormatUint(uint64(e.ID), 10) + "=" + e.Address
	if e.Zone != "" {
		text += "@" + e.Zone
	}
	return []byte(text), nil
}

// Static is the Source of a list that never changes.
type Static struct {
	database string
	topology cluster.Topology
}

// NewStatic returns the nodes of Config.Nodes, for a database of that name.
func NewStatic(config Config, database string) *Static {
	nodes := make([]cluster.Node, len(config.Nodes))
	for i, e := range config.Nodes {
		nodes[i] = e.Node
	}
	return &Static{database, cluster.NewTopology(nodes, "")}
}

// ListEndpoints returns the list.
func (s *Static) ListEndpoints(context.Context) (cluster.Topology, error) { return s.topology, nil }

// Database returns the name.
func (s *Static) Database() string { return s.database }

// validateMode reports faults of what the mode needs, and settings of other modes.
func (c Config) validateMode() error {
	var errs []error
	for mode, set := range map[string]string{ModeStatic: textIf(len(c.Nodes) > 0, "nodes"), ModeDNS: c.setDNS(), ModeXDS: c.XDS.set()} {
		if set != "" && mode != c.Mode {
			errs = append(errs, config.Faultf(set, " is set, which means something only with discovery.mode = %s", mode))
		}
	}
	switch c.Mode {
	case ModeYDB:
	case ModeStatic:
		errs = append(errs, c.validateNodes())
	case ModeDNS:
		errs = append(errs, c.validateDNS())
	case ModeXDS:
		errs = append(errs, c.XDS.validate())
	default:
		errs = append(errs, config.Faultf("mode", " = %q; must be %s, %s, %s or %s", c.Mode, ModeYDB, ModeStatic, ModeDNS, ModeXDS))
	}
	return errors.Join(errs...)
}

func (c Config) validateNodes() error {
	ids, addresses := map[cluster.NodeID]bool{}, map[string]bool{}
	for _, e := range c.Nodes {
		if ids[e.ID] || addresses[e.Address] {
			return config.Faultf("nodes", ": node %d at %s is there twice", e.ID, e.Address)
		}
		ids[e.ID], addresses[e.Address] = true, true
	}
	if len(ids) == 0 {
		return config.Faultf("nodes", " is empty; discovery.mode = static needs ID=host:port for each node")
	}
	return nil
}
