package devcluster

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"google.golang.org/protobuf/proto"
)

// services are the short names of what every node serves; no client filters by them.
var services = []string{"discovery", "query_service", "table_service", "scheme", "auth", "operation"}

func listEndpoints(c *call, r *Ydb_Discovery.ListEndpointsRequest) (proto.Message, error) {
	if !c.config.has(r.GetDatabase()) {
		return nil, fail(Ydb.StatusIds_NOT_FOUND, "database %s is not here; the cluster has %s", r.GetDatabase(), c.config.Database)
	}
	result := &Ydb_Discovery.ListEndpointsResult{SelfLocation: c.location, PileStates: c.pileStates()}
	members := slices.DeleteFunc(slices.Clone(c.topology.members()), func(m member) bool { return !m.Listed })
	if c.config.Endpoints == EndpointsMerged && len(members) > 0 {
		// The server shuffles the entries. Here they take turns, so that the id changes with every answer.
		first := int(c.listings.Add(1) % uint64(len(members)))
		members = slices.Concat(members[first:], members[:first])
	}
	entries := make(map[string]*Ydb_Discovery.EndpointInfo)
	for _, m := range members {
		if e := entries[m.Address]; e != nil { // the id stays that of the first
			e.LoadFactor += m.Load
			if !slices.Contains(strings.Split(e.Location, "/"), m.Location) {
				e.Location = strings.TrimPrefix(e.Location+"/"+m.Location, "/")
			}
			continue
		}
		host, port, err := splitAddress(m.Address)
		if err != nil {
			return nil, err
		}
		e := &Ydb_Discovery.EndpointInfo{
			Address: host, Port: port, NodeId: m.ID, Location: m.Location, LoadFactor: m.Load, Service: services,
			BridgePileName: c.config.pile(m.ID),
			Ssl:            c.secure(), // what the client dialled: SDKs drop endpoints that differ
		}
		entries[m.Address] = e
		result.Endpoints = append(result.Endpoints, e)
	}
	return result, nil
}

func splitAddress(address string) (string, uint32, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("address of a node: %w", err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("address of a node: %w", err)
	}
	return host, uint32(n), nil
}

// whoAmI names the user of the call's ticket. The server fails it for a ticket that
// names no user, also where it accepts such tickets.
func whoAmI(c *call, _ *Ydb_Discovery.WhoAmIRequest) (proto.Message, error) {
	if c.anonymous != nil {
		return nil, fail(Ydb.StatusIds_GENERIC_ERROR, "%v", c.anonymous)
	}
	return &Ydb_Discovery.WhoAmIResult{User: c.user, IsDatabaseAllowed: true}, nil
}
