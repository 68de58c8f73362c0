package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/ydb-sidecar/sidecar/internal/statements"
)

// listStatements shows the statements that come first.
func listStatements(i *invocation) func() error {
	i.output()
	by := i.set.String("by", "time", "Column to sort by, `time|calls|errors` (time)")
	limit := i.number("limit", 20, "List at most this `number` of statements (20)")
	start := i.set.Bool("start", false, "Show the figures since the start of the sidecar, not those of the last minute")
	return func() error {
		window := "minute"
		if *start {
			window = "start"
		}
		query := url.Values{"by": {*by}, "window": {window}, "limit": {strconv.Itoa(*limit)}}
		return i.show("/state/statements", query, func(to io.Writer, text []byte) error { return showStatements(to, text, *start) })
	}
}

// showStatements writes the table of statements, with the figures since the start or those of the last minute.
func showStatements(to io.Writer, text []byte, start bool) error {
	var s statements.State
	if err := read(text, &s); err != nil {
		return err
	}
	shown := 0
	table := newTable(to)
	fmt.Fprintln(table, "DIGEST\tKIND\tAPP\tCALLS\tFAILED\tRETRIES\tROWS\tBYTES\tTIME\tP50\tP99\tHOP P50\tTEXTS\tTEXT")
	for i := range s.Rows {
		row := &s.Rows[i]
		f := &row.Minute
		if start {
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
	if err := table.Flush(); err != nil || shown > 0 || start {
		return err
	}
	_, err := fmt.Fprintln(to, "no statement ended in the last whole minute; -start has the figures since the start")
	return err
}
