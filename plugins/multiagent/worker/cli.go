package worker

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// preset is a command-line agent whose flags and output are known. Sources are the public pages of the programs:
// Claude Code's headless mode, `codex exec --json`, `opencode run --format json`, Gemini CLI's headless mode.
type preset struct {
	command []string
	args    func(session string) []string // arguments after the command; session "" = a new session
	env     map[string]string
	// home is the variable for the folder of the program's settings and sessions.
	home string
	read func(line *protocol.Line, o *cliOutput)
}

// presets returns the preset for a value of the option cli.
func presets(name string) (preset, bool) {
	switch name {
	case "claude":
		return preset{
			command: []string{"claude"}, home: "CLAUDE_CONFIG_DIR", read: readClaude,
			args: func(session string) []string {
				return withSession([]string{
					"-p", "--output-format", "stream-json", "--verbose", "--permission-mode",
					"acceptEdits",
					"--allowedTools", "Bash,Read,Edit,Write,Glob,Grep",
				}, "--resume", session)
			},
		}, true
	case "codex":
		return preset{
			command: []string{"codex"}, home: "CODEX_HOME", read: readCodex,
			args: func(session string) []string {
				own := []string{"exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access"}
				return append(withSession(own, "resume", session), "-")
			},
		}, true
	case "opencode":
		return preset{
			command: []string{"opencode"}, home: "HOME", read: readOpenCode,
			args: func(session string) []string {
				return withSession([]string{"run", "--format", "json", "--auto"}, "--session", session)
			},
		}, true
	case "gemini":
		return preset{
			command: []string{"gemini"}, home: "HOME", read: readGemini,
			env: map[string]string{"GEMINI_CLI_TRUST_WORKSPACE": "true"},
			args: func(session string) []string {
				return withSession([]string{"--approval-mode", "yolo", "--output-format", "stream-json"}, "--resume",
					session)
			},
		}, true
	}
	return preset{}, false
}

func withSession(args []string, flag, session string) []string {
	if session == "" {
		return args
	}
	return append(args, flag, session)
}

// arguments returns the command of the worker with the arguments for a task.
func (r *runner) arguments(args []string, t *task) []string {
	session := ""
	if t.talk != nil {
		session = t.talk.Session
	}
	if agent, ok := presets(r.CLI); ok {
		return append(slices.Clone(args), agent.args(session)...)
	}
	return append(args[:1:1], filled(args[1:], t.Task.ContextID, session)...)
}

// settle sets the variables of a known agent. For its settings and sessions it makes a separate folder in the
// state folder, unless the config names one. write has that folder.
func (r *runner) settle(env map[string]string) (write []string, err error) {
	agent, ok := presets(r.CLI)
	if !ok {
		return nil, nil
	}
	for name, value := range agent.env {
		if _, set := env[name]; !set {
			env[name] = value
		}
	}
	if _, set := env[agent.home]; set || r.pool.env.StateDir == "" {
		return nil, nil
	}
	dir := filepath.Join(r.pool.stateDir, "workers", safeName(r.Name))
	env[agent.home] = dir
	return []string{dir}, os.MkdirAll(dir, 0o700)
}

// safeName returns the name of a worker as a name for a folder.
func safeName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == filepath.Separator || r == '.' || r == ':' {
			return '_'
		}
		return r
	}, name)
}

// cliOutput has the relevant parts of the output of a known agent.
type cliOutput struct {
	read    func(*protocol.Line, *cliOutput)
	say     func(text string) // passes a text to the listener of the task
	session string
	text    string            // the final answer
	texts   map[string]string // by id, for parts that are sent several times
	tokens  int
	files   []string
	failure string
	over    bool // it has reported its end
}

// line handles a line of the output. A line that is not an event is passed on unchanged.
func (o *cliOutput) line(raw []byte) {
	var line protocol.Line
	if line.Scan(raw) != nil {
		o.say(string(raw))
		return
	}
	o.read(&line, o)
}

// cliEvent has the fields of all events that this package uses.
type cliEvent struct {
	Type       string  `json:"type"`
	SessionID  string  `json:"session_id"` // Claude Code, Gemini CLI
	SessionID2 string  `json:"sessionID"`  // OpenCode
	ThreadID   string  `json:"thread_id"`  // Codex
	Subtype    string  `json:"subtype"`
	IsError    bool    `json:"is_error"`
	Result     string  `json:"result"`
	Role       string  `json:"role"`
	Content    string  `json:"content"`
	Delta      bool    `json:"delta"`
	Status     string  `json:"status"`
	ToolName   string  `json:"tool_name"`
	Text       string  `json:"message"` // Codex, Gemini CLI: of an error
	Usage      cliUse  `json:"usage"`
	Stats      cliUse  `json:"stats"`
	Item       cliItem `json:"item"`
	Part       cliPart `json:"part"`
	Parameters cliArgs `json:"parameters"`
	Error      struct {
		Message string `json:"message"`
		Data    struct {
			Message string `json:"message"`
		} `json:"data"`
	} `json:"error"`
}

// cliUse has numbers of used tokens.
type cliUse struct {
	Input       int `json:"input_tokens"`
	Output      int `json:"output_tokens"`
	CacheMade   int `json:"cache_creation_input_tokens"`
	CacheRead   int `json:"cache_read_input_tokens"`
	TotalTokens int `json:"total_tokens"`
}

func (u cliUse) sum() int {
	if u.TotalTokens > 0 {
		return u.TotalTokens
	}
	return u.Input + u.Output + u.CacheMade + u.CacheRead
}

// cliItem is an action or a message of Codex.
type cliItem struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Changes []struct {
		Path string `json:"path"`
	} `json:"changes"`
}

// cliPart is a part of a message of OpenCode.
type cliPart struct {
	ID    string `json:"id"`
	Text  string `json:"text"`
	Tool  string `json:"tool"`
	State struct {
		Status string  `json:"status"`
		Input  cliArgs `json:"input"`
	} `json:"state"`
	Tokens struct {
		Input, Output, Reasoning int
		Cache                    struct{ Read, Write int }
	} `json:"tokens"`
}

// cliArgs are the arguments of a call that changes a file.
type cliArgs struct {
	FilePath     string `json:"file_path"`     // Claude Code, Gemini CLI
	FilePath2    string `json:"filePath"`      // OpenCode
	NotebookPath string `json:"notebook_path"` // Claude Code
}

func (a cliArgs) path() string { return cmp.Or(a.FilePath, a.FilePath2, a.NotebookPath) }

// event decodes a line; it leaves out fields with an unexpected type.
func event(line *protocol.Line) (e cliEvent) {
	_ = json.Unmarshal(line.Raw(), &e) // fields with the expected type are set despite an error
	return e
}

// readClaude reads a line of Claude Code. The last line, of type result, has everything except the changed files.
func readClaude(line *protocol.Line, o *cliOutput) {
	e := event(line)
	o.session = cmp.Or(e.SessionID, o.session)
	switch e.Type {
	case "assistant":
		var said struct {
			Message struct {
				Content []struct {
					Type  string  `json:"type"`
					Text  string  `json:"text"`
					Name  string  `json:"name"`
					Input cliArgs `json:"input"`
				} `json:"content"`
			} `json:"message"`
		}
		_ = json.Unmarshal(line.Raw(), &said) // fields with the expected type are set despite an error
		for _, c := range said.Message.Content {
			if c.Text != "" {
				o.say(c.Text)
			}
			if c.Type == "tool_use" && slices.Contains([]string{"Edit", "MultiEdit", "Write", "NotebookEdit"}, c.Name) {
				o.changed(c.Input.path())
			}
		}
	case "result":
		o.text, o.tokens, o.over = e.Result, e.Usage.sum(), true
		if e.IsError || e.Subtype != "" && e.Subtype != "success" {
			o.failure = cmp.Or(e.Result, e.Subtype, "it failed")
		}
	}
}

// readCodex reads a line of `codex exec --json`.
func readCodex(line *protocol.Line, o *cliOutput) {
	e := event(line)
	o.session = cmp.Or(e.ThreadID, o.session)
	switch e.Type {
	case "item.completed":
		if e.Item.Type == "agent_message" {
			o.text = e.Item.Text
			o.say(e.Item.Text)
		}
		for _, c := range e.Item.Changes {
			o.changed(c.Path)
		}
	case "turn.completed":
		o.tokens, o.over, o.failure = o.tokens+e.Usage.Input+e.Usage.Output, true, "" // input includes cached
	case "turn.failed", "error":
		o.failure = cmp.Or(e.Error.Message, e.Text, "it failed")
	}
}

// readOpenCode reads a line of `opencode run --format json`. A part may be sent again with more text.
func readOpenCode(line *protocol.Line, o *cliOutput) {
	e := event(line)
	o.session = cmp.Or(e.SessionID2, o.session)
	switch e.Type {
	case "text":
		if o.texts == nil {
			o.texts = make(map[string]string)
		}
		o.text = e.Part.Text
		o.say(strings.TrimPrefix(e.Part.Text, o.texts[e.Part.ID]))
		o.texts[e.Part.ID] = e.Part.Text
	case "tool_use":
		if e.Part.State.Status == "completed" && slices.Contains([]string{"edit", "write", "patch", "multiedit"},
			e.Part.Tool) {
			o.changed(e.Part.State.Input.path())
		}
	case "step_finish":
		t := e.Part.Tokens
		o.tokens += t.Input + t.Output + t.Reasoning + t.Cache.Read + t.Cache.Write
		o.over = true
	case "error":
		o.failure = cmp.Or(e.Error.Data.Message, e.Error.Message, "it failed")
	}
}

// readGemini reads a line of Gemini CLI with --output-format stream-json, which sends answers in pieces.
func readGemini(line *protocol.Line, o *cliOutput) {
	e := event(line)
	o.session = cmp.Or(e.SessionID, o.session)
	switch e.Type {
	case "message":
		if e.Role != "assistant" {
			return
		}
		if !e.Delta {
			o.text = ""
		}
		o.text += e.Content
		o.say(e.Content)
	case "tool_use":
		o.text = "" // only the text after the last call is the answer
		if slices.Contains([]string{"write_file", "replace"}, e.ToolName) {
			o.changed(e.Parameters.path())
		}
	case "result":
		o.tokens, o.over = e.Stats.sum(), true
		if e.Status == "error" {
			o.failure = cmp.Or(e.Error.Message, "it failed")
		}
	}
}

func (o *cliOutput) changed(path string) {
	if path != "" && !slices.Contains(o.files, path) {
		o.files = append(o.files, path)
	}
}

// pullRequest matches the address of a pull or merge request.
var pullRequest = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`https://[^\s"'<>()]+/(?:pull|merge_requests|pull-requests)/[0-9]+`)
})

// result returns the result of a known agent from its output. If the agent does not answer as its brief
// says, its text becomes the summary.
func (o *cliOutput) result(t *task, dir string) *fleet.Result {
	var res *fleet.Result
	if obj, ok := resultIn([]byte(o.text)); ok {
		res = t.read(obj, utf8.RuneCountInString(o.text))
	} else {
		res = fleet.NewResult(t.Task.TaskID, fleet.StatusDone)
		res.Summary = o.text
		t.estimate(res, utf8.RuneCountInString(o.text))
	}
	if o.tokens > 0 {
		res.TokensSpent, res.TokensEstimated = o.tokens, false
	}
	if found := pullRequest().FindAllString(o.text, -1); res.Artifacts.PR == nil && len(found) > 0 {
		res.Artifacts.PR = &found[len(found)-1]
	}
	for _, path := range o.files {
		if rel, err := filepath.Rel(dir, path); filepath.IsAbs(path) && err == nil && filepath.IsLocal(rel) {
			path = rel
		}
		if path = filepath.ToSlash(path); !slices.Contains(res.Artifacts.FilesChanged, path) {
			res.Artifacts.FilesChanged = append(res.Artifacts.FilesChanged, path)
		}
	}
	return res
}
