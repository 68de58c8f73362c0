package app

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// The line of a denied call has the address of its caller, whatever server runs the call.
func TestDeniedCallsSayWhereTheyComeFrom(t *testing.T) {
	s := start(t, newCluster(t).Endpoint(), "apps.limits=shop calls=kv")
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-sidecar-app", "shop")
	for name, run := range map[string]func() error{
		"Execute": func() error {
			_, err := s.client.Execute(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			return err
		},
		"ExecuteStream": func() error {
			stream, err := s.client.ExecuteStream(ctx, &sidecarv1.ExecuteRequest{Sql: "SELECT 1"})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"Ingest/Ingest": func() error {
			stream, err := sidecarv1.NewIngestClient(s.conn).Ingest(ctx)
			if err != nil {
				return err
			}
			open := &sidecarv1.IngestOpen{Table: "t"}
			if err := stream.Send(&sidecarv1.IngestRequest{Part: &sidecarv1.IngestRequest_Open{Open: open}}); err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
		"BulkUpsert": func() error {
			in, err := http.NewRequest(
				http.MethodPost, "http://"+s.at.HTTP+"/v1/bulk", strings.NewReader(`{"table":"t","rows":[{"id":1}]}`),
			)
			if err != nil {
				return err
			}
			in.Header.Set("Content-Type", "application/json")
			in.Header.Set("X-Sidecar-App", "shop")
			out, err := s.http.Do(in)
			if err != nil {
				return err
			}
			defer out.Body.Close()
			if out.StatusCode != http.StatusOK {
				return errors.New(out.Status)
			}
			return nil
		},
	} {
		before := len(s.log.String())
		if run() == nil {
			t.Errorf("%s was not denied", name)
		}
		var line struct{ Msg, What, From string }
		s.eventually("the line of "+name, func() bool {
			for text := range strings.Lines(s.log.String()[before:]) {
				if json.Unmarshal([]byte(text), &line) == nil && line.Msg == "denied" {
					return true
				}
			}
			return false
		})
		if line.What != name || !strings.HasPrefix(line.From, "127.0.0.1:") {
			t.Errorf("%s: the line is %+v", name, line)
		}
	}
}
