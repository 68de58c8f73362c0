package deploy

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

var update = flag.Bool("update", false, "write the documents anew")

// TestChartReadmes holds the table of values in the README of each chart to the comments of its values.yaml.
func TestChartReadmes(t *testing.T) {
	for _, name := range []string{"ydb-sidecar", "ydb-sidecar-monitoring"} {
		file, err := parser.ParseFile("helm/"+name+"/values.yaml", parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		b.WriteString("| value | default | what |\n|---|---|---|\n")
		for _, fault := range describe(&b, "", file.Docs[0].Body.(*ast.MappingNode)) {
			t.Errorf("%s: %s", name, fault)
		}
		path := "helm/" + name + "/README.md"
		doctable.Part(t, *update, path, "<!-- values: written by `go test ./deploy -run TestChartReadmes -update` -->\n",
			"<!-- /values -->\n", b.String())
		if text, err := os.ReadFile("helm/" + name + "/LICENSE"); err != nil || !strings.Contains(string(text), "Apache License") {
			t.Errorf("%s has no licence: %v", name, err)
		}
	}
}

// A chart of one's own is shown as the one that deploy/helmtest renders.
func TestChartReadmeShowsADependency(t *testing.T) {
	text, err := os.ReadFile("helmtest/testdata/shop/templates/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doctable.Part(t, *update, "helm/ydb-sidecar/README.md",
		"<!-- dependency: written by `go test ./deploy -run TestChartReadmeShowsADependency -update` -->\n```yaml\n",
		"```\n<!-- /dependency -->\n", string(text))
}

// describe writes a row for each value, and returns those without a comment. A value whose children have no comments is one row.
func describe(b *strings.Builder, above string, node *ast.MappingNode) (faults []string) {
	for _, entry := range node.Values {
		name := above + entry.Key.String()
		children, nested := entry.Value.(*ast.MappingNode)
		if nested && commented(children) {
			faults = append(faults, describe(b, name+".", children)...)
			continue
		}
		comment := entry.GetComment()
		if comment == nil {
			faults = append(faults, name+" has no comment above it")
			continue
		}
		var what []string
		for _, c := range comment.Comments {
			what = append(what, strings.TrimSpace(c.Token.Value))
		}
		var value any
		if err := yaml.NodeToValue(entry.Value, &value); err != nil {
			return append(faults, fmt.Sprintf("%s: %v", name, err))
		}
		short, err := yaml.MarshalWithOptions(value, yaml.Flow(true), yaml.JSON())
		if err != nil {
			return append(faults, fmt.Sprintf("%s: %v", name, err))
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, strings.TrimSpace(string(short)),
			strings.ReplaceAll(strings.Join(what, " "), "|", "\\|"))
	}
	return faults
}

func commented(node *ast.MappingNode) bool {
	for _, entry := range node.Values {
		if entry.GetComment() != nil {
			return true
		}
	}
	return false
}
