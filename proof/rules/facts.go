package rules

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Discovery"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// facts are the facts, which cannot be wrong.
//
// Long: a flat list; each rule stands with the question that it asks, and is read alone.
func facts() []Rule {
	return []Rule{
		{Name: "version", Says: "What does SELECT Version() say?", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
			parts, got := c.first.execute(ctx, text("", "SELECT Version() AS v", nil))
			if got.Answer != success {
				return got, nil
			}
			for _, p := range parts {
				if rows := p.GetResultSet().GetRows(); len(rows) > 0 {
					v := rows[0].GetItems()[0]
					return Seen{Answer: cmp.Or(v.GetTextValue(), string(v.GetBytesValue()))}, nil
				}
			}
			return Seen{Answer: "nothing"}, nil
		}},
		{Name: "endpoints", Says: "How many entries does discovery list, at how many addresses?",
			ask: func(_ context.Context, c *Cluster) (Seen, error) {
				nodes, addresses, names, places := map[uint32]bool{}, map[string]bool{}, 0, map[string]bool{}
				for _, e := range c.listed.GetEndpoints() {
					nodes[e.GetNodeId()], addresses[addressOf(e)], places[e.GetLocation()] = true, true, true
					if net.ParseIP(e.GetAddress()) == nil {
						names++
					}
				}
				return Seen{
					Answer: fmt.Sprintf("%d entries, %d node ids, %d addresses (%d by name), %d locations",
						len(c.listed.GetEndpoints()), len(nodes), len(addresses), names, len(places)),
				}, nil
			}},
		{Name: "WhoAmI", Says: "What does WhoAmI say to the ticket of this run?", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
			if c.target.Ticket == "" {
				return Seen{}, cannotAsk("there is no ticket")
			}
			answer, err := c.first.discovery.WhoAmI(ctx, &Ydb_Discovery.WhoAmIRequest{})
			got, _ := in(answer, err)
			result := &Ydb_Discovery.WhoAmIResult{}
			if got.Answer != success {
				return got, nil
			}
			if err := answer.GetOperation().GetResult().UnmarshalTo(result); err != nil {
				return Seen{}, err
			}
			if result.GetUser() == "" {
				return Seen{Answer: "SUCCESS, no user"}, nil
			}
			return Seen{Answer: "SUCCESS, a user"}, nil // the name is not for a report
		}},
		{Name: "transaction without a session", Says: "What becomes of a transaction that stays open without a session?",
			ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				parts, got := c.first.execute(ctx, text("", "SELECT 1", begin(false)))
				return whichPart(parts, got), nil
			}},
		{Name: "tx_meta without tx_control", Says: "Does a statement without tx_control get a tx_meta?",
			ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				parts, got := s.do(ctx, "SELECT 1", nil)
				if got.Answer != success {
					return got, nil
				}
				for _, p := range parts {
					if p.GetTxMeta() != nil {
						return Seen{Answer: fmt.Sprintf("yes, the id has %d characters", len(p.GetTxMeta().GetId()))}, nil
					}
				}
				return Seen{Answer: "no"}, nil
			})},
		{Name: "tx_meta after a commit", Says: "Does a statement that commits get the id of its transaction?",
			ask: inSession(func(ctx context.Context, _ *Cluster, s *session) (Seen, error) {
				parts, got := s.do(ctx, "SELECT 1", begin(true))
				return whichPart(parts, got), nil
			})},
		{Name: "unknown database in the header without a ticket",
			Says: "What becomes of a call without a ticket whose header names a database that does not exist?",
			ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				answer, err := c.first.query.CreateSession(
					with(with(ctx, headerTicket, ""), headerDatabase, c.target.Database+"_nowhere"),
					&Ydb_Query.CreateSessionRequest{},
				)
				if id := answer.GetSessionId(); id != "" {
					_, _ = c.first.delete(context.WithoutCancel(ctx), id)
				}
				return plain(answer, err)
			}},
		{Name: "unknown operation", Says: "What does GetOperation say to an id that does not exist?",
			ask: func(ctx context.Context, c *Cluster) (Seen, error) {
				return in(c.operation(ctx, "ydb://operation/1?id=0"))
			}},
		{Name: "trailers", Says: "Which trailers come with a statement?",
			ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				var trailer metadata.MD
				_, got := s.execute(ctx, text(s.id, "SELECT COUNT(*) AS n FROM `"+c.path()+"`", nil), grpc.Trailer(&trailer))
				if got.Answer != success {
					return got, nil
				}
				return Seen{Answer: names(trailer)}, nil
			})},
		{Name: "headers", Says: "Which headers come with a new session?", ask: func(ctx context.Context, c *Cluster) (Seen, error) {
			var header metadata.MD
			answer, err := c.first.query.CreateSession(ctx, &Ydb_Query.CreateSessionRequest{}, grpc.Header(&header))
			if err := fine(plain(answer, err)); err != nil {
				return Seen{}, err
			}
			return Seen{Answer: names(header)}, fine(c.first.delete(ctx, answer.GetSessionId()))
		}},
		{Name: "busy after a timeout", Says: "What does a session say to the next statement right after a timeout?",
			ask: inSession(func(ctx context.Context, c *Cluster, s *session) (Seen, error) {
				if _, got := s.data(ctx, s.id, c.slowStatement(), timeout); got.Answer != "TIMEOUT" {
					return Seen{}, cannotAsk("the statement did not time out: " + got.String())
				}
				_, got := s.do(ctx, "SELECT 1", nil)
				return got, nil
			})},
	}
}

// names are the keys of metadata, without their values.
func names(md metadata.MD) string {
	var list []string
	for name := range md {
		list = append(list, name)
	}
	if len(list) == 0 {
		return "none"
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
