package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

const (
	// MaxToken is the most bytes of a file that holds one token.
	MaxToken = 64 << 10
	// MaxTokens is the most bytes of a file that holds the tokens of all apps.
	MaxTokens = 1 << 20
)

// ReadFile reads a file of credentials of at most so many bytes. Errors name the
// file and hold nothing of what is in it.
func ReadFile(path string, most int64) ([]byte, error) {
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
	return os.ReadFile(path)
}

// ReadSecret is ReadFile, except that a file with nothing but blanks is an error.
func ReadSecret(path string, most int64) ([]byte, error) {
	b, err := ReadFile(path, most)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(string(b)) == "" {
		return nil, fmt.Errorf("%s is empty", path)
	}
	return b, nil
}
