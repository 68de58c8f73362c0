package app

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/proof/doctable"
)

// TestChartSchema holds the settings in the schema of the chart's values to those
// of the program, so that helm refuses what the sidecar would refuse at its start.
func TestChartSchema(t *testing.T) {
	const path = "../../deploy/helm/ydb-sidecar/values.schema.json"
	const begin = "\n    \"generated\": {\"$comment\": \"From here on: go test ./internal/app -run TestChartSchema -update\"},\n"
	doctable.Part(t, *update, path, begin, "", settingsSchema(t)+"  }\n}\n")
}

// settingsSchema is the definitions of the settings, of those that are secrets, and
// of those that name a file.
func settingsSchema(t *testing.T) string {
	t.Helper()
	settings, docs, types := describedSettings(t)
	var out, secrets, files []string
	for _, s := range settings.List() {
		entry := schemaOf(types[s.Name])
		entry["description"] = docs[s.Name]
		out = append(out, "        "+compact(t, s.Name)+": "+compact(t, entry))
		if settings.IsSecret(s.Name) {
			secrets = append(secrets, s.Name)
		}
		if strings.HasSuffix(s.Name, "_file") {
			files = append(files, s.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(retired)) {
		entry := map[string]any{}
		if types[name] != "" {
			entry = schemaOf(types[name])
		}
		entry["description"], entry["deprecated"] = "retired: "+retired[name], true
		out = append(out, "        "+compact(t, name)+": "+compact(t, entry))
	}
	slices.Sort(secrets)
	slices.Sort(files)
	return "    \"settings\": {\n      \"type\": \"object\",\n      \"additionalProperties\": false,\n      \"properties\": {\n" +
		strings.Join(out, ",\n") + "\n      }\n    },\n" +
		"    \"secretSetting\": {\"enum\": " + compact(t, secrets) + "},\n" +
		"    \"fileSetting\": {\"enum\": " + compact(t, files) + "}\n"
}

// schemaOf describes the values of a type of settings (see typeName) as YAML has
// them: text may look like a number or a switch.
func schemaOf(name string) map[string]any {
	text := []string{"string", "number", "boolean"}
	switch name {
	case "duration":
		return map[string]any{"type": []string{"string", "integer"}, "minimum": 0, "maximum": 0,
			"pattern": `^(0|-?([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+)$`}
	case "on or off":
		return map[string]any{"type": []string{"boolean", "string"}, "pattern": "^(on|off|true|false|yes|no)$"}
	case "number":
		return map[string]any{"type": []string{"number", "string"}, "pattern": `^-?[0-9.]+(e-?[0-9]+)?$`}
	case "whole number":
		return map[string]any{"type": []string{"integer", "string"}, "pattern": "^-?[0-9]+ *([kMGT]?B|[KMGT]iB)?$"}
	case "text":
		return map[string]any{"type": text}
	default:
		return map[string]any{"type": []string{"array", "string"}, "items": map[string]any{"type": text}}
	}
}

func compact(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// The chart's own words against secrets in the open name each of them.
func TestChartKnowsTheSecrets(t *testing.T) {
	text, err := os.ReadFile("../../deploy/helm/ydb-sidecar/templates/_helpers.tpl")
	if err != nil {
		t.Fatal(err)
	}
	c := Default()
	settings, err := config.Bind(&c)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range settings.List() {
		if settings.IsSecret(s.Name) {
			names = append(names, `"`+s.Name+`"`)
		}
	}
	slices.Sort(names)
	if want := "has $name (list " + strings.Join(names, " ") + ")"; !strings.Contains(string(text), want) {
		t.Errorf("the chart lets a secret into its settings, where everybody can read it; want %s in it", want)
	}
}
