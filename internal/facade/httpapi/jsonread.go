package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"

	"github.com/ydb-sidecar/sidecar/internal/facade/core"
	"github.com/ydb-sidecar/sidecar/internal/lane"
	"github.com/ydb-sidecar/sidecar/internal/upstream"
	"github.com/ydb-sidecar/sidecar/internal/yql"
)

// The requests of the HTTP API. Field names are those of sidecar.proto; rows and
// ints are its own.

type jsonStatement struct {
	SQL    string                     `json:"sql"`
	Params map[string]json.RawMessage `json:"params"`
	Types  map[string]string          `json:"types"`
}

type jsonFormat struct {
	Rows string `json:"rows"` // objects, arrays
	Ints string `json:"ints"` // string, number
}

type jsonExecute struct {
	jsonStatement
	jsonFormat
	Mode       string      `json:"mode"`
	Tx         *jsonTx     `json:"tx"`
	Idempotent bool        `json:"idempotent"`
	Timeout    string      `json:"timeout"`
	Limits     *jsonLimits `json:"limits"`
	Stats      string      `json:"stats"`
	Priority   string      `json:"priority"`
}

type jsonTx struct {
	Begin  *jsonBeginTx `json:"begin"`
	ID     string       `json:"id"`
	Seq    uint64       `json:"seq"`
	Commit bool         `json:"commit"`
}

type jsonBeginTx struct {
	Mode string `json:"mode"`
}

type jsonLimits struct {
	Rows  uint64   `json:"rows"`
	Bytes byteSize `json:"bytes"`
}

type jsonTransact struct {
	jsonFormat
	Statements []jsonStatement `json:"statements"`
	Mode       string          `json:"mode"`
	Idempotent bool            `json:"idempotent"`
	Timeout    string          `json:"timeout"`
	Limits     *jsonLimits     `json:"limits"`
	Stats      string          `json:"stats"`
	Priority   string          `json:"priority"`
}

type jsonBegin struct {
	Mode     string `json:"mode"`
	Timeout  string `json:"timeout"`
	Priority string `json:"priority"`
}

type jsonEndTx struct {
	Timeout string `json:"timeout"`
}

type jsonBatch struct {
	jsonFormat
	Statements []jsonBatchStatement `json:"statements"`
	Timeout    string               `json:"timeout"`
	Priority   string               `json:"priority"`
}

type jsonBatchStatement struct {
	jsonStatement
	Mode       string      `json:"mode"`
	Idempotent bool        `json:"idempotent"`
	Limits     *jsonLimits `json:"limits"`
}

type jsonBulk struct {
	Table    string            `json:"table"`
	Rows     json.RawMessage   `json:"rows"` // null: see decodeAround
	Types    map[string]string `json:"types"`
	Timeout  string            `json:"timeout"`
	Priority string            `json:"priority"`
}

type jsonExplain struct {
	SQL      string            `json:"sql"`
	Types    map[string]string `json:"types"`
	Timeout  string            `json:"timeout"`
	Priority string            `json:"priority"`
}

// byteSize is a number of bytes: 1048576, or "1MiB".
type byteSize uint64

// UnmarshalJSON reads a number or a text with a unit.
func (b *byteSize) UnmarshalJSON(raw []byte) (err error) {
	text := strings.Trim(string(raw), `"`)
	if len(text) == len(raw) && strings.HasSuffix(text, "B") {
		err = core.ErrSize // a unit without quotes
	} else {
		var n uint64
		n, err = core.ParseBytes(text)
		*b = byteSize(n)
	}
	if err != nil {
		return fmt.Errorf("limits.bytes: %w", err)
	}
	return nil
}

func (l *jsonLimits) limits() core.Limits {
	if l == nil {
		return core.Limits{}
	}
	return core.Limits{Rows: l.Rows, Bytes: uint64(l.Bytes)}
}

// id is that of the transaction that is continued; "": none is.
func (t *jsonTx) id() string {
	if t == nil {
		return ""
	}
	return t.ID
}

func (t *jsonTx) selector() *core.TxSelector {
	if t == nil {
		return nil
	}
	out := &core.TxSelector{Begin: t.Begin != nil, ID: t.ID, Seq: t.Seq, Commit: t.Commit}
	if out.Begin {
		out.Mode = t.Begin.Mode
	}
	return out
}

// decode reads a body into a request. Members that the request does not have are
// refused: a misspelt "idempotent" must not be overlooked.
func (a *API) decode(x *exchange, raw []byte, into any) error {
	x.call.Large = x.call.Large || len(raw) > lane.Large
	return a.core.InLane(x.ctx, x.call.Large, func() error { return a.decodeNow(x.call, raw, into) })
}

func (a *API) decodeNow(c *core.Call, raw []byte, into any) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil // every call has a meaning without a body, if only an error
	}
	values, err := checkRequest(raw, a.core.Cfg.API, c.Reserved.Take)
	if err == nil {
		err = core.TooMuch(c.Reserved.Take(core.DecodedTwice*len(raw) + core.ValueCost*values))
	}
	if err != nil {
		return err
	}
	if !utf8.Valid(raw) {
		return core.BadRequest("the body is not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return unfit(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return core.BadRequest("something follows the JSON of the body")
	}
	return nil
}

// decodeAround is decode without a member that is a list, whose text it returns as it came: it may be most of the body.
// A list that is null, or is not there, has no text.
func (a *API) decodeAround(x *exchange, raw []byte, name string, into any) (list []byte, err error) {
	x.call.Large = x.call.Large || len(raw) > lane.Large
	err = a.core.InLane(x.ctx, x.call.Large, func() (err error) {
		list, err = a.decodeAroundNow(x.call, raw, name, into)
		return err
	})
	return list, err
}

func (a *API) decodeAroundNow(c *core.Call, raw []byte, name string, into any) (list []byte, err error) {
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
	if err := a.decodeNow(c, around, into); err != nil {
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

// unfit says what is wrong with a body in terms of its members.
func unfit(err error) error {
	e, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return core.BadRequest("the body is not the JSON that is expected here: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	var path []string
	for part := range strings.SplitSeq(e.Field, ".") {
		if !strings.HasPrefix(part, "json") { // not the name of an embedded struct
			path = append(path, part)
		}
	}
	field := strings.Join(path, ".")
	if field == "" {
		field = "the body"
	}
	return core.BadRequest("%s: a JSON %s does not fit here", field, e.Value)
}

// jsonValues are values that came as JSON.
type jsonValues map[string]json.RawMessage

func (j jsonValues) Names() []string {
	names := make([]string, 0, len(j))
	for name := range j {
		names = append(names, name)
	}
	return names
}

func (j jsonValues) Typed(name string, t *Ydb.Type) (*Ydb.TypedValue, error) {
	return yql.ParamJSON(j[name], t)
}

func (j jsonValues) AddScalar(*upstream.Params, string, string, *Ydb.Type) bool { return false }

func (st jsonStatement) spec(stats string, l *jsonLimits) core.Spec {
	return core.Spec{SQL: st.SQL, Params: jsonValues(st.Params), Types: st.Types, Stats: stats, Limits: l.limits()}
}

// format reads how the caller wants its rows: from the body, else from headers,
// else from parameters of Accept. arrays is what counts if none says anything.
func (x *exchange) format(body jsonFormat, arrays bool) (format, error) {
	f := format{arrays: arrays}
	switch rows := x.choice(body.Rows, headerRows, "rows"); rows {
	case "":
	case "objects", "arrays":
		f.arrays = rows == "arrays"
	default:
		return f, core.BadRequest("rows: %.40q; must be one of objects, arrays", rows)
	}
	switch ints := x.choice(body.Ints, headerInts, "ints"); ints {
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

// wantsStream tells whether the reply shall be NDJSON.
func (x *exchange) wantsStream() bool {
	for part := range strings.SplitSeq(x.r.Header.Get("Accept"), ",") {
		media, _, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(media), mediaNDJSON) {
			return true
		}
	}
	return false
}
