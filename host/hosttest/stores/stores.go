// Package stores lets tests of stored data run on both engines: SQLite and a real PostgreSQL.
//
// Tests open their stores with Open and Memory and do not depend on the engine. A package adds, in a
// file named …_linux_test.go as the servers of tests run only on Linux,
//
//	func TestOnPostgres(t *testing.T) { stores.OnPostgres(t, "^Test(Export|Steps)") }
//
// This starts a server and runs the matching tests of the package again with it. Choose tests that
// cover each query and take only seconds. To run one test with your own server:
//
//	A2E_TEST_STATE=postgres://user@host/database go test ./plugins/x -run TestExport
package stores

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"a2e/host/hosttest/must"
	"a2e/host/state/store"
)

// variable is the environment variable for the address of the server; without it, tests use SQLite.
const variable = "A2E_TEST_STATE"

// IsPostgres reports whether stores are on PostgreSQL, for tests that depend on the engine.
func IsPostgres() bool { return os.Getenv(variable) != "" }

// Open opens the store at the path of a file, with the parts; the same path means the same store. On
// PostgreSQL each path has its own schema, and the folder of the file is the store's Dir. The
// store is closed at the end of the test, if not before.
func Open(t testing.TB, path string, parts ...store.Part) store.Store {
	t.Helper()
	s := must.Get(At(t.Context(), path, filepath.Dir(path), parts...))(t)
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return s
}

// At is Open for a process that is not a test. On PostgreSQL, dir is the store's Dir, as for a host on
// another machine.
func At(ctx context.Context, path, dir string, parts ...store.Part) (store.Store, error) {
	opts := store.Options{Parts: parts}
	if !IsPostgres() {
		return store.Open(ctx, path, opts)
	}
	address, err := Address(path)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, err
	}
	return store.OpenPostgres(address, dir, opts)
}

// Address returns the address of the schema for a path; "" = the tests use SQLite.
func Address(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil || !IsPostgres() {
		return "", err
	}
	address, err := url.Parse(os.Getenv(variable))
	if err != nil {
		return "", err
	}
	query := address.Query()
	query.Set("schema", fmt.Sprintf("t%x", sha256.Sum224([]byte(path))))
	address.RawQuery = query.Encode()
	return address.String(), nil
}

// Memory opens a new store in memory or, on PostgreSQL, in a new schema.
func Memory(t testing.TB, parts ...store.Part) store.Store {
	t.Helper()
	if IsPostgres() {
		return Open(t, filepath.Join(t.TempDir(), store.FileName), parts...)
	}
	s := must.Get(store.OpenMemory(t.Context(), parts...))(t)
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return s
}
