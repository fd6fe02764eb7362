package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// twoFolders returns a workDir with the configs one.yaml and two.yaml, whose workspaces share a state.
func twoFolders(t *testing.T) string {
	t.Helper()
	dir := workDir(t)
	for _, name := range []string{"one", "two"} {
		must.OK(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		writeFile(t, dir, name+".yaml", stateConfig+"workspace: "+name+"\n")
	}
	return dir
}

// TestPlansOfThisFolder: plan list has the plans of this folder. With --all it has all plans, each with its folder.
func TestPlansOfThisFolder(t *testing.T) {
	t.Parallel()
	dir := twoFolders(t)
	plan := func(args ...string) string {
		t.Helper()
		return run(t, dir, nil, append([]string{"plan"}, args...)...).want(t, 0, "").stdout
	}
	run(t, dir, nil, "plan", "list", "-c", "one.yaml").want(t, 0, "no plan was made in this folder; `a2e plan add "+
		"NAME` makes one, `a2e plan list --all` shows all")
	plan("add", "release", "-c", "one.yaml")
	id := strings.TrimSpace(plan("add", "elsewhere", "-c", "two.yaml"))
	assert.That(t, strings.HasSuffix(plan("list", "-c", "one.yaml"), "  release\n") &&
		!strings.Contains(plan("list", "-c", "one.yaml"), "elsewhere"), "plan list has plans of another folder")
	all := plan("list", "--all", "-c", "one.yaml")
	for _, line := range []string{
		"FOLDER", filepath.Join(dir, "one") + "  release\n",
		filepath.Join(dir, "two") + "  elsewhere\n",
	} {
		assert.Contains(t, all, line)
	}
	var found []struct {
		Name   string `json:"name"`
		Folder string `json:"folder"`
	}
	must.OK(t, json.Unmarshal([]byte(plan("list", "--json", "-c", "two.yaml")), &found))
	assert.That(t, len(found) == 1 && found[0].Name == "elsewhere" && found[0].Folder == filepath.Join(dir, "two"),
		"%v", found)
	plan("show", id, "-c", "one.yaml") // by its id or name a plan is found from every folder
	plan("show", "elsewhere", "-c", "one.yaml")
	plan("add", "release", "-c", "two.yaml")
	run(t, dir, nil, "plan", "show", "release", "-c", "two.yaml").want(t, 2, "`a2e plan list --all` shows")
}

// TestMemoryOfThisFolder: memory list and search show in which folder an entry was stored, and --folder leaves out
// the entries of other folders.
func TestMemoryOfThisFolder(t *testing.T) {
	t.Parallel()
	dir := twoFolders(t)
	memory := func(args ...string) string {
		t.Helper()
		return run(t, dir, nil, append([]string{"memory"}, args...)...).want(t, 0, "").stdout
	}
	memory("add", "a", "soup on Mondays", "-c", "one.yaml")
	memory("add", "b", "soup on Fridays", "-c", "two.yaml")
	memory("add", "c", "no soup", "-c", "one.yaml")
	memory("add", "c", "soup again", "-c", "two.yaml")
	for _, c := range []struct{ args, want string }{
		{"list -c one.yaml", "c b a"},
		{"list -c one.yaml --folder .", "a"},
		{"list -c two.yaml --folder .", "c b"},
		{"list -c two.yaml --folder one", "a"},
		{"list -c two.yaml --folder " + filepath.Join(dir, "none"), ""},
		{"search soup -c one.yaml --folder .", "a"},
		{"search mondays -c two.yaml --folder .", ""},
	} {
		out := run(t, dir, nil, append(append([]string{"memory"}, strings.Fields(c.args)...), "--json")...)
		assert.Equal(t, strings.Join(keysOf(t, out), " "), c.want, "memory %s", c.args)
	}
	assert.Contains(t, memory("list", "-c", "one.yaml", "--folder", "."), "  "+filepath.Join(dir,
		"one")+"  soup on Mondays\n")
	versions := memory("history", `{"id":"c"}`, "-c", "one.yaml")
	for _, line := range []string{
		filepath.Join(dir, "two") + "  soup again\n",
		filepath.Join(dir, "one") + "  no soup\n",
	} {
		assert.Contains(t, versions, line)
	}
	text := run(t, dir, nil, "state", "export", "-c", "one.yaml").want(t, 0, "").stdout
	other := stateDir(t)
	run(t, other, []byte(text), "state", "import", "-").want(t, 0, "")
	out := run(t, other, nil, "memory", "list", "--folder", filepath.Join(dir, "one"), "--json")
	assert.Equal(t, strings.Join(keysOf(t, out), " "), "a", "after an import")
	memory("forget", "--folder", ".", "-c", "two.yaml")
	out = run(t, dir, nil, "memory", "list", "-c", "two.yaml", "--json")
	assert.Equal(t, strings.Join(keysOf(t, out), " "), "a", "after a forget")
}

// TestChatsOfThisFolder: chat --continue continues the last chat of this folder. /history lists the chats of other
// folders only with --all.
func TestChatsOfThisFolder(t *testing.T) {
	t.Parallel()
	dir := twoFolders(t)
	model := llm.New(t)
	model.Answer(func(r *llm.Request) llm.Reply { return llm.Text("heard " + r.Last("user")) })
	with := func(config string, more ...string) []string {
		return append([]string{"-c", config, "--llm", model.URL, "--model", "m"}, more...)
	}
	_, errs := piped(t, dir, "x", 1, with("two.yaml", "--continue")...)
	assert.Contains(t, errs, "no saved chat in this folder yet; /history --all lists those of others")
	piped(t, dir, "of one", 0, with("one.yaml")...)
	_, errs = piped(t, dir, "x", 1, with("two.yaml", "--continue")...)
	assert.Contains(t, errs, "no saved chat in this folder yet")
	piped(t, dir, "of two", 0, with("two.yaml")...)
	piped(t, dir, "more", 0, with("one.yaml", "--continue")...)
	all := model.Requests()
	body := all[len(all)-1].Body
	assert.That(t, strings.Contains(body, "heard of one") && !strings.Contains(body, "of two"), "the model was told %s",
		body)
	assert.Slice(t, chatsListed(t, dir, "/history"), []string{"two: of two"}, "/history")
	assert.Slice(t, chatsListed(t, dir, "/history --all"), []string{"one: more", "two: of two"}, "/history --all")
}

// chatsListed returns the chats that a command lists in the folder two, each after the name of its folder.
func chatsListed(t *testing.T, dir, command string) (found []string) {
	t.Helper()
	l := start(t, dir, "serve", "-c", "two.yaml")
	ask := func(id, method, params string, dst any) {
		t.Helper()
		l.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`)
		for {
			line := must.Get(l.stdout.ReadString('\n'))(t)
			if strings.HasPrefix(line, `{"jsonrpc":"2.0","id":`+id+`,`) {
				must.OK(t, json.Unmarshal([]byte(line), dst))
				return
			}
		}
	}
	var made struct {
		Result struct {
			ID string `json:"session_id"`
		} `json:"result"`
	}
	ask("1", "session.create", `{}`, &made)
	var told struct {
		Result struct {
			Output struct {
				Sessions []struct {
					Title  string `json:"title"`
					Folder string `json:"folder"`
				} `json:"sessions"`
			} `json:"output"`
		} `json:"result"`
	}
	ask("2", "command.execute", `{"session_id":"`+made.Result.ID+`","raw_command":"`+command+`"}`, &told)
	must.OK(t, l.stdin.Close())
	l.exit()
	for _, s := range told.Result.Output.Sessions {
		found = append(found, filepath.Base(s.Folder)+": "+s.Title)
	}
	return found
}
