package hosttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Built is the variable that names a folder of programs for tests that cannot build any: the
// user they run as has no Go.
const Built = "A2E_TEST_BUILT"

// BuildCommand is what the README builds the binary with; BuildProgram does the same.
const BuildCommand = "CGO_ENABLED=0 go build " + linkerFlags + " -o a2e ."

const linkerFlags = "-ldflags '-s -w'"

// BuildProgram builds a program of the project, named by its folder or import path, into
// the file out: static, and without the race detector, whatever the test itself is built
// with; env says more, such as another system. What it is built from is cached, the linking
// is not: tests build it once. One that lies in the folder of Built is taken from there, or
// left there for tests that run later.
func BuildProgram(program, out string, env ...string) error {
	kept := ""
	if dir := os.Getenv(Built); dir != "" {
		kept = filepath.Join(dir, strings.NewReplacer("/", "-", ".", "").Replace(program))
		if data, err := os.ReadFile(kept); err == nil {
			return os.WriteFile(out, data, 0o755)
		}
	}
	build := exec.Command("go", "build", strings.NewReplacer(" '", "=", "'", "").Replace(linkerFlags), "-o", out, program)
	build.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", program, err, text)
	}
	if data, err := os.ReadFile(out); err == nil && kept != "" {
		_ = os.WriteFile(kept, data, 0o755) // not everybody may: then the next one builds it anew
	}
	return nil
}

// launcher builds the program of this name beside that of the test, where `go test` removes
// it.
var launcher = sync.OnceValues(func() (string, error) {
	self, err := os.Executable()
	if err != nil || !withRace {
		return "", err
	}
	out := filepath.Join(filepath.Dir(self), "launcher")
	return out, BuildProgram("a2e/host/hosttest/launcher", out)
})

// Launcher returns the program that a test's children start through, for sandbox.Options:
// that of the test itself, or, if it is built with the race detector, one that is not. A
// start would take eight times as long with it, and find no race that the tests of the
// sandbox do not.
func Launcher(t testing.TB) string {
	t.Helper()
	path, err := launcher()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
