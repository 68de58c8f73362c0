//go:build steps

package protocol

import (
	"fmt"
	"maps"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/proof/stepcount"
)

// Messages of callers take steps in proportion to their bytes, also in pieces.
func TestStepsOfMessages(t *testing.T) {
	texts := stepcount.Messages()
	maps.Copy(texts, map[string]func(n int) []byte{
		"sessions":           stepcount.Of("", "\x0a\x1eydb://session/3?node_id=2&id=x", ""),
		"transactions":       stepcount.Of("", "\x12\x06\x12\x02tx\x18\x01", ""),
		"queries":            stepcount.Of("", "\x22\x0a\x12\x08temp tab", ""),
		"queries in queries": stepcount.Of("", "\x1a\x04\x22\x02\x12\x00", ""),
		"parameters":         stepcount.Of("", "\x2a\x06\x0a\x02$a\x12\x00", ""),
		"a long session":     stepcount.Of("\x0a\xff\xff\x03", "node_id=", ""),
		"partitions":         stepcount.Of("", "\x1a\x04\x32\x02\x08\x01", ""),
		"topic transactions": stepcount.Of("", "\x12\x06\x1a\x04\x12\x02id", ""),
	})
	check := func(name string, most float64, f func(text []byte)) {
		stepcount.Reader{Name: name, Most: most, Read: f, Texts: texts}.Check(t)
	}
	for _, path := range [][]int{{1}, {2}, {2, 2}} {
		check(fmt.Sprint("session ", path), 10, func(text []byte) { session, _ := SessionOf(text, true, path); HomeNode(session) })
	}
	check("each field", 5, func(text []byte) { EachField(text, func(protowire.Number, []byte) {}) })
	for name, wants := range map[string]*Fields{"a query": executeQuery, "a data query": executeDataQuery,
		"a part": plainMeta6, "a result": operationMeta2, "a commit": sessionAndTx} {
		check("scan of "+name, 12, func(text []byte) { scanned(wants, 0, text) })
		check("scan in pieces of "+name, 25, func(text []byte) { scanned(wants, 7, text) })
	}
	check("topics", 12, func(text []byte) { topicScanned(text, len(text)+1) })
	check("topics in pieces", 12, func(text []byte) { topicScanned(text, 7) })
	check("locations", 35, func(text []byte) {
		for _, m := range All() {
			if m.Locations != nil {
				m.Locations.Rename(text, 5)
				m.Locations.Asked(text)
			}
		}
		Pin(text)
	})
	check("statuses", 250, func(text []byte) {
		for i := range table {
			table[i].Status(text)
		}
	})
}

// So do texts that may make temporary tables.
func TestStepsOfTexts(t *testing.T) {
	texts := map[string]func(n int) []byte{}
	for name := range stepcount.Temps(100) {
		texts[name] = func(n int) []byte { return []byte(stepcount.Temps(n)[name]) }
	}
	stepcount.Reader{Name: "temporary tables", Most: 20, Read: func(text []byte) { LeavesSomething(text) }, Texts: texts}.Check(t)
}
