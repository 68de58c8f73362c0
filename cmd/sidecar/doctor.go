package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

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
		i.askRunning(tell)
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

// Most findings, and most nodes without one, that doctor lists.
const toldOfRunning = 10

// askRunning tells what the sidecar that runs with these settings finds, and which of its nodes are not well. That none runs
// is no fault.
func (i *invocation) askRunning(tell func(doctor.Exam)) {
	const check = "sidecar"
	text, err := i.askOnce(http.MethodGet, "/state/findings", nil)
	var r findings.Report
	if err == nil {
		err = read(text, &r)
	}
	if err != nil {
		why := app.FaultLine(err)
		if isNobody(err) {
			why = "none runs with these settings"
		}
		tell(doctor.Exam{Check: check, Result: doctor.Skipped, Text: "not asked: " + why})
		return
	}
	ill := i.illNodes(r.Findings)
	for _, n := range ill[:min(len(ill), toldOfRunning)] {
		tell(doctor.Exam{
			Check: check, Result: doctor.Warn,
			Text: fmt.Sprintf("node %d (%s) is %s: %s", n.ID, n.Address, n.state(), cmp.Or(n.Reason, "no reason is known")),
			Do:   fmt.Sprintf("Run sidecar why %d for the evidence.", n.ID),
		})
	}
	if more := len(ill) - toldOfRunning; more > 0 {
		tell(doctor.Exam{
			Check: check, Result: doctor.Warn, Text: fmt.Sprintf("nodes that are not well, besides these: %d", more),
			Do: "Run sidecar nodes.",
		})
	}
	for _, f := range r.Findings[:min(len(r.Findings), toldOfRunning)] {
		x := doctor.Exam{Check: check, Result: doctor.Good, Text: fmt.Sprintf("%s (%s)", f.Text, f.Code)}
		if f.Severity != findings.Note {
			x.Result, x.Do = doctor.Warn, f.Do
		}
		tell(x)
	}
	switch more := max(0, len(r.Findings)-toldOfRunning); {
	case more > 0:
		tell(doctor.Exam{Check: check, Result: doctor.Warn, Text: fmt.Sprintf("%d more findings", more), Do: "Run sidecar findings."})
	case len(r.Findings)+len(ill) == 0:
		tell(doctor.Exam{Check: check, Result: doctor.Good, Text: "the running sidecar finds nothing wrong"})
	}
}

// illNodes are the nodes that the running sidecar thinks are not well and that no finding names.
func (i *invocation) illNodes(all []findings.Finding) (ill []nodeLine) {
	var state struct {
		Nodes []nodeLine `json:"nodes"`
	}
	text, err := i.askOnce(http.MethodGet, "/state/nodes", nil)
	if err == nil {
		err = read(text, &state)
	}
	if err != nil {
		i.warn(fmt.Errorf("the nodes of the running sidecar: %w", err))
		return nil
	}
	for _, n := range state.Nodes {
		named := slices.ContainsFunc(all, func(f findings.Finding) bool { return uint32(f.Node) == n.ID })
		if !n.well() && !named {
			ill = append(ill, n)
		}
	}
	return ill
}
