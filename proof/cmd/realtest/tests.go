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

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// outcome is what came of one test.
type outcome struct {
	name, result string // pass, fail, skip
	took         float64
	why          string   // it was skipped
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
		if list[i].result == "pass" {
			list[i].output = nil
		} else if list[i].result == "skip" {
			list[i].why, list[i].output = skipped(list[i].output), nil
		}
		list[i].output = list[i].output[max(0, len(list[i].output)-40):]
	}
	return list, rest
}

// skipped is the reason in the output of a test that was skipped: "    file.go:1: reason".
func skipped(output []string) string {
	for _, line := range output {
		if _, why, ok := strings.Cut(line, ".go:"); ok {
			_, why, _ = strings.Cut(why, ": ")
			return why
		}
	}
	return ""
}

// runTests runs the TestReal tests of proof/systemtest in a process of their own.
func (r *report) runTests(ctx context.Context) {
	r.progress("the tests of proof/systemtest, for some minutes")
	r.tests = r.goTest(ctx, "20m", "./proof/systemtest", "^TestReal")
}

// runSDKs runs the SDK matrix: every client that is installed here, directly and through a sidecar in each mode.
func (r *report) runSDKs(ctx context.Context) {
	r.progress("the SDK matrix, for some minutes")
	r.sdks = r.goTest(ctx, "60m", "./proof/sdktest", "^TestMatrix$", "-ydb="+r.options.ydb, "-directory="+r.options.directory)
}

// goTest runs tests in a process of their own. Those that fail are a failure of the run.
func (r *report) goTest(ctx context.Context, timeout, pkg, pattern string, args ...string) []outcome {
	root, err := stand.Root()
	if err != nil {
		r.fail("%v", err)
		return nil
	}
	var out, log bytes.Buffer
	cmd := exec.CommandContext(ctx, "go",
		append([]string{"test", "-json", "-count=1", "-timeout=" + timeout, "-run=" + pattern, pkg, "-args"}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, &out, &log
	cmd.Env = append(os.Environ(), "SIDECAR_TEST_YDB="+r.options.ydb, "SIDECAR_TEST_DIRECTORY="+r.options.directory,
		"SIDECAR_TEST_TICKET="+r.target.Ticket)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	err = cmd.Run()
	tests, rest := outcomes(out.Bytes())
	failed := 0
	for _, t := range tests {
		if t.result != "pass" && t.result != "skip" {
			failed++
		}
	}
	if failed > 0 {
		r.fail("%d of %d tests failed in %s", failed, len(tests), pkg)
	} else if err != nil || len(tests) == 0 {
		r.fail("go test %s: %v\n%s", pkg, errors.Join(err, ctx.Err()), strings.Join(append(rest, log.String()), "\n"))
	}
	return tests
}

// cut is the first n characters of a text.
func cut(text string, n int) string {
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n]) + fmt.Sprintf("… (%d characters)", len(runes))
	}
	return text
}
