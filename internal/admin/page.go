package admin

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
)

// The page: files that the browser gets as they are, and two documents, what it
// shows and whether it may act. It asks for the first each second, so no
// connection stays open and a new process needs nothing of the old one. See
// docs/dev/decisions/0017-page.md.

//go:embed page
var pageFiles embed.FS

// asset is one file.
type asset struct{ body, kind, tag string }

// assets are the files by their path in the page's directory.
var assets = func() map[string]asset {
	kinds := map[string]string{".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
	all := map[string]asset{}
	err := fs.WalkDir(pageFiles, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := pageFiles.ReadFile(name)
		sum := sha256.Sum256(body)
		kind := kinds[path.Ext(name)]
		if kind == "" {
			kind = "text/plain"
		}
		all[name[len("page/"):]] = asset{string(body), kind + "; charset=utf-8", `"` + hex.EncodeToString(sum[:12]) + `"`}
		return err
	})
	if err != nil {
		panic(err) // of what the compiler put there
	}
	return all
}()

// policy has the browser load and ask nothing but this listener, run no script
// but the page's files, and show the page in no other one.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func writeAsset(w http.ResponseWriter, r *http.Request, a asset) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // the next version has the same paths
	h.Set("Vary", "Accept")
	h.Set("ETag", a.tag)
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", a.kind)
	h.Set("Content-Length", strconv.Itoa(len(a.body)))
	_, _ = w.Write([]byte(a.body)) // the caller went away
}

// maxWatchers bounds the answers for pages that are made and sent at a time: each
// is kept while its reader is slow.
const maxWatchers = 16

// pageFile answers with a file of the page.
func (s *Server) pageFile(w http.ResponseWriter, r *http.Request) {
	a, ok := assets[r.PathValue("file")]
	if !ok {
		writeText(w, http.StatusNotFound, "no such file\n")
		return
	}
	writeAsset(w, r, a)
}

// pageState answers with what the page shows.
func (s *Server) pageState() http.Handler {
	watchers := make(chan struct{}, maxWatchers)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, after := r.URL.Query(), uint64(0)
		if text := query.Get("after"); text != "" {
			var err error
			if after, err = strconv.ParseUint(text, 10, 64); err != nil {
				writeText(w, http.StatusBadRequest, fmt.Sprintf("after = %.40q; want the number of a point\n", text))
				return
			}
		}
		select {
		case watchers <- struct{}{}:
			defer func() { <-watchers }()
		default:
			w.Header().Set("Retry-After", "1")
			writeText(w, http.StatusServiceUnavailable, "as many pages ask at once as may; try again\n")
			return
		}
		text, err := json.Marshal(s.deps.Page(query.Get("process"), after))
		if err != nil {
			writeText(w, http.StatusInternalServerError, "cannot be shown: "+err.Error()+"\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(text) // the caller went away
	})
}

// controlState is /state/control.
type controlState struct {
	Allowed bool   `json:"allowed"` // the reader of the page may also act
	Why     string `json:"why,omitempty"`
}

// controlState says whether the caller may act.
func (s *Server) controlState(r *http.Request) (any, error) {
	if refusal := s.mayControl(r); refusal != nil {
		return controlState{Why: refusal.text}, nil
	}
	return controlState{Allowed: true}, nil
}
