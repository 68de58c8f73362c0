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

// Post sends JSON and returns the body of the answer; an answer that is not 200 is an error. The clients of package contract
// decode every answer, which would count where a request must cost its caller least.
func Post(ctx context.Context, client *http.Client, url string, body []byte) ([]byte, error) {
	status, answer, err := Send(ctx, client, http.MethodPost, url, "application/json", body)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("HTTP %d: %.200s", status, answer)
	}
	return answer, err
}

// Send makes a request, with a body of the media type if there is one, and reads its answer.
func Send(ctx context.Context, client *http.Client, method, url, media string, body []byte) (status int, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if media != "" {
		request.Header.Set("Content-Type", media)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, answer, err
}

// WebRow sends a request whose answer is to have one row.
func WebRow[Row any](ctx context.Context, w *WebReader, body []byte) (row Row, err error) {
	text, err := Post(ctx, w.client, w.url, body)
	if err != nil {
		return row, err
	}
	var found struct{ Rows []Row }
	if err = json.Unmarshal(text, &found); err != nil || len(found.Rows) != 1 {
		return row, fmt.Errorf("%d rows, %v: %.200s", len(found.Rows), err, text)
	}
	return found.Rows[0], nil
}

// SdkAnswer asks for the row of a key by the SDK.
func SdkAnswer(ctx context.Context, sdk *ydbsdk.Driver, key uint64) (query.Row, error) {
	return sdk.Query().QueryRow(ctx, Read, query.WithIdempotent(),
		query.WithParameters(ydbsdk.ParamsBuilder().Param("$id").Uint64(key).Build()))
}
