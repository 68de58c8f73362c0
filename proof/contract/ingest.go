package contract

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// grpcIngest is a stream of rows over gRPC.
type grpcIngest struct {
	stream sidecarv1.Ingest_IngestClient
	cancel context.CancelFunc
}

func (g *grpcClient) Ingest(ctx context.Context, o IngestOpen) (IngestStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := sidecarv1.NewIngestClient(g.conn).Ingest(ctx)
	if err == nil {
		err = stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{
			Open: &sidecarv1.IngestOpen{Table: o.Table, Offset: o.Offset, Stream: o.Stream}}})
	}
	if err != nil {
		cancel()
		return nil, grpcError(err)
	}
	return &grpcIngest{stream, cancel}, nil
}

func (g *grpcIngest) Send(columns []string, rows ...[]any) error {
	m := &sidecarv1.IngestRows{Columns: columns}
	for _, row := range rows {
		r := &sidecarv1.Row{}
		for _, v := range row {
			r.Values = append(r.Values, packValue(v))
		}
		m.Rows = append(m.Rows, r)
	}
	return g.stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Rows{Rows: m}})
}

func (g *grpcIngest) CloseSend() error { return g.stream.CloseSend() }

func (g *grpcIngest) Close() { g.cancel() }

func (g *grpcIngest) Next() (IngestPart, error) {
	m, err := g.stream.Recv()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return IngestPart{}, io.EOF
		}
		return IngestPart{}, grpcError(err)
	}
	switch {
	case m.GetAck() != nil:
		return IngestPart{Next: m.GetAck().Next}, nil
	case m.GetRefused() != nil:
		return IngestPart{Offset: m.GetRefused().Offset, Refused: bodyError(m.GetRefused().Error)}, nil
	case m.GetEnd() != nil:
		return IngestPart{End: &IngestEnd{m.GetEnd().Next, m.GetEnd().Rows, m.GetEnd().Refused}}, nil
	}
	return IngestPart{}, fmt.Errorf("an unknown part: %v", m)
}

// httpIngest is a stream of rows over HTTP: lines in both directions at a time.
type httpIngest struct {
	body   *io.PipeWriter
	res    *http.Response
	lines  *bufio.Reader
	ended  bool
	cancel context.CancelFunc
}

func (h *httpClient) Ingest(ctx context.Context, o IngestOpen) (IngestStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	read, write := io.Pipe()
	path := h.base + "/v1/ingest/" + o.Table + "?offset=" + strconv.FormatUint(o.Offset, 10) + "&stream=" + url.QueryEscape(o.Stream)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, path, read)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	nameApp(req)
	res, err := h.client.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer cancel()
		defer res.Body.Close()
		_ = write.Close() // no row was sent
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			return nil, err
		}
		return nil, problem(raw)
	}
	return &httpIngest{body: write, res: res, lines: bufio.NewReader(res.Body), cancel: cancel}, nil
}

func (h *httpIngest) Send(columns []string, rows ...[]any) error {
	for _, row := range rows {
		object := make(map[string]any, len(row))
		for i, v := range row {
			object[columns[i]] = v
		}
		line, err := json.Marshal(object)
		if err != nil {
			return err
		}
		if _, err := h.body.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

func (h *httpIngest) CloseSend() error { return h.body.Close() }

func (h *httpIngest) Close() {
	h.cancel()
	_ = h.body.Close()     // wakes who is sending
	_ = h.res.Body.Close() // nobody reads it any more
}

func (h *httpIngest) Next() (IngestPart, error) {
	line, err := h.lines.ReadBytes('\n')
	if err != nil {
		if errors.Is(err, io.EOF) && !h.ended {
			return IngestPart{}, io.ErrUnexpectedEOF
		}
		return IngestPart{}, err
	}
	var part struct {
		Ack     *struct{ Next uint64 }
		Refused *struct {
			Offset uint64
			Error  json.RawMessage
		}
		End   *IngestEnd
		Error json.RawMessage
	}
	if err := json.Unmarshal(line, &part); err != nil {
		return IngestPart{}, fmt.Errorf("%q: %w", line, err)
	}
	switch {
	case part.Ack != nil:
		return IngestPart{Next: part.Ack.Next}, nil
	case part.Refused != nil:
		return IngestPart{Offset: part.Refused.Offset, Refused: problem(part.Refused.Error)}, nil
	case part.End != nil:
		h.ended = true
		return IngestPart{End: part.End}, nil
	case part.Error != nil:
		return IngestPart{}, problem(part.Error)
	}
	return IngestPart{}, fmt.Errorf("an unknown line: %q", line)
}

// ingest: rows come in any order of columns, some bad, some of one key; they are
// acknowledged while the stream is open, and what is read is what came last.
func ingest(t *test) {
	table := t.table()
	ingestedInOneStream(t, table)
	for want, bad := range map[string]IngestOpen{
		"YDB_SCHEME_ERROR": {Table: pathOf(nowhere(table))}, "BAD_REQUEST": {Table: pathOf(table), Stream: strings.Repeat("n", 300)},
	} {
		s, err := t.Ingest(t.ctx, bad)
		if err == nil {
			_, err = s.Next()
			s.Close()
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != want {
			t.Errorf("%s: %v; want %s", bad.Table, err, want)
		} else if want == "YDB_SCHEME_ERROR" { // the request names the table, as a URL names its page
			t.status(e, 404, codes.NotFound)
		}
	}
}

// ingestedInOneStream writes rows that follow each other, some of which are refused, and then many
// until the end.
func ingestedInOneStream(t *test, table string) {
	s, err := t.Ingest(t.ctx, IngestOpen{Table: pathOf(table), Offset: 100, Stream: "contract"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	send := func(columns []string, rows ...[]any) {
		if err := s.Send(columns, rows...); err != nil {
			t.Fatal(err)
		}
	}
	send([]string{"id", "name", "n"}, []any{1, "first", 1}, []any{2, "two", 2}, []any{3, "three", 3})
	send([]string{"n", "id"}, []any{11, 1}, []any{"no number", 4}, []any{nil, 3})
	send([]string{"id", "name"}, []any{1, "last"}, []any{nil, "no key"})
	refused := map[uint64]string{}
	for next := uint64(100); next < 108; {
		p, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		next = max(next, p.Next)
		if p.Refused != nil {
			refused[p.Offset] = p.Refused.Code
		}
	}
	if len(refused) != 2 || refused[104] != "BAD_REQUEST" || refused[107] != "BAD_REQUEST" {
		t.Errorf("refused %v; want 104 and 107", refused)
	}
	t.rows("SELECT id, name, n FROM "+table+" ORDER BY id", []any{"1", "last", "11"}, []any{"2", "two", "2"}, []any{"3", "three", nil})

	var rows [][]any
	keys := t.of(1500, 400)
	for i := range 2 * keys {
		rows = append(rows, []any{i % keys, fmt.Sprint("n", i)})
	}
	for chunk := range slices.Chunk(rows, 200) {
		send([]string{"id", "name"}, chunk...)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	end := t.ended(s)
	if end == nil || *end != (IngestEnd{Next: 108 + 2*uint64(keys), Rows: 6 + 2*uint64(keys), Refused: 2}) {
		t.Errorf("end %+v", end)
	}
	first := fmt.Sprint("n", keys)
	t.rows("SELECT COUNT(*) AS c, MIN(name) AS a FROM "+table, []any{fmt.Sprint(keys), first})
	t.rows("SELECT name FROM "+table+" WHERE id = 0", []any{first})
}

// ended reads a stream to its end and returns what it says there.
func (t *test) ended(s IngestStream) (end *IngestEnd) {
	for {
		p, err := s.Next()
		if err == io.EOF {
			return end
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.End != nil {
			end = p.End
		}
	}
}
