// Package facadetest holds what the tests of the plain API have in common: a driver without a database, and what
// both APIs stand on, composed over it.
//
// What always holds:
//
//   - A Driver never lets two calls use a session at a time: that is a panic.
//   - Sessions in use are counted, so that a test can tell whether all have come back.
package facadetest
