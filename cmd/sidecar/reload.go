package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/ydb-sidecar/sidecar/internal/app"
)

// reload has a running sidecar read its configuration again.
func reload(e *environment, args []string) error {
	var o options
	set := flags(e, "reload", &o)
	dryRun := set.Bool("dry-run", false, "change nothing")
	asJSON := set.Bool("json", false, "as JSON")
	if err := parse(set, args); err != nil {
		return err
	}
	query := url.Values{}
	if *dryRun {
		query.Set("dry_run", "1")
	}
	text, err := askOnce(e, o, http.MethodPost, "/reload", query)
	if err != nil {
		return err
	}
	if *asJSON {
		_, err := e.stdout.Write(text)
		return err
	}
	var done app.Reloaded
	if err := json.Unmarshal(text, &done); err != nil {
		return fmt.Errorf("the answer is not that of a sidecar: %w", err)
	}
	return explainReload(e.stdout, done)
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
