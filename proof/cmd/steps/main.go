// Command steps runs the tests of packages that count steps (package proof/stepcount). It puts a counter into every
// basic block of their sources, in copies that an overlay of the go command shows in their place. Then it runs go test
// with the build tag steps.
//
//	go run ./proof/cmd/steps ./internal/yql ./internal/h2
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const library = "github.com/ydb-sidecar/sidecar/proof/stepcount"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "steps:", err)
		os.Exit(1)
	}
}

func run(packages []string) error {
	if len(packages) == 0 {
		return errors.New("name the folders of packages, such as ./internal/yql")
	}
	dir, err := os.MkdirTemp("", "steps")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	replace := map[string]string{}
	for i, p := range packages {
		if err := instrument(p, filepath.Join(dir, fmt.Sprint(i)), replace); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return err
	}
	return command("go",
		append([]string{"test", "-count=1", "-vet=off", "-tags=steps", "-overlay=" + file, "-run=^TestSteps", "-v"}, packages...)...)
}

// instrument writes copies of a package's sources with counters, and a file that registers these.
func instrument(folder, to string, replace map[string]string) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	p, err := build.ImportDir(folder, 0)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	var sums strings.Builder
	for i, name := range p.GoFiles {
		variable := fmt.Sprint("steps", i)
		from, out := filepath.Join(folder, name), filepath.Join(to, name)
		if err := command("go", "tool", "cover", "-mode=count", "-var="+variable, "-o="+out, from); err != nil {
			return err
		}
		replace[from] = out
		fmt.Fprintf(&sums,
			"\t\tfor i := range %s.Count {\n\t\t\tn += uint64(%[1]s.Count[i])\n\t\t\tif reset "+
				"{\n\t\t\t\t%[1]s.Count[i] = 0\n\t\t\t}\n\t\t}\n",
			variable)
	}
	text := fmt.Sprintf(
		"package %s\n\nimport %q\n\nfunc init() {\n\tstepcount.Register(func(reset bool) (n uint64) {\n%s\t\treturn n\n\t})\n}\n",
		p.Name, library, sums.String(),
	)
	out := filepath.Join(to, "steps_register.go")
	replace[filepath.Join(folder, "steps_register.go")] = out
	return os.WriteFile(out, []byte(text), 0o600)
}

func command(name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c.Run()
}
