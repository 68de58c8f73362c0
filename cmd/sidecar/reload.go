package main

import (
	"fmt"
	"io"
	"net/url"

	"github.com/ydb-sidecar/sidecar/internal/app"
)

// reload has a running sidecar read its configuration again.
func reload(i *invocation) func() error {
	dryRun := i.set.Bool("dry-run", false, "Show what would change, and change nothing")
	i.set.BoolVar(&i.asJSON, "json", false, "Print JSON")
	return func() error {
		query := url.Values{}
		if *dryRun {
			query.Set("dry_run", "1")
		}
		return i.post("/reload", query, func(to io.Writer, text []byte) error {
			if i.asJSON {
				_, err := to.Write(text)
				return err
			}
			var done app.Reloaded
			if err := read(text, &done); err != nil {
				return err
			}
			return explainReload(to, done)
		})
	}
}

// explainReload writes what came of a reload for people.
func explainReload(to io.Writer, done app.Reloaded) error {
	verb := "changed"
	if done.DryRun {
		verb = "would change"
	}
	for _, c := range done.Changed {
		fmt.Fprintf(to, "%s %s: %q -> %q (%s)\n", verb, c.Name, c.Old, c.New, c.Source)
	}
	for _, c := range done.Restart {
		fmt.Fprintf(to, "needs a restart %s: %q -> %q (%s)\n", c.Name, c.Old, c.New, c.Source)
	}
	if len(done.Changed)+len(done.Restart) == 0 {
		fmt.Fprintln(to, "nothing has changed")
	}
	return nil
}
