package deploy

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// kinds are the sections of a version, as keepachangelog.com has them.
var kinds = []string{"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}

// TestChangelogHasItsForm reads CHANGELOG.md as programs do that show the changes of a version: a heading for each version,
// newest first, sections of known names with lists in them, and a link for each version. Entries that are not in a section
// yet may stand under [Unreleased]; in a version each has its section.
func TestChangelogHasItsForm(t *testing.T) {
	text, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok := strings.Cut(string(text), "\n## [Unreleased]\n")
	if !ok || strings.Count(string(text), "\n## [Unreleased]") != 1 {
		t.Fatal("CHANGELOG.md has not one heading [Unreleased]")
	}
	heading := regexp.MustCompile(`^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$`)
	link := regexp.MustCompile(`^\[([^\]]+)\]: https://`)
	version, section, newest := "Unreleased", "", []int(nil)
	versions, links := []string{version}, []string{}
	seen := map[string]bool{}
	for _, line := range strings.Split(body, "\n") {
		switch {
		case line == "":
		case heading.MatchString(line):
			version, section = heading.FindStringSubmatch(line)[1], ""
			if newest != nil && slices.Compare(numbers(version), newest) >= 0 {
				t.Errorf("%s comes after %v; want the newest first", version, newest)
			}
			newest, versions = numbers(version), append(versions, version)
		case strings.HasPrefix(line, "### "):
			section = strings.TrimPrefix(line, "### ")
			if !slices.Contains(kinds, section) || seen[version+section] {
				t.Errorf("%s: section %q; want each of %q once", version, section, kinds)
			}
			seen[version+section] = true
		case strings.HasPrefix(line, "- "):
			if section == "" && version != "Unreleased" {
				t.Errorf("%s: %.60q is in no section", version, line)
			}
		case link.MatchString(line):
			links = append(links, link.FindStringSubmatch(line)[1])
		case !strings.HasPrefix(line, "  "):
			t.Errorf("%s: %.60q is no heading, entry or link", version, line)
		}
	}
	if !slices.Equal(links, versions) {
		t.Errorf("links to %q; want one for each version, in order: %q", links, versions)
	}
}

// numbers are those of a version such as 1.2.3.
func numbers(version string) (all []int) {
	for _, text := range strings.Split(version, ".") {
		n, _ := strconv.Atoi(text)
		all = append(all, n)
	}
	return all
}
