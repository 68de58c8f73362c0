// Package officialtest drives the development cluster with YDB's official
// clients: ydb-go-sdk here, and the Python and Node packages as processes. It
// shows that the rules that break SDKs when ignored hold; docs/dev/devcluster.md
// has the table from rule to test. It has no code of its own.
package officialtest
