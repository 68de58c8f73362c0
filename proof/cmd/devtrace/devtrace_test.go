package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestShowsATree sends spans as the sidecar does and reads the page as a person does.
func TestShowsATree(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	addresses, ended := make(chan [2]string, 1), make(chan error, 1)
	go func() {
		ended <- run(ctx, "127.0.0.1:0", "127.0.0.1:0", func(o, p string) { addresses <- [2]string{o, p} })
	}()
	at := <-addresses
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	}()

	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpoint(at[0]), otlptracegrpc.WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "shop"))))
	tracer := provider.Tracer("test")
	outer, parent := tracer.Start(ctx, "order")
	_, child := tracer.Start(outer, "hop")
	child.SetAttributes(attribute.Int("ydb.node.id", 2))
	child.End()
	parent.End()
	id := parent.SpanContext().TraceID().String()
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := provider.Shutdown(short); err != nil {
		t.Fatal(err)
	}

	page := get(t, "http://"+at[1]+"/?n=5&trace="+id[:8])
	for _, want := range []string{"trace " + id, "\n  order ", "\n    hop ", " shop ", "node.id=2"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if page := get(t, "http://"+at[1]+"/?trace=nosuch"); !strings.HasPrefix(page, `no trace "nosuch": it was not sent here`) {
		t.Errorf("a trace that was not sent: %q", page)
	}
	checkLinks(t, "http://"+at[1]+"/?trace="+id)
}

// checkLinks: the page of the sidecar links to a trace, and no page may read what the answer is.
func checkLinks(t *testing.T, url string) {
	t.Helper()
	for mode, want := range map[string]int{"navigate document": http.StatusOK, "navigate iframe": http.StatusForbidden,
		"cors empty": http.StatusForbidden} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		kind, dest, _ := strings.Cut(mode, " ")
		r.Header.Set("Sec-Fetch-Site", "same-site")
		r.Header.Set("Sec-Fetch-Mode", kind)
		r.Header.Set("Sec-Fetch-Dest", dest)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != want {
			t.Errorf("a page of another port, %s: %d; want %d", mode, answer.StatusCode, want)
		}
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
