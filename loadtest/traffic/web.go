package traffic

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

// WebReader reads random rows by POST /v1/query.
type WebReader struct {
	client *http.Client
	url    string
}

// NewWebReader returns a reader of a sidecar's HTTP listener.
func NewWebReader(address string) *WebReader {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256
	return &WebReader{&http.Client{Transport: transport, Timeout: 20 * time.Second}, "http://" + address + "/v1/query"}
}

// Close closes idle connections.
func (w *WebReader) Close() { w.client.CloseIdleConnections() }

// Read reads a random row.
func (w *WebReader) Read(ctx context.Context) error {
	_, err := WebRow[json.RawMessage](ctx, w, fmt.Appendf(nil, `{"sql":%q,"params":{"id":%d}}`, Read, RandomID()))
	return err
}

// WebRow sends a request whose answer is to have one row.
func WebRow[Row any](ctx context.Context, w *WebReader, body []byte) (row Row, err error) {
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

// SdkAnswer asks for the row of a key by the SDK.
func SdkAnswer(ctx context.Context, sdk *ydbsdk.Driver, key uint64) (query.Row, error) {
	return sdk.Query().QueryRow(ctx, Read, query.WithIdempotent(),
		query.WithParameters(ydbsdk.ParamsBuilder().Param("$id").Uint64(key).Build()))
}
