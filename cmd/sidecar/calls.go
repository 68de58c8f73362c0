package main

import (
	"cmp"
	"fmt"
	"net/http"
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
func listCalls(e *environment, args []string) error {
	var o options
	var out output
	set := flags(e, "calls", &o)
	out.add(set)
	app := set.String("app", "", "only calls of this `app`")
	least := set.Duration("min", 0, "only calls that have lasted for this `time`")
	limit := set.Int("n", 100, "this `number`, the oldest first")
	if err := parse(set, args); err != nil {
		return err
	}
	query := url.Values{"limit": {strconv.Itoa(*limit)}, "min_ms": {strconv.FormatInt(least.Milliseconds(), 10)}}
	if *app != "" {
		query.Set("app", *app)
	}
	text, err := askOnce(e, o, http.MethodGet, "/state/calls", query)
	if err != nil {
		return err
	}
	if out.json {
		_, err := e.stdout.Write(text)
		return err
	}
	var list callList
	if err := read(text, &list); err != nil {
		return err
	}
	if len(list.Calls) == 0 {
		_, err := fmt.Fprintln(e.stdout, "no call is under way")
		return err
	}
	table := newTable(e.stdout)
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
	_, err = fmt.Fprintf(e.stdout, "and %d more\n", list.More)
	return err
}

// killCall ends the calls of a trace, or one call.
func killCall(e *environment, args []string) error {
	var o options
	set := flags(e, "kill-call", &o)
	if err := set.Parse(args); err != nil {
		return explained(err)
	}
	if set.NArg() == 0 {
		fmt.Fprintf(set.Output(), "%s: want a trace id, or the name of a call; sidecar calls lists them\n", set.Name())
		return errUsage
	}
	id := set.Arg(0)
	if err := parse(set, set.Args()[1:]); err != nil {
		return err
	}
	text, err := askOnce(e, o, http.MethodPost, "/calls/"+url.PathEscape(id)+"/kill", nil)
	if err != nil {
		return err
	}
	var list callList
	if err := read(text, &list); err != nil {
		return err
	}
	for _, c := range list.Calls {
		where := c.Phase
		if c.Node != 0 && c.Phase == hop.AtNode.String() {
			where = fmt.Sprintf("at node %d", c.Node)
		}
		fmt.Fprintf(e.stdout, "call %s (%s of app %s, %s, %s old) is ended\n", c.ID, c.Name, cmp.Or(c.App, "unknown"), where,
			(time.Duration(c.Age) * time.Millisecond).String())
	}
	return nil
}
