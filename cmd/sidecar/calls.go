package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/hop"
)

// callList is what is shown of GET /state/calls.
type callList struct {
	Calls []hop.OpenCall `json:"calls"`
	More  int            `json:"more"`
}

// listCalls shows the calls of every API that are under way or wait.
func listCalls(i *invocation) func() error {
	i.output()
	app := i.set.String("app", "", "List only the calls of this `app`")
	least := i.duration("min", 0, "List only calls that have lasted for this `time`")
	limit := i.number("n", 100, "List at most this `number` of calls, the oldest first (100)")
	return func() error {
		query := url.Values{"limit": {strconv.Itoa(*limit)}, "min_ms": {strconv.FormatInt(least.Milliseconds(), 10)}}
		if *app != "" {
			query.Set("app", *app)
		}
		return i.show("/state/calls", query, showCalls)
	}
}

// showCalls writes the table of calls.
func showCalls(to io.Writer, text []byte) error {
	var list callList
	if err := read(text, &list); err != nil {
		return err
	}
	if len(list.Calls) == 0 {
		_, err := fmt.Fprintln(to, "no call is under way")
		return err
	}
	table := newTable(to)
	fmt.Fprintln(table, "CALL\tAPI\tNAME\tAPP\tPHASE\tAGE\tNODE\tATTEMPT\tSTATEMENT\tFROM\tTRACE")
	number := func(n int) string {
		if n == 0 {
			return "-"
		}
		return strconv.Itoa(n)
	}
	for _, c := range list.Calls {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.ID, c.API, c.Name, cmp.Or(c.App, "-"), c.Phase,
			span(float64(c.Age)), number(int(c.Node)), number(c.Attempt), cmp.Or(c.Digest, "-"), cmp.Or(c.From, "-"),
			cmp.Or(c.Trace, "-"))
	}
	if err := table.Flush(); err != nil || list.More == 0 {
		return err
	}
	_, err := fmt.Fprintf(to, "and %d more\n", list.More)
	return err
}

// killCall ends the calls of a trace, or one call.
func killCall(i *invocation) func() error {
	return func() error { return i.post("/calls/"+url.PathEscape(i.args[0])+"/kill", nil, sayEnded) }
}

// sayEnded lists calls that were ended.
func sayEnded(to io.Writer, text []byte) error {
	var list callList
	if err := read(text, &list); err != nil {
		return err
	}
	for _, c := range list.Calls {
		where := c.Phase
		if c.Node != 0 && c.Phase == hop.AtNode.String() {
			where = fmt.Sprintf("at node %d", c.Node)
		}
		fmt.Fprintf(to, "call %s (%s of app %s, %s, %s old) is ended\n", c.ID, c.Name, cmp.Or(c.App, "unknown"), where,
			(time.Duration(c.Age) * time.Millisecond).String())
	}
	return nil
}
