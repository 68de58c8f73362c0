package app

import (
	"os"
	"strings"
	"testing"
)

// mostSettings is the largest number of settings. To add one, retire another.
const mostSettings = 160

// added are the settings that are not in testdata/settings.txt. The value names the retired
// setting that each replaces ("replaces pool.age"), or says why its value cannot be derived
// from other settings ("cannot be derived: ...").
var added = map[string]string{
	"statements.texts": "cannot be derived: only the operator knows whether names of tables may be shown to readers of the admin address",
}

// excused reports whether added gives a good reason for a new setting.
func excused(why string) bool {
	const derived, atLeast = "cannot be derived: ", 20
	if replaced, ok := strings.CutPrefix(why, "replaces "); ok {
		return retired[replaced] != ""
	}
	return strings.HasPrefix(why, derived) && len(why) >= len(derived)+atLeast
}

// TestSettingsAreFew keeps settings few, because each is a question to every operator.
func TestSettingsAreFew(t *testing.T) {
	settings, _, _ := describedSettings(t)
	list := settings.List()
	if len(list) > mostSettings {
		t.Errorf("%d settings; at most %d are allowed: derive the new one, or retire another (retired in config.go)",
			len(list), mostSettings)
	}
	text, err := os.ReadFile("testdata/settings.txt")
	if err != nil {
		t.Fatal(err)
	}
	old, now := map[string]bool{}, map[string]bool{}
	for _, name := range strings.Fields(string(text)) {
		old[name] = true
	}
	for _, s := range list {
		now[s.Name] = true
		if !old[s.Name] && !excused(added[s.Name]) {
			t.Errorf(
				"%s is new; added has %q: write which retired setting it replaces (\"replaces a.b\"), or why it \"cannot be derived: ...\"",
				s.Name, added[s.Name],
			)
		}
	}
	for name := range old {
		if !now[name] {
			t.Errorf("%s is gone: remove it from testdata/settings.txt", name)
		}
	}
	for name := range added {
		if !now[name] {
			t.Errorf("added has %s, which is no setting", name)
		}
	}
	for name, why := range retired {
		if why == "" || strings.HasSuffix(why, ".") {
			t.Errorf("%s: %q; want a reason without a full stop, since a sentence goes on behind it", name, why)
		}
	}
}

func TestNewSettingsNeedAnExcuse(t *testing.T) {
	for why, want := range map[string]bool{
		"": false, "needed": false, "replaces": false, "replaces pool.max": false, "replaces pool.move_rate": true,
		"cannot be derived: no": false, "cannot be derived: only the operator knows the zone": true,
	} {
		if got := excused(why); got != want {
			t.Errorf("%q: %t; want %t", why, got, want)
		}
	}
}
