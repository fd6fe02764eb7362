// Package built builds the programs that tests run. It imports no package of the host, so that
// the tests of all packages can use it.
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

// Folder is the environment variable for a folder of programs that several tests share. Tests
// that run as a user without Go need it, as they cannot build programs.
const Folder = "A2E_TEST_BUILT"

// Command is the command in the README that builds the binary; Build does the same.
const Command = "CGO_ENABLED=0 go build " + linkerFlags + " -o a2e ."

const linkerFlags = "-ldflags '-s -w'"

// Build builds a program of the project, named by its folder or import path, into
// the file out. The program is static and has no race detector, even if the test itself has
// one. env has more variables, for example to build for another system.
func Build(program, out string, env ...string) error {
	build := exec.Command("go", "build", strings.NewReplacer(" '", "=", "'", "").Replace(linkerFlags), "-o", out,
		program)
	build.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", program, err, text)
	}
	return nil
}

// programs has the function that finds or builds each program, by its name.
var programs sync.Map

// Program returns the path of a program that Build has built: in the folder of Folder,
// where other tests find it too, or beside the test binary, where `go test` removes it. It builds
// each program only once, as linking is not cached.
func Program(t testing.TB, program string, env ...string) string {
	t.Helper()
	once, _ := programs.LoadOrStore(program, sync.OnceValues(func() (string, error) { return place(program, env) }))
	path, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// place finds a program, or builds it. As another test may build it at the same time, it renames the finished
// file to its final name.
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

// Launcher returns the launcher for the children of a test, for sandbox.Options: the test
// binary itself ("") or, if that is built with the race detector, a program without it. With the
// race detector a start would take eight times as long, and find no race that the tests of the
// sandbox do not find.
func Launcher(t testing.TB) string {
	t.Helper()
	if !withRace {
		return ""
	}
	return Program(t, "a2e/host/hosttest/launcher")
}
