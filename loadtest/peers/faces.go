package peers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb_Query"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// api is the API that a target serves.
type api int

const (
	ydbAPI   api = iota // YDB's own protocol
	plainAPI            // the sidecar's plain API, over gRPC
	webAPI              // the same over HTTP/1.1, in JSON
)

// suffix tells the faces of one program apart.
func (f api) suffix() string { return [...]string{"", "-plain", "-http"}[f] }

// counted is what came of an answer of many rows.
type counted struct{ rows, bytes int }

// add counts a row by its name, and returns the node that made it.
func (c *counted) add(name string) (node int) {
	c.rows++
	c.bytes += len(name)
	if name != "" {
		node = int(name[0] - '0')
	}
	return node
}

// check tells whether the answer had all its rows, and their names all bytes.
func (c counted) check(s Scenario) error {
	if want := (counted{s.Parts * s.Rows, s.Parts * s.Rows * s.Size}); c != want {
		return fmt.Errorf("got %d rows of %d bytes; want %d of %d", c.rows, c.bytes, want.rows, want.bytes)
	}
	return nil
}

func decode(data mem.BufferSlice, m proto.Message) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

// count decodes a part of an answer of many rows, as an SDK would.
func (a *answer) count(data mem.BufferSlice) error {
	var part Ydb_Query.ExecuteQueryResponsePart
	if err := decode(data, &part); err != nil {
		return err
	}
	if part.GetStatus() != Ydb.StatusIds_SUCCESS {
		return a.refused(data)
	}
	for _, row := range part.GetResultSet().GetRows() {
		if len(row.GetItems()) != rowWidth {
			return errBody
		}
		a.from = a.rows.add(row.GetItems()[nameAt].GetTextValue())
	}
	return nil
}

// plainAnswer is what came of an answer of the plain API.
type plainAnswer struct {
	scenario Scenario
	want     [nodes][][]byte // the encoded rows, one in each part
	rows     int             // that came
	right    [nodes]int      // of them, those of each node
	counted  counted         // if the scenario has many rows
	end      bool            // a stream is complete
}

// plainly is the codec of requests, which are encoded already, and answers of the plain API.
type plainly struct{ checking }

func (plainly) Unmarshal(data mem.BufferSlice, v any) error {
	a := v.(*plainAnswer)
	if a.scenario.Rows > 0 {
		return a.count(data)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if !a.scenario.Stream {
		return a.take(buf.ReadOnlyData())
	}
	return fields(buf.ReadOnlyData(), func(number protowire.Number, value []byte) (err error) {
		const rows, end = 2, 3 // of ExecuteStreamResponse
		switch number {
		case rows:
			err = a.take(value)
		case end:
			a.end = true
		}
		return err
	})
}

// take compares the rows of an ExecuteResponse or StreamRows with those of the nodes.
func (a *plainAnswer) take(message []byte) error {
	return fields(message, func(number protowire.Number, value []byte) error {
		const rows = 2 // of both
		if number != rows {
			return nil
		}
		for i, want := range a.want {
			if a.rows < len(want) && bytes.Equal(value, want[a.rows]) {
				a.right[i]++
			}
		}
		a.rows++
		return nil
	})
}

// count decodes a part of an answer of many rows, as an app would.
func (a *plainAnswer) count(data mem.BufferSlice) error {
	var part sidecarv1.ExecuteStreamResponse
	if err := decode(data, &part); err != nil {
		return err
	}
	for _, row := range part.GetRows().GetRows() {
		if len(row.GetValues()) != rowWidth {
			return errBody
		}
		a.counted.add(row.GetValues()[nameAt].GetTextValue())
	}
	a.end = part.GetEnd() != nil
	return nil
}

// check tells whether the answer is what one of the nodes must answer.
func (a *plainAnswer) check() error {
	if a.scenario.Stream && !a.end {
		return errors.New("the stream has no end")
	}
	if a.scenario.Rows > 0 {
		return a.counted.check(a.scenario)
	}
	for _, right := range a.right {
		if right == a.scenario.Parts && a.rows == right {
			return nil
		}
	}
	return errBody
}

// fields calls f for each field of a message that is a message itself.
func fields(message []byte, f func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errBody
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return errBody
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message) // it was consumed before
			if err := f(number, value); err != nil {
				return err
			}
		}
		message = message[n:]
	}
	return nil
}

// plainCaller makes a caller of the plain API over gRPC.
func plainCaller(s Scenario, conn *grpc.ClientConn) (func(context.Context) error, error) {
	number := func(n int) *sidecarv1.Value {
		return &sidecarv1.Value{Kind: &sidecarv1.Value_Uint64Value{Uint64Value: uint64(n)}}
	}
	request := &sidecarv1.ExecuteRequest{Sql: text, Params: map[string]*sidecarv1.Value{}}
	for name, n := range wants(s) {
		request.Params[name] = number(n)
	}
	body, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	var want [nodes][][]byte
	for i := range want {
		for part := range s.Parts {
			if s.Rows > 0 {
				break
			}
			row, err := proto.Marshal(
				&sidecarv1.Row{Values: []*sidecarv1.Value{{Kind: &sidecarv1.Value_BytesValue{BytesValue: payload(i+1, s.Size, part)}}}},
			)
			if err != nil {
				return nil, err
			}
			want[i] = append(want[i], row)
		}
	}
	codec := grpc.ForceCodecV2(plainly{})
	return func(ctx context.Context) error {
		ctx = metadata.NewOutgoingContext(ctx, nil) // an SDK's headers are none of it
		a := plainAnswer{scenario: s, want: want}
		if !s.Stream {
			if err := conn.Invoke(ctx, sidecarv1.Sidecar_Execute_FullMethodName, body, &a, codec); err != nil {
				return err
			}
			return a.check()
		}
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, sidecarv1.Sidecar_ExecuteStream_FullMethodName, codec)
		if err != nil {
			return err
		}
		if err := errors.Join(stream.SendMsg(body), stream.CloseSend()); err != nil {
			return err
		}
		for {
			if err := stream.RecvMsg(&a); errors.Is(err, io.EOF) {
				return a.check()
			} else if err != nil {
				return err
			}
		}
	}, nil
}

// web is one connection that calls the plain API over HTTP/1.1, again if it is lost.
type web struct {
	scenario Scenario
	address  string
	request  []byte
	want     [nodes][]string // how the answer begins, or the lines of its rows
	conn     net.Conn
	read     *bufio.Reader
}

// line is room for the longest line of an answer.
const line = 1 << 18

func newWeb(s Scenario, address string) (*web, error) {
	params, err := json.Marshal(map[string]any{"sql": text, "params": wants(s)})
	if err != nil {
		return nil, err
	}
	accept := "application/json"
	if s.Stream {
		accept = "application/x-ndjson"
	}
	w := &web{scenario: s, address: address, read: bufio.NewReaderSize(nil, 4<<10)}
	w.request = fmt.Appendf(nil,
		"POST /v1/query HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s",
		address, accept, len(params), params)
	if s.Stream {
		w.read = bufio.NewReaderSize(nil, line)
	}
	for i := range w.want {
		for part := range s.Parts {
			if s.Rows > 0 {
				break
			}
			row := strconv.Quote(base64.StdEncoding.EncodeToString(payload(i+1, s.Size, part)))
			if s.Stream {
				w.want[i] = append(w.want[i], `{"row":[`+row+"]}\n")
			} else {
				w.want[i] = append(w.want[i],
					`{"columns":[{"name":"payload","type":"String"}],"rows":[{"payload":`+row+`}],"truncated":false`)
			}
		}
	}
	return w, nil
}

// webCallers returns n callers of the plain API over HTTP, each with a connection of its own.
func webCallers(address string, s Scenario, n int) (all []*caller, hangUp func(), err error) {
	var open []*web
	hangUp = func() {
		for _, w := range open {
			w.close()
		}
	}
	for range n {
		w, err := newWeb(s, address)
		if err != nil {
			return nil, hangUp, err
		}
		open = append(open, w)
		all = append(all, &caller{scenario: s, plain: w.call})
	}
	return all, hangUp, nil
}

// close ends the connection.
func (w *web) close() {
	if w.conn != nil {
		_ = w.conn.Close() // nothing is in flight
		w.conn = nil
	}
}

// call makes one call and checks the answer.
func (w *web) call(ctx context.Context) (err error) {
	if w.conn == nil {
		var d net.Dialer
		if w.conn, err = d.DialContext(ctx, "tcp", w.address); err != nil {
			w.conn = nil
			return err
		}
		w.read.Reset(w.conn)
		if end, ok := ctx.Deadline(); ok {
			_ = w.conn.SetDeadline(end) // it is open
		}
	}
	defer func() {
		if err != nil {
			w.close() // who knows where in the answer it is
		}
	}()
	if _, err := w.conn.Write(w.request); err != nil {
		return err
	}
	answer, err := http.ReadResponse(w.read, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		problem, _ := io.ReadAll(io.LimitReader(answer.Body, 1000)) // what there is of it
		return fmt.Errorf("%s: %s", answer.Status, problem)
	}
	if w.scenario.Stream {
		return w.lines(answer.Body)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	for _, want := range w.want {
		if rest, ok := bytes.CutPrefix(body, []byte(want[0])); ok && bytes.HasPrefix(rest, []byte(`,"info":{`)) {
			return nil
		}
	}
	return errBody
}

// lines reads and checks an answer as lines of JSON. Of many rows the lines are counted, and not decoded: what
// that costs is up to the client.
func (w *web) lines(body io.Reader) error {
	all := bufio.NewScanner(body)
	all.Buffer(make([]byte, 0, line), line)
	all.Split(func(data []byte, atEnd bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return i + 1, data[:i+1], nil
		}
		if atEnd && len(data) > 0 {
			return 0, nil, io.ErrUnexpectedEOF
		}
		return 0, nil, nil
	})
	if !all.Scan() || !strings.HasPrefix(all.Text(), `{"columns":[{"name":`) {
		return fmt.Errorf("%w: %.200s: %w", errBody, all.Text(), all.Err())
	}
	rows, size, end := 0, 0, []byte(fmt.Sprintf(`{"end":{"rows":%d,"truncated":false`, w.scenario.Parts*max(1, w.scenario.Rows)))
	var right [nodes]int
	for all.Scan() {
		text := all.Bytes()
		if !bytes.HasPrefix(text, []byte(`{"row":[`)) {
			if !bytes.HasPrefix(text, end) {
				return fmt.Errorf("%w: %.200s", errBody, text)
			}
			if w.scenario.Rows > 0 {
				if want := w.scenario.lineBytes(); size != want || rows != w.scenario.Parts*w.scenario.Rows {
					return fmt.Errorf("got %d rows of %d bytes; want %d of %d", rows, size, w.scenario.Parts*w.scenario.Rows, want)
				}
			} else if right[0] != rows && right[1] != rows && right[2] != rows {
				return errBody
			}
			if all.Scan() {
				return fmt.Errorf("%w: the stream goes on after its end: %.200s", errBody, all.Bytes())
			}
			return all.Err()
		}
		for i, want := range w.want {
			if rows < len(want) && string(text) == want[rows] {
				right[i]++
			}
		}
		rows++
		size += len(text)
	}
	return fmt.Errorf("the stream has no end: %w", errors.Join(io.ErrUnexpectedEOF, all.Err()))
}

// lineBytes is how long all lines of the rows of an answer of many rows are.
func (s Scenario) lineBytes() (n int) {
	for i := range s.Parts * s.Rows {
		n += len(`{"row":["`) + digits(i) + len(`","`) + s.Size + len(`",`) + len(strconv.FormatFloat(amount(i), 'f', -1, 64)) + len("]}\n")
	}
	return n
}

func digits(n int) int { return len(strconv.Itoa(n)) }
