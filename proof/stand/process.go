package stand

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Root returns the directory of the module that the working directory is in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find the module: no go.mod above the working directory")
		}
		dir = parent
	}
}

// Build builds the named commands of the module (cmd/NAME or proof/cmd/NAME) into dir, the
// way `make build` does.
func Build(ctx context.Context, dir string, names ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	args := []string{"build", "-trimpath", "-o", dir + string(filepath.Separator)}
	for _, name := range names {
		path := "./cmd/" + name
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			path = "./proof/cmd/" + name
		}
		args = append(args, path)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(names, ", "), err, out)
	}
	return nil
}

// Spec says what to start.
type Spec struct {
	Path string
	Args []string
	Env  []string // added to this process's own, of which settings (SIDECAR_...) are left out
	Dir  string   // "" means the working directory
}

// Process is one running program.
type Process struct {
	Role string            // what it is for its parent; "" unless that is set
	At   map[string]string // the addresses in its ready line by name, once Ready has returned

	cmd  *exec.Cmd
	name string
	done chan struct{} // closed once the process has ended and its output is read

	ready chan string // gets the ready line, once

	mu     sync.Mutex // guards stdout and log
	stdout bytes.Buffer
	log    tail
}

// keptStdout bounds what is kept of a program's standard output, in bytes; of
// standard error the last keptLog bytes are kept.
const (
	keptStdout = 1 << 20
	keptLog    = 64 << 10
)

// Start starts a program. The caller must Stop it.
func Start(spec Spec) (*Process, error) {
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env, cmd.Dir = append(environment(), spec.Env...), spec.Dir
	// If this process dies by a signal, its children must not stay.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	p := &Process{cmd: cmd, name: filepath.Base(spec.Path), done: make(chan struct{}), ready: make(chan string, 1)}
	var readers sync.WaitGroup
	readers.Go(func() { p.read(stdout, p.keepStdout) })
	readers.Go(func() { p.read(stderr, p.keepLog) })
	go func() {
		readers.Wait() // before Wait, which closes the pipes
		_ = cmd.Wait() // the code is in cmd.ProcessState
		close(p.done)
	}()
	return p, nil
}

// environment is this process's own without the variables that a sidecar would
// take for its settings.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "SIDECAR_") })
}

// read hands r on line by line until it ends.
func (p *Process) read(r io.Reader, keep func([]byte)) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := lines.ReadSlice('\n') // a longer line comes in pieces
		if len(line) > 0 {
			keep(line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (p *Process) keepStdout(line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stdout.Len()+len(line) <= keptStdout {
		p.stdout.Write(line)
	}
	if bytes.Contains(line, []byte("ready")) || bytes.Contains(line, []byte(`"serving"`)) {
		select {
		case p.ready <- strings.TrimSpace(string(line)): // the caller of Ready reads it, or Stdout has it
		default:
		}
	}
}

func (p *Process) keepLog(line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.write(line)
}

// address matches what a ready line says of a listener: grpc=127.0.0.1:7400,
// or the same as JSON.
var address = regexp.MustCompile(`"?([a-z_]+)"?[=:] ?"?(?:[a-z]+://)?(127\.0\.0\.1:\d+)`)

// Ready waits for the program's ready line and returns the addresses in it by
// name. It fails when the program ends first, with what it said.
func (p *Process) Ready(ctx context.Context) (map[string]string, error) {
	select {
	case line := <-p.ready:
		p.At = map[string]string{}
		for _, m := range address.FindAllStringSubmatch(line, -1) {
			p.At[m[1]] = m[2]
		}
		return p.At, nil
	case <-p.done:
		return nil, fmt.Errorf("%s ended before it was ready, exit code %d:\n%s", p.name, p.cmd.ProcessState.ExitCode(), p.Log())
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %s to be ready: %w\n%s", p.name, ctx.Err(), p.Log())
	}
}

// startUp bounds the wait for a ready line: a busy machine starts programs slowly.
const startUp = 2 * time.Minute

// Launch starts a program and waits for its ready line. The caller must Stop it.
func Launch(ctx context.Context, spec Spec) (*Process, error) {
	p, err := Start(spec)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startUp)
	defer cancel()
	if _, err := p.Ready(ctx); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal; it is no error if the process has ended.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// Wait waits for the end and returns the exit code; -1 if a signal ended it.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for %s to end: %w\n%s", p.name, ctx.Err(), p.Log())
	}
}

// Stop asks the process to end and kills it when ctx is over first. It returns
// when the process is gone, with its exit code.
func (p *Process) Stop(ctx context.Context) (int, error) {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	code, err := p.Wait(ctx)
	if err != nil {
		p.kill()
	}
	return code, err
}

// kill ends the process at once.
func (p *Process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stdout returns what the program has printed so far, at most 1 MiB.
func (p *Process) Stdout() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stdout.String()
}

// Log returns the last of what the program wrote to standard error, at most 64 KiB.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.log.kept)
}

// LastLines returns the end of a text, such as a log.
func LastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// tail keeps the last keptLog bytes written to it.
type tail struct{ kept []byte }

func (t *tail) write(line []byte) {
	t.kept = append(t.kept, line...)
	if len(t.kept) > 2*keptLog {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-keptLog:]...)
	}
}
