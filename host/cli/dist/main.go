// Command dist makes the files of a release from the sources in this folder, in one output folder:
// an archive for each system with licences, checksums, a bill of materials and provenance, packages
// for npm and pip that contain the binary, and the files for containers, systemd and Homebrew. The
// same sources and Go version make the same bytes, on any machine and in any folder.
package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

// files are shipped unchanged, or filled in as templates.
//
//go:embed files
var files embed.FS

const everywhere = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

// release is a release that is being made.
type release struct {
	out     string
	version string    // as the binary prints it: the tag, or the output of git describe
	number  string    // version of packages: the tag without its v, or 0.0.0
	commit  string    // "" = not in a git clone
	made    time.Time // time of the commit, which all files get
	url     string    // where the archives will be
	common  []file    // files of all archives

	mu       sync.Mutex
	made256  map[string]string // SHA-256 of each written file, by name
	programs []*program
}

func main() {
	r := release{made256: map[string]string{}}
	flag.StringVar(&r.out, "out", "dist", "the folder to write to")
	flag.StringVar(&r.version, "version", "", "the version (default: what git describes)")
	flag.StringVar(&r.url, "url", "https://releases.example/a2e", "where the archives will be, for the Homebrew "+
		"formula")
	platforms := flag.String("platforms", everywhere, "the systems, each as in GOOS/GOARCH")
	flag.Parse()
	if err := r.run(strings.Split(*platforms, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func (r *release) run(platforms []string) error {
	if err := errors.Join(r.describe(), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	for _, platform := range platforms {
		p, err := r.build(platform)
		if err != nil {
			return err
		}
		r.programs = append(r.programs, p)
	}
	modules, err := r.modules()
	if err != nil {
		return err
	}
	if err := r.gather(modules); err != nil {
		return err
	}
	if err := r.packAll(); err != nil {
		return err
	}
	for _, step := range []func() error{
		r.npmLauncher, r.formula, r.container, r.units,
		func() error { return r.bill(modules) }, func() error { return r.provenance(modules) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return r.sums()
}

// packAll packs the programs in parallel.
func (r *release) packAll() error {
	failed := make([]error, len(r.programs))
	var all sync.WaitGroup
	for i, p := range r.programs {
		all.Go(func() { failed[i] = errors.Join(r.archive(p), r.npmPlatform(p), r.wheel(p)) })
	}
	all.Wait()
	return errors.Join(failed...)
}

// describe finds the version, commit and time of the release.
func (r *release) describe() error {
	r.commit, _ = output("git", "rev-parse", "HEAD")
	if r.version == "" {
		r.version, _ = output("git", "describe", "--tags", "--always", "--dirty")
	}
	r.version = cmp.Or(r.version, "dev")
	r.number = "0.0.0"
	if digits, ok := strings.CutPrefix(r.version, "v"); ok && numbered.MatchString(digits) {
		r.number = digits
	}
	seconds, err := output("git", "log", "-1", "--format=%ct")
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err = epoch, nil
	}
	if err != nil {
		return fmt.Errorf("the time of the commit: %w; outside of a git clone set SOURCE_DATE_EPOCH", err)
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	r.made = time.Unix(unix, 0).UTC()
	return err
}

// write writes a file to the output folder and stores its checksum.
func (r *release) write(name string, data []byte) error {
	r.mu.Lock()
	r.made256[name] = sum(data)
	r.mu.Unlock()
	path := filepath.Join(r.out, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// output runs a program and returns its output, without the end of the last line.
func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return strings.TrimRight(string(out), "\n"), err
}

// numbered matches versions that npm and pip read alike.
var numbered = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// program is the binary for one system.
type program struct {
	os, arch string
	data     []byte
	info     *debug.BuildInfo
}

// name returns the file name of the binary in archives.
func (p *program) name() string {
	if p.os == "windows" {
		return "a2e.exe"
	}
	return "a2e"
}

// flags returns the flags of go build. They keep paths, build ids and the state of git out of the binary.
func (r *release) flags() []string {
	return []string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid= -X a2e/host/cli.release=" + r.version}
}

// build builds the program for a system.
func (r *release) build(platform string) (*program, error) {
	goos, arch, ok := strings.Cut(platform, "/")
	if !ok || npmOS[goos] == "" || npmArch[arch] == "" {
		return nil, fmt.Errorf("%q is not a platform: it must be of %s", platform, everywhere)
	}
	dir, err := os.MkdirTemp("", "a2e-dist-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	p := &program{os: goos, arch: arch}
	path := filepath.Join(dir, p.name())
	build := exec.Command("go", append(append([]string{"build"}, r.flags()...), "-o", path, ".")...)
	build.Env = append(build.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOOS="+goos,
		"GOARCH="+arch)
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build for %s: %w: %s", platform, err, text)
	}
	if p.data, err = os.ReadFile(path); err == nil {
		p.info, err = buildinfo.Read(bytes.NewReader(p.data))
	}
	if err == nil && goos == runtime.GOOS && arch == runtime.GOARCH {
		err = r.ask(path)
	}
	return p, err
}

// ask runs the binary for this machine, to create files that go into all archives.
func (r *release) ask(path string) error {
	for _, from := range []struct {
		name string
		args []string
	}{
		{"a2e.schema.json", []string{"schema", "config"}},
		{"completions/a2e.bash", []string{"completion", "bash"}},
		{"completions/_a2e", []string{"completion", "zsh"}},
		{"completions/a2e.fish", []string{"completion", "fish"}},
		{"man/a2e.1", []string{"man"}},
	} {
		cmd := exec.Command(path, from.args...)
		cmd.Env = append(cmd.Environ(), "PATH="+filepath.Dir(path)) // completions name the program on the PATH
		text, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("a2e %s: %w", strings.Join(from.args, " "), err)
		}
		r.common = append(r.common, file{name: from.name, data: text})
	}
	return nil
}
