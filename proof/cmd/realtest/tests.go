package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/ydb-sidecar/sidecar/proof/proc"
)

// outcome is what came of one test.
type outcome struct {
	name, result string // pass, fail, skip
	took         float64
	output       []string // of a test that failed, its end
}

// event is a line of `go test -json`.
type event struct {
	Action, Test, Output string
	Elapsed              float64
}

// outcomes reads the lines of `go test -json`.
func outcomes(lines []byte) (list []outcome, rest []string) {
	at := map[string]int{}
	for s := bufio.NewScanner(bytes.NewReader(lines)); s.Scan(); {
		var e event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			rest = append(rest, s.Text())
			continue
		}
		if e.Test == "" {
			if e.Action == "output" || e.Action == "build-output" {
				rest = append(rest, strings.TrimRight(e.Output, "\n"))
			}
			continue
		}
		i, ok := at[e.Test]
		if !ok {
			i = len(list)
			at[e.Test] = i
			list = append(list, outcome{name: e.Test, result: "did not end"})
		}
		switch e.Action {
		case "pass", "fail", "skip":
			list[i].result, list[i].took = e.Action, e.Elapsed
		case "output":
			if line := strings.TrimRight(e.Output, "\n"); !strings.HasPrefix(strings.TrimSpace(line), "=== ") {
				list[i].output = append(list[i].output, line)
			}
		}
	}
	for i := range list {
		if list[i].result == "pass" || list[i].result == "skip" {
			list[i].output = nil
		}
		list[i].output = list[i].output[max(0, len(list[i].output)-40):]
	}
	return list, rest
}

// runTests runs the TestReal tests of proof/systemtest in a process of their own.
func (r *report) runTests(ctx context.Context) {
	root, err := proc.Root()
	if err != nil {
		r.fail("%v", err)
		return
	}
	r.progress("the tests of proof/systemtest, for some minutes")
	var out, log bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-timeout=20m", "-run=^TestReal", "./proof/systemtest")
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, &out, &log
	cmd.Env = append(os.Environ(), "SIDECAR_TEST_YDB="+r.options.ydb, "SIDECAR_TEST_DIRECTORY="+r.options.directory)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	err = cmd.Run()
	var rest []string
	r.tests, rest = outcomes(out.Bytes())
	failed := 0
	for _, t := range r.tests {
		if t.result != "pass" && t.result != "skip" {
			failed++
		}
	}
	if failed > 0 {
		r.fail("%d of %d tests failed", failed, len(r.tests))
	} else if err != nil || len(r.tests) == 0 {
		r.fail("go test: %v\n%s", errors.Join(err, ctx.Err()), strings.Join(append(rest, log.String()), "\n"))
	}
}

// cut is the first n characters of a text.
func cut(text string, n int) string {
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n]) + fmt.Sprintf("… (%d characters)", len(runes))
	}
	return text
}
