package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// Limits of the commands of a model.
const (
	usualShellTime = 2 * time.Minute
	maxShellTime   = 10 * time.Minute // in the foreground
	maxShellOutput = 256 << 10        // unread bytes that are kept of a command in the background
)

// shells has the commands that a model has started in the background.
type shells struct {
	mu   sync.Mutex
	byID map[string]*background // guarded by mu
}

// background is a command in the background. Its fields are guarded by shells.mu.
type background struct {
	output []byte // output that was not read yet
	lost   int    // dropped bytes before output
	state  string // "" = it still runs
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
		s.byID[id] = new(background)
	}
	return s.byID[id]
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
			`and kill_bash. The command ends with the task."}`
	}
	return &hand{
		"bash", "Run a command line with bash in the workspace. Each call begins a new shell: no folder or " +
			"variable stays set.",
		`{"type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"number","description":` +
			`"Milliseconds; default 120000, at most 600000."},"description":{"type":"string","description":` +
			`"What the command does, in a few words."}` + background + `},"required":["command"]}`,
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
	switch {
	case err != nil:
		return nil, err
	case strings.TrimSpace(in.Command) == "":
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "command should not be empty")
	case in.Background && !h.background():
		return nil, protocol.Errorf(protocol.CodeToolDenied, "no command may run in the background here; run it "+
			"without run_in_background")
	}
	limit := usualShellTime
	if in.Timeout > 0 {
		limit = time.Duration(min(in.Timeout, float64(maxShellTime.Milliseconds())) * float64(time.Millisecond))
	}
	for _, name := range shellNames {
		argv := []string{name, "-c", in.Command}
		var result *protocol.ToolResult
		if in.Background {
			result, err = h.spawn(ctx, argv)
		} else {
			result, err = h.runCommand(ctx, argv, limit)
		}
		if refused := (*protocol.Error)(nil); !errors.As(err, &refused) || refused.Code != protocol.CodeToolDenied {
			return result, err
		}
	}
	return nil, err
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

// spawn starts a program in the background.
func (h *hands) spawn(ctx context.Context, argv []string) (*protocol.ToolResult, error) {
	if err := h.run.pool.services.Checkpoint(ctx, "bash"); err != nil {
		return nil, err
	}
	var resp protocol.ProcSpawnResponse
	req := protocol.ProcSpawnRequest{Cmd: argv, StdinMode: "null"}
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
	filter, err := regexp.Compile(in.Filter)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "filter is no regular expression (RE2): %v", err)
	}
	h.shells.mu.Lock()
	defer h.shells.mu.Unlock()
	one, err := h.shells.knownLocked(in.ID)
	if err != nil {
		return nil, err
	}
	shown := string(one.output)
	if in.Filter != "" {
		var some strings.Builder
		for line := range strings.Lines(shown) {
			if filter.MatchString(strings.TrimSuffix(line, "\n")) {
				some.WriteString(line)
			}
		}
		shown = some.String()
	}
	result := map[string]any{"state": one.state, "output": shown}
	if one.state == "" {
		result["state"] = "running"
	}
	if one.lost > 0 {
		result["dropped_bytes"] = one.lost
	}
	one.output, one.lost = nil, 0
	return told(result)
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
