//go:build steps

package httpapi

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/proof/stepcount"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Bodies take steps in proportion to their bytes before anything is decoded.
func TestStepsOfBodies(t *testing.T) {
	texts := map[string]func(n int) []byte{
		"values":       stepcount.Of(`{"sql":"S","params":{"a":[`, "1,", "1]}}"),
		"texts":        stepcount.Of(`{"sql":"`, `\u0041\\`, `"}`),
		"parameters":   stepcount.Numbered(`{"params":{`, `"a%d":1,`, `"z":1}}`),
		"same members": stepcount.Of("{", `"sql":"a",`, `"sql":"b"}`),
		"statements":   stepcount.Of(`{"statements":[`, `{"sql":"a"},`, `{}]}`),
		"deep":         stepcount.Nested("[", "1", "]"),
		"open":         stepcount.Of("", `{"a":`, ""),
		"spaces":       stepcount.Of("{", " \n\t", "}"),
		"rows":         stepcount.Of(`{"table":"t","rows":[`, `{"id":1},`, `{}]}`),
		"lines":        stepcount.Of("", "{\"id\":1}\n", ""),
		"empty lines":  stepcount.Of("", "\n", ""),
	}
	api := core.DefaultAPI()
	for name, read := range map[string]struct {
		most float64
		f    func(text []byte)
	}{
		"requests":          {8, func(text []byte) { _, _ = checkRequest(text, api, nil) }},
		"shapes":            {8, func(text []byte) { _, _ = checkShape(text, api.MaxDepth, nil) }},
		"decoding":          {30, func(text []byte) { _ = decodeJSON(text, new(sidecarv1.ExecuteRequest), new(request)) }},
		"decoding of lists": {30, func(text []byte) { _ = decodeJSON(text, new(sidecarv1.TransactRequest), new(request)) }},
		"lines": {8, func(text []byte) {
			r := lineReader{r: bufio.NewReaderSize(bytes.NewReader(text), 16), limit: 1 << 20}
			for {
				if _, err := r.next(); err != nil {
					return
				}
			}
		}},
	} {
		stepcount.Reader{Name: name, Most: read.most, Read: read.f, Texts: texts}.Check(t)
	}
}
