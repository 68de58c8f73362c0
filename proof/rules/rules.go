// Package rules asks a YDB cluster, from outside and by YDB's own protocol, whether it
// behaves as the sources of the server say.
//
// The development cluster was written after those sources. A rule is one thing that they
// say and that a client can see without a fault or a restart. Here the development cluster
// is asked in every test run; proof/cmd/realtest asks any cluster. The package uses YDB's
// generated messages and plain gRPC, and nothing of the product.
//
// It creates one table, in the directory of its Target, and sessions, which it deletes.
package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Rule is one thing that a client can see of a server. Without Want it is a fact: it is
// reported, and cannot be wrong.
type Rule struct {
	Name string
	Says string   // the rule in one sentence; of a fact, the question
	Want []string // the answers that follow the rule; more than one where it depends on settings of the server
	Text string   // part of an issue's text or code in the answer, in any case of letters
	Here string   // what the development cluster answers, where that is not in Want
	Why  string   // the reason for Here

	ask func(context.Context, *Cluster) (Seen, error)
}

// Seen is an answer: in the short form that Want has, and with the texts that came with it.
type Seen struct {
	Answer string
	Text   string
}

// Verdict compares an answer with a rule.
type Verdict string

// The verdicts.
const (
	Same     Verdict = "same"
	Differs  Verdict = "differs"
	Told     Verdict = "told"      // the answer to a fact
	NotAsked Verdict = "not asked" // this cluster cannot be asked: Text has the reason
	Failed   Verdict = "failed"    // the question could not be put: Text has the error
)

// Result is what came of one rule.
type Result struct {
	Rule    Rule
	Seen    Seen
	Verdict Verdict
	Took    time.Duration
}

// each bounds one rule.
const each = 90 * time.Second

// cannotAsk is the error of a rule that makes no sense for this cluster.
type cannotAsk string

func (c cannotAsk) Error() string { return string(c) }

// All returns the rules, in the order in which they are asked.
func All() []Rule {
	return slices.Concat(sessionRules(), statementRules(), transactionRules(), tableRules(), discoveryRules(), accessRules(), facts())
}

// Ask puts one rule to the cluster.
func (c *Cluster) Ask(ctx context.Context, r Rule) Result {
	ctx, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	began := time.Now()
	seen, err := r.ask(ctx, c)
	result := Result{Rule: r, Took: time.Since(began)}
	if _, ok := errors.AsType[cannotAsk](err); ok {
		result.Verdict, result.Seen.Text = NotAsked, err.Error()
	} else if err != nil {
		result.Verdict, result.Seen.Text = Failed, c.mask(err.Error())
	} else {
		result.Verdict, result.Seen = r.judge(seen), Seen{seen.Answer, c.mask(seen.Text)}
	}
	return result
}

func (r Rule) judge(seen Seen) Verdict {
	switch {
	case len(r.Want) == 0:
		return Told
	case slices.Contains(r.Want, seen.Answer) && strings.Contains(strings.ToLower(seen.Text), strings.ToLower(r.Text)):
		return Same
	default:
		return Differs
	}
}

// String is the answer with its texts.
func (s Seen) String() string {
	if s.Text == "" {
		return s.Answer
	}
	return strings.TrimPrefix(fmt.Sprintf("%s: %s", s.Answer, s.Text), ": ")
}

// then appends the answers that follow an expected one, up to the first that is not SUCCESS.
func (s Seen) then(want string, next ...func() Seen) Seen {
	if s.Answer != want {
		return s
	}
	for _, ask := range next {
		n := ask()
		s.Answer += ", then " + n.Answer
		if n.Answer != success {
			s.Text += "; " + n.Text
			break
		}
	}
	return s
}
