package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
)

// source is a Go file as all tests read it. Nothing changes it.
type source struct {
	text []byte
	file *ast.File // with its comments
}

// files has the positions of all sources.
var files = token.NewFileSet()

// sources are the files that were read: several tests look at each, and to parse them costs most of what they do.
var sources = map[string]source{}

// readSource reads a Go file, once for all tests.
func readSource(name string) (source, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return source{}, err
	}
	if known, ok := sources[name]; ok {
		return known, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return source{}, err
	}
	s, err := parse(name, text)
	if err == nil {
		sources[name] = s
	}
	return s, err
}

// parse makes a source of a text.
func parse(name string, text []byte) (source, error) {
	file, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	return source{text, file}, err
}
