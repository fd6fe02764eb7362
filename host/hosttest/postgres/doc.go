// Package postgres starts a real PostgreSQL server for a test. The server has a new cluster in a
// temporary folder, a Unix socket in that folder, and ends with the test.
package postgres
