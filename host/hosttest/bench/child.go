package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// target is one host to measure.
type target struct {
	name     string
	command  []string // the file's full path, then its arguments
	dialect  *dialect
	dir      string        // where it runs
	home     bool          // dir is its home as well
	logs     string        // folder for its stderr
	pipe     int           // bytes of each pipe's buffer; <= 0 leaves the system's own
	patience time.Duration // see usualPatience
}

// child is one running process of a target.
type child struct {
	*target
	cmd     *exec.Cmd
	in      *os.File
	answers *lines
	logs    *os.File // its stderr
	ended   func() bool
	slow    atomic.Bool // it was killed because a time limit passed
	reaped  bool
}

// usualPatience is the time limit outside of the timed part of a case: for each single
// exchange, and for the end of the process.
const usualPatience = 20 * time.Second

// lookUp finds a command as a shell would, and makes its path independent of
// the folder the host will run in.
func lookUp(name string) (string, error) {
	file, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(file)
}

// start spawns the target. The child is killed when ctx ends.
func (t *target) start(ctx context.Context) (c *child, err error) {
	var pipes [4]*os.File // stdin of the child, our end; our end, stdout of the child
	defer func() {
		if err != nil {
			closeAll(pipes[:])
		}
	}()
	if pipes[0], pipes[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	if pipes[2], pipes[3], err = os.Pipe(); err != nil {
		return nil, err
	}
	setPipe(pipes[1], t.pipe)
	setPipe(pipes[2], t.pipe)
	logs, err := os.CreateTemp(t.logs, "stderr-")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(t.command[0], t.command[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = t.dir, pipes[0], pipes[3], logs
	if t.home {
		cmd.Env = t.strange(os.Environ())
	}
	ownGroup(cmd)
	if err = cmd.Start(); err != nil {
		logs.Close()
		return nil, err
	}
	closeAll([]*os.File{pipes[0], pipes[3]})
	c = &child{target: t, cmd: cmd, in: pipes[1], answers: newLines(pipes[2]), logs: logs}
	c.ended = context.AfterFunc(ctx, func() { killGroup(cmd) })
	return c, nil
}

// strange returns the environment of a user who never used the host before: there is no
// config, and no files of the present user are read or written.
func (t *target) strange(env []string) []string {
	env = slices.DeleteFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "A2E_") })
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"} {
		env = append(env, name+"="+t.dir)
	}
	return env
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// within kills the child if the function it returns is not called in time.
func (c *child) within(limit time.Duration) (stop func()) {
	timer := time.AfterFunc(limit, func() {
		c.slow.Store(true)
		killGroup(c.cmd)
	})
	return func() { timer.Stop() }
}

// exchange sends one request and returns the next line, which stays valid
// until the next read.
func (c *child) exchange(request []byte) ([]byte, error) {
	if _, err := c.in.Write(request); err != nil {
		return nil, c.explain(err)
	}
	for {
		if line := c.answers.next(); line != nil {
			return line, nil
		}
		if err := c.answers.fill(); err != nil {
			return nil, c.explain(err)
		}
	}
}

// greet opens the session.
func (c *child) greet(d *dialect) error {
	defer c.within(c.patience)()
	answer, err := c.exchange([]byte(d.hello))
	if err != nil {
		return err
	}
	if err := d.ready(answer); err != nil {
		return err
	}
	_, err = io.WriteString(c.in, d.after)
	return err
}

// close ends the session like a parent process, by closing stdin, and waits for the
// end. A line that arrives now is one answer too many.
func (c *child) close() error {
	defer c.kill()
	defer c.within(c.patience)()
	if err := c.in.Close(); err != nil {
		return err
	}
	extra := 0
	for {
		for c.answers.next() != nil {
			extra++
		}
		err := c.answers.fill()
		switch {
		case c.slow.Load():
			return fmt.Errorf("it did not end within %v of the end of its input", c.patience)
		case err == io.EOF && extra > 0:
			return fmt.Errorf("%d lines more than requests", extra)
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// kill ends the child at once and frees its resources. It may be called twice.
func (c *child) kill() {
	if c.reaped {
		return
	}
	c.reaped = true
	c.ended()
	killGroup(c.cmd)
	_ = c.cmd.Wait() // its streams tell how it ended
	closeAll([]*os.File{c.in, c.answers.file, c.logs})
	_ = os.Remove(c.logs.Name())
}

// explain returns the error for a stream of the child that ended.
func (c *child) explain(err error) error {
	if c.slow.Load() {
		return errors.New("no answer in time")
	}
	said, _ := os.ReadFile(c.logs.Name())
	if said = bytes.TrimSpace(said); len(said) > 0 {
		return fmt.Errorf("it ended: %w; its last words: %s", err, said[max(0, len(said)-300):])
	}
	return fmt.Errorf("it ended: %w", err)
}

// request is one line to send, in two parts: between them is an id of
// idLen digits that is new for every message.
type request struct {
	before, after string
	text          string // text that an echo must bring back; "" for a ping
	marker        string // text that every good answer has, and no bad one
}

// idLen is the length of the changing part of an id, in hexadecimal digits.
const idLen = 8

// dialect has the messages for one kind of host.
type dialect struct {
	name   string
	hello  string                       // the line that opens a session
	ready  func(answer []byte) error    // returns nil for the right answer to hello
	after  string                       // lines sent after the answer to hello; they get no answer
	ping   request                      // the cheapest exchange
	echo   func(text string) request    // a call of the echo tool
	verify func(sent, got []byte) error // checks one answer in full, except the text
}

// a2eDialect returns the dialect of this project's wire. Its messages have a stamp, a type
// and an id of 32 digits, like those of a usual agent, and no optional fields.
func a2eDialect() *dialect {
	const id = `,"id":"000000000000000000000000`
	return &dialect{
		name: "a2e",
		hello: `{"a2e":"1.0","type":"handshake/req"` + id +
			`00000000","agent_id":"bench","agent_caps":["skill","tools","toolkits","env",` +
			`"proc","memory","learning","chains","mcp","multi_agent","planning","test"],"auth_token":""}` + "\n",
		ready: a2eReady,
		ping:  request{before: `{"a2e":"1.0","type":"ping"` + id, after: `"}`, marker: `"pong"`},
		echo: func(text string) request {
			return request{
				before: `{"a2e":"1.0","type":"tool/call/req"` + id,
				after:  `","tool_name":"echo","arguments":{"text":"` + text + `"}}`, text: text,
				marker: `"tool/call/resp"`,
			}
		},
		verify: a2eVerify,
	}
}

func a2eReady(line []byte) error {
	var m struct {
		Type   string `json:"type"`
		OK     bool   `json:"ok"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("the handshake was answered by no JSON object: %w", err)
	}
	if m.Type != "handshake/resp" || !m.OK {
		return fmt.Errorf("the handshake was answered by %q, reason %q", m.Type, m.Reason)
	}
	return nil
}

func a2eVerify(sent, got []byte) error {
	var q, a struct {
		Type  string `json:"type"`
		ID    string `json:"id"`
		ReqID string `json:"req_id"`
		Data  struct {
			Success bool `json:"success"`
		} `json:"data"`
	}
	if err := errors.Join(json.Unmarshal(sent, &q), json.Unmarshal(got, &a)); err != nil {
		return err
	}
	switch {
	case a.ReqID != q.ID:
		return fmt.Errorf("req_id is %q, want %q", a.ReqID, q.ID)
	case q.Type == "ping" && a.Type != "pong", q.Type == "tool/call/req" && (a.Type != "tool/call/resp" ||
		!a.Data.Success):
		return fmt.Errorf("%s was answered by %s", q.Type, clip(got))
	}
	return nil
}

// mcpDialect returns the dialect for an MCP server with a tool `echo{text}`.
func mcpDialect() *dialect {
	const head = `{"jsonrpc":"2.0","id":"`
	return &dialect{
		name: "mcp",
		hello: head + `hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
			`"clientInfo":{"name":"bench","version":"1.0.0"}}}` + "\n",
		ready: func(line []byte) error { return mcpResult(line, "hello") },
		after: `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n",
		ping:  request{before: head, after: `","method":"ping"}`, marker: `"result"`},
		echo: func(text string) request {
			return request{
				before: head, after: `","method":"tools/call","params":{"name":"echo","arguments":{"text":"` + text + `"}}}`,
				text: text, marker: `"result"`,
			}
		},
		verify: func(sent, got []byte) error {
			var q struct {
				ID string `json:"id"`
			}
			if err := json.Unmarshal(sent, &q); err != nil {
				return err
			}
			return mcpResult(got, q.ID)
		},
	}
}

// mcpResult returns nil for a result with this id that is not marked as an error.
func mcpResult(line []byte, id string) error {
	var m struct {
		ID     jsontext.Value `json:"id"`
		Result *struct {
			IsError bool `json:"isError"`
		} `json:"result"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("the answer is not a JSON-RPC response: %w", err)
	}
	if m.Result == nil || m.Result.IsError || string(m.ID) != `"`+id+`"` {
		return fmt.Errorf("request %q was answered by %s", id, clip(line))
	}
	return nil
}

// lineDialect returns the dialect for a program that sends each line back. Its ping is the
// ping of a2e, for comparison; its echo is a line with only the text.
func lineDialect() *dialect {
	hello := a2eDialect().hello
	same := func(sent, got []byte) error {
		if !bytes.Equal(bytes.TrimSuffix(sent, []byte("\n")), got) {
			return fmt.Errorf("the line did not come back as it was sent but as %s", clip(got))
		}
		return nil
	}
	ping := a2eDialect().ping
	ping.marker = ping.after
	return &dialect{
		name:  "line",
		hello: hello,
		ready: func(line []byte) error { return same([]byte(hello), line) },
		ping:  ping,
		echo: func(text string) request {
			rest := text[min(len(text), idLen):]
			return request{after: rest, text: rest, marker: rest[:min(len(rest), 16)]}
		},
		verify: same,
	}
}

// findDialect returns the dialect of a target. For "auto" it sends the a2e
// handshake, which a line echo sends back, and then tries MCP.
func findDialect(ctx context.Context, t *target, name string) (*dialect, error) {
	a2e, mcp, line := a2eDialect(), mcpDialect(), lineDialect()
	for _, d := range []*dialect{a2e, mcp, line} {
		if d.name == name {
			return d, nil
		}
	}
	if name != "auto" {
		return nil, fmt.Errorf("%q is not a dialect; there are auto, a2e, mcp and line", name)
	}
	answer, err := hail(ctx, t, a2e.hello, 10*time.Second)
	switch {
	case err != nil:
	case line.ready(answer) == nil:
		return line, nil
	case strings.Contains(string(answer), `handshake/resp`):
		return a2e, a2e.ready(answer)
	}
	second, err2 := hail(ctx, t, mcp.hello, 10*time.Second)
	if err2 == nil && mcp.ready(second) == nil {
		return mcp, nil
	}
	return nil, fmt.Errorf("it speaks neither a2e nor MCP nor echoes lines: the a2e handshake gave %s, initialize "+
		"gave %s",
		outcome(answer, err), outcome(second, err2))
}

// hail starts the target, sends one line and returns the first line of its output.
func hail(ctx context.Context, t *target, hello string, limit time.Duration) ([]byte, error) {
	c, err := t.start(ctx)
	if err != nil {
		return nil, err
	}
	defer c.kill()
	defer c.within(limit)()
	return c.exchange([]byte(hello))
}

func outcome(line []byte, err error) string {
	if err != nil {
		return err.Error()
	}
	return clip(line)
}

// clip shortens a line for an error message.
func clip(line []byte) string {
	const most = 200
	if len(line) > most {
		return string(line[:most]) + "…"
	}
	return string(line)
}
