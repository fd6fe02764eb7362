//go:build unix

package e2e_test

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// typist is a person at a terminal on which a2e chat runs.
type typist struct {
	t        *testing.T
	cmd      *exec.Cmd
	terminal *os.File
	read     chan struct{} // closed when the terminal has no more output

	mu    sync.Mutex
	shown string // guarded by mu
	seen  int    // length of the part of shown that await has passed; guarded by mu
}

// newTypist begins a chat, and waits until it asks for a message.
func newTypist(t *testing.T, dir string, env []string, args ...string) *typist {
	t.Helper()
	p := atTerminal(t, dir, env, args...)
	p.await("\r> ")
	return p
}

func atTerminal(t *testing.T, dir string, env []string, args ...string) *typist {
	t.Helper()
	cmd := command(t, dir, "./a2e", append([]string{"chat"}, args...)...)
	cmd.Env = append(cmd.Env, append([]string{"TERM=xterm", "NO_COLOR="}, env...)...)
	p := &typist{t: t, cmd: cmd, read: make(chan struct{})}
	p.terminal = must.Get(pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 60}))(t)
	go p.follow()
	return p
}

// follow collects the output of the terminal in p.shown until the program has ended.
func (p *typist) follow() {
	defer close(p.read)
	text := make([]byte, 4096)
	for {
		n, err := p.terminal.Read(text)
		p.mu.Lock()
		p.shown += string(text[:n])
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *typist) types(keys string) {
	p.t.Helper()
	_, err := p.terminal.WriteString(keys)
	must.OK(p.t, err)
}

// await waits until the terminal shows a text after the texts of earlier calls.
func (p *typist) await(text string) {
	p.t.Helper()
	defer func() {
		if p.t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.t.Logf("the terminal got %q", p.shown)
		}
	}()
	hosttest.Eventually(p.t, text, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		shown := strings.ReplaceAll(p.shown[p.seen:], "\n> ", "\r> ")
		at := strings.Index(shown, text)
		if at >= 0 {
			p.seen += at + len(text)
		}
		return at >= 0
	})
}

// ends waits until the program has ended, and checks its exit status.
func (p *typist) ends(code int) {
	p.t.Helper()
	_ = p.cmd.Wait() // its status is checked below
	p.terminal.Close()
	<-p.read
	got := p.cmd.ProcessState.ExitCode()
	assert.That(p.t, got == code, "status %d, should be %d; the terminal got %q", got, code, p.shown)
}

// TestChatOnATerminal: a chat at a terminal shows the pieces of an answer as they are received and the calls of
// tools, takes messages that are typed meanwhile, and stops on Ctrl-C.
func TestChatOnATerminal(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	model := llm.New(t)
	p := newTypist(t, dir, nil, "--llm", model.URL, "--model", "m")

	model.Add(llm.Reply{
		Thoughts: []string{"I ", "write"}, Text: []string{"First a file."},
		Calls: []llm.Call{{Name: "write_file", Arguments: `{"path":"a","content":"b"}`}},
	})
	model.Add(llm.Calls(llm.Call{Name: "read_file", Arguments: `{"path":"none"}`}),
		llm.Reply{Text: []string{"Done", "\x1b[2J.\u00a0\u200d"}}.Used(1200, 34))
	p.types("h\u00e9llo\r")
	for _, text := range []string{
		"\x1b[2mI \x1b[0m\x1b[2mwrite\x1b[0m", "\r\nFirst a file.\r\n", "\x1b[2m· write_file path=a " +
			"content=b\x1b[0m\x1b[32m ✓ ",
		"\x1b[2m· read_file path=none\x1b[0m\x1b[31m ✗ ", "none", "Done\\x1b[2J.\u00a0\u200d", "k tokens, ", "\r> ",
	} {
		p.await(text)
	}
	assert.Equal(t, model.Requests()[0].Last("user"), "h\u00e9llo", "the model was told")

	model.Add(llm.Reply{Text: []string{"half of "}, Stall: true})
	p.types("x\r")
	p.await("half of ")
	p.types("\x03")
	p.await("interrupted")
	p.await("\r> ")

	model.Add(llm.Reply{Text: []string{"so far"}, Stall: true, Then: []string{" and on"}}, llm.Text("as you wish"))
	p.types("y\r")
	p.await("so far")
	p.types("turn left")
	p.await("\r\nturn left") // on a line of its own
	p.types("\r")
	model.AwaitStall(t)
	model.Release()
	p.await(" and on")
	p.await("as you wish")
	p.await("\r> ")
	if all := model.Requests(); all[len(all)-1].Last("user") != "turn left" {
		t.Errorf("the model was told %q", all[len(all)-1].Last("user"))
	}

	model.Add(llm.Text("two lines"))
	p.types("\x1b[200~a\rb\x1b[201~c\r")
	p.await("two lines")
	p.await("\r> ")
	model.Add(llm.Text("two more"))
	p.types("d\\\re\r")
	p.await("two more")
	p.await("\r> ")
	all := model.Requests()
	one, two := all[len(all)-2].Last("user"), all[len(all)-1].Last("user")
	assert.That(t, one == "a\nbc" && two == "d\ne", "the model was told %q, %q", one, two)

	p.types("/help\r")
	p.await("/model")
	p.await("/undo [STEPS]")
	p.await("\r> ")
	p.types("/nothing\r/Hlep\r/auth\r")
	p.await("unknown command: /nothing; /help lists")
	p.await(`did you mean "/help"?`)
	p.await("unknown command: /auth")
	p.await("\r> ")
	p.types("left alone\x03") // the first Ctrl-C deletes the typed text
	p.types("\x03")
	p.await("Ctrl-C once more")
	p.types("\x03")
	p.ends(0)
}

// TestChatEdits: the keys of the line editor move by characters of any width. Text that was typed before a question
// of the program is kept, and shown again after the question.
func TestChatEdits(t *testing.T) {
	t.Parallel()
	model := llm.New(t, llm.Text("one"), llm.Text("two"))
	p := newTypist(t, workDir(t), nil, "--llm", model.URL, "--model", "m")
	p.types("\u4e3bx y")
	p.await("> \u4e3bx y")
	p.types("\x1b[D\x1b[D\x1b[D")
	p.await("> \u4e3bx y\r\x1b[4C") // behind the prompt and a character of two columns
	p.types("\u3042e\u0301\x7f\x1bOF!\x1b[1;5Dz\x01\x1b[3~\x05\x17end\r")
	p.await("one")
	p.await("\r> ")
	p.types(strings.Repeat("a", 60)) // more than a row
	p.await("> " + strings.Repeat("a", 58) + "\r\naa")
	p.types("\x01\x0b\x1b[A\x1b[A\x1b[B\x1b[A\x0c\r")
	p.await("two")
	p.await("\r> ")
	all := model.Requests()
	assert.Equal(t, all[0].Last("user"), "\u3042x end")
	assert.Equal(t, all[1].Last("user"), "\u3042x end")
	command := llm.Call{Name: "run_command", Arguments: `{"command":["true"]}`}
	model.Add(llm.Reply{Text: []string{"wait"}, Calls: []llm.Call{command}, Stall: true}, llm.Text("three"))
	p.types("run @no.txt\r")
	p.await("@no.txt: there is no such file")
	p.await("wait")
	p.types("half ")
	p.await("half ")
	model.AwaitStall(t)
	model.Release()
	p.await("deny [d]? ")
	p.types("y\r")
	p.await("three")
	p.await("> half ")
	p.types("\x15") // Ctrl-U deletes the line
	p.types("\x04")
	p.ends(0)
}

// TestChatGoesOn: --continue shows the conversation so far and sends it to the model. Ctrl-D ends the chat, also in
// the middle of an answer.
func TestChatGoesOn(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	model := llm.New(t, llm.Text("the first answer"), llm.Reply{
		Thoughts: []string{"well"},
		Text:     []string{"the second"}, Stall: true,
	})
	with := []string{"--llm", model.URL, "--model", "m"}
	piped(t, dir, "the first question", 0, with...)
	p := newTypist(t, dir, []string{"NO_COLOR=1"}, append(with, "--continue")...)
	p.types("more\r")
	p.await("thought: well\r\nthe second")
	p.types("\x04")
	p.ends(0)
	assert.That(t, strings.Contains(p.shown, "> the first question\r\nthe first answer\r\n") &&
		!strings.Contains(p.shown, "\x1b[2m"),
		"the terminal got %q", p.shown)
	r := model.Requests()[1]
	assert.That(t, strings.Contains(r.Body, "the first answer"), "the model was not told of the first answer: %s",
		r.Body)
}

// TestChatIsLeft: a chat ends in order when its terminal hangs up in the middle of an answer, also if the size of the
// terminal is unknown, and when Ctrl-C is typed in the middle of a message.
func TestChatIsLeft(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	model := llm.New(t, llm.Reply{Text: []string{"half"}, Stall: true})
	with := []string{"--llm", model.URL, "--model", "m"}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // else the chat inherits an ignored SIGHUP where nohup runs the tests
	defer signal.Stop(hup)
	p := newTypist(t, dir, nil, with...)
	must.OK(t, pty.Setsize(p.terminal, &pty.Winsize{}))
	p.types("\r")
	p.types("as long as ever\r")
	p.await("> as long as ever\r\nhalf")
	must.OK(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.ends(130)

	p = atTerminal(t, dir, []string{"TERM=dumb"}, with...)
	p.await("once Ctrl-D has ended it")
	p.types("hal\x03")
	p.ends(130)
}

// onTerminal runs a2e on a terminal that is columns wide. It returns what the terminal shows, with \n as line ends,
// and the exit status.
func onTerminal(t *testing.T, dir string, columns uint16, env []string, args ...string) (shown string, code int) {
	t.Helper()
	cmd := command(t, dir, "./a2e", args...)
	cmd.Env = append(cmd.Env, append([]string{"TERM=xterm", "NO_COLOR=", "COLUMNS="}, env...)...)
	terminal := must.Get(pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: columns}))(t)
	defer terminal.Close()
	text, _ := io.ReadAll(terminal) // fails once the program has ended
	_ = cmd.Wait()                  // the caller checks its status
	return strings.ReplaceAll(string(text), "\r\n", "\n"), cmd.ProcessState.ExitCode()
}

// Tables are as wide as the terminal and have colors there; in a pipe nothing is cut or colored.
func TestTablesOnATerminal(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	piped := run(t, dir, nil, "tools", "list").want(t, 0, "").stdout
	assert.That(t, !strings.Contains(piped, "…") && !strings.Contains(piped, "\x1b"), "in a pipe: %s", piped)
	for columns, colored := range map[uint16]bool{40: true, 80: false, 200: true} {
		env := []string{"NO_COLOR=1"}
		if colored {
			env = nil
		}
		shown, code := onTerminal(t, dir, columns, env, "tools", "list")
		assert.That(t, code == 0 && strings.HasPrefix(shown, "\x1b[1mTOOL\x1b[0m") == colored, "exit status %d: %q",
			code, shown)
		plain := strings.NewReplacer("\x1b[1m", "", "\x1b[0m", "").Replace(shown)
		widest := 0
		for line := range strings.Lines(plain) {
			widest = max(widest, len([]rune(line))-1)
		}
		assert.That(t, widest <= int(columns) && (widest == int(columns) || columns == 200) &&
			strings.Contains(plain, "\nwrite_file "),
			"%d columns on %d:\n%s", widest, columns, plain)
	}
	shown, _ := onTerminal(t, dir, 200, []string{"COLUMNS=40"}, "tools", "list")
	assert.Contains(t, shown, "…", "COLUMNS does not count: no … in")
}

// TestWaitingIsShown: while a tool runs at a terminal, a line names the tool and its time; the line is erased at the
// end. In a pipe there is no such line.
func TestWaitingIsShown(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	writeConfig(t, dir, "state_dir: state\nplugins: {tools: {allowed_commands: [sleep]}}\n")
	shown, code := onTerminal(t, dir, 60, nil, "tools", "call", "run_command", "command=sleep", "command=2.5")
	assert.That(t, code == 0 && regexp.MustCompile(`\r\x1b\[2Krun_command… \d+s`).MatchString(shown) &&
		strings.Contains(shown, "\x1b[1A\x1b[J{\n"), "exit status %d: %q", code, shown)
	out := run(t, dir, nil, "tools", "call", "run_command", "command=sleep", "command=1.2").want(t, 0, "")
	assert.Equal(t, out.stderr, "", "in a pipe")
}

// TestMistypedAtATerminal: a mistyped command ends at once with a hint. It must not start the host, which would wait
// for requests.
func TestMistypedAtATerminal(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for typed, says := range map[string]string{
		"srve": `did you mean "serve"?`, "sereve --config x": `did you mean "serve"?`,
		"env lst": `did you mean "list"?`, "help mcq": `did you mean "mcp"`, "--versoin": "--version",
		"tools": "expected one of", "schema confg": `must be one of`, "completion csh": "must be one of",
		"agents": `expected "list"`, "xyzzy": "unexpected argument xyzzy",
	} {
		shown, code := onTerminal(t, dir, 80, nil, strings.Fields(typed)...)
		assert.That(t, code == 2 && strings.Contains(shown, says), "%s: exit status %d, want 2 and %s: %s", typed, code,
			says, shown)
	}
}

// TestChainRunOnATerminal: on a terminal the running nodes are redrawn in place below the nodes that have ended. Only
// the result goes to stdout.
func TestChainRunOnATerminal(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"c.yaml": `
nodes:
- {node_id: join, kind: proc, name: sleep, input: {args: ["1"]}, next_node: end}
- {node_id: end, kind: tool, name: echo, input_map: {text: input.name}}
`})
	terminal, stderr, err := pty.Open()
	must.OK(t, err)
	defer terminal.Close()
	cmd := command(t, dir, "./a2e", "chain", "run", "c.yaml", "name=ada")
	var stdout strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, stderr
	shown := make(chan string)
	go func() {
		text, _ := io.ReadAll(terminal) // ends in an error when the other end is closed
		shown <- string(text)
	}()
	err = cmd.Run()
	stderr.Close()
	text := <-shown
	assert.That(t, err == nil && stdout.String() == "{\n  \"text\": \"ada\"\n}\n", "%v, %q", err, stdout.String())
	assert.That(t, strings.Contains(text, "▶\x1b[0m join") &&
		regexp.MustCompile(`\x1b\[[12]A\r\x1b\[Jdone   join`).MatchString(text) &&
		strings.Contains(text, "2 of 2 nodes done"), "the terminal got %q", text)
}

// TestChainResumeOnATerminal: at a terminal `chain resume` asks the person about interrupted nodes and approvals
// before the chain continues.
func TestChainResumeOnATerminal(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"c.yaml": `
nodes:
- {node_id: slow, kind: proc, name: sh, input: {args: [-c, "touch begun; sleep 600"]}}
- {node_id: go, kind: approve, message: "Go on?", timeout: 1, deps: [slow]}
`})
	killed := command(t, dir, "./a2e", "chain", "run", "c.yaml", "--id", "x", "-q")
	must.OK(t, killed.Start())
	poll.Eventually(t, "the node runs", func() bool {
		_, err := os.Stat(filepath.Join(dir, "begun"))
		return err == nil
	})
	must.OK(t, killed.Process.Kill())
	_ = killed.Wait() // it was killed
	poll.Eventually(t, "its children have gone too", func() bool {
		return strings.Contains(run(t, dir, nil, "chain", "list").stdout, "interrupted")
	})
	on := func(typed string, args ...string) string {
		terminal, tty, err := pty.Open()
		must.OK(t, err)
		defer terminal.Close()
		cmd := command(t, dir, "./a2e", append([]string{"chain", "resume", "x"}, args...)...)
		cmd.Stdin, cmd.Stderr = tty, tty
		must.Get(io.WriteString(terminal, typed))(t)
		shown := make(chan string)
		go func() {
			text, _ := io.ReadAll(terminal) // ends in an error when the other end is closed
			shown <- string(text)
		}()
		out, _ := cmd.Output()
		tty.Close()
		return <-shown + string(out)
	}
	got := on("\nwhat\ndone\n")
	assert.That(t, strings.Count(got, "slow was under way") == 1 && strings.Contains(got,
		"it is unknown whether it completed"), "left open: %q", got)
	got = on("what\ndone\n")
	assert.That(t, strings.Count(got, "slow was under way") == 2 && strings.Contains(got, "nobody decided"),
		"decided: %q", got)
	got = on("maybe\ny\n")
	assert.That(t, strings.Count(got, "go: Go on? (y/n)") == 2 && strings.HasSuffix(got, "\"by\": \"person\"\n}\n"),
		"approved: %q", got)
}
