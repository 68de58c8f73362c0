package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ydb-sidecar/sidecar/internal/app"
	"github.com/ydb-sidecar/sidecar/internal/doctor"
)

// errSick is the end of a doctor who has told what is wrong.
var errSick = errors.New("something fails; the lines that begin with FAIL say what to do")

// examine tries out all that a sidecar needs.
func examine(e *environment, args []string) error {
	var o options
	var out output
	set := flags(e, "doctor", &o)
	out.add(set)
	if err := parse(set, args); err != nil {
		return err
	}
	all := []doctor.Exam{}
	tell := func(x doctor.Exam) {
		all = append(all, x)
		if out.json {
			return
		}
		fmt.Fprintf(e.stdout, "%-4s  %-12s %s\n", x.Result, x.Check, x.Text)
		if x.Do != "" {
			fmt.Fprintf(e.stdout, "      %-12s -> %s\n", "", x.Do)
		}
	}
	good := false
	c, _, err := app.Load(o.file, e.environ, o.assignments)
	if err != nil {
		tell(doctor.Exam{
			Check: "config", Result: doctor.Bad, Text: app.FaultLine(err),
			Do: "Correct the settings; the table of them is in README.md.",
		})
	} else {
		ctx, cancel := e.interruptible()
		defer cancel()
		good = app.Examine(ctx, c, programVersion(), tell)
	}
	if out.json {
		text, err := json.MarshalIndent(all, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "%s\n", text)
	}
	if !good {
		return errSick
	}
	return nil
}
