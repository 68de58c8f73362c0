package archtest

import (
	"go/ast"
	"path/filepath"
	"strings"
	"testing"
)

// TestOnePackageComment fails on a package without exactly one package comment:
// it is the package's contract, and has one place.
func TestOnePackageComment(t *testing.T) {
	for _, p := range list(t, "./...") {
		var commented []string
		generated := len(p.GoFiles) > 0
		for _, name := range p.GoFiles {
			s, err := readSource(filepath.Join(p.Dir, name))
			file := s.file
			if err != nil {
				t.Errorf("%s: %v", p.ImportPath, err)
				continue
			}
			generated = generated && ast.IsGenerated(file)
			if file.Doc != nil {
				commented = append(commented, name)
				want := "Package " + file.Name.Name + " "
				if file.Name.Name == "main" {
					want = "Command " + filepath.Base(p.ImportPath) + " "
				}
				if !strings.HasPrefix(file.Doc.Text(), want) && !ast.IsGenerated(file) {
					t.Errorf("%s: the comment of %s does not begin with %q", p.ImportPath, name, want)
				}
			}
		}
		if len(commented) != 1 && !generated && len(p.GoFiles) > 0 {
			t.Errorf("%s has %d package comments %v; want 1", p.ImportPath, len(commented), commented)
		}
	}
}
