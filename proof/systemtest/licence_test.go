package systemtest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ydb-sidecar/sidecar/proof/stand/standtest"
)

// carriesLicence wants a package that an app installs to have the licence of the repository in it.
func carriesLicence(t *testing.T, pkg string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join(standtest.Root(t), "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	licence := packedLicence
	if strings.HasSuffix(pkg, ".whl") {
		licence = zippedLicence
	}
	if got, err := licence(pkg); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: a LICENSE of %d bytes, %v; want that of the repository", filepath.Base(pkg), len(got), err)
	}
}

// packedLicence reads LICENSE of a compressed tar file.
func packedLicence(pkg string) ([]byte, error) {
	file, err := os.Open(pkg)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(unpacked); ; {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil, os.ErrNotExist
		}
		if err != nil {
			return nil, err
		}
		if path.Base(head.Name) == "LICENSE" {
			return io.ReadAll(files)
		}
	}
}

// zippedLicence reads LICENSE of a zip file, which is what a wheel is.
func zippedLicence(pkg string) ([]byte, error) {
	files, err := zip.OpenReader(pkg)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	for _, f := range files.File {
		if path.Base(f.Name) != "LICENSE" {
			continue
		}
		text, err := f.Open()
		if err != nil {
			return nil, err
		}
		defer text.Close()
		return io.ReadAll(text)
	}
	return nil, os.ErrNotExist
}
