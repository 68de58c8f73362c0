package main

import (
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/ydb-sidecar/sidecar/internal/app"
)

// version is set by make, from tools/version.sh; "" where the program was built otherwise.
var version string

// sources is the version of these sources without git: what tools/version.sh prints
// there, which a test holds it to.
const sources = "0.2.0-dev"

// release is the version of a module that was tagged, not one that Go made up.
var release = regexp.MustCompile(`^v(\d+\.\d+\.\d+(-(rc|beta|alpha)[.\d]*)?)$`)

// versionOf returns the version that the program reports; module is the version of
// its module by Go, of `go install`. The commit belongs to sources between two versions.
func versionOf(set, module, sources, revision string) string {
	if set != "" {
		return set
	}
	if m := release.FindStringSubmatch(module); m != nil {
		return m[1]
	}
	if strings.HasSuffix(sources, "-dev") && len(revision) >= 12 {
		return sources + ".g" + revision[:12]
	}
	return sources
}

// programVersion is versionOf this program.
func programVersion() string {
	module := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		module = info.Main.Version
	}
	return versionOf(version, module, sources, revision())
}

func revision() string { return app.BuildInfo("").Revision }

func printVersion(i *invocation) func() error { return i.printVersion }

func (i *invocation) printVersion() error {
	b := app.BuildInfo(programVersion())
	line := "ydb-sidecar " + b.Version
	if r := revision(); r != "" {
		line += ", commit " + r
	}
	_, err := fmt.Fprintf(i.stdout, "%s, %s, %s\n", line, b.Go, b.Platform)
	return err
}
