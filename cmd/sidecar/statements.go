package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/ydb-sidecar/sidecar/internal/statements"
)

// listStatements shows the statements that come first.
func listStatements(e *environment, args []string) error {
	var o options
	var out output
	set := flags(e, "statements", &o)
	out.add(set)
	by := set.String("by", "time", "`order`: time, calls or errors")
	limit := set.Int("limit", 20, "`rows`, at most")
	start := set.Bool("start", false, "figures since the start in place of those of the last minute")
	if err := parse(set, args); err != nil {
		return err
	}
	window := "minute"
	if *start {
		window = "start"
	}
	text, err := askOnce(e, o, http.MethodGet, "/state/statements",
		url.Values{"by": {*by}, "window": {window}, "limit": {strconv.Itoa(*limit)}})
	if err != nil {
		return err
	}
	if out.json {
		_, err := e.stdout.Write(text)
		return err
	}
	var s statements.State
	if err := read(text, &s); err != nil {
		return err
	}
	shown := 0
	table := newTable(e.stdout)
	fmt.Fprintln(table, "DIGEST\tKIND\tAPP\tCALLS\tFAILED\tRETRIES\tROWS\tBYTES\tTIME\tP50\tP99\tHOP P50\tTEXTS\tTEXT")
	for i := range s.Rows {
		row := &s.Rows[i]
		f := &row.Minute
		if *start {
			f = &row.Start
		}
		if f.Calls == 0 {
			continue
		}
		shown++
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t%s\n", row.Digest, cmp.Or(row.Kind, "-"),
			cmp.Or(row.App, "-"), f.Calls, f.Failed, f.Retries, f.Rows, f.Bytes, span(f.TookMS), span(f.P50MS), span(f.P99MS),
			span(f.HopP50MS), row.Texts, cmp.Or(row.Text, "-"))
	}
	if err := table.Flush(); err != nil || shown > 0 || *start {
		return err
	}
	_, err = fmt.Fprintln(e.stdout, "no statement ended in the last whole minute; -start has the figures since the start")
	return err
}
