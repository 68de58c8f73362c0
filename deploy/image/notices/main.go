// Command notices prints THIRD_PARTY_NOTICES: the licence and the notices of
// everything in the sidecar's binary and container image that others wrote.
//
//	go -C deploy/image run ./notices >THIRD_PARTY_NOTICES
//
// It fails on a licence that is not allowed, and on a module without a licence.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed are the licences, by their SPDX identifiers, that ask for nothing but
// their text and notices beside the binary.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// authorities are data of the container image, not of the binary.
const authorities = `/etc/ssl/certs/ca-certificates.crt, in the container image alone: Mozilla's list of certificate authorities, under the
Mozilla Public License, version 2.0 (https://mozilla.org/MPL/2.0/). Its source form is
https://hg.mozilla.org/projects/nss/raw-file/tip/lib/ckfw/builtins/certdata.txt
`

func main() {
	parts, err := binary("../..")
	if err == nil {
		err = check(parts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
	os.Stdout.Write(render(parts))
}

// part is something that others wrote, as it is linked or embedded.
type part struct {
	name, version string
	files         []file
}

// file is a licence or a notice.
type file struct{ name, text string }

// wanted are the names of files that a licence asks to pass on.
var wanted = regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice)([.-].*)?$`)

// binary returns the parts of cmd/sidecar on every platform of the image: Go
// itself, the modules, and what is embedded. Sources are in root.
func binary(root string) ([]part, error) {
	goroot, err := run(root, nil, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	all := []part{{name: "Go", version: "runtime and standard library"}, {name: "uPlot", version: "of the admin page"}}
	for i, dir := range []string{strings.TrimSpace(string(goroot)), filepath.Join(root, "internal/admin/page/uplot")} {
		if all[i].files, err = licences(dir); err != nil {
			return nil, err
		}
	}
	modules := map[string]*part{}
	for _, architecture := range []string{"amd64", "arm64"} {
		text, err := run(
			root, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + architecture}, "list", "-deps", "-json=Dir,Module",
			"./cmd/sidecar",
		)
		if err != nil {
			return nil, err
		}
		if err := linked(text, modules); err != nil {
			return nil, err
		}
	}
	for _, m := range modules {
		all = append(all, *m)
	}
	slices.SortFunc(all, func(a, b part) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

// linked adds the modules of packages, as go list prints them, with the files that
// hold for these packages: those of their own directories up to the module's.
func linked(packages []byte, modules map[string]*part) error {
	for decoder := json.NewDecoder(bytes.NewReader(packages)); ; {
		var p struct {
			Dir    string
			Module *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		m := modules[p.Module.Path]
		if m == nil {
			m = &part{name: p.Module.Path, version: p.Module.Version}
			modules[m.name] = m
		}
		for dir := p.Dir; len(dir) >= len(p.Module.Dir); dir = filepath.Dir(dir) {
			found, err := licences(dir)
			if err != nil {
				return err
			}
			for _, f := range found {
				if !slices.Contains(m.files, f) {
					m.files = append(m.files, f)
				}
			}
		}
	}
}

// licences reads the licences and notices of a directory.
func licences(dir string) (all []file, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() || !wanted.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, file{e.Name(), strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))})
	}
	return all, nil
}

func run(dir string, environment []string, args ...string) ([]byte, error) {
	c := exec.Command("go", args...)
	c.Dir, c.Env = dir, append(os.Environ(), environment...)
	var message bytes.Buffer
	c.Stderr = &message
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, &message)
	}
	return out, nil
}

// check returns an error for each part without a licence, or with one that is not
// known or not allowed.
func check(parts []part) error {
	var faults []error
	for _, p := range parts {
		licensed := false
		for _, f := range p.files {
			if strings.HasPrefix(strings.ToLower(f.name), "notice") {
				continue
			}
			cover := licensecheck.Scan([]byte(f.text))
			if cover.Percent < 75 {
				faults = append(faults,
					fmt.Errorf("%s: %s is %.0f %% a known licence; must be 75 %%: read it", p.name, f.name, cover.Percent))
			}
			for _, m := range cover.Match {
				licensed = true
				if !slices.Contains(allowed, m.ID) {
					faults = append(faults,
						fmt.Errorf("%s: %s is %s; must be one of %s: use another module", p.name, f.name, m.ID,
							strings.Join(allowed, ", ")))
				}
			}
		}
		if !licensed {
			faults = append(faults, fmt.Errorf("%s has no licence: use another module", p.name))
		}
	}
	return errors.Join(faults...)
}

// render prints each text once, below the names of the parts that it holds for.
func render(parts []part) []byte {
	var out bytes.Buffer
	out.WriteString("Third-party software in ydb-sidecar, with its licences and notices. Generated by `make gen`.\n\n" + authorities)
	var texts []string
	names := map[string][]string{}
	for _, p := range parts {
		for _, f := range p.files {
			if names[f.text] == nil {
				texts = append(texts, f.text)
			}
			names[f.text] = append(names[f.text], fmt.Sprintf("%s %s (%s)", p.name, p.version, f.name))
		}
	}
	for _, text := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(names[text], "\n"), text)
	}
	return out.Bytes()
}
