package worker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"a2e/host/config"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	good := Worker{Name: "w", Command: []string{"sh"}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Worker){
		"a worker has no name":                            func(w *Worker) { w.Name = "" },
		"without control characters":                      func(w *Worker) { w.Name = "a\nb" },
		"at most 256 bytes":                               func(w *Worker) { w.Name = strings.Repeat("x", 300) },
		`worker "w": command is missing`:                  func(w *Worker) { w.Command = nil },
		`worker "w": command: a word has a NUL`:           func(w *Worker) { w.Command = []string{"sh", "\x00"} },
		`mode is "daemon"; it should be oneshot or fleet`: func(w *Worker) { w.Mode = "daemon" },
		"context_window should be 0 or more tokens":       func(w *Worker) { w.ContextWindow = -1 },
		"max_tasks should be between 1 and 1024":          func(w *Worker) { w.MaxTasks = 1025 },
		"timeout should be 0 or more seconds":             func(w *Worker) { w.Timeout = -time.Second },
		"auth_token is for mode fleet; a oneshot worker":  func(w *Worker) { w.AuthToken = config.NewSecret("hidden") },
	} {
		w := good
		change(&w)
		if err := w.Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := NewPool(Options{Workers: []Worker{good, good}}, Env{Launcher: noLauncher}); err == nil || err.Error() != `two workers have the name "w"; each needs one of its own` {
		t.Error(err)
	}
	if _, err := NewPool(Options{Workers: []Worker{good}}, Env{}); err == nil {
		t.Error("no launcher")
	}
}

// The options load as the config of a plugin.
func TestOptionsLoad(t *testing.T) {
	t.Parallel()
	opts, err := config.ParseOptions("x", []byte("workers:\n- {name: w, command: [a, b], mode: fleet, model: m, model_tier: t, context_window: 5, max_tasks: 3, timeout: 90, "+
		"env: {A: b}, network: true, read: [/x], write: [/z], cwd: y, priority: 2, capabilities: [c], auth_token: s}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Workers []Worker `yaml:"workers"`
	}
	if err := opts.Decode(&got); err != nil {
		t.Fatal(err)
	}
	w := got.Workers[0]
	if err := w.Validate(); err != nil || w.Timeout != 90*time.Second || w.AuthToken.Reveal() != "s" || strings.Contains(fmt.Sprintf("%+v", w), "s}") {
		t.Errorf("%+v %v", w, err)
	}
}
