//go:build unix

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// calls has the model call a tool, and then answer.
func calls(model *llm.Server, name, arguments string) {
	model.Add(llm.Calls(llm.Call{Name: name, Arguments: arguments}), llm.Text("done so"))
}

// TestChatAsksBeforeChanges: the person sees each change, and decides on calls that change existing things: once,
// always or not at all. To allow a command always allows this very command alone.
func TestChatAsksBeforeChanges(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\ntwo\nthree\n"), 0o600))
	file := func() string { return string(must.Get(os.ReadFile(filepath.Join(dir, "a.txt")))(t)) }
	model := llm.New(t)
	p := newTypist(t, dir, nil, "--llm", model.URL, "--model", "m")

	const edit = `{"path":"a.txt","old":"two","new":"2"}`
	calls(model, "edit_file", edit)
	p.types("deny\r")
	for _, text := range []string{
		"edit_file would change a.txt", "\x1b[31m  -two", "\x1b[32m  +2",
		"each call of edit_file", "deny [d]? ",
	} {
		p.await(text)
	}
	p.types("what\r")
	p.await("what\r\n") // the line is drawn again for each key, and what is typed before the next prompt does not count
	p.await("deny [d]? ")
	p.types("d not this one\r")
	p.await("✗")
	p.await("done so")
	p.await("\r> ")
	assert.Equal(t, file(), "one\ntwo\nthree\n", "the file after deny")
	assert.Contains(t, model.Requests()[1].Last("tool"), "did not allow this call: not this one")

	calls(model, "edit_file", edit)
	p.types("allow\r")
	p.await("deny [d]? ")
	p.types("a\r")
	p.await("✓")
	p.await("\r> ")
	calls(model, "edit_file", `{"path":"a.txt","old":"three","new":"3"}`)
	p.types("again\r")
	p.await("✓")
	p.await("\x1b[31m  -three")
	p.await("\x1b[32m  +3")
	p.await("\r> ")
	assert.Equal(t, file(), "one\n2\n3\n", "the file after always")

	const command = `{"command":["sh","-c","echo x >> b.txt"]}`
	for i := range 3 {
		calls(model, "run_command", command)
		p.types("run\r")
		if i == 0 {
			p.await(`run_command may change something: command=sh -c "echo x >> b.txt"`)
			p.await("this very call")
			p.await("deny [d]? ")
			p.types("a\r")
		}
		p.await("✓")
		p.await("\r> ")
	}
	calls(model, "run_command", `{"command":["sh","-c","echo y >> b.txt"]}`)
	p.types("another\r")
	p.await("deny [d]? ")
	p.types("\x03") // interrupts
	p.await("interrupted")
	p.await("\r> ")
	text := must.Get(os.ReadFile(filepath.Join(dir, "b.txt")))(t)
	assert.Equal(t, string(text), "x\nx\nx\n", "the commands")
	p.types("\x04")
	p.ends(0)
}

// With --yes nobody is asked.
func TestChatYes(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\n"), 0o600))
	model := llm.New(t)
	p := newTypist(t, dir, nil, "--llm", model.URL, "--model", "m", "--yes")
	calls(model, "write_file", `{"path":"a.txt","content":"two\n"}`)
	p.types("x\r")
	p.await("\x1b[31m  -one")
	p.await("done so")
	p.await("\r> ")
	p.types("\x04")
	p.ends(0)
	assert.That(t, !strings.Contains(p.shown, "deny"), "the terminal got %q", p.shown)
}

// TestChatAnswersForms: questions of an MCP server are asked in the chat as a form, also for a tool that the person
// runs.
func TestChatAnswersForms(t *testing.T) {
	t.Parallel()
	peers := must.Get(filepath.Abs(root + "/testdata/peers/node_modules"))(t)
	script := filepath.Join(peers, "@modelcontextprotocol/server-everything/dist/index.js")
	dir := chainDir(t, map[string]string{"c.yaml": fmt.Sprintf("mcpServers: {all: {command: node, args: [%q], read: "+
		"[%q]}}\n", script, peers)})
	model := llm.New(t)
	p := newTypist(t, dir, []string{"A2E_CONFIG=c.yaml"}, "--llm", model.URL, "--model", "m")
	p.types("/all__trigger-elicitation-request\r")
	p.await("all asks: ")
	p.await("required: ")
	p.types("Ada\r")
	p.await("y or n")
	p.types("\x03") // interrupts the command
	p.await("\r> ")
	p.types("\x04")
	p.ends(0)
}

// TestChatFilesAndLines: files that a message names are sent with it, Tab completes, and the lines of a chat are kept
// for later chats, without secrets.
func TestChatFilesAndLines(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.OK(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	must.OK(t, os.WriteFile(filepath.Join(dir, "sub", "notes.txt"), []byte("```\nkept\n"), 0o600))
	model := llm.New(t, llm.Text("read"), llm.Text("second"), llm.Text("third"))
	env := []string{"SOME_KEY=key-0123456789abcdef", "A2E_STATE_DIR=" + filepath.Join(dir, "state")}
	with := []string{"--llm", model.URL, "--model", "m-one", "--api-key-env", "SOME_KEY"}
	p := newTypist(t, dir, env, with...)
	p.types("see @su\t")
	p.await("@sub/")
	p.types("no\t")
	p.await("notes.txt ")
	p.types("and me@example.org key-0123456789abcdef\r")
	p.await("read")
	p.await("\r> ")
	told := model.Requests()[0].Last("user")
	assert.That(t, strings.HasPrefix(told, "see @sub/notes.txt and me@") && strings.HasSuffix(told, "The file sub/notes.txt:\n````\n```\nkept\n````"), "the model was told %q", told)
	p.types("/mod\t")
	p.await("/model ")
	p.types("m\t\r")
	p.await("m-one, thinking off")
	p.await("\r> ")
	p.types("/ch\t\t") // nothing fits
	p.types("\x15/h\t")
	p.await("/help  /history")
	p.types("is\t\r")
	p.await("see @sub/notes.txt")
	p.await("\r> ")
	p.types("\x04")
	p.ends(0)

	p = newTypist(t, dir, env, with...)
	p.types("\x1b[A\x1b[A\x1b[A")
	p.await("see @sub/notes.txt and me@example.org ")
	p.types("\r")
	p.await("second")
	p.await("\r> ")
	p.types("\x04")
	p.ends(0)
	assert.That(t, !strings.Contains(model.Requests()[1].Last("user"), "key-0123456789abcdef"), "the key was kept")
	kept := must.Get(filepath.Glob(filepath.Join(dir, "state", "chat", "*")))(t)
	must.Equal(t, len(kept), 1, "files of lines")
	info := must.Get(os.Stat(kept[0]))(t)
	assert.Equal(t, info.Mode().Perm(), os.FileMode(0o600), "the mode of the file")
}

// TestChatUndo: /diff shows the changes since a checkpoint, and /undo takes them back once the person agrees. A call
// that changes a file needs no answer of the person if checkpoints keep the file.
func TestChatUndo(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("checkpoints: true\nworkspace: .\n"), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\n"), 0o600))
	model := llm.New(t)
	p := newTypist(t, dir, []string{"A2E_CONFIG=c.yaml"}, "--llm", model.URL, "--model", "m")
	must.OK(t, os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("b.txt\n"), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(dir, "b.txt"), []byte("one\n"), 0o600))
	calls(model, "write_file", `{"path":"b.txt","content":"two\n"}`)
	p.types("no checkpoint keeps it\r")
	p.await("deny [d]? ")
	p.types("d\r")
	p.await("\r> ")
	calls(model, "write_file", `{"path":"a.txt","content":"two\n"}`)
	p.types("x\r")
	p.await("-one")
	p.await("done so")
	p.await("\r> ")
	p.types("/diff\r")
	p.await("-one")
	p.await("+two")
	p.await("\r> ")
	for _, answer := range []string{"n\r", "\x03", "y\r"} {
		p.types("/undo\r")
		p.await("a.txt")
		p.await("Do this? [y/N] ")
		text := must.Get(os.ReadFile(filepath.Join(dir, "a.txt")))(t)
		assert.Equal(t, string(text), "two\n", "the file before the answer")
		p.types(answer)
		if answer != "y\r" {
			p.await("nothing was changed")
			p.await("\r> ")
		}
	}
	p.await("restored checkpoint")
	text := must.Get(os.ReadFile(filepath.Join(dir, "a.txt")))(t)
	assert.Equal(t, string(text), "one\n", "the file")
	p.await("\r> ")
	p.types("\x04")
	p.ends(0)
}
