package run

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"a2e/host/hosttest"
	"a2e/host/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher()
	MaybeRunModule()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if s, err := scratch(); err == nil {
			_ = os.RemoveAll(s.dir)
		}
		os.Exit(code)
	}))
}

// built is what all tests share.
type built struct {
	dir    string
	cache  string // of the compiled guest
	engine string // the program that runs modules, see testdata/module
}

// scratch makes it once.
var scratch = sync.OnceValues(func() (built, error) {
	dir, err := os.MkdirTemp("", "a2e-test-")
	s := built{dir: dir, cache: filepath.Join(dir, "cache"), engine: filepath.Join(dir, "module")}
	return s, errors.Join(err, os.Mkdir(s.cache, 0o700), hosttest.BuildProgram("./testdata/module", s.engine))
})
