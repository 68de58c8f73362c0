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

// settingsSchema is the definitions of the settings, with dots and nested, of those that are secrets, and of those that name a
// file.
func settingsSchema(t *testing.T) string {
	t.Helper()
	settings, docs, types := describedSettings(t)
	var secrets, files []string
	entries, sections := map[string]map[string]any{}, map[string]map[string]any{}
	for _, s := range settings.List() {
		entries[s.Name] = schemaOf(types[s.Name])
		entries[s.Name]["description"] = docs[s.Name]
		if settings.IsSecret(s.Name) {
			secrets = append(secrets, s.Name)
		}
		if strings.HasSuffix(s.Name, "_file") {
			files = append(files, s.Name)
		}
	}
	for name, why := range retired {
		entry := map[string]any{}
		if types[name] != "" {
			entry = schemaOf(types[name])
		}
		entry["description"], entry["deprecated"] = "retired: "+why, true
		entries[name] = entry
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		out = append(out, "        "+compact(t, name)+": "+compact(t, entries[name]))
		nest(sections, "", name, name)
	}
	for _, section := range slices.Sorted(maps.Keys(sections)) {
		if !strings.Contains(section, ".") {
			out = append(out, "        "+compact(t, section)+": "+compact(t, sections[section]))
		}
	}
	slices.Sort(secrets)
	slices.Sort(files)
	return "    \"config\": {\n      \"type\": \"object\",\n      \"additionalProperties\": false,\n      \"properties\": {\n" +
		strings.Join(out, ",\n") + "\n      }\n    },\n" +
		"    \"secretSetting\": {\"enum\": " + compact(t, secrets) + "},\n" +
		"    \"fileSetting\": {\"enum\": " + compact(t, files) + "}\n"
}

// nest adds a setting to the schemas of its sections: ydb.auth.kind is "auth.kind" in ydb, and "kind" in auth in ydb. rest is
// the setting's name without those of the sections above.
func nest(sections map[string]map[string]any, above, rest, name string) {
	first, rest, deeper := strings.Cut(rest, ".")
	if !deeper {
		return
	}
	section := first
	if above != "" {
		section = above + "." + first
	}
	if sections[section] == nil {
		schema := map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
		sections[section] = schema
		if above != "" {
			sections[above]["properties"].(map[string]any)[first] = schema
		}
	}
	sections[section]["properties"].(map[string]any)[rest] = map[string]string{"$ref": "#/definitions/config/properties/" + name}
	nest(sections, section, rest, name)
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
	text, err := os.ReadFile("../../deploy/helm/ydb-sidecar/templates/_check.tpl")
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
	if want := "$secrets := list " + strings.Join(names, " ") + " }}"; !strings.Contains(string(text), want) {
		t.Errorf("the chart lets a secret into its settings, where everybody can read it; want %s in it", want)
	}
}
