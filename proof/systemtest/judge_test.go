package systemtest

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// symptoms are the words by which a person tells faults apart, and what they are about.
var symptoms = map[string]*regexp.Regexp{
	"NODE_SLOW":       regexp.MustCompile(`(?i)(node \d+) \([^)]*\) is (slow|much slower|\d+ times slower)`),
	"NODE_DEAD":       regexp.MustCompile(`(?i)(node \d+) \([^)]*\) (has not answered|does not answer|vanished)`),
	"POOL_SMALL":      regexp.MustCompile(`()(pool\.max is too small|All sessions are in use while the nodes are fast)`),
	"SESSIONS_HELD":   regexp.MustCompile(`(?i)(app \S+) holds`),
	"OVERLOAD":        regexp.MustCompile(`(?i)()more calls come than the cluster can do`),
	"CREDENTIALS_BAD": regexp.MustCompile(`()(the sidecar's credentials|credentials of the sidecars)`),
}

// diagnose says which fault a text is about, and of which node or app; "": none, or more than one.
func diagnose(text string) (fault, subject string) {
	for code, words := range symptoms {
		m := words.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		if fault != "" {
			return "", ""
		}
		fault, subject = code, strings.ToLower(m[1])
	}
	return fault, subject
}

// diagnoses are what each place says alone, to a reader who does not know what was done to the cluster: the first
// finding of the page, the first line of sidecar top that is wrong, and the summaries of the alerts of what the
// metrics show.
func (w *faultWorld) diagnoses(t *testing.T) map[string]string {
	t.Helper()
	var page struct{ Findings []struct{ Text string } }
	if status := callJSON(t, http.MethodGet, "http://"+w.Admin+"/state/page", "", &page); status != http.StatusOK {
		t.Fatalf("/state/page: %d", status)
	}
	texts := map[string]string{"page": "", "top": "", "alerts": ""}
	if len(page.Findings) > 0 {
		texts["page"] = page.Findings[0].Text
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "sidecar"), "top", "-n", "1", "-admin", w.Admin).Output()
	if err != nil {
		t.Fatalf("sidecar top: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if fault, _ := diagnose(line); fault != "" {
			texts["top"] = line
			break
		}
	}
	texts["alerts"] = strings.Join(summaries(t, scrape(t, "http://"+w.Admin+"/metrics")), "\n")
	all := map[string]string{}
	for place, text := range texts {
		fault, subject := diagnose(text)
		all[place] = strings.TrimSpace(fault + " " + subject)
	}
	return all
}

// summaries are those of the alerts about findings that a scrape shows, as a lone sidecar has them.
func summaries(t *testing.T, samples []sample) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(standtest.Root(t), "deploy", "prometheus", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Expr        string
				Annotations struct{ Summary string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			about := regexp.MustCompile(`^ydb_sidecar:finding:paging\{ydb_sidecar_code="([A-Z_]+)"\}$`).FindStringSubmatch(r.Expr)
			for _, s := range samples {
				if about != nil && s.name == "ydb_sidecar_finding" && s.value > 0 &&
					s.has("ydb_sidecar_severity", "problem") && s.has("ydb_sidecar_code", about[1]) {
					all = append(all, filled.ReplaceAllStringFunc(r.Annotations.Summary, func(part string) string {
						name := filled.FindStringSubmatch(part)[1]
						value := regexp.MustCompile(name + `="([^"]*)"`).FindStringSubmatch(s.labels)
						if value == nil {
							t.Errorf("%q: the series {%s} has no %s", r.Annotations.Summary, s.labels, name)
							return ""
						}
						return value[1]
					}))
				}
			}
		}
	}
	return all
}

var filled = regexp.MustCompile(`\{\{ \$labels\.(\w+) \}\}`)
