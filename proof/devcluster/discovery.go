package devcluster

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"google.golang.org/protobuf/proto"
)

// services are the short names of what every node serves; no client filters by them.
var services = []string{"discovery", "query_service", "table_service", "scheme", "auth", "operation"}

func listEndpoints(c *call, r *Ydb_Discovery.ListEndpointsRequest) (proto.Message, error) {
	if database := strings.TrimSuffix(r.GetDatabase(), "/"); database != "" && database != c.config.Database {
		return nil, fail(Ydb.StatusIds_NOT_FOUND, "database %s is not here; the cluster has %s", database, c.config.Database)
	}
	result := &Ydb_Discovery.ListEndpointsResult{SelfLocation: c.location}
	for _, m := range c.topology.members() {
		if !m.Listed {
			continue
		}
		host, port, err := splitAddress(m.Address)
		if err != nil {
			return nil, err
		}
		result.Endpoints = append(result.Endpoints, &Ydb_Discovery.EndpointInfo{
			Address: host, Port: port, NodeId: m.ID, Location: m.Location, LoadFactor: m.Load, Service: services,
			Ssl: c.secure(), // what the client dialled: SDKs drop endpoints that differ
		})
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

func whoAmI(c *call, _ *Ydb_Discovery.WhoAmIRequest) (proto.Message, error) {
	return &Ydb_Discovery.WhoAmIResult{User: c.user, IsDatabaseAllowed: true}, nil
}
