package snapshot

import (
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// Self is which sidecar this is.
type Self struct {
	Version string
	Host    string // name of the machine or container; "": unknown
	Pod     string // name of the Kubernetes pod, if the environment has it
}

// SelfOf says which sidecar this process is. The name of the pod comes from the variable POD_NAME, which a manifest
// sets by the downward API, or from k8s.pod.name in OTEL_RESOURCE_ATTRIBUTES. In most pods the name of the host is
// that of the pod.
func SelfOf(version string) Self { return selfOf(version, os.Hostname, os.Getenv) }

func selfOf(version string, hostname func() (string, error), getenv func(string) string) Self {
	host, _ := hostname() // unknown: it is only shown
	pod := getenv("POD_NAME")
	for item := range strings.SplitSeq(getenv("OTEL_RESOURCE_ATTRIBUTES"), ",") {
		key, value, _ := strings.Cut(item, "=")
		if pod == "" && strings.TrimSpace(key) == "k8s.pod.name" {
			if text, err := url.PathUnescape(strings.TrimSpace(value)); err == nil {
				pod = text
			}
		}
	}
	return Self{Version: version, Host: host, Pod: pod}
}

// Build is how the program was built, and where it runs: what /buildinfo shows.
type Build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"`
	Platform string `json:"platform"`
	Host     string `json:"host,omitempty"` // of the process that answers
	Pod      string `json:"pod,omitempty"`
}

// BuildOf returns the build of this program, whose version is given; commit is that of its sources, "" if only Go
// may know it.
func BuildOf(version, commit string) Build {
	b := Build{Version: version, Revision: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && commit == "" {
				b.Revision = s.Value
			}
		}
	}
	return b
}

// BuildState returns /buildinfo.
func (s *Source) BuildState(commit string) Build {
	b := BuildOf(s.Self.Version, commit)
	b.Host, b.Pod = s.Self.Host, s.Self.Pod
	return b
}
