// Package archtest holds the project to the shape that ARCHITECTURE.md
// describes: who may import whom, one package comment per package, and sizes
// that only shrink. It is nothing but tests.
package archtest
