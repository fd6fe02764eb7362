package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/child/spill"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/protocol"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher()
	MaybeRunModule()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if dir, err := cache(); err == nil {
			_ = os.RemoveAll(dir)
		}
		os.Exit(code)
	}))
}

// cache returns the folder for the compiled guest, which all tests share.
var cache = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "a2e-test-") })

// heard is an Emitter and an EventFunc. It keeps each event as a line.
type heard struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (h *heard) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.lines)
}

// Progress implements host.Emitter.
func (h *heard) Progress(pct float64, message string) { h.add("progress %v %s", pct, message) }

// Status implements host.Emitter.
func (h *heard) Status(message string) { h.add("status %s", message) }

// Log implements host.Emitter.
func (h *heard) Log(level, message, stream string) { h.add("log %s %s %s", level, stream, message) }

// Artifact implements host.Emitter.
func (h *heard) Artifact(name, mime string, chunk []byte, final bool) {
	h.add("artifact %s %s %s %v", name, mime, chunk, final)
}

// Streaming implements host.Emitter.
func (h *heard) Streaming() bool { return true }

func (h *heard) event(kind string, data jsontext.Value) { h.add("event %s %s", kind, data) }

// place is a skill folder, a workspace and a launcher for both.
type place struct {
	launcher        *sandbox.Launcher
	skill, work, up string // up has both folders, and a secret beside them
	engine          string // path of the program that runs modules, see testdata/module
}

// newPlace returns a place whose skill folder has the given files, by path.
func newPlace(t testing.TB, files map[string]string) *place {
	t.Helper()
	up := t.TempDir()
	p := &place{
		skill: filepath.Join(up, "skill"), work: filepath.Join(up, "work"), up: up,
		engine: hosttest.Program(t, "./testdata/module"),
	}
	err := errors.Join(os.Mkdir(p.skill, 0o755), os.Mkdir(p.work, 0o755), os.WriteFile(filepath.Join(up, "secret"),
		[]byte("geheim"), 0o600),
		os.WriteFile(filepath.Join(p.work, "data.txt"), []byte("the data"), 0o644))
	for name, text := range files {
		path := filepath.Join(p.skill, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755))
	}
	must.OK(t, err)
	p.launcher = sandboxtest.New(t, sandbox.Options{Workspace: p.work})
	return p
}

const maxOutput = 1 << 20

func (p *place) job(file string) Job {
	return Job{
		Name: "test", Dir: p.skill, File: file, Args: jsontext.Value(`{"n":1}`), Workspace: p.work,
		MaxOutputBytes: maxOutput, MemoryBytes: 256 << 20, Spill: spill.New("", nil), engine: p.engine,
	}
}

// runs is Script or Wasm.
type runs func(context.Context, *sandbox.Launcher, Job, host.Emitter, EventFunc) (*Result, error)

// within runs a job within a time limit, and returns its events as well.
func (run runs) within(t testing.TB, limit time.Duration, p *place, j Job) (*Result, []string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var h heard
	r, err := run(ctx, p.launcher, j, &h, h.event)
	return r, h.all(), err
}

// patient is a time limit that only a failing test reaches.
const patient = 2 * time.Minute

func (p *place) script(t testing.TB, j Job) (*Result, []string, error) {
	t.Helper()
	return runs(Script).within(t, patient, p, j)
}

func (p *place) module(t testing.TB, j Job) (*Result, []string, error) {
	t.Helper()
	return runs(Wasm).within(t, patient, p, j)
}

// sh runs a shell script in a new place.
func sh(t testing.TB, text string, change func(*Job)) (*Result, []string, *place, error) {
	t.Helper()
	p := newPlace(t, map[string]string{"run.sh": text})
	j := p.job("run.sh")
	if change != nil {
		change(&j)
	}
	r, lines, err := p.script(t, j)
	return r, lines, p, err
}

// codeOf returns the code of a protocol.Error, or "" for another error.
func codeOf(err error) protocol.ErrorCode {
	if e := (*protocol.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// asLines joins lines for comparisons.
func asLines(lines []string) string { return strings.Join(lines, "\n") }

// running reports whether a process has this word in its command line.
func running(t testing.TB, word string) bool {
	t.Helper()
	files := must.Get(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	return slices.ContainsFunc(files, func(file string) bool {
		data, err := os.ReadFile(file)
		return err == nil && bytes.Contains(data, []byte(word))
	})
}
