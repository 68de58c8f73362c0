package stand

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.Stop(t.Context()) })
	return p
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // nothing takes that long
	t.Cleanup(cancel)
	return ctx
}

func TestReadyFindsTheAddresses(t *testing.T) {
	for name, line := range map[string]string{
		"text": `ready grpc=127.0.0.1:7400 http=http://127.0.0.1:7401`,
		"json": `{"msg":"ready","grpc":"127.0.0.1:7400","http":"127.0.0.1:7401"}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := shell(t, `echo hello; echo '`+line+`'; exec sleep 600`)
			found, err := p.Ready(soon(t))
			if err != nil || found["grpc"] != "127.0.0.1:7400" || found["http"] != "127.0.0.1:7401" || len(found) != 2 {
				t.Errorf("got %v, %v; want the two addresses", found, err)
			}
		})
	}
}

func TestReadySaysWhyTheProgramEnded(t *testing.T) {
	p := shell(t, `echo "port 7400 is in use" >&2; exit 3`)
	if _, err := p.Ready(soon(t)); err == nil || !strings.Contains(err.Error(), "exit code 3") || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v; want the exit code and what the program said", err)
	}
}

func TestSettingsOfThisProcessAreNotHandedDown(t *testing.T) {
	t.Setenv("SIDECAR_POOL_MAX", "1")
	t.Setenv("OTHER", "2")
	p := shell(t, `echo "[$SIDECAR_POOL_MAX] [$OTHER]"`)
	if _, err := p.Wait(soon(t)); err != nil || p.Stdout() != "[] [2]\n" {
		t.Errorf("got %q, %v; want only OTHER", p.Stdout(), err)
	}
}

func TestStopReturnsTheExitCode(t *testing.T) {
	p := shell(t, `trap 'exit 7' TERM; echo ready; while :; do read x <&2; done`)
	if _, err := p.Ready(soon(t)); err != nil {
		t.Fatal(err)
	}
	if code, err := p.Stop(soon(t)); code != 7 || err != nil {
		t.Errorf("got %d, %v; want 7", code, err)
	}
}

func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	p := shell(t, `trap '' TERM; echo ready; exec sleep 600`)
	if _, err := p.Ready(soon(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Stop(ctx); err == nil {
		t.Error("got no error; want one that says that the time was over")
	}
	if err := syscall.Kill(p.Pid(), 0); err != syscall.ESRCH {
		t.Errorf("the process is still there: %v", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	p := shell(t, `yes 0123456789012345678901234567890123456789 | head -c 3000000; yes error | head -c 300000 >&2; echo last >&2`)
	if _, err := p.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	if n := len(p.Stdout()); n > keptStdout || n < keptStdout/2 {
		t.Errorf("kept %d bytes of standard output; want nearly %d", n, keptStdout)
	}
	if log := p.Log(); len(log) > 2*keptLog || !strings.HasSuffix(log, "last\n") {
		t.Errorf("kept %d bytes of the log, ending %q; want the end, at most %d", len(log), log[max(0, len(log)-10):], 2*keptLog)
	}
}
