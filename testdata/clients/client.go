// A client of a2e in one file, to be taken along: the standard library, and nothing else. Change
// the package to your own.
//
//	host, err := Start(ctx, exec.Command("./a2e"), nil)
//	data, err := host.Call(ctx, "list_dir", Fields{"path": "."}, nil)
//	err = host.Close()
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fields are those of a message.
type Fields map[string]any

func (f Fields) text(key string) string { text, _ := f[key].(string); return text }

// Error is an `error` of the host, or a tool that failed. Answer is all of what it said.
type Error struct {
	Code, Message string
	Answer        Fields
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// ErrGone is what requests end with that the host had not answered when it ended.
var ErrGone = errors.New("the host has ended")

// Host is a host as a child process. Its methods may be called at the same time.
type Host struct {
	cmd       *exec.Cmd
	onMessage func(Fields) Fields
	ended     chan struct{} // closed when nothing more is read

	writing sync.Mutex
	stdin   io.WriteCloser

	mu      sync.Mutex // guards what follows
	sent    int
	waiting map[string]call
}

type call struct {
	answer  chan Fields // has room for it
	onEvent func(Fields)
}

// Start starts a host and opens a session. onMessage, which may be nil, gets what belongs to no
// request that waits, and requests of the host, whose answer it returns. It and onEvent run where
// answers are read: they must not wait.
func Start(ctx context.Context, cmd *exec.Cmd, onMessage func(Fields) Fields) (*Host, error) {
	h := &Host{cmd: cmd, onMessage: onMessage, ended: make(chan struct{}), waiting: map[string]call{}}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if h.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go h.read(bufio.NewReader(stdout))
	hello, err := h.Do(ctx, "handshake/req", Fields{"agent_id": "go", "agent_caps": []string{}, "auth_token": ""}, nil)
	if err == nil && hello["ok"] != true {
		err = &Error{hello.text("reason"), "the host refused the session", hello}
	}
	if err != nil {
		_ = h.Close()
		return nil, err
	}
	return h, nil
}

// Do sends a request and returns its answer; the end of ctx stops it. onEvent may be nil.
func (h *Host) Do(ctx context.Context, typ string, fields Fields, onEvent func(Fields)) (Fields, error) {
	c := call{make(chan Fields, 1), onEvent}
	h.mu.Lock()
	h.sent++
	id := strconv.Itoa(h.sent)
	h.waiting[id] = c
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.waiting, id)
		h.mu.Unlock()
	}()
	h.write(typ, id, fields)
	select {
	case answer := <-c.answer:
		return answer, failure(answer)
	case <-ctx.Done():
		h.write("cancel", "", Fields{"req_id": id})
		return nil, context.Cause(ctx)
	case <-h.ended:
	}
	select {
	case answer := <-c.answer: // the last thing that it did
		return answer, failure(answer)
	default:
		return nil, ErrGone
	}
}

func failure(answer Fields) error {
	if answer["type"] != "error" {
		return nil
	}
	return &Error{answer.text("code"), answer.text("message"), answer}
}

// Call returns the data of a tool's result.
func (h *Host) Call(ctx context.Context, tool string, arguments Fields, onEvent func(Fields)) (Fields, error) {
	answer, err := h.Do(ctx, "tool/call/req", Fields{"tool_name": tool, "arguments": arguments,
		"streaming": onEvent != nil}, onEvent)
	if err != nil {
		return nil, err
	}
	result := Fields(answer["data"].(map[string]any))
	data, _ := result["data"].(map[string]any)
	if result["success"] != true {
		return data, &Error{result.text("error_code"), result.text("error"), answer}
	}
	return data, nil
}

// Close ends the host by closing its stdin: what runs gets its time. After 15 s it is killed.
func (h *Host) Close() error {
	_ = h.stdin.Close()
	defer time.AfterFunc(15*time.Second, func() { _ = h.cmd.Process.Kill() }).Stop()
	<-h.ended
	return h.cmd.Wait()
}

// write sends a message. A host that has ended takes none, which the reader sees.
func (h *Host) write(typ, id string, fields Fields) {
	all := Fields{"a2e": "1.0", "type": typ, "id": id}
	maps.Copy(all, fields)
	h.writing.Lock()
	defer h.writing.Unlock()
	_ = json.NewEncoder(h.stdin).Encode(all)
}

func (h *Host) read(lines *bufio.Reader) {
	defer close(h.ended)
	for {
		line, err := lines.ReadBytes('\n')
		var m Fields
		if err != nil || json.Unmarshal(line, &m) != nil {
			return
		}
		h.deliver(m, m.text("type"))
	}
}

func (h *Host) deliver(m Fields, typ string) {
	h.mu.Lock()
	c, waits := h.waiting[m.text("req_id")]
	h.mu.Unlock()
	event := strings.HasSuffix(typ, "/event") || strings.HasSuffix(typ, "/push")
	name, asks := strings.CutSuffix(typ, "/req")
	switch {
	case event && c.onEvent != nil:
		c.onEvent(m)
	case waits && !event && !asks:
		c.answer <- m
	default:
		var answer Fields
		if h.onMessage != nil {
			answer = h.onMessage(m)
		}
		if asks && answer == nil {
			answer = Fields{"error": "this client does not answer " + typ}
		}
		if asks {
			reply := Fields{"req_id": m["id"], "server_id": m["server_id"], "mcp_request_id": m["mcp_request_id"]}
			maps.Copy(reply, answer)
			h.write(name+"/resp", "", reply)
		}
	}
}
