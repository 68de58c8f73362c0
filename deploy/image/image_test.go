package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"go/version"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// patience is for things that take long only when something is broken.
const patience = 2 * time.Minute

var testBuilder = builder{root: "../..", version: "v1.2.3", revision: "0123abc", name: "ydb-sidecar", created: time.Unix(0, 0).UTC()}

// built builds the image of this machine's kind and reads it from the disk.
func built(t *testing.T, dir string) (v1.Image, v1.Hash) {
	t.Helper()
	digest, err := testBuilder.write(t.Context(), dir, []string{"linux/" + runtime.GOARCH})
	if err != nil {
		t.Fatal(err)
	}
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(outer); err != nil {
		t.Fatalf("the layout is not valid: %v", err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("index %+v, %v; want one image index", manifest, err)
	}
	if name := manifest.Manifests[0].Annotations["io.containerd.image.name"]; name != "ydb-sidecar:v1.2.3" {
		t.Errorf("docker load would call it %q; want ydb-sidecar:v1.2.3", name)
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := index.IndexManifest()
	if err != nil || len(inner.Manifests) != 1 {
		t.Fatalf("index %+v, %v; want one image", inner, err)
	}
	if p := inner.Manifests[0].Platform; p == nil || p.OS != "linux" || p.Architecture != runtime.GOARCH {
		t.Errorf("platform %v; want linux/%s", p, runtime.GOARCH)
	}
	image, err := index.Image(inner.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image, digest
}

// file is what a layer holds under a name.
type file struct {
	header *tar.Header
	data   []byte
}

func files(t *testing.T, image v1.Image) map[string]file {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]file{}
	for _, layer := range layers {
		stream, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		r := tar.NewReader(stream)
		for {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, twice := all[header.Name]; twice {
				t.Errorf("%s is in two layers", header.Name)
			}
			all[header.Name] = file{header, data}
		}
		if err := stream.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestImage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "image")
	image, digest := built(t, dir)
	t.Run("holds_the_program_and_nothing_else", func(t *testing.T) { testContents(t, image) })
	t.Run("serves", func(t *testing.T) { testServing(t, image) })
	t.Run("is_the_same_again", func(t *testing.T) {
		if _, again := built(t, dir); digest != again {
			t.Errorf("built twice: %v and %v; want the same digest", digest, again)
		}
	})
}

func testContents(t *testing.T, image v1.Image) {
	all := files(t, image)
	want := []string{"etc/", "etc/group", "etc/passwd", "etc/ssl/", "etc/ssl/certs/", bundlePath, "licenses/",
		"licenses/LICENSE", "licenses/THIRD_PARTY_NOTICES", "run/", "run/ydb-sidecar/", "sidecar"}
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
		t.Errorf("files %q; want %q", got, want)
	}
	for name, f := range all {
		h := f.header
		if h.Mode&0o022 != 0 || h.Mode&^0o777 != 0 {
			t.Errorf("%s has mode %o; want nobody but its owner to write, and no setuid bit", name, h.Mode)
		}
		if (h.Uid != 0 || h.Gid != 0) != (name == "run/ydb-sidecar/") {
			t.Errorf("%s belongs to %d:%d; want root's, but for run/ydb-sidecar", name, h.Uid, h.Gid)
		}
		if !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s is of %v; want 1970, for the same digest on every machine", name, h.ModTime)
		}
	}
	if text := string(all["etc/passwd"].data); !strings.Contains(text, "\nsidecar:x:65532:65532:") {
		t.Errorf("passwd %q; want the user sidecar, 65532", text)
	}
	for _, name := range []string{"LICENSE", "THIRD_PARTY_NOTICES"} {
		want, err := os.ReadFile(filepath.Join(testBuilder.root, name))
		if err != nil || !bytes.Equal(all["licenses/"+name].data, want) {
			t.Errorf("licenses/%s is another one than that of the sources (%v)", name, err)
		}
	}
	checkStatic(t, all["sidecar"].data)
	checkAuthorities(t, all[bundlePath].data)
	checkConfig(t, image)
}

func checkStatic(t *testing.T, binary []byte) {
	t.Helper()
	program, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary wants a loader: it is not static")
		}
	}
	if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("the binary wants libraries %v (%v)", libraries, err)
	}
}

func checkAuthorities(t *testing.T, text []byte) {
	t.Helper()
	count := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Errorf("certificate %d: %v", count, err)
		}
		count++
	}
	if count < 80 {
		t.Errorf("%d certificate authorities; want those of Mozilla, more than 80", count)
	}
}

func checkConfig(t *testing.T, image v1.Image) {
	t.Helper()
	c, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.Config.User != "65532:65532" || !slices.Equal(c.Config.Entrypoint, []string{"/sidecar"}) ||
		!slices.Equal(c.Config.Cmd, []string{"serve"}) {
		t.Errorf("user %q, entrypoint %q, command %q", c.Config.User, c.Config.Entrypoint, c.Config.Cmd)
	}
	if h := c.Config.Healthcheck; h == nil || !slices.Equal(h.Test[:3], []string{"CMD", "/sidecar", "wait"}) {
		t.Errorf("health check %+v; want sidecar wait, without a shell", h)
	}
	for name, want := range map[string]string{"version": "v1.2.3", "revision": "0123abc", "title": "ydb-sidecar",
		"licenses": "Apache-2.0"} {
		if got := c.Config.Labels["org.opencontainers.image."+name]; got != want {
			t.Errorf("label %s %q; want %q", name, got, want)
		}
	}
}

// testServing runs the image as it will run: in a root of its own that it cannot
// write to, as a user that is not root, with no environment but its settings.
func testServing(t *testing.T, image v1.Image) {
	root := t.TempDir()
	unpack(t, root, files(t, image))
	unpack(t, root, container)
	before := tree(t, root)
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}

	cluster := startCluster(t)
	settings := append(config.Config.Env, "SIDECAR_YDB_URL="+cluster, "SIDECAR_GRPC_LISTEN=127.0.0.1:0",
		"SIDECAR_HTTP_LISTEN=127.0.0.1:0", "SIDECAR_ADMIN_LISTEN=127.0.0.1:0")
	serve := inside(root, settings, slices.Concat(config.Config.Entrypoint, config.Config.Cmd))
	addresses, stop := started(t, serve)

	answer, err := http.Post("http://"+addresses["http"]+"/v1/query", "application/json", strings.NewReader(`{"sql":"SELECT 1 AS one"}`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil || answer.StatusCode != 200 || !strings.Contains(string(text), `"one"`) {
		t.Errorf("SELECT 1: %s, %s, %v", answer.Status, text, err)
	}
	check := inside(root, append(settings, "SIDECAR_ADMIN_LISTEN="+addresses["admin"]), config.Config.Healthcheck.Test[1:])
	if text, err := check.CombinedOutput(); err != nil {
		t.Errorf("health check: %v: %s", err, text)
	}
	checkLimits(t, "http://"+addresses["admin"]+"/metrics")
	stop()
	if after := tree(t, root); !maps.Equal(before, after) {
		t.Errorf("its files changed: %v; want %v", after, before)
	}
	// A health check that cannot fail would say nothing.
	if text, err := inside(
		root, check.Env, append(config.Config.Healthcheck.Test[1:3:3], "-timeout", "100ms"),
	).CombinedOutput(); err == nil {
		t.Errorf("health check of a sidecar that ended: good: %s", text)
	}
}

// container is what the kernel shows of a container with limits: 256 MiB and one and a half processors.
var container = map[string]file{
	"proc/":                    {header: &tar.Header{Mode: 0o755}},
	"proc/self/":               {header: &tar.Header{Mode: 0o755}},
	"proc/self/cgroup":         {&tar.Header{Mode: 0o444}, []byte("0::/\n")},
	"proc/self/mountinfo":      {&tar.Header{Mode: 0o444}, []byte("30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n")},
	"sys/":                     {header: &tar.Header{Mode: 0o755}},
	"sys/fs/":                  {header: &tar.Header{Mode: 0o755}},
	"sys/fs/cgroup/":           {header: &tar.Header{Mode: 0o755}},
	"sys/fs/cgroup/memory.max": {&tar.Header{Mode: 0o444}, []byte("268435456\n")},
	"sys/fs/cgroup/cpu.max":    {&tar.Header{Mode: 0o444}, []byte("150000 100000\n")},
}

// checkLimits wants the runtime to keep to the limits of the container: 90 % of its
// memory, and its processors rounded up, of which Go uses two at least if there are
// two.
func checkLimits(t *testing.T, url string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"go_gc_gomemlimit_bytes": 241591910,
		"go_sched_gomaxprocs_threads": float64(min(runtime.NumCPU(), 2))} {
		_, rest, ok := strings.Cut(string(text), "\n"+name+" ")
		line, _, _ := strings.Cut(rest, "\n")
		got, err := strconv.ParseFloat(line, 64)
		if !ok || err != nil || got != want {
			t.Errorf("%s %q; want %v", name, line, want)
		}
	}
}

// The processors are Go's own matter, as long as nobody turns that off.
func TestGoHeedsTheLimitOfProcessors(t *testing.T) {
	list := exec.Command("go", "list", "-f", "{{.DefaultGODEBUG}} {{.Module.GoVersion}}", "./cmd/sidecar")
	list.Dir = testBuilder.root
	text, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	flags, language, _ := strings.Cut(strings.TrimSuffix(string(text), "\n"), " ")
	if version.Compare("go"+language, "go1.25") < 0 || strings.Contains(flags, "containermaxprocs=0") {
		t.Errorf("Go %s, GODEBUG %q; want GOMAXPROCS from the container, which is so from Go 1.25 on", language, flags)
	}
}

// inside is a command of the image in a root of its own, as its user.
func inside(root string, environment, command []string) *exec.Cmd {
	c := exec.Command(command[0], command[1:]...)
	c.Env, c.Dir = environment, "/"
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	if os.Getuid() != 0 { // a namespace in which this user is the image's
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getgid(), Size: 1}}
		c.SysProcAttr.Credential.NoSetGroups = true
	}
	return c
}

func unpack(t *testing.T, root string, all map[string]file) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f, at := all[name], filepath.Join(root, name)
		var err error
		if strings.HasSuffix(name, "/") {
			err = os.Mkdir(at, fs.FileMode(f.header.Mode))
		} else {
			err = os.WriteFile(at, f.data, fs.FileMode(f.header.Mode))
		}
		if err == nil && os.Getuid() == 0 {
			err = os.Chown(at, f.header.Uid, f.header.Gid)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// tree is every file below root with its size and times.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all[path] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// startCluster runs a development cluster and returns its URL.
func startCluster(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "devcluster")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "./proof/cmd/devcluster")
	build.Dir, build.Env = testBuilder.root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build devcluster: %v: %s", err, text)
	}
	cluster := exec.Command(binary, "-nodes", "1", "-port", "0", "-control", "127.0.0.1:0")
	addresses, _ := started(t, cluster)
	answer, err := http.Get("http://" + addresses["control"] + "/nodes")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var state struct{ Nodes []struct{ Address string } }
	if err := json.NewDecoder(answer.Body).Decode(&state); err != nil || len(state.Nodes) != 1 {
		t.Fatalf("nodes %+v, %v; want one", state, err)
	}
	return "grpc://" + state.Nodes[0].Address + "/local"
}

// started starts a program and returns the addresses of its ready line, and what
// stops it and wants it to end well. It is stopped at the end of the test in any case.
func started(t *testing.T, c *exec.Cmd) (addresses map[string]string, stop func()) {
	t.Helper()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		if c.ProcessState != nil {
			return
		}
		hard := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
		defer hard.Stop()
		_ = c.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		if err := c.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", c.Path, err, &log)
		}
	}
	t.Cleanup(stop)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if ctx.Err() == context.DeadlineExceeded {
			_ = c.Process.Kill()
		}
	})()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s said nothing: %v", c.Path, err)
	}
	var said map[string]any
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatalf("%s said %q: %v", c.Path, line, err)
	}
	addresses = map[string]string{}
	for name, value := range said {
		if text, ok := value.(string); ok {
			addresses[name] = strings.TrimPrefix(text, "http://")
		}
	}
	return addresses, stop
}

func TestWriteKeepsWhatIsNoImage(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := testBuilder.write(t.Context(), dir, nil); err == nil {
		t.Error("write into a directory that holds other things: no error")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	for _, args := range [][]string{{}, {"-o", t.TempDir(), "-platforms", "windows/amd64"}, {"-o", t.TempDir(), "more"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("image %q: no error", args)
		}
	}
	for _, text := range []string{"yesterday", "-1"} {
		if _, err := epoch(text); err == nil {
			t.Errorf("SOURCE_DATE_EPOCH = %s: no error", text)
		}
	}
}
