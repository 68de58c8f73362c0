package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/app"
)

// nobodyError says that no sidecar answers.
type nobodyError struct {
	at  string
	err error
}

func (e *nobodyError) Error() string {
	return fmt.Sprintf(
		"no sidecar answers at %s (%v): is it running, and is that its admin.socket or admin.listen? -socket and -admin name another",
		e.at, e.err,
	)
}

// isNobody reports whether err says that no sidecar answers.
func isNobody(err error) bool {
	_, ok := errors.AsType[*nobodyError](err)
	return ok
}

// How the admin API is used.
const (
	operateLimit = 10 * time.Second
	followPause  = 500 * time.Millisecond
	watchPause   = 3 * time.Second // between two lines of one stage
	maxAnswer    = 16 << 20        // bytes
)

// operator speaks to the admin API of a running sidecar.
type operator struct {
	at     string // where it listens, for people
	client *http.Client
	base   string // of URLs
	token  string
}

// operate finds the sidecar that the settings name: by its Unix socket if it has
// one, unless -admin names an address. With -socket nothing else is read. Otherwise
// faults of the file and of the environment are a warning: the commands are needed
// most while the configuration is broken, and the sidecar that runs has read another.
// They are an error where they hide which sidecar is meant.
func (i *invocation) operate() (*operator, error) {
	given := func(flag string) bool {
		return slices.ContainsFunc(i.assignments, func(a app.Assignment) bool { return a.Source == flag })
	}
	file, environ := i.file, i.environ
	if given("-socket") {
		file, environ = "", nil
	}
	c, ignored, err := app.LoadAdmin(file, environ, i.assignments)
	if errors.Is(err, app.ErrUnplaced) {
		return nil, fmt.Errorf("%w, as in: %s", err, i.naming(app.Default().Admin.Listen))
	}
	if err != nil {
		return nil, err
	}
	op := &operator{at: c.Socket, base: "http://localhost"}
	bySocket := c.Socket != "" && (given("-socket") || !given("-admin"))
	if !bySocket {
		op.at = reachable(c.Listen)
	}
	if ignored != nil {
		i.warn(fmt.Errorf("%s; asking the sidecar at %s", app.FaultLine(ignored), op.at))
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if path := c.Socket; bySocket {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	} else {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			return nil, fmt.Errorf("admin.listen = %q; must be host:port. Give -admin or -socket, as in: %s", c.Listen,
				i.naming(app.Default().Admin.Listen))
		}
		if transport.TLSClientConfig, err = c.TLS.Pinned(); err != nil {
			return nil, fmt.Errorf("admin.%w", err)
		}
		op.base = "http://" + op.at
		if transport.TLSClientConfig != nil {
			op.base = "https://" + op.at
		}
		if op.token, err = c.BearerToken(); err != nil {
			i.warn(err) // much is allowed without
		}
	}
	op.client = &http.Client{Transport: transport, Timeout: operateLimit}
	return op, nil
}

// naming is the command line that asks the sidecar at an address, whatever the settings say.
func (i *invocation) naming(address string) string {
	return strings.Join(append([]string{"sidecar", i.name, "-admin", address}, i.args...), " ")
}

// warn reports faults that a command goes on without.
func (e *environment) warn(faults error) {
	if faults != nil {
		fmt.Fprintf(e.stderr, "sidecar: warning: ignored: %s\n", app.FaultLine(faults))
	}
}

// ask makes one request and returns the answer to it, or the sidecar's refusal.
func (op *operator) ask(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	target := op.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, err
	}
	if op.token != "" {
		request.Header.Set("Authorization", "Bearer "+op.token)
	}
	response, err := op.client.Do(request)
	if ctx.Err() != nil {
		if err == nil {
			response.Body.Close()
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL of a socket, which is none
		}
		if gone(err) {
			err = &nobodyError{at: op.at, err: err}
		}
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", op.at, err)
	}
	if response.StatusCode != http.StatusOK {
		if strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json") {
			return nil, fmt.Errorf("%s is the HTTP API of a sidecar, not its admin API: give the address of admin.listen "+
				"(127.0.0.1:7402 by default)", op.at)
		}
		return nil, errors.New(cmp.Or(strings.Join(strings.Fields(string(text)), " "), response.Status))
	}
	return text, nil
}

// gone reports whether err means that no process listens at the address, or that the one that did is just ending.
func gone(err error) bool {
	for _, sign := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, fs.ErrNotExist, io.EOF} {
		if errors.Is(err, sign) {
			return true
		}
	}
	return false
}

// interruptible is a context that the signals end.
func (e *environment) interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		select {
		case s := <-e.signals:
			cancel(fmt.Errorf("interrupted (%v)", s))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// askOnce makes one request.
func (i *invocation) askOnce(method, path string, query url.Values) ([]byte, error) {
	op, err := i.operate()
	if err != nil {
		return nil, err
	}
	ctx, cancel := i.interruptible()
	defer cancel()
	return op.ask(ctx, method, path, query)
}

// A shower writes one answer of the admin API for people.
type shower func(to io.Writer, text []byte) error

// show fetches a document and writes it: as it is with -json, by the shower otherwise.
func (i *invocation) show(path string, query url.Values, table shower) error {
	text, err := i.askOnce(http.MethodGet, path, query)
	if err != nil {
		return err
	}
	if i.asJSON {
		_, err := i.stdout.Write(text)
		return err
	}
	return table(i.stdout, text)
}
