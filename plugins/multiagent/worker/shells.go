package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"a2e/host"
	"a2e/protocol"
)

// Limits of the commands of a model.
const (
	usualShellTime = 2 * time.Minute
	maxShellTime   = 10 * time.Minute // in the foreground
	maxSpawnTime   = 24 * time.Hour   // in the background
	maxShellOutput = 256 << 10        // unread bytes that are kept of a command in the background
	maxShells      = 32               // commands in the background, with those that have ended
	maxShellAnswer = 24 << 10         // bytes of JSON of one answer of bash_output; the rest waits for the next
	endTime        = 10 * time.Second // for the end of all commands with their task
)

// shells has the commands that a model has started in the background.
type shells struct {
	mu sync.Mutex // guards the fields below
	// by id of the process
	byID  map[string]*background
	begun int // how many there were
}

// background is a command in the background. Its fields are guarded by shells.mu.
type background struct {
	output []byte // output that was not read yet
	lost   int    // dropped bytes before output
	state  string // "" = it still runs
	number int    // counts the commands of the task
}

// take implements host.Taker. It records the output and the end of a process.
func (s *shells) take(_ protocol.Type, body protocol.Object) {
	data, _ := body.Child("data")
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.ofLocked(body.Text("proc_id"))
	if protocol.EventKind(body.Text("kind")) == protocol.EventLog {
		text, isText := data.Get("text")
		if printed, _ := text.Str(); isText {
			one.output = append(one.output, printed...)
		} else {
			one.output = append(one.output, "(bytes that are no text)\n"...)
		}
		if over := len(one.output) - maxShellOutput; over > 0 {
			one.output, one.lost = slices.Clone(one.output[over:]), one.lost+over
		}
		return
	}
	if dropped, some := data.Get("dropped_bytes"); some {
		n, _ := dropped.Int()
		one.lost += int(n)
		return
	}
	one.state = "killed"
	if code, ended := data.Get("code"); ended {
		n, _ := code.Int()
		one.state = fmt.Sprintf("ended with exit status %d", n)
	}
}

// ofLocked returns the command of a process. It makes one if needed, as output may arrive before the answer that
// has the process id.
func (s *shells) ofLocked(id string) *background {
	if s.byID == nil {
		s.byID = make(map[string]*background)
	}
	if s.byID[id] == nil {
		s.begun++
		s.byID[id] = &background{number: s.begun}
	}
	return s.byID[id]
}

// makeRoom forgets the oldest command that has ended, if there are maxShells commands. The error says that all of them
// still run.
func (s *shells) makeRoom() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byID) < maxShells {
		return nil
	}
	oldest := ""
	for id, one := range s.byID {
		if one.state != "" && (oldest == "" || one.number < s.byID[oldest].number) {
			oldest = id
		}
	}
	if oldest == "" {
		return protocol.Errorf(protocol.CodeToolError, "%d commands run in the background already; stop one with "+
			"kill_bash first", maxShells)
	}
	delete(s.byID, oldest)
	return nil
}

// background reports whether commands may run in the background. A task with its own workspace has no background
// commands, as the host's processes run in the host's workspace.
func (h *hands) background() bool {
	return h.box == nil && h.run.serves(protocol.CapProc) && h.may("bash_output", string(protocol.CapProc)) &&
		h.run.lets("bash_output")
}

// bash returns the tool that runs commands of a shell, or nil if the host runs no programs. It runs commands with
// run_command, and in the background with proc/spawn, so that the config of these applies.
func (h *hands) bash() *hand {
	_, known := h.run.pool.services.Tool(toolRun)
	if !known && h.box == nil || !h.may("bash", toolRun, string(protocol.CapTools)) {
		return nil
	}
	background := ""
	if h.background() {
		background = `,"run_in_background":{"type":"boolean","description":"Answer at once with an id for bash_output ` +
			`and kill_bash. The command ends with the task, or after timeout, if there is one."}`
	}
	return &hand{
		"bash", "Run a command line with bash in the workspace. Each call begins a new shell: no folder or " +
			"variable stays set.",
		`{"type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"number","description":` +
			`"Milliseconds; default 120000, at most 600000 in the foreground."},` +
			`"description":{"type":"string","description":"What the command does, in a few words."}` + background +
			`},"required":["command"]}`,
		false, protocol.CapTools, (*hands).runBash,
	}
}

// shellNames are the shells to try, in this order, as not every machine has bash.
var shellNames = []string{"bash", "sh"}

func (h *hands) runBash(ctx context.Context, args protocol.Object) (*protocol.ToolResult, error) {
	in, err := decode[struct {
		Command    string  `json:"command"`
		Timeout    float64 `json:"timeout"`
		Background bool    `json:"run_in_background"`
	}](args)
	most := maxShellTime
	if err == nil && in.Background {
		most = maxSpawnTime
	}
	switch {
	case err != nil:
		return nil, err
	case strings.TrimSpace(in.Command) == "":
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "command should not be empty")
	case in.Background && !h.background():
		return nil, protocol.Errorf(protocol.CodeToolDenied, "no command may run in the background here; run it "+
			"without run_in_background")
	case in.Timeout < 0 || in.Timeout > float64(most.Milliseconds()):
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "timeout is %g; it should be at most %d "+
			"milliseconds here, and at most %d in the background", in.Timeout, maxShellTime.Milliseconds(),
			maxSpawnTime.Milliseconds())
	}
	limit := usualShellTime
	if in.Timeout > 0 {
		limit = time.Duration(in.Timeout * float64(time.Millisecond))
	}
	var first error // about the shell that the model named
	for _, name := range shellNames {
		argv := []string{name, "-c", in.Command}
		var result *protocol.ToolResult
		if in.Background {
			result, err = h.spawn(ctx, argv, in.Timeout)
		} else {
			result, err = h.runCommand(ctx, argv, limit)
		}
		if refused := (*protocol.Error)(nil); !errors.As(err, &refused) || refused.Code != protocol.CodeToolDenied {
			return result, err
		}
		first = cmp.Or(first, err)
	}
	return nil, first
}

// runCommand runs a program to its end.
func (h *hands) runCommand(ctx context.Context, argv []string, limit time.Duration) (*protocol.ToolResult, error) {
	text, err := protocol.AppendJSON(nil, map[string]any{"command": argv})
	if err != nil {
		return nil, err
	}
	args, err := protocol.ParseObject(text)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	if h.box != nil {
		return h.box.Call(ctx, toolRun, args)
	}
	var resp protocol.ToolCallResponse
	req := protocol.ToolCallRequest{ToolName: toolRun, Arguments: args, Timeout: int(2 * maxShellTime / time.Second)}
	err = h.ask(ctx, protocol.TypeToolCallReq, &req, &resp)
	return &resp.Data, err
}

// spawn starts a program in the background. It is stopped after limit milliseconds; 0 = the limit of the config.
func (h *hands) spawn(ctx context.Context, argv []string, limit float64) (*protocol.ToolResult, error) {
	if err := h.shells.makeRoom(); err != nil {
		return nil, err
	}
	if err := h.run.pool.services.Checkpoint(ctx, "bash"); err != nil {
		return nil, err
	}
	var resp protocol.ProcSpawnResponse
	req := protocol.ProcSpawnRequest{Cmd: argv, StdinMode: "null"}
	if limit > 0 {
		req.Timeout = int(math.Ceil(limit / 1000))
	}
	err := h.ask(host.TakeStreams(ctx, h.shells.take), protocol.TypeProcSpawnReq, &req, &resp)
	switch {
	case err != nil:
		return nil, err
	case !resp.OK:
		return nil, protocol.Errorf(protocol.CodeToolDenied, "%s", resp.Error)
	}
	h.shells.mu.Lock()
	h.shells.ofLocked(resp.ProcID)
	h.shells.mu.Unlock()
	return told(map[string]any{"bash_id": resp.ProcID, "state": "running"})
}

// knownLocked returns a command in the background by its id, or an error that names the existing ids.
func (s *shells) knownLocked(id string) (*background, error) {
	if one := s.byID[id]; one != nil {
		return one, nil
	}
	there := "none was begun"
	if len(s.byID) > 0 {
		there = "there are " + strings.Join(slices.Sorted(maps.Keys(s.byID)), ", ")
	}
	return nil, protocol.Errorf(protocol.CodeToolError, "there is no command %.64q in the background; %s", id, there)
}

func (h *hands) bashOutput(_ context.Context, args protocol.Object) (*protocol.ToolResult, error) {
	in, err := decode[struct {
		ID     string `json:"bash_id"`
		Filter string `json:"filter"`
	}](args)
	if err != nil {
		return nil, err
	}
	var filter *regexp.Regexp
	if in.Filter != "" {
		if filter, err = regexp.Compile(in.Filter); err != nil {
			return nil, protocol.Errorf(protocol.CodeSchemaViolation, "filter is not a regular expression (RE2): %v",
				err)
		}
	}
	h.shells.mu.Lock()
	defer h.shells.mu.Unlock()
	one, err := h.shells.knownLocked(in.ID)
	if err != nil {
		return nil, err
	}
	result := map[string]any{"state": cmp.Or(one.state, "running"), "output": one.read(filter)}
	if one.lost > 0 {
		result["dropped_bytes"] = one.lost
	}
	if left := len(one.output); left > 0 {
		result["unread_bytes"] = left
	}
	one.lost = 0
	return told(result)
}

// read takes the next piece of the output. With a filter, it first drops the lines that do not match, and leaves an
// unfinished line of a running command for the next read.
func (b *background) read(filter *regexp.Regexp) string {
	n := len(b.output)
	if filter != nil {
		whole := bytes.LastIndexByte(b.output, '\n') + 1
		if b.state != "" {
			whole = n
		}
		var matching []byte
		for line := range bytes.Lines(b.output[:whole]) {
			if filter.Match(bytes.TrimSuffix(line, []byte("\n"))) {
				matching = append(matching, line...)
			}
		}
		n = len(matching)
		b.output = append(matching, b.output[whole:]...)
	}
	n = fitting(b.output[:n])
	piece := string(b.output[:n])
	b.output = b.output[n:]
	return piece
}

// fitting returns how many bytes of a text one answer can have: all, or whole lines, or at least whole characters.
func fitting(text []byte) int {
	n := min(len(text), maxShellAnswer)
	for len(protocol.AppendString(nil, text[:n])) > maxShellAnswer {
		n /= 2
	}
	if n == len(text) {
		return n
	}
	if end := bytes.LastIndexByte(text[:n], '\n'); end >= 0 {
		return end + 1
	}
	for n > 1 && !utf8.RuneStart(text[n]) {
		n--
	}
	return n
}

func (h *hands) killBash(ctx context.Context, args protocol.Object) (*protocol.ToolResult, error) {
	in, err := decode[struct {
		ID string `json:"shell_id"`
	}](args)
	if err != nil {
		return nil, err
	}
	h.shells.mu.Lock()
	one, err := h.shells.knownLocked(in.ID)
	over := err == nil && one.state != ""
	h.shells.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case over:
		return told(map[string]any{"shell_id": in.ID, "state": "was over"})
	}
	return told(map[string]any{"shell_id": in.ID, "state": h.kill(ctx, in.ID)})
}

// kill ends a command with all its processes, and returns its state.
func (h *hands) kill(ctx context.Context, id string) protocol.ProcState {
	var resp protocol.ProcKillResponse
	req := protocol.ProcKillRequest{ProcID: id, Signal: "SIGKILL"}
	if err := h.ask(ctx, protocol.TypeProcKillReq, &req, &resp); err != nil { // the command or its session has ended
		return protocol.ProcNotFound
	}
	return resp.State
}

// end stops the commands that still run.
func (s *shells) end(ctx context.Context, h *hands) {
	ctx, stop := context.WithTimeout(ctx, endTime)
	defer stop()
	s.mu.Lock()
	var running []string
	for id, one := range s.byID {
		if one.state == "" {
			running = append(running, id)
		}
	}
	s.mu.Unlock()
	for _, id := range running {
		h.kill(ctx, id)
	}
}
