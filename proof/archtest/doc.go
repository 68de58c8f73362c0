// Package archtest holds the project to the shape that ARCHITECTURE.md
// describes: who may import whom, one package comment per package, sizes that
// only shrink, and which tests wait in real time. It is nothing but tests.
package archtest
