package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ydb-sidecar/sidecar/internal/config"
	"github.com/ydb-sidecar/sidecar/internal/snapshot"
)

// Reload is the section "reload".
type Reload struct {
	// Time between two looks at the file of settings. It is read again after it has changed and then
	// stayed the same for this time. 0: only SIGHUP and POST /reload read it
	Interval time.Duration `yaml:"interval"`
}

func (r Reload) validate() error {
	if r.Interval != 0 && r.Interval < 100*time.Millisecond {
		return config.Faultf("interval", " = %v; must be 0 or at least 100ms", r.Interval)
	}
	return nil
}

// Origin is where a configuration comes from.
type Origin struct {
	File        string   // "": none
	Environ     []string // as os.Environ has it; a process's own does not change
	Assignments []Assignment
}

// Load is the function Load.
func (o Origin) Load() (*Config, *config.Settings, error) {
	return Load(o.File, o.Environ, o.Assignments)
}

// effective is the configuration that is in force. Immutable.
type effective struct {
	Config
	settings *config.Settings
}

// Reloaded is what came of a look at the configuration.
type Reloaded struct {
	Time    time.Time       `json:"time"`
	Cause   string          `json:"cause"`
	DryRun  bool            `json:"dry_run,omitempty"`
	Faults  []string        `json:"faults,omitempty"` // then nothing has changed
	Changed []config.Change `json:"changed"`          // what is in force now
	Restart []config.Change `json:"restart"`          // what will be after a restart
}

// reloader keeps the configuration in force.
type reloader struct {
	current atomic.Pointer[effective]
	last    atomic.Pointer[Reloaded]
	counts  snapshot.Reloads

	// births is held while pools get another configuration and while one is made, so that
	// none is made of the old one and missed, and no change undoes another.
	births sync.Mutex

	mu     sync.Mutex      // one reload at a time; guards what follows
	origin *Origin         // nil: nobody has said
	file   config.FileMark // of the file that was read last
}

// now is the configuration in force.
func (a *App) now() *Config { return &a.reload.current.Load().Config }

// LoadedFrom says where the configuration came from, so that it can be read again.
// Call it before Run.
func (a *App) LoadedFrom(o Origin) {
	a.reload.mu.Lock()
	defer a.reload.mu.Unlock()
	a.reload.origin = &o
	a.reload.file = config.MarkOf(o.File)
}

// errNoOrigin is for programs that made the configuration themselves.
var errNoOrigin = errors.New("the configuration came from no file, variables and flags that could be read again")

// Reload reads the configuration again and puts into force what can be without a
// restart, all or nothing: on an error, which has all faults, everything stays as it
// was. With dryRun it only says what would come of that. cause is for the log.
func (a *App) Reload(cause string, dryRun bool) (*Reloaded, error) {
	r := &a.reload
	r.mu.Lock()
	defer r.mu.Unlock()
	done := &Reloaded{Time: time.Now(), Cause: cause, DryRun: dryRun, Changed: []config.Change{}, Restart: []config.Change{}}
	commit, err := a.prepareLocked(done)
	if err == nil && !dryRun {
		err = commit()
	}
	if err != nil {
		for _, f := range config.Faults(err) {
			done.Faults = append(done.Faults, f.Error())
		}
		done.Changed, done.Restart = []config.Change{}, []config.Change{}
	}
	if dryRun {
		return done, err
	}
	r.last.Store(done)
	if err != nil {
		r.counts.Failed(done.Faults, err != errNoOrigin) // which is no fault of the settings
		a.log.Error("the configuration was not reloaded; all settings stay as they were", "cause", cause, "err", FaultLine(err))
		return done, err
	}
	r.counts.Done(config.Names(done.Restart))
	for _, c := range done.Changed {
		a.log.Info("setting changed", "setting", c.Name, "old", c.Old, "new", c.New, "source", c.Source)
	}
	for _, c := range done.Restart {
		a.log.Warn("a changed setting counts only after a restart", "setting", c.Name, "old", c.Old, "new", c.New, "source", c.Source)
	}
	a.log.Info("configuration reloaded", "cause", cause, "changed", len(done.Changed), "restart", len(done.Restart))
	return done, nil
}

// prepareLocked does everything that can fail, but what commit says.
func (a *App) prepareLocked(done *Reloaded) (commit func() error, err error) {
	r, old := &a.reload, a.reload.current.Load()
	if r.origin == nil {
		return nil, errNoOrigin
	}
	mark := config.MarkOf(r.origin.File)
	if !done.DryRun {
		r.file = mark // whatever comes of it: the same text gives the same
	}
	if mark.Empty() {
		// A program that writes a file often empties it first.
		return nil, fmt.Errorf("%s is empty, which would put every setting back to its default; if that is meant, leave a comment in it",
			r.origin.File)
	}
	c, settings, err := r.origin.Load()
	if err != nil {
		return nil, err
	}
	if !done.DryRun {
		warn(a.log, settings)
	}
	for _, change := range settings.Changes(old.settings) {
		if e, _ := EffectOf(change.Name); e == Live {
			done.Changed = append(done.Changed, change)
		} else {
			done.Restart = append(done.Restart, change)
			settings.Keep(change.Name, old.settings)
		}
	}
	// What stays and what comes must fit as well.
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("together with the settings that need a restart: %w", err)
	}
	return func() error { return a.apply(&effective{*c, settings}, done.Changed) }, nil
}

// warn logs where retired settings were set.
func warn(log *slog.Logger, settings *config.Settings) {
	for _, warning := range settings.Warnings() {
		log.Warn("a setting is retired", "what", warning)
	}
}

// apply puts what has changed into force. What can fail comes first.
func (a *App) apply(next *effective, changed []config.Change) error {
	c := &next.Config
	in := func(section string) bool {
		return slices.ContainsFunc(changed, func(c config.Change) bool { return strings.HasPrefix(c.Name, section) })
	}
	if in("apps.") {
		if err := a.core.apps.Reconfigure(c.Apps); err != nil {
			return fmt.Errorf("apps.%w", err) // a file that has changed meanwhile
		}
	}
	if in("tracing.") {
		if err := a.telemetry.SetTracing(c.Tracing); err != nil {
			return fmt.Errorf("tracing: %w", err) // the variables of OpenTelemetry, which were good at the start
		}
	}
	a.reload.births.Lock()
	if in("pool.") {
		a.core.reconfigure(c.Pool)
		a.core.budget.Reconfigure(poolConfigFor(c.Pool), nil)
		a.core.limits.Reconfigure(lawOf(c.Pool))
	}
	a.reload.current.Store(next)
	a.reload.births.Unlock()
	if in("health.") {
		a.core.detector.Reconfigure(healthOf(c))
	}
	if in("admin.") {
		a.admin.Reconfigure(c.Admin)
	}
	if in("statements.") {
		a.statements.Set(c.Statements)
	}
	if in("log.") {
		a.level.Set(c.Log.Level)
		a.access.Set(c.Access)
	}
	return nil
}

// watchFile reloads when the file of settings has changed, until ctx ends. A file
// that still changes is left alone: who writes it may not be done.
func (a *App) watchFile(ctx context.Context) error {
	a.reload.mu.Lock()
	origin := a.reload.origin
	a.reload.mu.Unlock()
	if origin == nil || origin.File == "" || a.config.Reload.Interval == 0 {
		<-ctx.Done() // a part that ends by itself ends the process
		return nil
	}
	ticker := time.NewTicker(a.config.Reload.Interval)
	defer ticker.Stop()
	var seen config.FileMark
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		mark := config.MarkOf(origin.File)
		a.reload.mu.Lock()
		same := mark == a.reload.file
		a.reload.mu.Unlock()
		if !same && mark == seen {
			_, _ = a.Reload("the file changed", false) // it is logged and counted
		}
		seen = mark
	}
}
