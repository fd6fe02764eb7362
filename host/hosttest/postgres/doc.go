// Package postgres starts a real PostgreSQL server for a test: a cluster of its own in a
// temporary folder, reached by a Unix socket in it, which ends with the test.
package postgres
