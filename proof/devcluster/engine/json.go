package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/syntax"
	"github.com/ydb-sidecar/sidecar/proof/devcluster/engine/value"
)

// jsonStep is one step of a path: a member, an element, or all of them.
type jsonStep struct {
	member string
	index  int // of an element; -1 is the last one
	kind   byte
}

// The kinds of steps.
const (
	stepMember   = '.'
	stepMembers  = '*'
	stepElement  = '['
	stepElements = ']'
)

// jsonPath is a compiled path. A strict one fails where a lax one finds nothing.
type jsonPath struct {
	strict bool
	steps  []jsonStep
}

// parseJSONPath reads the part of the language that walks: $.member."member"[0][last][*].*
func parseJSONPath(s string) (*jsonPath, error) {
	p := &jsonPath{}
	s = strings.TrimSpace(s)
	if rest, ok := strings.CutPrefix(s, "strict "); ok {
		p.strict, s = true, strings.TrimSpace(rest)
	} else if rest, ok := strings.CutPrefix(s, "lax "); ok {
		s = strings.TrimSpace(rest)
	}
	s, ok := strings.CutPrefix(s, "$")
	if !ok {
		return nil, errors.New("a path begins with $")
	}
	for s != "" {
		var step jsonStep
		rest := ""
		switch {
		case strings.HasPrefix(s, ".*"):
			step, rest = jsonStep{kind: stepMembers}, s[2:]
		case strings.HasPrefix(s, `."`):
			quoted, err := strconv.QuotedPrefix(s[1:])
			if err != nil {
				return nil, errors.New("an open quote")
			}
			name, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, errors.New("a wrong quoted name")
			}
			step, rest = jsonStep{kind: stepMember, member: name}, s[1+len(quoted):]
		case s[0] == '.':
			n := strings.IndexFunc(s[1:], func(r rune) bool {
				return r != '_' && r != '$' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r < 0x80
			})
			if n < 0 {
				n = len(s) - 1
			}
			if n == 0 || s[1] >= '0' && s[1] <= '9' {
				return nil, errors.New("a name is missing after a dot")
			}
			step, rest = jsonStep{kind: stepMember, member: s[1 : 1+n]}, s[1+n:]
		case s[0] == '[':
			end := strings.IndexByte(s, ']')
			if end < 0 {
				return nil, errors.New("an open [")
			}
			rest = s[end+1:]
			switch inner := strings.TrimSpace(s[1:end]); inner {
			case "*":
				step = jsonStep{kind: stepElements}
			case "last":
				step = jsonStep{kind: stepElement, index: -1}
			default:
				n, err := strconv.ParseUint(inner, 10, 31)
				if err != nil {
					return nil, errors.New("[" + inner + "] is outside of the supported subset of paths")
				}
				step = jsonStep{kind: stepElement, index: int(n)}
			}
		default:
			return nil, errors.New("'" + s + "' is outside of the supported subset of paths")
		}
		p.steps = append(p.steps, step)
		s = strings.TrimLeft(rest, " ")
	}
	return p, nil
}

var errJSON = errors.New("the path does not fit the value")

// find returns the parts of a text that the path leads to, as their own texts.
func (p *jsonPath) find(text string) ([]json.RawMessage, error) {
	if !json.Valid([]byte(text)) {
		return nil, errJSON
	}
	found := []json.RawMessage{json.RawMessage(strings.TrimSpace(text))}
	for _, step := range p.steps {
		var next []json.RawMessage
		for _, v := range found {
			parts, err := p.step(step, v)
			if err != nil {
				return nil, err
			}
			next = append(next, parts...)
		}
		found = next
	}
	return found, nil
}

func (p *jsonPath) step(s jsonStep, v json.RawMessage) ([]json.RawMessage, error) {
	if s.kind == stepElement || s.kind == stepElements {
		list := []json.RawMessage{v}
		switch {
		case v[0] == '[':
			list = nil
			if json.Unmarshal(v, &list) != nil {
				return nil, errJSON
			}
		case p.strict:
			return nil, errJSON
		}
		if s.kind == stepElements {
			return list, nil
		}
		i := s.index
		if i < 0 {
			i += len(list)
		}
		if i >= 0 && i < len(list) {
			return list[i : i+1], nil
		}
		return p.nothing()
	}
	switch {
	case v[0] == '[' && !p.strict: // a lax path looks into the elements
		var list, out []json.RawMessage
		if json.Unmarshal(v, &list) != nil {
			return nil, errJSON
		}
		for _, it := range list {
			if it[0] == '{' {
				parts, err := p.step(s, it)
				if err != nil {
					return nil, err
				}
				out = append(out, parts...)
			}
		}
		return out, nil
	case v[0] != '{':
		return p.nothing()
	}
	members := map[string]json.RawMessage{}
	if json.Unmarshal(v, &members) != nil {
		return nil, errJSON
	}
	if s.kind == stepMember {
		if m, ok := members[s.member]; ok {
			return []json.RawMessage{m}, nil
		}
		return p.nothing()
	}
	var out []json.RawMessage
	for _, name := range slices.Sorted(maps.Keys(members)) {
		out = append(out, members[name])
	}
	return out, nil
}

func (p *jsonPath) nothing() ([]json.RawMessage, error) {
	if p.strict {
		return nil, errJSON
	}
	return nil, nil
}

// json compiles JSON_EXISTS, JSON_VALUE and JSON_QUERY.
func (c *compiler) json(env env, x *syntax.JSON) *expr {
	arg, pathArg := c.expr(env, x.X), c.expr(env, x.Path)
	if k := value.Bare(arg.typ).Kind; k != value.Json && k != value.JsonDocument && k != value.Null {
		c.fail(x.X.At(), "%s needs Json or JsonDocument, but got: %s", x.Func, arg.typ)
	}
	if pathArg.konst == nil || !value.IsText(pathArg.typ.Kind) {
		c.fail(x.Path.At(), "%s needs a literal path", x.Func)
	}
	path, err := parseJSONPath(pathArg.konst.S)
	if err != nil {
		c.fail(x.Path.At(), "Invalid path %q: %v", pathArg.konst.S, err)
	}
	t := value.TypeBool
	switch {
	case x.Func == "JSON_QUERY":
		t = value.TypeJson
	case x.Func == "JSON_VALUE" && x.Returning == nil:
		t = value.TypeUtf8
	case x.Func == "JSON_VALUE":
		t = x.Returning
		if k := t.Kind; k != value.Bool && !value.IsInt(k) && !value.IsFloat(k) && k != value.Utf8 && k != value.String {
			c.fail(x.Pos, "RETURNING %s is outside of the supported subset of YQL", t)
		}
	}
	take := map[string]func(found []json.RawMessage) (value.Value, error){
		"JSON_EXISTS": func(found []json.RawMessage) (value.Value, error) { return value.Truth(len(found) > 0), nil },
		"JSON_VALUE":  func(found []json.RawMessage) (value.Value, error) { return jsonScalar(t, found) },
		"JSON_QUERY":  func(found []json.RawMessage) (value.Value, error) { return jsonPart(x.Wrapper, found) },
	}[x.Func]
	onEmpty, onError := c.jsonElse(env, x, x.OnEmpty, t), c.jsonElse(env, x, x.OnError, t)
	if x.Func == "JSON_EXISTS" && x.OnError.Word == "" {
		onError = constant(value.OptionalOf(t), value.Truth(false))
	}
	return &expr{typ: value.OptionalOf(t), free: arg.free && onEmpty.free && onError.free, eval: func(e *exec, row []value.Value) (value.Value, error) {
		v, err := arg.eval(e, row)
		if err != nil || v.Null > 0 {
			return v, err
		}
		found, err := path.find(v.S)
		switch {
		case err == nil && len(found) == 0 && x.Func != "JSON_EXISTS":
			return onEmpty.eval(e, row)
		case err == nil:
			v, err = take(found)
		}
		if err != nil {
			return onError.eval(e, row)
		}
		return v, nil
	}}
}

// jsonElse compiles what stands for a result that is not there.
func (c *compiler) jsonElse(env env, x *syntax.JSON, e syntax.JSONElse, t *value.Type) *expr {
	out := value.OptionalOf(t)
	switch e.Word {
	case "TRUE", "FALSE":
		return constant(out, value.Truth(e.Word == "TRUE"))
	case "EMPTY ARRAY":
		return constant(out, value.Text("[]"))
	case "EMPTY OBJECT":
		return constant(out, value.Text("{}"))
	case "ERROR":
		return &expr{typ: out, free: true, eval: func(*exec, []value.Value) (value.Value, error) {
			return value.NullValue, invalidRuntime(x.Pos, "%s found no fitting value", x.Func)
		}}
	case "DEFAULT":
		d := c.expr(env, e.Default)
		if d.konst != nil {
			if v, ok := literalAs(d.typ, *d.konst, t); ok {
				return constant(out, v)
			}
		}
		return c.convert(e.Default.At(), d, out)
	}
	return constant(out, value.NullValue)
}

// jsonScalar reads the one scalar as a value of the type.
func jsonScalar(t *value.Type, found []json.RawMessage) (value.Value, error) {
	if len(found) != 1 {
		return value.NullValue, errJSON
	}
	text := string(found[0])
	isText := t.Kind == value.Utf8 || t.Kind == value.String
	switch text[0] {
	case '{', '[':
		return value.NullValue, errJSON
	case 'n':
		return value.NullValue, nil
	case '"':
		var s string
		if err := json.Unmarshal(found[0], &s); err != nil || !isText {
			return value.NullValue, errJSON
		}
		return value.Text(s), nil
	case 't', 'f':
		if !isText && t.Kind != value.Bool {
			return value.NullValue, errJSON
		}
	default:
		if t.Kind == value.Bool {
			return value.NullValue, errJSON
		}
	}
	return value.Parse(t, text)
}

// jsonPart makes one JSON value of what was found.
func jsonPart(wrapper string, found []json.RawMessage) (value.Value, error) {
	whole := len(found) == 1 && (found[0][0] == '{' || found[0][0] == '[')
	if !whole && wrapper == "" {
		return value.NullValue, errJSON
	}
	var b bytes.Buffer
	if whole && wrapper != "UNCONDITIONAL" {
		err := json.Compact(&b, found[0])
		return value.Text(b.String()), err
	}
	b.WriteByte('[')
	for i, v := range found {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := json.Compact(&b, v); err != nil {
			return value.NullValue, err
		}
	}
	b.WriteByte(']')
	return value.Text(b.String()), nil
}
