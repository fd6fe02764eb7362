// Package built builds the programs that tests run. It imports nothing of the host, so that
// the tests of the packages below it can use it too.
package built

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Folder is the variable that names a folder of programs that several tests share, and those
// need that cannot build any: the user they run as has no Go.
const Folder = "A2E_TEST_BUILT"

// Command is what the README builds the binary with; Build does the same.
const Command = "CGO_ENABLED=0 go build " + linkerFlags + " -o a2e ."

const linkerFlags = "-ldflags '-s -w'"

// Build builds a program of the project, named by its folder or import path, into
// the file out: static, and without the race detector, whatever the test itself is built
// with; env says more, such as another system.
func Build(program, out string, env ...string) error {
	build := exec.Command("go", "build", strings.NewReplacer(" '", "=", "'", "").Replace(linkerFlags), "-o", out,
		program)
	build.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", program, err, text)
	}
	return nil
}

// programs holds what finds or builds each program, by its name.
var programs sync.Map

// Program returns the path of a program that Build has built: in that of Folder,
// where other tests find it too, or beside that of the test, where `go test` removes it. What it
// is built from is cached, the linking is not: it is built once.
func Program(t testing.TB, program string, env ...string) string {
	t.Helper()
	once, _ := programs.LoadOrStore(program, sync.OnceValues(func() (string, error) { return place(program, env) }))
	path, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// place finds a program, or builds it. Another test may do so too: a name is given to what is whole.
func place(program string, env []string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := cmp.Or(os.Getenv(Folder), filepath.Dir(self))
	out := filepath.Join(dir, strings.NewReplacer("/", "-", ".", "").Replace(program))
	if _, err := os.Stat(out); err == nil && os.Getenv(Folder) != "" {
		return out, nil
	}
	whole := fmt.Sprintf("%s.%d", out, os.Getpid())
	if err := Build(program, whole, env...); err != nil {
		return "", err
	}
	return out, os.Rename(whole, out)
}

// Launcher returns the program that a test's children start through, for sandbox.Options:
// that of the test itself ("") or, if it is built with the race detector, one that is not. A
// start would take eight times as long with it, and find no race that the tests of the
// sandbox do not.
func Launcher(t testing.TB) string {
	t.Helper()
	if !withRace {
		return ""
	}
	return Program(t, "a2e/host/hosttest/launcher")
}
