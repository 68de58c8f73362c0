package httpapi

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// decode reads a body into the message of its request. Members that the request does not have are
// refused: a misspelt "idempotent" must not be overlooked.
func (a *API) decode(x *exchange, raw []byte, into proto.Message, out *request) error {
	x.call.Large = x.call.Large || len(raw) > lane.Large
	return a.core.InLane(x.ctx, x.call.Large, func() error { return a.decodeNow(x.call, raw, into, out) })
}

func (a *API) decodeNow(c *core.Call, raw []byte, into proto.Message, out *request) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil // every call has a meaning without a body, if only an error
	}
	values, err := checkRequest(raw, a.core.Cfg.API, c.Reserved.Take)
	if err == nil {
		err = core.TakeRequest(&c.Reserved, core.DecodedTwice*len(raw)+core.ValueCost*values)
	}
	if err != nil {
		return err
	}
	if !utf8.Valid(raw) {
		return core.BadRequest("the body is not valid UTF-8")
	}
	if err := decodeJSON(raw, into, out); err != nil {
		return err
	}
	a.core.UsesFields(c, into)
	return nil
}

// decodeAround is decode without a member that is a list, whose text it returns as it came: it may be most of the body.
// A list that is null, or is not there, has no text.
func (a *API) decodeAround(x *exchange, raw []byte, name string, into proto.Message) (list []byte, err error) {
	x.call.Large = x.call.Large || len(raw) > lane.Large
	err = a.core.InLane(x.ctx, x.call.Large, func() (err error) {
		list, err = a.decodeAroundNow(x.call, raw, name, into)
		return err
	})
	return list, err
}

func (a *API) decodeAroundNow(c *core.Call, raw []byte, name string, into proto.Message) (list []byte, err error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	if _, err := checkShape(raw, a.core.Cfg.API.MaxDepth, c.Reserved.Take); err != nil {
		return nil, err
	}
	at, found, err := yql.Member(raw, name)
	if err != nil {
		return nil, core.BadRequest("the body is not the JSON that is expected here: %v", err)
	}
	around := raw
	if found {
		list = raw[at.Start:at.End]
		around = slices.Concat(raw[:at.Start], []byte("null"), raw[at.End:])
	}
	if err := a.decodeNow(c, around, into, new(request)); err != nil {
		return nil, err
	}
	switch {
	case len(list) == 0, list[0] == 'n':
		return nil, nil
	case list[0] != '[':
		return nil, core.BadRequest("%s: a list is expected here", name)
	}
	return list, nil
}

// format reads how the caller wants its rows: from the body, else from headers,
// else from parameters of Accept. arrays is what counts if none says anything.
func (x *exchange) format(body jsonFormat, arrays bool) (format, error) {
	f := format{arrays: arrays}
	switch rows := x.choice(body.rows, headerRows, "rows"); rows {
	case "":
	case "objects", "arrays":
		f.arrays = rows == "arrays"
	default:
		return f, core.BadRequest("rows: %.40q; must be one of objects, arrays", rows)
	}
	switch ints := x.choice(body.ints, headerInts, "ints"); ints {
	case "", "string":
	case "number":
		f.json.Ints = yql.IntsAsNumbers
	default:
		return f, core.BadRequest("ints: %.40q; must be one of string, number", ints)
	}
	return f, nil
}

func (x *exchange) choice(body, header, param string) string {
	if body != "" {
		return body
	}
	if v := x.r.Header.Get(header); v != "" {
		return v
	}
	for _, part := range strings.FieldsFunc(x.r.Header.Get("Accept"), func(r rune) bool { return r == ';' || r == ',' }) {
		if name, v, ok := strings.Cut(strings.TrimSpace(part), "="); ok && strings.TrimSpace(name) == param {
			return strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	return ""
}

// wantsStream tells whether the reply shall be NDJSON: Accept names it, and prefers JSON no more than it.
func (x *exchange) wantsStream() bool {
	lines, whole := 0.0, 0.0
	for part := range strings.SplitSeq(x.r.Header.Get("Accept"), ",") {
		media, params, _ := strings.Cut(part, ";")
		switch media = strings.TrimSpace(media); {
		case strings.EqualFold(media, mediaNDJSON):
			lines = max(lines, quality(params))
		case strings.EqualFold(media, core.MediaJSON):
			whole = max(whole, quality(params))
		}
	}
	return lines > 0 && lines >= whole
}

// quality is the weight that the parameters of a type in Accept have; 1 without any.
func quality(params string) float64 {
	for param := range strings.SplitSeq(params, ";") {
		if name, weight, ok := strings.Cut(param, "="); ok && strings.EqualFold(strings.TrimSpace(name), "q") {
			if q, err := strconv.ParseFloat(strings.TrimSpace(weight), 64); err == nil && q >= 0 && q <= 1 {
				return q
			}
		}
	}
	return 1
}
