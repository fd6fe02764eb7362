package stores

import (
	"fmt"
	"io/fs"
	"path"
	"testing"
	"testing/fstest"

	"a2e/host/hosttest/must"
	"a2e/host/state/store"
)

// SQL returns the SQL of a store.Part with one file for each text; both engines run the files.
func SQL(texts ...string) fs.FS {
	all := fstest.MapFS{}
	for i, text := range texts {
		all[fmt.Sprintf("sql/%03d.sql", i+1)] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

// Older returns a part as it was at an older version.
func Older(t testing.TB, p store.Part, version int) store.Part {
	t.Helper()
	all := fstest.MapFS{}
	for _, name := range must.Get(fs.Glob(p.SQL, "sql/*.sql"))(t) {
		if path.Base(name)[:3] <= fmt.Sprintf("%03d", version) {
			all[name] = &fstest.MapFile{Data: must.Get(fs.ReadFile(p.SQL, name))(t)}
		}
	}
	p.SQL = all
	return p
}
