// Package archtest holds the project to the shape that ARCHITECTURE.md
// describes: who may import whom, and one package comment per package. It is
// nothing but tests.
package archtest
