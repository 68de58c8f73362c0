package engine

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write docs/dev/devcluster-yql.md")

const docPath = "../../../docs/dev/devcluster-yql.md"

const docHead = `# YQL of the development cluster

This page is written by the test that runs its examples: what stands here works, and what does not stand here answers
` + "`GENERIC_ERROR`" + ` with an issue that names the construct, its row and its column. A construct enters
with the client, the suite or the experiment of this repository that needs it. The results show the columns with their types and then the
rows. The examples run on two tables:

` + "```sql\n" + sample + ";\n\n" + sampleRows + ";\n```\n" + `
What differs from a real server, on purpose or for lack of need:

- A parameter that is declared and not used may be missing; a warning says so.
- One partition, one replica: stale and online reads see the newest data; an ASYNC index is kept like a SYNC one; settings of partitions and ` + "`WITH (...)`" + ` have no effect, but ` + "`KEY_BLOOM_FILTER`" + ` is described.
- Statements of one text see what the statements before them wrote. A named expression is computed once, where it is first used.
- ` + "`Digest::NumericHash`" + ` is a hash of this cluster.
- ` + "`IN`" + ` follows the ANSI rules for NULL. ` + "`NOT`" + ` binds weaker than comparisons, as in SQL.
- Bounds: 1 MiB of text, 100 levels of nesting, 256 MiB of rows kept by one execution (sorting, joins, rows to be written), 128 MiB of writes of one transaction.
- Conflicts: a serializable transaction remembers the keys and ranges it read (more than 20,000 single keys of one table: the whole table); a table changed by DDL ends the transactions that touched it.
`

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

// sections are all parts, in the order of the document.
var sections = slices.Concat(sectionsOfValues, sectionsOfQueries, sectionsOfChanges)

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
