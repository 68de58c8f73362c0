package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// apps are the Python and the Node shop, each over gRPC and HTTP, with a ledger each.
type apps struct {
	root    string
	stack   *stack
	running []*stand.Process
	names   []string
	ledgers []string
}

const (
	shopProducts = "30"
	shopQuantity = "200"
)

func (a *apps) command(language, url string, args ...string) stand.Spec {
	args = append(args, "--url", url)
	if language == "python" {
		return stand.Spec{Path: filepath.Join(a.root, ".venv", "bin", "python"),
			Args: append([]string{filepath.Join(a.root, "examples", "python", "app.py")}, args...),
			Env:  []string{"PYTHONDONTWRITEBYTECODE=1"}}
	}
	return stand.Spec{Path: "node", Args: append([]string{filepath.Join(a.root, "examples", "node", "app.mjs")}, args...)}
}

// startApps fills the shop's tables and opens it: the number of workers is each app's,
// the pause between two customers of a worker is in seconds.
func startApps(ctx context.Context, s *stack, c *sidecar, workers, pause string) (*apps, error) {
	root, err := stand.Root()
	if err != nil {
		return nil, err
	}
	a := &apps{root: root, stack: s}
	if _, err := a.finish(
		ctx, a.command("python", "grpc://"+c.GRPC, "init", "--quantity", shopQuantity, "--products", shopProducts),
	); err != nil {
		return nil, err
	}
	for i, one := range []struct{ language, url string }{
		{"python", "grpc://" + c.GRPC}, {"node", "http://" + c.HTTP}, {"python", "http://" + c.HTTP}, {"node", "grpc://" + c.GRPC},
	} {
		ledger := filepath.Join(s.dir, fmt.Sprintf("ledger%d", i))
		p, err := stand.Start(a.command(one.language, one.url, "run", "--seconds", "3600", "--workers", workers, "--pause", pause,
			"--products", shopProducts, "--ledger", ledger))
		if err != nil {
			return nil, err
		}
		s.started = append(s.started, p)
		a.running, a.names, a.ledgers = append(a.running, p), append(a.names, one.language+" "+one.url[:4]), append(a.ledgers, ledger)
	}
	return a, nil
}

// finish runs a command to its end.
func (a *apps) finish(ctx context.Context, spec stand.Spec) (map[string]any, error) {
	p, err := stand.Start(spec)
	if err != nil {
		return nil, err
	}
	a.stack.started = append(a.stack.started, p)
	return said(ctx, p)
}

// said waits for the end of an app and returns the line it printed last; its
// exit code 1 says that what was asked for did not succeed.
func said(ctx context.Context, p *stand.Process) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil {
		return nil, err
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(stand.LastLines(p.Stdout(), 1)), &line); err != nil {
		return nil, fmt.Errorf("an app ended with %d and said %q\n%s", code, p.Stdout(), stand.LastLines(p.Log(), 5))
	}
	line["exit code"] = code
	return line, nil
}

// close stops the apps and returns what each said; one that met an error that
// was neither safe to repeat nor of unknown outcome has exit code 1.
func (a *apps) close(ctx context.Context) (map[string]map[string]any, error) {
	for _, p := range a.running {
		if err := p.Signal(syscall.SIGTERM); err != nil {
			return nil, err
		}
	}
	all := map[string]map[string]any{}
	for i, p := range a.running {
		line, err := said(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.names[i], err)
		}
		all[a.names[i]] = line
	}
	return all, nil
}

// check compares the shop's tables with all ledgers and returns what is wrong.
func (a *apps) check(ctx context.Context, c *sidecar) ([]any, error) {
	args := []string{"check", "--complete", "--quantity", shopQuantity}
	for _, ledger := range a.ledgers {
		args = append(args, "--ledger", ledger)
	}
	line, err := a.finish(ctx, a.command("python", "grpc://"+c.GRPC, args...))
	if err != nil {
		return nil, err
	}
	wrong, _ := line["wrong"].([]any)
	if line["ok"] != true && len(wrong) == 0 {
		return nil, fmt.Errorf("the check of the shop said %v", line)
	}
	return wrong, nil
}
