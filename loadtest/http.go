package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// attack lets vegeta read random rows by POST /v1/query at a constant rate.
// vegeta counts latency from the instant a worker sends.
func attack(ctx context.Context, address string, rate int, duration time.Duration) result {
	header := http.Header{"Content-Type": {"application/json"}}
	targeter := func(t *vegeta.Target) error {
		t.Method, t.URL, t.Header = http.MethodPost, "http://"+address+"/v1/query", header
		t.Body = fmt.Appendf(nil, `{"sql":%q,"params":{"id":%d}}`, read, randomID())
		return nil
	}
	attacker := vegeta.NewAttacker(vegeta.Timeout(20*time.Second), vegeta.MaxWorkers(256), vegeta.Workers(16))
	defer context.AfterFunc(ctx, func() { attacker.Stop() })()
	r, begun := newRecorder(), time.Now()
	for answer := range attacker.Attack(targeter, vegeta.Rate{Freq: rate, Per: time.Second}, duration, "query") {
		var err error
		if answer.Code != http.StatusOK {
			err = fmt.Errorf("HTTP %d: %s %.200s", answer.Code, answer.Error, answer.Body)
		}
		r.add(answer.Latency, err)
	}
	return r.result(time.Since(begun))
}
