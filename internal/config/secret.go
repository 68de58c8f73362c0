package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// ReadSecret reads a file of credentials of at most so many bytes. A file with nothing
// but blanks is an error. Errors name the file and hold nothing of what is in it.
func ReadSecret(path string, most int64) ([]byte, error) {
	if path == "" {
		return nil, errors.New("no file is named")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory", path)
	case info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes; at most %d are read", path, info.Size(), most)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(string(b)) == "" {
		return nil, fmt.Errorf("%s is empty", path)
	}
	return b, nil
}
