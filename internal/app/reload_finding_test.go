package app

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/admin/findings"
)

// A settings file that is broken, and settings that wait for a restart, are findings for as long as they are.
func TestReloadsAreFindings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	write(t, file, "reload.interval: 100ms\npool.max: 20\n")
	s := startWith(t, file, nowhere)
	found := func(code findings.Code) (text string) {
		t.Helper()
		_, answer := s.get("/state/findings")
		var report findings.Report
		if err := json.Unmarshal([]byte(answer), &report); err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(report.Findings, func(f findings.Finding) bool { return f.Code == code }); i >= 0 {
			return report.Findings[i].Text
		}
		return ""
	}
	write(t, file, "reload.interval: 100ms\npool.max: planted-secret\nadmin.token: planted-secret\n")
	s.eventually("a finding of the broken file", func() bool { return found(findings.ConfigBad) != "" })
	if text := found(findings.ConfigBad); !strings.Contains(text, file+":2:") || !strings.Contains(text, "pool.max") {
		t.Errorf("found %q; want the line and the setting", text)
	}
	if status, _ := s.fetch(http.MethodPost, "http://"+s.at.Admin+"/reload?dry_run=1", ""); status != http.StatusConflict {
		t.Errorf("a dry run of the broken file: %d; want 409", status)
	}
	write(t, file, "reload.interval: 100ms\npool.max: 20\napi.timeout: 7s\n")
	s.eventually("a finding of the setting that needs a restart, and none of the file", func() bool {
		return strings.Contains(found(findings.ConfigPending), "api.timeout") && found(findings.ConfigBad) == ""
	})
	s.eventually("the metric says so", func() bool {
		_, metrics := s.get("/metrics")
		return slices.ContainsFunc(strings.Split(metrics, "\n"), func(line string) bool {
			return strings.HasPrefix(line, "ydb_sidecar_finding{") && strings.Contains(line, `"CONFIG_PENDING"`) &&
				strings.HasSuffix(line, "} 1")
		})
	})
	write(t, file, "reload.interval: 100ms\npool.max: 20\n")
	s.eventually("no finding once the file is as it was", func() bool { return found(findings.ConfigPending) == "" })
}
