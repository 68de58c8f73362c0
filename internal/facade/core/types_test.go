package core

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/proof/short"
)

// What types take is counted.
func TestTypesTakeWhatIsCounted(t *testing.T) {
	short.Skip(t, "it measures the memory of the process")
	var members strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&members, "a%d:Int8,", i)
	}
	for name, text := range map[string]string{
		"optional": "Tuple<" + strings.Repeat("Int8"+strings.Repeat("?", 20)+",", 500) + "Int8>",
		"struct":   "Struct<" + members.String() + "b:Int8>",
		"nested":   "Tuple<" + strings.Repeat("List<List<List<List<Int8>>>>,", 2000) + "Int8>",
		"variant":  "Tuple<" + strings.Repeat("Variant<Int8,Int8>,", 2000) + "Int8>",
		"decimal":  "Tuple<" + strings.Repeat("Decimal(22,9),", 4000) + "Int8>",
	} {
		t.Run(name, func(t *testing.T) {
			const texts = 20
			before, counted := heap(), 0
			all := make([]map[string]*Ydb.Type, 0, texts)
			for range texts {
				types, counts, err := parseTypes(map[string]string{"p": text}, 1, "")
				if err != nil {
					t.Fatal(err)
				}
				all, counted = append(all, types), counts
			}
			takes := (heap() - before) / texts
			t.Logf("takes %d bytes, counted %d", takes, counted)
			if takes > counted+counted/10 {
				t.Errorf("they take %d bytes, and %d are counted", takes, counted)
			}
			runtime.KeepAlive(all)
		})
	}
}
