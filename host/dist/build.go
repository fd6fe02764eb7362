package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
)

// numbered is a version that npm and pip read alike.
var numbered = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// program is the binary for one system.
type program struct {
	os, arch string
	data     []byte
	info     *debug.BuildInfo
}

// name is that of the binary in archives.
func (p *program) name() string {
	if p.os == "windows" {
		return "a2e.exe"
	}
	return "a2e"
}

// flags are those of go build. No path, build id or state of git gets into the binary.
func (r *release) flags() []string {
	return []string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid= -X a2e/host/cli.release=" + r.version}
}

// build builds the program for a system.
func (r *release) build(platform string) (*program, error) {
	goos, arch, ok := strings.Cut(platform, "/")
	if !ok || npmOS[goos] == "" || npmArch[arch] == "" {
		return nil, fmt.Errorf("%q is no platform: it must be of %s", platform, everywhere)
	}
	dir, err := os.MkdirTemp("", "a2e-dist-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	p := &program{os: goos, arch: arch}
	path := filepath.Join(dir, p.name())
	build := exec.Command("go", append(append([]string{"build"}, r.flags()...), "-o", path, ".")...)
	build.Env = append(build.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOOS="+goos, "GOARCH="+arch)
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

// ask has the binary of this machine say what goes into all archives beside it.
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
		cmd.Env = append(cmd.Environ(), "PATH="+filepath.Dir(path)) // completions name what is found there
		text, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("a2e %s: %w", strings.Join(from.args, " "), err)
		}
		r.common = append(r.common, file{name: from.name, data: text})
	}
	return nil
}
