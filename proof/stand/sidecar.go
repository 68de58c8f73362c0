package stand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sidecarv1 "github.com/ydb-sidecar/sidecar/proto/sidecar/v1"
)

// Serve says how to start a sidecar.
type Serve struct {
	Program  string   // its path
	URL      string   // of the cluster; "": the settings tell
	Settings []string // name=value
	Flags    []string // of serve, after those for free ports, which they may replace
	Env      []string // as in Spec
}

// Spec returns the program with its arguments: on free ports, and with tokens and passwords in
// the environment, because others see a command line.
func (s Serve) Spec() Spec {
	spec := Spec{Path: s.Program, Env: slices.Clip(s.Env), Args: []string{"serve"}}
	if s.URL != "" {
		spec.Args = append(spec.Args, "-ydb", s.URL)
	}
	spec.Args = append(spec.Args, "-grpc", "127.0.0.1:0", "-http", "127.0.0.1:0", "-admin", "127.0.0.1:0")
	spec.Args = append(spec.Args, s.Flags...)
	for _, setting := range s.Settings {
		name, value, _ := strings.Cut(setting, "=")
		if strings.HasSuffix(name, "token") || strings.HasSuffix(name, "password") {
			spec.Env = append(spec.Env, "SIDECAR_"+strings.ToUpper(strings.ReplaceAll(name, ".", "_"))+"="+value)
			continue
		}
		spec.Args = append(spec.Args, "-set", setting)
	}
	return spec
}

// Sidecar is a running sidecar.
type Sidecar struct {
	*Process
	GRPC, HTTP, Admin string // addresses
	XDS               string // "" without xds.enabled
	Conn              *grpc.ClientConn
	Client            sidecarv1.SidecarClient // over Conn
}

// StartSidecar starts a sidecar. The caller must Stop it, and Close its connection.
func StartSidecar(ctx context.Context, how Serve) (*Sidecar, error) {
	p, err := Launch(ctx, how.Spec())
	if err != nil {
		return nil, err
	}
	s, err := Reach(p)
	if err != nil {
		p.kill()
	}
	return s, err
}

// Reach returns the sidecar that a process is, once its ready line has been read. The caller must Close it.
func Reach(p *Process) (*Sidecar, error) {
	conn, err := Dial(p.At["grpc"])
	if err != nil {
		return nil, err
	}
	return &Sidecar{Process: p, GRPC: p.At["grpc"], HTTP: p.At["http"], Admin: p.At["admin"], XDS: p.At["xds"],
		Conn: conn, Client: sidecarv1.NewSidecarClient(conn)}, nil
}

// Close closes the connection to the sidecar, which goes on.
func (s *Sidecar) Close() { _ = s.Conn.Close() } // nothing is in flight

// Dial makes a connection without TLS.
func Dial(address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

// Get reads a page of the sidecar's admin API.
func (s *Sidecar) Get(ctx context.Context, path string) ([]byte, error) {
	return Get(ctx, s.Admin, path)
}

// JSON reads a page of the sidecar's admin API into a value.
func (s *Sidecar) JSON(ctx context.Context, path string, into any) error {
	data, err := s.Get(ctx, path)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Warm waits until a sidecar has a node and its pool.min sessions, or startup.wait is over.
func (s *Sidecar) Warm(ctx context.Context) error {
	cold := errors.New("the sidecar has no node, or not its pool.min sessions, after a minute")
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, cold)
	defer cancel()
	for {
		_, err := s.Get(ctx, "/startupz")
		if err == nil {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// maxPage bounds a page of an admin API, in bytes: a profile may be large.
const maxPage = 64 << 20

// Get reads a page of the admin API at an address.
func Get(ctx context.Context, address, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", response.Status, data)
	}
	if err != nil {
		return nil, fmt.Errorf("admin %s%s: %w", address, path, err)
	}
	return data, nil
}
