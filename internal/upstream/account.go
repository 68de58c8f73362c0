package upstream

import (
	"context"
	"sync/atomic"

	"github.com/ydb-platform/ydb-go-genproto/Ydb_Discovery_V1"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"google.golang.org/grpc"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/pool"
)

// ticketSource supplies the ticket of a call. *tickets is that of the driver itself.
type ticketSource interface {
	// get returns what works now, or waits for it.
	get(ctx context.Context) (*ticket, error)
	// reject hears that a node refused it.
	reject()
	// table reports whether sessions are of the table service.
	table() bool
}

// SessionOpener opens sessions with credentials, or in a database, that are not the driver's
// own. Its sessions are for ID, Forget and Close alone: calls on them are forwarded.
type SessionOpener struct {
	d        *Driver
	database string
	app      string // app whose name its sessions bear; "": none
	tables   bool
	ticket   func() string // nil: the driver's own credentials
	last     atomic.Pointer[ticket]
}

// SessionOpener returns an opener of sessions in a database of the cluster. ticket returns what to open
// and delete sessions with, "" for nothing; nil: the driver's own credentials. table says
// that its sessions are of the table service: they have no stream that keeps them.
func (d *Driver) SessionOpener(database string, table bool, ticket func() string) *SessionOpener {
	return &SessionOpener{d: d, database: database, tables: table, ticket: ticket}
}

// Named has sessions that are opened from now on bear an app's name, which servers choose a resource
// pool by and show. It must be called before the opener is used, which it returns.
func (a *SessionOpener) Named(app string) *SessionOpener {
	a.app = app
	return a
}

// Open satisfies pool.Opener, as Driver.Open does. The ticket is that of the moment.
func (a *SessionOpener) Open(ctx context.Context, node cluster.NodeID, retire func(reason string)) (pool.Resource, error) {
	return a.d.openAs(ctx, a, node, retire)
}

func (a *SessionOpener) get(ctx context.Context) (*ticket, error) {
	value := ""
	if a.ticket != nil {
		value = a.ticket()
	} else if own, err := a.d.tickets.get(ctx); err != nil {
		return nil, err
	} else {
		value = own.value
	}
	if k := a.last.Load(); k != nil && k.value == value {
		return k, nil
	}
	k := &ticket{token: token{value: value}}
	k.call, k.open = a.d.headersIn(a.database, a.app, value)
	a.last.Store(k)
	return k, nil
}

func (a *SessionOpener) table() bool { return a.tables }

func (a *SessionOpener) reject() {
	if a.ticket == nil {
		a.d.tickets.reject()
	}
}

// WhoAmI asks a node for the user of the ticket. The user is "" if the cluster names none;
// a node of a cluster that enforces no tickets may answer an error instead.
func (a *SessionOpener) WhoAmI(ctx context.Context) (user string, err error) {
	h, err := a.d.start(ctx, target{method: methodWhoAmI, weight: weight{kind: cluster.CallControl}, as: a})
	if err != nil {
		return "", err
	}
	result := new(Ydb_Discovery.WhoAmIResult)
	r, err := Ydb_Discovery_V1.NewDiscoveryServiceClient(h.conn.cc).WhoAmI(
		h.ctx, &Ydb_Discovery.WhoAmIRequest{}, grpc.Peer(&h.peer), &h.headers,
	)
	if err == nil {
		h.arrived()
		err = CheckOperation(r.GetOperation())
	}
	if err == nil {
		err = r.GetOperation().GetResult().UnmarshalTo(result)
	}
	if e := h.end(err); e != nil {
		return "", e
	}
	return result.GetUser(), nil
}
