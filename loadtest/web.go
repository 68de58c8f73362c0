package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	ydbsdk "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
)

// webReader reads random rows by POST /v1/query.
type webReader struct {
	client *http.Client
	url    string
}

func newWebReader(address string) *webReader {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256
	return &webReader{&http.Client{Transport: transport, Timeout: 20 * time.Second}, "http://" + address + "/v1/query"}
}

func (w *webReader) close() { w.client.CloseIdleConnections() }

func (w *webReader) read(ctx context.Context) error {
	_, err := webRow[json.RawMessage](ctx, w, fmt.Appendf(nil, `{"sql":%q,"params":{"id":%d}}`, read, randomID()))
	return err
}

// webRow sends a request whose answer is to have one row.
func webRow[Row any](ctx context.Context, w *webReader, body []byte) (row Row, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return row, err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := w.client.Do(request)
	if err != nil {
		return row, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return row, err
	}
	var found struct{ Rows []Row }
	if err = json.Unmarshal(text, &found); err != nil || answer.StatusCode != http.StatusOK || len(found.Rows) != 1 {
		return row, fmt.Errorf("HTTP %d, %d rows, %v: %.200s", answer.StatusCode, len(found.Rows), err, text)
	}
	return found.Rows[0], nil
}

// sdkAnswer asks for the row of a key by the SDK.
func sdkAnswer(ctx context.Context, sdk *ydbsdk.Driver, key uint64) (query.Row, error) {
	return sdk.Query().QueryRow(ctx, read, query.WithIdempotent(), query.WithParameters(ydbsdk.ParamsBuilder().Param("$id").Uint64(key).Build()))
}
