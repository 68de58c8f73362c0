package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/admin"
	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/listen"
	"github.com/ydb-sidecar/sidecar/internal/pessimize"
	"github.com/ydb-sidecar/sidecar/internal/restart"
	"github.com/ydb-sidecar/sidecar/internal/takeover"
	"github.com/ydb-sidecar/sidecar/internal/telemetry"
)

// adminSocketOf is the socket of the admin API that came from another process, or a new one.
func adminSocketOf(path string, from *restart.Inherited, log *slog.Logger) (*listen.AdminSocket, error) {
	if came, ok := from.Take("admin.socket", path).(*net.UnixListener); ok {
		return listen.NewAdminSocket(came, admin.Trusted, log), nil
	}
	return listen.OpenAdminSocket(path, admin.Trusted, log)
}

// New builds the sidecar of a configuration that Load returned and binds its
// ports; nothing runs yet. The caller must Run or Close it.
func New(c *Config, settings *config.Settings, version string, logs io.Writer) (*App, error) {
	return assemble(c, settings, version, logs, nil)
}

// Replace is New for a process that takes the place of the one that offers it at
// takeover.socket. When there is none it is New.
func Replace(c *Config, settings *config.Settings, version string, logs io.Writer) (*App, error) {
	if c.Takeover.Socket == "" {
		return nil, errors.New("-takeover needs takeover.socket, the same as that of the running process")
	}
	log := telemetry.NewLogger(logs, c.Log, nil)
	// The instance is not known before all is built, and not needed: see self.
	from, err := restart.Ask(c.Takeover.Socket, takeover.Process{PID: os.Getpid(), Version: version, Wait: c.Startup.Wait})
	if errors.Is(err, takeover.ErrNobody) {
		log.Info("no sidecar runs with this takeover.socket; starting as usual", "socket", c.Takeover.Socket)
		return New(c, settings, version, logs)
	}
	if err != nil {
		return nil, err
	}
	log.Info("taking over", "from", from.Other.PID, "its_version", from.Other.Version, "listeners", from.Listeners())
	a, err := assemble(c, settings, version, logs, from)
	if err != nil {
		return nil, errors.Join(err, from.Part())
	}
	a.adopt(from.Other.Notes)
	return a, nil
}

// notes are what the next process is to know.
type notes struct {
	Overrides []pessimize.Override `json:"orders,omitempty"` // of operators
}

// notes returns them as text, as many orders as have room.
func (a *App) notes() string {
	all := a.core.detector.Overrides()
	for n := len(all); ; n /= 2 {
		text, err := json.Marshal(notes{all[:n]})
		if err == nil && len(text) <= takeover.MaxNotes {
			if n < len(all) {
				a.log.Warn("the process that takes over does not learn of all banned and drained nodes", "learns", n, "all", len(all))
			}
			return string(text)
		}
		if n == 0 {
			return ""
		}
	}
}

// adopt takes the notes of the process whose place this one takes.
func (a *App) adopt(text string) {
	var n notes
	if text == "" {
		return
	}
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		a.log.Warn("what the process to take over from wants known is not understood", "err", err)
	}
	a.core.detector.Adopt(n.Overrides)
}

// self is what this process says of itself.
func (a *App) self() takeover.Process {
	return takeover.Process{PID: os.Getpid(), Version: a.version, Instance: a.api.Instance()}
}

// offered are the listeners that another process gets.
func (a *App) offered() []takeover.Listener {
	all := a.listeners.Named()
	if a.socket != nil {
		all = append(all, takeover.Listener{Setting: "admin.socket", Listen: a.config.Admin.Socket, Listener: a.socket})
	}
	return all
}

// restartDeps is what hot restart needs of this process.
func (a *App) restartDeps(s *servers) restart.Deps {
	c := &a.config
	return restart.Deps{
		Servers: restart.Servers{
			On: s.on, Admin: a.socket, ServeGRPC: s.front.Serve, HTTP: s.http, HTTPTLS: s.httpTLS,
			HandedOver: func() { s.handedOver.Store(true) }, DrainGRPC: s.drainGRPC, Release: s.watch.Release,
		},
		API: a.api, Self: a.self, Notes: a.notes, Offered: a.offered, Warm: a.warm,
		MaxOpen: c.Facade.API.MaxOpen, MaxHeaders: c.Facade.API.MaxHeaders,
		HeaderTimeout: c.HTTP.HeaderTimeout, IdleTimeout: c.HTTP.IdleTimeout,
		Window: window, ConnWindow: connWindow, Log: a.log,
	}
}

// handClientsOver gives clients to the process that has taken over, for drain.grace at most. What is left of that time is for
// transactions.
func (a *App) handClientsOver(ctx context.Context) error {
	grace, began := a.grace(), time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, grace, errGrace)
	defer cancel()
	a.restart.HandClientsOver(ctx)
	a.phase.mu.Lock()
	defer a.phase.mu.Unlock()
	a.phase.grace = max(0, grace-time.Since(began))
	return nil
}
