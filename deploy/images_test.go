package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Manifests and the Compose file run versions, not whatever is newest on the day: the sidecar's is the newest release of
// CHANGELOG.md, which is the version of the charts as well.
func TestImagesHaveVersions(t *testing.T) {
	changelog, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+)\]`).FindStringSubmatch(string(changelog))
	if release == nil {
		t.Fatal("CHANGELOG.md has no release")
	}
	image := regexp.MustCompile(`(?m)^\s*(?:- )?image: *"?([^\s"#]+)"?`)
	ours := 0
	for _, pattern := range []string{"*.yaml", "compose/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range image.FindAllStringSubmatch(string(text), -1) {
				base, tag, tagged := strings.Cut(m[1][strings.LastIndexByte(m[1], '/')+1:], ":")
				if !tagged || tag == "latest" {
					t.Errorf("%s: image %s has no version", name, m[1])
				}
				if base == "ydb-sidecar" || base == "ydb-devcluster" || base == "ydb-shop" {
					ours++
					if tag != release[1] {
						t.Errorf("%s: image %s; want the newest release of CHANGELOG.md, %s", name, m[1], release[1])
					}
				}
			}
		}
	}
	if ours < 7 {
		t.Errorf("%d images of the sidecar, its cluster and its app; want those of four manifests and three of Compose", ours)
	}
}
