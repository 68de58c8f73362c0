package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// inContainer is a command of kubectl that names a container.
	inContainer = regexp.MustCompile(`kubectl [^|` + "`" + `\n]* -c (\S+)`)
	// ofUnit is a command of systemd that names the sidecar's unit.
	ofUnit = regexp.MustCompile(`(?:systemctl|journalctl) [^|` + "`" + `\n]*?'?(ydb-sidecar[^\s'` + "`" + `]*)`)
)

// Commands that documents and manifests print name the container of the manifests, which find requires, and instances
// of the systemd unit, which is a template: systemd knows no unit with its bare name.
func TestCommandsNameWhatIsInstalled(t *testing.T) {
	containers, units := 0, 0
	look := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range inContainer.FindAllStringSubmatch(string(text), -1) {
			if containers++; m[1] != "ydb-sidecar" {
				t.Errorf("%s: %q; the container is called ydb-sidecar", path, m[0])
			}
		}
		for _, m := range ofUnit.FindAllStringSubmatch(string(text), -1) {
			if units++; !strings.HasPrefix(m[1], "ydb-sidecar@") {
				t.Errorf("%s: %q; the unit is ydb-sidecar@NAME", path, m[0])
			}
		}
	}
	for _, top := range []string{"../docs", "."} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			switch filepath.Ext(path) {
			case ".md", ".yaml", ".tpl", ".txt", ".service":
				if !d.IsDir() {
					look(path)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"../README.md", "../SECURITY.md"} {
		look(path)
	}
	if containers < 8 || units < 4 {
		t.Errorf("%d commands with a container, %d with a unit; want those of the runbook and more", containers, units)
	}
}
