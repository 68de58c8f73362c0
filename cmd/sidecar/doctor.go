package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
	"github.com/ydb-sidecar/sidecar/internal/app"
	"github.com/ydb-sidecar/sidecar/internal/doctor"
)

// errSick is the end of a doctor who has told what is wrong.
var errSick = errors.New("something fails; the lines that begin with FAIL say what to do")

// examine checks everything that a sidecar needs.
func examine(i *invocation) func() error {
	i.output()
	return i.examine
}

// examine makes the checks, and tells each as soon as it is made.
func (i *invocation) examine() error {
	all := []doctor.Exam{}
	tell := func(x doctor.Exam) {
		all = append(all, x)
		if i.asJSON {
			return
		}
		fmt.Fprintf(i.stdout, "%-4s  %-12s %s\n", x.Result, x.Check, x.Text)
		if x.Do != "" {
			fmt.Fprintf(i.stdout, "      %-12s -> %s\n", "", x.Do)
		}
	}
	good := false
	c, _, err := app.Load(i.file, i.environ, i.assignments)
	if err != nil {
		tell(doctor.Exam{
			Check: "config", Result: doctor.Bad, Text: app.FaultLine(err),
			Do: "Correct the settings; docs/reference/settings.md lists them all.",
		})
	} else {
		ctx, cancel := i.interruptible()
		defer cancel()
		good = app.Examine(ctx, c, programVersion(), tell)
	}
	if c != nil {
		tell(i.askRunning())
	}
	if i.asJSON {
		text, err := json.MarshalIndent(all, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(i.stdout, "%s\n", text)
	}
	if !good {
		return errSick
	}
	return nil
}

// askRunning tells what the sidecar that runs with these settings finds. That none runs is no fault.
func (i *invocation) askRunning() doctor.Exam {
	x := doctor.Exam{Check: "sidecar", Result: doctor.Skipped}
	text, err := i.askOnce(http.MethodGet, "/state/findings", nil)
	var r findings.Report
	if err == nil {
		err = read(text, &r)
	}
	switch {
	case isNobody(err):
		x.Text = "not asked: none runs with these settings"
	case err != nil:
		x.Text = "not asked: " + app.FaultLine(err)
	case len(r.Findings) == 0:
		x.Result, x.Text = doctor.Good, "the running sidecar finds nothing wrong"
	default:
		codes := make([]string, len(r.Findings))
		x.Result, x.Do = doctor.Good, ""
		for n, f := range r.Findings {
			codes[n] = string(f.Code)
			if f.Severity != findings.Note {
				x.Result, x.Do = doctor.Warn, "Run sidecar findings: it says what to do about each."
			}
		}
		x.Text = "findings of the running sidecar: " + strings.Join(codes, ", ")
	}
	return x
}
