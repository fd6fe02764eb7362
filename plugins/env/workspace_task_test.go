package env

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

const fine = "description: x\n"

func TestWorkspaceBrokenTasks(t *testing.T) {
	for _, tc := range []struct {
		name, yaml string
		want       string
	}{
		{
			"unknown key", "description: x\ntimout: 3\n",
			`t/task.yaml:2:1: unknown key "timout" in the file: did you mean "timeout"?`,
		},
		{"no description", "id: a\n", `t/task.yaml:1:1: the file needs the key "description"`},
		{"no YAML", "description: [x\n", "t/task.yaml:"},
		{"reward", fine + "reward: points\n", "t/task.yaml:2:9: reward must be one of exit, number"},
		{"range without number", fine + "range: [0, 1]\n", "t/task.yaml: range is for reward: number"},
		{"range", fine + "reward: number\nrange: [1, 0]\n", "t/task.yaml: range must be the least and the greatest"},
		{"hidden without a judge", fine + "hidden: [a]\n", "t/task.yaml: hidden: a check of this kind"},
		{
			"the task's folder for another check", fine + "check: [sh, -c, 'cat $A2E_TASK/x']\n",
			"t/task.yaml: check: A2E_TASK is set for reward: judge alone",
		},
		{"cases and check", fine + "check: [x]\ncases: [{run: [x]}]\n", "t/task.yaml: check and cases: a task has " +
			"one of them"},
		{"cases with a judge", fine + "reward: judge\ncases: [{run: [x]}]\n", "t/task.yaml: reward: judge goes with " +
			"check"},
		{"no run", fine + "cases: [{run: []}]\n", "t/task.yaml: cases: number 1 has no program"},
		{"a case's file", fine + "cases: [{run: [x], stdout_file: ../x}]\n", "leads out of the task folder"},
		{"hidden", fine + "hidden: ['a[']\n", "t/task.yaml: hidden: \"a[\" is not a valid pattern"},
		{"timeout", fine + "timeout: 1e9\n", "t/task.yaml: timeout must be at most"},
		{"negative timeout", fine + "timeout: -1\n", "t/task.yaml:2:10: timeout must be at least 0"},
		{"empty check", fine + "check: []\n", "t/task.yaml: check is empty"},
		{"nameless check", fine + "check: ['']\n", "t/task.yaml: check: the program's name is empty"},
		{"too large", fine + "# " + strings.Repeat("x", maxTaskBytes), "t/task.yaml: it is larger than"},
	} {
		dir := taskFolder(t, map[string]string{"t/task.yaml": tc.yaml, "t/check": "#!/bin/sh\n"})
		_, err := newWorkspace(WorkspaceOptions{Tasks: dir}, workshop(t))
		assert.That(t, err != nil && strings.Contains(err.Error(), tc.want) && !strings.Contains(err.Error(), dir),
			"%s: %v, want %q", tc.name, err, tc.want)
	}
	// A task that is not the default is only checked when a reset asks for it.
	dir := taskFolder(t, map[string]string{
		"a/task.yaml": fine + "id: first\n", "a/check": "#!/bin/sh\n", "b/task.yaml": "descripton: x\n",
		"b/check":     "#!/bin/sh\n",
		"c/task.yaml": fine, "d/task.yaml": fine + "check: [./../a/check]\n", "e/task.yaml": fine +
			"check: [no-such-program]\n", "no task/x": "",
	})
	w := makeWorkspace(t, WorkspaceOptions{Tasks: dir}, workshop(t))
	for name, want := range map[string]string{
		"b": `b/task.yaml:1:1: `, "c": "there is no check", "d": "leads out of the task folder",
		"e": `"no-such-program" is not a program`,
		"z": "there are: a, b, c, d, e", "../a": "there are: a, b, c, d, e", "no task": "there are: a",
	} {
		_, err := w.Reset(t.Context(), Reset{EpisodeID: "x", Options: jsonObject(t, `{"task":"`+name+`"}`)})
		known, ok := errors.AsType[*protocol.Error](err)
		assert.That(t, ok && known.Code == protocol.CodeResetDenied && strings.Contains(known.Message, want) &&
			!strings.Contains(known.Message, dir), "%s: %v, want %q", name, err, want)
	}
	s := lookAt(t, beginTask(t, w, "by-id", "first"))
	assert.That(t, s.Task == "first", "by its id: %+v", s)
}

func TestWorkspaceOptions(t *testing.T) {
	good := taskFolder(t, map[string]string{"a/task.yaml": fine, "a/check": "#!/bin/sh\n"})
	for _, tc := range []struct {
		name   string
		opts   WorkspaceOptions
		change func(*host.Env)
		want   string
	}{
		{"no tasks", WorkspaceOptions{}, nil, "workspace.tasks is missing"},
		{"not there", WorkspaceOptions{Tasks: filepath.Join(good, "no")}, nil, "cannot be read"},
		{"empty", WorkspaceOptions{Tasks: t.TempDir()}, nil, "holds no task"},
		{"default task", WorkspaceOptions{Tasks: good, Task: "b"}, nil, `there is no task "b"; there are: a`},
		{"deny", WorkspaceOptions{Tasks: good, Deny: []string{"a["}}, nil, "is not a valid pattern"},
		{"no state_dir", WorkspaceOptions{Tasks: good}, func(e *host.Env) { e.StateDir = "" }, "needs state_dir"},
		{"no tools", WorkspaceOptions{Tasks: good}, func(e *host.Env) { e.ToolBox = nil }, "needs tools"},
	} {
		e := workshop(t)
		if tc.change != nil {
			tc.change(&e)
		}
		_, err := newWorkspace(tc.opts, e)
		assert.Fails(t, err, tc.want, "%s", tc.name)
	}
	loads := taskFolder(t, map[string]string{
		"a/task.yaml": "description: x\ncheck: [python3, '{task}/check.py']\n", "a/check.py": "import calc, unittest\n",
		"b/task.yaml": "description: x\nreward: judge\n", "b/check": "#!/usr/bin/env python3\nimport unittest\n",
	})
	const open, loaded = "read and change their checks", "can say the verdict itself"
	for _, tc := range []struct {
		workspace, tasks, task, want string
	}{
		{filepath.Dir(good), good, "", open},
		{good, good, "", open},
		{t.TempDir(), good, "", ""},
		{t.TempDir(), loads, "a", loaded},
		{t.TempDir(), loads, "b", ""},
	} {
		var log strings.Builder
		e := workshop(t)
		e.Log, e.Workspace = zerolog.New(&log), tc.workspace
		w := makeWorkspace(t, WorkspaceOptions{Tasks: tc.tasks, Task: tc.task}, e)
		beginTask(t, w, "e", "")
		for _, text := range []string{open, loaded} {
			got := strings.Count(log.String(), text)
			assert.That(t, got == 1 == (tc.want == text) && got <= 1, "task %q of %s in workspace %s: %q", tc.task,
				tc.tasks, tc.workspace, log.String())
		}
	}
}

// TestWorkspaceTemplates: a template is copied with its links and permissions, or refused as a whole.
func TestWorkspaceTemplates(t *testing.T) {
	base := map[string]string{
		"t/task.yaml": fine, "t/check": "#!/bin/sh\n", "t/files/a/b.txt": "twelve bytes",
		"t/files/run": "#!/bin/sh\n",
	}
	for _, tc := range []struct {
		name string
		make func(t *testing.T, files string)
		opts WorkspaceOptions
		want string // part of the error; "" = the template is copied
	}{
		{"as it is", func(t *testing.T, files string) {
			link(t, "a/b.txt", files+"/in")
			link(t, "../run", files+"/a/up")
			link(t, "nowhere", files+"/dangling")
			must.OK(t, os.Chmod(files+"/run", 0o755))
		}, WorkspaceOptions{}, ""},
		{"too many files", nil, WorkspaceOptions{MaxFiles: 2}, "more files"},
		{"too many bytes", nil, WorkspaceOptions{MaxBytes: 21}, "more bytes"},
		{"just fits", nil, WorkspaceOptions{MaxFiles: 3, MaxBytes: 22}, ""},
		{
			"link to a place of the machine", func(t *testing.T, files string) { link(t, "/etc/hostname", files+"/out") },
			WorkspaceOptions{},
			`"out" is a link that leads out`,
		},
		{
			"link out", func(t *testing.T, files string) { link(t, "../../check", files+"/a/out") },
			WorkspaceOptions{},
			`"a/out" is a link that leads out`,
		},
		{
			"link out once it leads anywhere", func(t *testing.T, files string) { link(t, "no/../../../x", files+"/out") },
			WorkspaceOptions{},
			`"out" is a link that leads out`,
		},
		{"link out by a link", func(t *testing.T, files string) {
			link(t, "..", files+"/a/top")
			link(t, "a/top/../check", files+"/out")
		}, WorkspaceOptions{}, `"out" is a link that leads out`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := taskFolder(t, base)
			if tc.make != nil {
				tc.make(t, filepath.Join(dir, "t", "files"))
			}
			e := workshop(t)
			tc.opts.Tasks = dir
			w := makeWorkspace(t, tc.opts, e)
			if tc.want == "" {
				sameTree(t, filepath.Join(dir, "t", "files"), beginTask(t, w, "e", "").folder.work())
				return
			}
			_, err := w.Reset(t.Context(), Reset{EpisodeID: "e"})
			known, ok := errors.AsType[*protocol.Error](err)
			assert.That(t, ok && known.Code == protocol.CodeResetDenied && strings.Contains(known.Message, tc.want) &&
				!strings.Contains(known.Message, dir), "%v, want %q", err, tc.want)
			w.cleaner.End(time.Hour)
			left, err := os.ReadDir(filepath.Join(e.StateDir, "episodes"))
			assert.That(t, err == nil && len(left) == 0, "it left %v, %v", left, err)
		})
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	must.OK(t, os.Symlink(to, path))
}

// sameTree compares two folders: names, permissions to run, content, links and times.
func sameTree(t *testing.T, want, got string) {
	t.Helper()
	describe := func(root string) (all []string) {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == root {
				return err
			}
			rel, _ := filepath.Rel(root, path) // no error: path is below root
			info, err := d.Info()
			if err != nil {
				return err
			}
			text, _ := os.Readlink(path) // "" if path is not a link
			if info.Mode().IsRegular() {
				raw, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				text = string(raw) + info.Mode().String() + info.ModTime().String()
			}
			all = append(all, rel+" "+info.Mode().Type().String()+" "+text)
			return nil
		})
		must.OK(t, err)
		return all
	}
	a, b := strings.Join(describe(want), "\n"), strings.Join(describe(got), "\n")
	assert.That(t, a == b, "copied\n%s\nas\n%s", a, b)
}

// TestWorkspaceTooLargeToCheck: an episode whose folder has grown too large is not checked, and gets no reward.
func TestWorkspaceTooLargeToCheck(t *testing.T) {
	dir := taskFolder(t, map[string]string{"a/task.yaml": fine, "a/check": "#!/bin/sh\nexit 0\n"})
	world := beginTask(t, makeWorkspace(t, WorkspaceOptions{Tasks: dir, MaxFiles: 1}, workshop(t)), "e", "")
	for i := range grown + 1 {
		putFile(t, filepath.Join(world.folder.work(), strings.Repeat("x", i+1)), "")
	}
	out := takeStep(t, world, `{"type":"submit"}`)
	assert.That(t, out.Reward == 0 && out.Done && strings.Contains(verdictOf(t, out, "reason").(string),
		"more files") && len(lookAt(t, world).Files) == grown+1, "%+v", out)
}
