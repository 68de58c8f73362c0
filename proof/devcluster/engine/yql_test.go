package engine

import (
	"flag"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write docs/devcluster-yql.md")

const docPath = "../../../docs/devcluster-yql.md"

// construct is a line of the document and the test of it: the example runs on the sample
// tables and must give the result; an error is written as its status and text.
type construct struct {
	name, example string
	params        []string // "$name = expression"
	want          string
}

// section is a part of the document. A construct whose name starts with "#" is of the test only.
type section struct {
	title, text string
	items       []construct
}

func TestConstructs(t *testing.T) {
	for _, s := range sections {
		for _, c := range s.items {
			t.Run(s.title+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				db := sampleDB(t, "")
				got, err := run(db, Request{Text: c.example, Params: params(t, c.params...), Inferred: true})
				if err != nil {
					got = err.Error()
				}
				if got != c.want {
					t.Errorf("%s\n got %s\nwant %s", c.example, got, c.want)
				}
			})
		}
	}
}

func TestDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString(docHead)
	code := func(s string) string {
		s = strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
		if strings.Contains(s, "`") {
			return "`` " + s + " ``"
		}
		return "`" + s + "`"
	}
	for _, s := range sections {
		b.WriteString("\n## " + s.title + "\n\n")
		if s.text != "" {
			b.WriteString(s.text + "\n\n")
		}
		b.WriteString("| construct | example | result |\n|---|---|---|\n")
		for _, c := range s.items {
			if strings.HasPrefix(c.name, "#") {
				continue
			}
			example := c.example
			if len(c.params) > 0 {
				example += " -- with " + strings.Join(c.params, ", ")
			}
			result := ""
			if c.want != "" {
				result = code(c.want)
			}
			b.WriteString("| " + c.name + " | " + code(example) + " | " + result + " |\n")
		}
	}
	doctable.Whole(t, *update, docPath, b.String())
}
