package env

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"a2e/host/sandbox"
)

// An episode that was saved goes on in another host, as it was.
func TestWorkspaceIsSavedAndRestored(t *testing.T) {
	e := workshop(t)
	opts := WorkspaceOptions{Tasks: realTasks(t), Task: "add", CheckEachStep: true}
	w := makeWorkspace(t, opts, e)
	made, err := w.Reset(t.Context(), Reset{EpisodeID: "e"})
	if err != nil {
		t.Fatal(err)
	}
	world := made.(*workspaceWorld)
	takeStep(t, world, mend)
	saved, err := world.Save()
	if err != nil {
		t.Fatal(err)
	}
	before := lookAt(t, world)
	if _, err := makeWorkspace(t, opts, e).Restore(t.Context(), Reset{EpisodeID: "e"}, saved); err == nil || !strings.Contains(err.Error(), "in use by another host") {
		t.Errorf("taken up while it is open: %v", err)
	}
	if err := world.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	// as if the host had died while a check ran
	if err := os.Rename(world.folder.work(), world.folder.aside()); err != nil {
		t.Fatal(err)
	}
	putFile(t, filepath.Join(world.folder.work(), "secret"), "")

	next := makeWorkspace(t, opts, e)
	back, err := next.Restore(t.Context(), Reset{EpisodeID: "e"}, saved)
	if err != nil {
		t.Fatal(err)
	}
	after := lookAt(t, back)
	if strings.Join(after.paths(), " ") != strings.Join(before.paths(), " ") || after.Task != before.Task || string(after.Last.Data) != string(before.Last.Data) || after.Done {
		t.Errorf("restored %+v, saved %+v", after, before)
	}
	if out := takeStep(t, back.(*workspaceWorld), `{"type":"submit"}`); out.Reward != 0 || !out.Done || verdictOf(t, out, "score") != 1.0 { // it had the 1 before
		t.Errorf("%+v", out)
	}
	if err := back.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(world.folder.path); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	for name, bad := range map[string]struct{ id, saved, want string }{
		"gone":        {"e", string(saved), "is gone"},
		"path":        {"../e", string(saved), "no name of a folder"},
		"empty id":    {"", string(saved), "no name of a folder"},
		"not JSON":    {"e", "x", "cannot be read"},
		"another's":   {"e", `{"count":3}`, "none of workspace"},
		"task gone":   {"e", `{"task":"no"}`, "there is no task"},
		"task a path": {"e", `{"task":"../tasks/add"}`, "there is no task"},
	} {
		if _, err := next.Restore(t.Context(), Reset{EpisodeID: bad.id}, []byte(bad.saved)); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %q", name, err, bad.want)
		}
	}
}

// The next host removes what dead ones left, and nothing else.
func TestWorkspaceStaleFolders(t *testing.T) {
	e := workshop(t)
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t)}, e)
	episodes := filepath.Join(e.StateDir, "episodes")
	now := time.Now()
	for name, age := range map[string]time.Duration{"dead": time.Hour, "young": 0, "saved": time.Hour, "forgotten": savedFor + time.Hour, "alive": time.Hour} {
		dir := filepath.Join(episodes, name)
		putFile(t, filepath.Join(dir, "work", "ro", "x"), "")
		if err := os.Chmod(filepath.Join(dir, "work", "ro"), 0o500); err != nil {
			t.Fatal(err)
		}
		if name == "saved" || name == "forgotten" {
			putFile(t, filepath.Join(dir, "saved"), "")
			if err := os.Chtimes(filepath.Join(dir, "saved"), now.Add(-age), now.Add(-age)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chtimes(dir, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := sandbox.LockDir(filepath.Join(episodes, "alive"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	beginTask(t, w, "new", "")
	w.sweep.End(time.Hour)
	var left []string
	entries, err := os.ReadDir(episodes)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if got := strings.Join(left, " "); got != "alive new saved young" {
		t.Errorf("left are %s", got)
	}
}

// Folders are private, gone when their episode is closed, and bounded in number.
func TestWorkspaceFolders(t *testing.T) {
	e := workshop(t)
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t)}, e)
	made, err := w.Reset(t.Context(), Reset{EpisodeID: "e"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(e.StateDir, "episodes", "e")
	for _, dir := range []string{filepath.Dir(path), path, filepath.Join(path, "work")} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
	takeStep(t, made.(*workspaceWorld), `{"type":"run_command","command":["sh","-c","mkdir ro; touch ro/x; chmod 500 ro"]}`)
	for range 2 {
		if err := made.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	w.open = maxWorkspaces
	if _, err := w.Reset(t.Context(), Reset{EpisodeID: "f"}); err == nil || !strings.Contains(err.Error(), "reset_denied") {
		t.Errorf("one too many: %v", err)
	}
	w.open = 0
}
