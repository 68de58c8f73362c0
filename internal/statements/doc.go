// Package statements tells statements apart by digest: the hash of a text without its literals.
package statements
