// Package stores has the tests of what is kept run on both engines: SQLite, and a real PostgreSQL.
//
// Tests open their stores with Open and Memory and know nothing of the engine. A package adds, in a
// file named …_linux_test.go as the servers of tests run on Linux only,
//
//	func TestOnPostgres(t *testing.T) { stores.OnPostgres(t, "^Test(Export|Steps)") }
//
// which starts a server and runs those tests of the package again, on it. Choose them so that each
// query is in one, and that it takes seconds. To see one alone on a server of your own:
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

// variable has the address of the server that the tests use; without it, they use SQLite.
const variable = "A2E_TEST_STATE"

// IsPostgres reports whether stores are on PostgreSQL, for what cannot be asked of it otherwise.
func IsPostgres() bool { return os.Getenv(variable) != "" }

// Open opens the store at the path of a file, with the parts: the same path is the same store. On
// PostgreSQL each path has a schema of its own, and the folder of the file is the store's Dir. The
// store is closed when the test ends, if not before.
func Open(t testing.TB, path string, parts ...store.Part) store.Store {
	t.Helper()
	s := must.Get(At(t.Context(), path, filepath.Dir(path), parts...))(t)
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return s
}

// At is Open for a process that is no test: on PostgreSQL that of a host on a machine where dir is the
// store's Dir.
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

// Address is that of the schema of a path; "" = the tests use SQLite.
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

// Memory opens a new store in memory, or in a schema of its own.
func Memory(t testing.TB, parts ...store.Part) store.Store {
	t.Helper()
	if IsPostgres() {
		return Open(t, filepath.Join(t.TempDir(), store.FileName), parts...)
	}
	s := must.Get(store.OpenMemory(t.Context(), parts...))(t)
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return s
}
