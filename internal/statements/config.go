package statements

// Config is the section "statements" of the configuration.
type Config struct {
	// Keep the text of statements for /state/statements, the page and sidecar statements, without literals
	// and comments, up to 2 KiB each. It contains names of tables, columns and parameters. off: a
	// statement has only its digest and its first keyword
	Texts bool `yaml:"texts"`
}

// Config returns the configuration that is in force.
func (r *Recorder) Config() Config { return Config{Texts: r.keep.Load()} }

// Set puts another configuration into force.
func (r *Recorder) Set(c Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keep.Store(c.Texts); c.Texts {
		return
	}
	for _, d := range r.digests {
		d.text = ""
	}
	for _, s := range *r.stripes.Load() {
		s.forgetTexts()
	}
}
