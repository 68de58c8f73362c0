// Package kv serves rows by their keys: get, put, delete and batch get of tables that the operator has opened.
//
// It owns the entries of kv.tables, the texts of the statements on these tables,
// conditions and versions of rows, and the jobs of turns that run such statements.
// How requests and answers look belongs to the HTTP API and the gRPC API.
//
// What always holds:
//
//   - A table is served only while it is as its entry says; the database is asked by the first call and again from time to time.
//   - The texts of statements are made of the settings alone, once. What callers send goes into parameters.
package kv
