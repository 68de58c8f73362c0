// Command image builds the sidecar's container image as an OCI layout, without
// a container engine:
//
//	go -C deploy/image run . -o /tmp/image -version v1.2.3
//
// The image holds the static binary, the certificate authorities of Mozilla, a
// user that is not root, a directory that this user owns, and the licences. No
// shell, no package manager, nothing to write to.
//
// What always holds: the same sources, version, revision and Go give the same digest, on
// any machine: nothing in the image comes from the machine that builds it, and
// every time in it is SOURCE_DATE_EPOCH or 0.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is who the sidecar runs as: the number that images without a
// distribution have agreed on for "nobody in particular".
const user = 65532

const (
	bundlePath = "etc/ssl/certs/ca-certificates.crt" // where Go looks first
	ownedPath  = "run/ydb-sidecar"                   // for sockets; a volume that is mounted there takes over its owner
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	set := flag.NewFlagSet("image", flag.ExitOnError)
	out := set.String("o", "", "`directory` of the OCI layout; what is there is replaced")
	root := set.String("root", "../..", "`directory` of the product's sources")
	version := set.String("version", "dev", "what sidecar version prints")
	revision := set.String("revision", "", "`commit` of the sources, for the labels")
	name := set.String("name", "ydb-sidecar", "`name` that docker load gives the image, with the version as its tag")
	platforms := set.String("platforms", "linux/amd64,linux/arm64", "comma-separated")
	if err := set.Parse(args); err != nil {
		return err
	}
	if *out == "" || set.NArg() > 0 {
		return errors.New("say where the image goes: image -o DIRECTORY, and no other argument")
	}
	created, err := epoch(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	b := builder{root: *root, version: *version, revision: *revision, name: *name, created: created}
	digest, err := b.write(ctx, *out, strings.Split(*platforms, ","))
	if err == nil {
		fmt.Println(digest)
	}
	return err
}

// epoch reads SOURCE_DATE_EPOCH, seconds since 1970; "" is 0.
func epoch(text string) (time.Time, error) {
	if text == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH = %.40q; must be seconds since 1970", text)
	}
	return time.Unix(n, 0).UTC(), nil
}

// builder makes images of one version.
type builder struct {
	root     string // of the product's sources
	version  string
	revision string
	name     string
	created  time.Time
}

// write puts an index with an image for each platform into dir and returns the
// digest of the index.
func (b builder) write(ctx context.Context, dir string, platforms []string) (v1.Hash, error) {
	if err := replaceable(dir); err != nil {
		return v1.Hash{}, err
	}
	var images []mutate.IndexAddendum
	for _, text := range platforms {
		platform, err := v1.ParsePlatform(text)
		if err != nil || platform.OS != "linux" || platform.Architecture == "" {
			return v1.Hash{}, fmt.Errorf("platform %q; must be linux/ARCHITECTURE", text)
		}
		binary, err := b.compile(ctx, platform.Architecture)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("compile for %s: %w", text, err)
		}
		image, err := b.image(binary, platform)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("image for %s: %w", text, err)
		}
		images = append(images, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), images...)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          b.name + ":" + b.version,
		"org.opencontainers.image.ref.name": b.version,
	}))
	if err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// replaceable empties dir if it holds an image, and refuses what is none.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil {
		return fmt.Errorf("%s is not empty and no image: name another directory", dir)
	}
	return os.RemoveAll(dir)
}

// compile returns the static binary, the same as that of make build.
func (b builder) compile(ctx context.Context, architecture string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "sidecar")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w -X main.version="+b.version+" -X github.com/ydb-sidecar/sidecar/internal/app.Commit="+b.revision, "-o",
		out, "./cmd/sidecar")
	build.Dir = b.root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture)
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	return os.ReadFile(out)
}

// image puts the layers together: what changes with Mozilla's list first, so
// that a new version of the sidecar is one new layer.
func (b builder) image(binary []byte, platform *v1.Platform) (v1.Image, error) {
	authorities, err := certificates()
	if err != nil {
		return nil, err
	}
	base, err := b.layer(
		entry{name: "etc/", mode: 0o755},
		entry{name: "etc/group", mode: 0o444, data: fmt.Appendf(nil, "root:x:0:\nsidecar:x:%d:\n", user)},
		entry{name: "etc/passwd", mode: 0o444,
			data: fmt.Appendf(nil, "root:x:0:0:root:/:/nonexistent\nsidecar:x:%d:%d:ydb-sidecar:/:/nonexistent\n", user, user)},
		entry{name: "etc/ssl/", mode: 0o755},
		entry{name: "etc/ssl/certs/", mode: 0o755},
		entry{name: bundlePath, mode: 0o444, data: authorities},
		entry{name: "run/", mode: 0o755},
		entry{name: ownedPath + "/", mode: 0o755, owner: user},
	)
	if err != nil {
		return nil, err
	}
	licence, err := os.ReadFile(filepath.Join(b.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	notices, err := os.ReadFile(filepath.Join(b.root, "THIRD_PARTY_NOTICES"))
	if err != nil {
		return nil, err
	}
	program, err := b.layer(
		entry{name: "licenses/", mode: 0o755},
		entry{name: "licenses/LICENSE", mode: 0o444, data: licence},
		entry{name: "licenses/THIRD_PARTY_NOTICES", mode: 0o444, data: notices},
		entry{name: "sidecar", mode: 0o555, data: binary},
	)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.Append(image,
		mutate.Addendum{Layer: base, History: v1.History{CreatedBy: "certificate authorities, user", Created: v1.Time{Time: b.created}}},
		mutate.Addendum{Layer: program, History: v1.History{CreatedBy: "sidecar " + b.version, Created: v1.Time{Time: b.created}}},
	); err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Variant = platform.OS, platform.Architecture, platform.Variant
	file.Created = v1.Time{Time: b.created}
	file.Config = b.config()
	return mutate.ConfigFile(image, file)
}

// config is what the image says of itself.
func (b builder) config() v1.Config {
	labels := map[string]string{
		"org.opencontainers.image.title": "ydb-sidecar",
		"org.opencontainers.image.description": "Owns the YDB sessions of a host or pod and serves a plain gRPC and " +
			"HTTP API, and YDB's own protocol",
		"org.opencontainers.image.source":   "https://github.com/ydb-sidecar/sidecar",
		"org.opencontainers.image.version":  b.version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	if b.revision != "" {
		labels["org.opencontainers.image.revision"] = b.revision
	}
	return v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user), // a number, so that Kubernetes can check runAsNonRoot
		Entrypoint: []string{"/sidecar"},
		Cmd:        []string{"serve"},
		Env:        []string{"PATH=/"}, // docker exec NAME sidecar nodes
		WorkingDir: "/",
		Labels:     labels,
		// Docker's and Compose's; Kubernetes has probes of its own. Settings that come by
		// environment hold for this too.
		Healthcheck: &v1.HealthConfig{
			Test:     []string{"CMD", "/sidecar", "wait", "-timeout", "2s"},
			Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 30 * time.Second, Retries: 3,
		},
	}
}

// entry is a file of a layer, or a directory if its name ends with a slash.
type entry struct {
	name  string
	mode  int64
	owner int
	data  []byte
}

func (b builder) layer(entries ...entry) (v1.Layer, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, e := range entries {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner,
			Size: int64(len(e.data)), ModTime: b.created, Format: tar.FormatPAX}
		if strings.HasSuffix(e.name, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

// certificates returns Mozilla's list for servers, as PEM. The few authorities
// that browsers trust only with conditions a PEM file cannot express are left
// out.
func certificates() ([]byte, error) {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}
