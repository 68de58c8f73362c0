package facade

import (
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/facade/facadetest"
)

func TestKVConfig(t *testing.T) {
	cfg := withKV(t, plainEntry, plainEntry)
	cfg.KV.MaxValue, cfg.KV.MaxID, cfg.KV.MaxIDs = 0, 0, 0
	err := cfg.Validate()
	for _, want := range []string{"kv.max_value", "kv.max_id ", "kv.max_ids", `kv.tables: "plain"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the fault of %s is not named: %v", want, err)
		}
	}
	for _, path := range []string{"../t", "/local/../t", "a/../../t"} {
		cfg := withKV(t, "x="+path+" key=id:Uint64 value=v:String")
		if _, err := New(cfg, core.Deps{Driver: &facadetest.Driver{}, Database: "/local"}); err == nil {
			t.Errorf("%s is opened, which is outside of the database", path)
		}
	}
}
