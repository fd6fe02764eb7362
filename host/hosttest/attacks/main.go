//go:build linux

// Command attacks runs all attack tests of the project, named TestWall… and
// TestEscape…, in three environments: as root, as an ordinary user, and without namespaces.
// It prints the number of attempts and of successful attacks for each one, and fails if
// an attack succeeded. Run it in the folder of the project, as `make walls` does.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"a2e/host/hosttest"
	"a2e/host/hosttest/plain"
)

const (
	attacks  = "^(TestWall|TestEscape)"
	asPlain  = "plain" // first argument for running a test in a plain container
	nobody   = 65534
	testTime = "10m"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == asPlain {
		fmt.Fprintln(os.Stderr, plain.Exec(os.Args[2], os.Args[2:], os.Environ()))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "walls:", err)
		stop()
		os.Exit(1)
	}
}

// suite has the built tests of one package.
type suite struct{ dir, name, binary string }

// environment is a user and a container in which the tests run.
type environment struct {
	name string
	user int // user id of the tests; -1 = the present user
	argv []string
}

func run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "w")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // the ordinary user runs the programs in it
		return err
	}
	if err := hosttest.BuildProgram("a2e", filepath.Join(dir, "a2e")); err != nil {
		return err
	}
	suites, err := build(ctx, dir)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ways := []environment{{"as this user", -1, nil}, {"without namespaces", -1, []string{self, asPlain}}}
	if os.Geteuid() == 0 {
		ways = []environment{
			{"as root", -1, nil},
			{"as an ordinary user", nobody, nil},
			{"root without namespaces", -1, []string{self, asPlain}},
		}
	} else {
		fmt.Println("as root: left out, as this is an ordinary user")
	}
	table := fmt.Sprintf("%-26s %9s %12s %8s\n", "", "attempts", "got through", "skipped")
	failed := false
	for _, w := range ways {
		sum, err := w.run(ctx, dir, suites)
		if err != nil {
			return err
		}
		table += fmt.Sprintf("%-26s %9d %12d %8d\n", w.name, sum.attempts, sum.failed, sum.skipped)
		failed = failed || sum.failed > 0 || sum.attempts == 0
	}
	fmt.Print(table)
	if failed {
		return errors.New("an attack got through, or its test failed")
	}
	return nil
}

// build compiles the tests of every package with attack tests.
func build(ctx context.Context, dir string) (suites []suite, err error) {
	list, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}\t{{.ImportPath}}", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	attack := regexp.MustCompile(`(?m)^func (TestWall|TestEscape)`)
	for line := range strings.Lines(string(list)) {
		folder, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && attack.Match(text)
		}) {
			continue
		}
		s := suite{folder, name, filepath.Join(dir, strings.ReplaceAll(name, "/", "-")+".test")}
		if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", s.binary, name).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go test -c %s: %w\n%s", name, err, out)
		}
		if _, err := os.Stat(s.binary); err == nil { // missing if the package has no tests for this system
			suites = append(suites, s)
		}
	}
	return suites, nil
}

// count has the numbers of test results.
type count struct{ attempts, failed, skipped int }

// run runs all suites in one environment, and prints the output of failed ones. Programs that the tests of
// the first environment build are used for the others, whose user may have no Go.
func (w *environment) run(ctx context.Context, dir string, suites []suite) (sum count, err error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOCACHE",
		"GOMODCACHE").Output() // in the home of the present user
	if err != nil {
		return sum, fmt.Errorf("go env: %w", err)
	}
	caches := strings.Split(string(out), "\n")
	for _, s := range suites {
		home, err := os.MkdirTemp(dir, "")
		if err != nil {
			return sum, err
		}
		argv := append(slices.Clone(w.argv), s.binary, "-test.v", "-test.run", attacks, "-test.timeout", testTime)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = s.dir
		cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, hosttest.Built+"="+dir, "GOCACHE="+caches[0],
			"GOMODCACHE="+caches[1])
		if w.user >= 0 {
			if err := os.Chown(home, w.user, w.user); err != nil {
				return sum, err
			}
			cmd.Env = append(cmd.Env, "PATH="+openPath())
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
				Uid: uint32(w.user),
				Gid: uint32(w.user),
			}}
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		failure := cmd.Run()
		if ctx.Err() != nil {
			return sum, ctx.Err()
		}
		c := counted(out.String())
		if failure != nil {
			fmt.Printf("%s, %s: %v\n%s\n", w.name, s.name, failure, out.String())
			c.failed = max(c.failed, 1)
		}
		fmt.Printf("%-26s %-34s %5d attempts\n", w.name, s.name, c.attempts)
		sum.attempts, sum.failed, sum.skipped = sum.attempts+c.attempts, sum.failed+c.failed, sum.skipped+c.skipped
	}
	return sum, nil
}

// openPath returns PATH without folders in the home of the present user, which other users cannot
// enter.
func openPath() string {
	home, err := os.UserHomeDir()
	dirs := filepath.SplitList(os.Getenv("PATH"))
	return strings.Join(slices.DeleteFunc(dirs, func(dir string) bool {
		return err == nil && strings.HasPrefix(dir, home+"/")
	}), string(filepath.ListSeparator))
}

// counted reads the output of tests: each test without subtests is an attempt.
func counted(out string) (c count) {
	ended := regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): (\S+) \(`)
	all := ended.FindAllStringSubmatch(out, -1)
	parents := make(map[string]bool)
	for _, m := range all {
		for name := m[2]; strings.Contains(name, "/"); {
			name = name[:strings.LastIndexByte(name, '/')]
			parents[name] = true
		}
	}
	for _, m := range all {
		switch {
		case parents[m[2]]:
		case m[1] == "SKIP":
			c.skipped++
		default:
			c.attempts++
			if m[1] == "FAIL" {
				c.failed++
			}
		}
	}
	return c
}
