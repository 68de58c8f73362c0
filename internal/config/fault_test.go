package config

import (
	"errors"
	"io/fs"
	"testing"
)

func TestFaultsUnderSections(t *testing.T) {
	if err := Under("pool.", nil); err != nil {
		t.Errorf("no fault: %v", err)
	}
	err := Under("api.", errors.Join(
		Faultf("max", " = %d; must be >= 1", 0), Under("tls.", errors.Join(Faultf("file", ": %w", fs.ErrNotExist))), errors.New("plain")))
	for i, want := range []struct{ setting, text string }{
		{"api.max", "api.max = 0; must be >= 1"}, {"api.tls.file", "api.tls.file: file does not exist"}, {"", "api.plain"},
	} {
		got := Faults(err)[i]
		setting := ""
		if f, ok := errors.AsType[*Fault](got); ok {
			setting = f.Setting
		}
		if setting != want.setting || got.Error() != want.text {
			t.Errorf("fault %d is %q of %q; want %q of %q", i, got, setting, want.text, want.setting)
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v does not wrap its cause", err)
	}
}
