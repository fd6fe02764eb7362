//go:build linux

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/dialect"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// dispatchLine is a TASK_DISPATCH with all members that the text of the protocol shows.
const dispatchLine = `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":%q,"priority":"high","reply_schema":"structured","token_budget":50000},` +
	`"requirements":{"required_mcp":[],"required_capabilities":["terminal","file","patch","browser","search","memory"]},"deadline":"2999-01-01T00:00:00Z","brief":"write the file of %s"}`

// TestFleetWithAModel: a worker that is a model with the host's tools answers tasks as the protocol says. A task in
// the workspace reports only its own changes, not those of the user. Eight tasks at once in worktrees, which all
// write the same file, do not see each other.
func TestFleetWithAModel(t *testing.T) {
	t.Parallel()
	for isolation, tasks := range map[string]int{"none": 1, "worktree": 8} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			var all sync.WaitGroup
			all.Add(tasks)
			model := llm.New(t)
			model.Answer(func(r *llm.Request) llm.Reply {
				brief := r.Last("user")
				id := strings.Fields(brief[strings.LastIndex(brief, "the file of ")+len("the file of "):])[0]
				if r.Rounds() == 0 {
					all.Done()
					dialect.Await(dialect.Over(all.Wait), time.Minute) // all tasks run
					return llm.Calls(llm.Call{
						Name:      "write_file",
						Arguments: fmt.Sprintf(`{"path":"src/%s.txt","content":"new"}`, id),
					},
						llm.Call{Name: "edit_file", Arguments: fmt.Sprintf(`{"path":"all.txt","old":"begin","new":%q}`,
							id)},
						llm.Call{Name: "run_command", Arguments: `{"command":["git","diff"]}`}).Used(1000, 50)
				}
				return llm.Text("It is written.\n\n```json\n{\n  \"status\": \"done\",\n",
					fmt.Sprintf("  \"summary\": %q\n}\n```\n", r.Last("tool"))).Used(1100, 20)
			})
			dir := workDir(t)
			writeConfig(t, dir, fmt.Sprintf("workspace: ws\nfleet: {agent_id: w1, max_tasks: 8, isolation: "+
				"%s}\nplugins:\n  multi_agent: {workers: [{name: coder, llm: {url: %q, model: small-1}, model_tier: "+
				"small, context_window: 32000, max_tasks: 8}]}\n", isolation, model.URL))
			ws := filepath.Join(dir, "ws")
			must.OK(t, os.Mkdir(ws, 0o755), os.WriteFile(filepath.Join(ws, "all.txt"), []byte("begin"), 0o600))
			wallGit(t, ws, "init", "-q", "-b", "trunk")
			wallGit(t, ws, "add", ".")
			wallGit(t, ws, "commit", "-q", "-m", "x")
			must.OK(t, os.WriteFile(filepath.Join(ws, "users.txt"), []byte("not committed"), 0o600))

			h := start(t, dir, "worker")
			var a fleet.Announce
			for a.Session.RepoState == nil { // on a slow machine git answers later
				must.OK(t, json.Unmarshal(must.Get(h.stdout.ReadBytes('\n'))(t), &a))
			}
			words := slices.DeleteFunc(fleet.Words(),
				func(word string) bool { return slices.Contains(a.Capabilities.Tools, word) })
			if want := (fleet.Worker{
				AgentID: "w1", Model: "small-1", ModelTier: "small",
				ContextWindow: 32000,
			}); a.Worker != want || len(words) > 0 ||
				*a.Session.RepoState != (fleet.RepoState{Branch: "trunk"}) {
				t.Errorf("the announce is %+v", a)
			}
			for i := range tasks {
				h.send(fmt.Sprintf(dispatchLine, fmt.Sprint("t", i), fmt.Sprint("t", i)))
			}
			var done []string
			for len(done) < tasks {
				var r fleet.Result
				if must.OK(t, json.Unmarshal(must.Get(h.stdout.ReadBytes('\n'))(t), &r)); r.Type != fleet.TypeResult {
					continue // such as an announce that the tree is not clean any more
				}
				done = append(done, r.TaskID)
				text := string(must.Get(os.ReadFile(filepath.Join(ws, "all.txt")))(t))
				if isolation == "worktree" {
					assert.Equal(t, r.Artifacts.Branch, "a2e/"+r.TaskID, "the branch")
					text = wallGitOut(t, ws, "show", r.Artifacts.Branch+":all.txt")
				}
				want := fmt.Sprintf("done 2170 [all.txt src/%s.txt] %s", r.TaskID, r.TaskID)
				if got := fmt.Sprint(r.Status, r.TokensSpent, r.Artifacts.FilesChanged, " ",
					text); strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") ||
					!strings.Contains(r.Summary, "+"+r.TaskID) || r.TokensEstimated {
					t.Errorf("the result is %s with %q in all.txt", got, text)
					t.Logf("%+v", r)
				}
			}
			must.OK(t, h.stdin.Close())
			h.exit()
			text, err := os.ReadFile(filepath.Join(ws, "all.txt"))
			assert.That(t, err == nil && (isolation != "worktree" || string(text) == "begin"),
				"the workspace has %q, %v", text, err)
		})
	}
}

// TestFleetIsolatedProgram: a program works in the worktree of its task, and git works there. If the host is killed,
// the work so far is on a branch after the next start.
func TestFleetIsolatedProgram(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "workspace: ws\nstate_dir: state\nfleet: {isolation: worktree, max_tasks: 2}\nplugins:\n  "+
		"multi_agent: {workers: [{name: shell, command: [sh, -s], contract: false, max_tasks: 2}]}\n")
	ws := filepath.Join(dir, "ws")
	wallRepo(t, ws, "kept")
	before := wallGitOut(t, ws, "status", "--porcelain")
	h := start(t, dir, "worker")
	h.send(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"half"},"brief":"echo half > half.txt; sleep 1000"}`)
	hosttest.Eventually(t, "the file of the task", func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "state/worktrees/*/half-*/tree/half.txt"))
		if len(files) == 0 {
			return false
		}
		text, _ := os.ReadFile(files[0]) // the file exists before it is written
		return string(text) == "half\n"
	})
	must.OK(t, h.cmd.Process.Kill())
	h.exit()
	h = start(t, dir, "worker")
	h.send(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"own commit"},"brief":"[ $PWD = $A2E_WORKSPACE ] && echo 1 > one.txt && git add one.txt && git -c user.name=t -c user.email=t@example.org commit -qm own && echo 2 > two.txt"}`)
	var r fleet.Result
	for r.Type != fleet.TypeResult {
		must.OK(t, json.Unmarshal(must.Get(h.stdout.ReadBytes('\n'))(t), &r))
	}
	assert.That(t, fmt.Sprint(r.Status, r.Artifacts.FilesChanged, r.Artifacts.Branch) == "done[one.txt "+
		"two.txt]a2e/own-commit", "the result is %+v", r)
	hosttest.Eventually(t, "the end of the worktrees", func() bool {
		return strings.Count(wallGitOut(t, ws, "worktree", "list"), "\n") == 1
	})
	half, own := wallGitOut(t, ws, "show", "a2e/half:half.txt"), wallGitOut(t, ws, "log", "--format=%s",
		"a2e/own-commit")
	assert.That(t, half == "half\n" && own == "Changes of the task own-commit\nown\nkept commit\n",
		"the branches have %q and %q", half, own)
	assert.Equal(t, wallGitOut(t, ws, "status", "--porcelain"), before, "the workspace was … and")
	must.OK(t, h.stdin.Close())
	h.exit()
}
