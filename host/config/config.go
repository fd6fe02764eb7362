// Package config reads the host's configuration: one YAML file, or none.
//
// The reader is strict: an unknown key, a repeated key, a value of the wrong type or out of range and
// a missing variable are errors. They contain file, line and column and a suggestion, and all are
// reported at once. Values may contain ${NAME} and ${NAME:-default}; $${ means a literal ${. A
// variable that is unset or empty counts as missing. Error and warning texts never contain the value
// of a variable or of a secret.
//
// The struct tags below control decoding and the JSON Schema, here and in the option structs of
// plugins (see [Options.Decode]):
//
//	yaml:"name"        key of the field; "-" leaves it out, ",inline" lifts a struct's fields
//	doc:"text"         description in the schema
//	enum:"a,b"         the allowed texts
//	min:"1" max:"9"    limits of a number
//	least:"9"          lower limit of a number that may also be 0 or -1
//	required:"true"    the key must be there
//	filled:"yes"       a text that must not be empty
//	secret:"yes"       a text that must not be shown, and that is a secret by its key
//	shown:"yes"        a text that may be shown, even if it comes from a variable
package config

import (
	"cmp"
	"path/filepath"
	"strings"

	"a2e/host/guard/redact"
	"a2e/host/guard/wall"
	"a2e/host/state/checkpoint"
	"a2e/protocol/fleet"
)

// Config is the whole configuration. Load returns it with all defaults filled in. Each path is
// absolute or relative to the current folder.
type Config struct {
	// File is the absolute path of the config file; "" = there is none, and all values are defaults.
	File string `yaml:"-"`
	// Named reports whether --config or A2E_CONFIG named the file.
	Named bool `yaml:"-"`
	// Untrusted are the absolute paths of a2e.yaml in the current folder and .mcp.json in the workspace if
	// the user does not trust them. Such files are not used.
	Untrusted []string `yaml:"-"`
	// Servers maps the id of each MCP server in the files to its place, FILE:LINE:COLUMN.
	Servers map[string]string `yaml:"-"`
	// Off are the plugin types that are off because the list of plugins does not contain them.
	Off []string `yaml:"-"`
	// Wall protects the host's own files; nil = none are known.
	Wall *wall.Wall `yaml:"-"`
	// UserDir is the user's config folder of a2e, which may contain skills; "" = there is none.
	UserDir string `yaml:"-"`
	// Secrets contains the values of the file that must not be shown: values of variables, tokens, and
	// values for the environment of children. Decoding the options of plugins adds to it.
	Secrets *redact.Set `yaml:"-"`
	// Agent is the child agent for which the host was started, from the environment; nil = no child agent.
	Agent *fleet.Agent `yaml:"-"`

	HostID      string       `yaml:"host_id" shown:"yes"`
	AuthToken   Secret       `yaml:"auth_token"`
	Auth        []AgentToken `yaml:"auth"`
	Workspace   string       `yaml:"workspace" shown:"yes"`
	StateDir    string       `yaml:"state_dir" shown:"yes" filled:"yes"`
	State       Secret       `yaml:"state"`
	MaxParallel int          `yaml:"max_parallel" min:"1" max:"1024" doc:"Requests at once: 4, or 16 for MCP alone."`
	Events      Events       `yaml:"events" enum:"invoke,namespaced"`
	Limits      Limits       `yaml:"limits" doc:"Bounds of what the host holds in memory."`
	Audit       Audit        `yaml:"audit"`
	Checkpoints Checkpoints  `yaml:"checkpoints" switch:"enabled"`
	Store       Store        `yaml:"store" doc:"How the plugins' data is stored."`
	HTTP        HTTP         `yaml:"http"`
	Fleet       Fleet        `yaml:"fleet" doc:"What this host says about itself as a worker of a fleet."`
	Groups      Groups       `yaml:"groups" shown:"yes"`
	Sandbox     string       `yaml:"sandbox" enum:"required,best_effort,off"`
	Children    Children     `yaml:"children"`
	Plugins     []Plugin     `yaml:"plugins"`
	MCPServers  any          `yaml:"mcpServers"`
}

// OffNote returns a message that names the plugin types that the list of plugins leaves off, or "" if
// there are none.
func (c *Config) OffNote() string {
	if len(c.Off) == 0 {
		return ""
	}
	return "off, as the list under plugins does not name them: " + strings.Join(c.Off, ", ") +
		" (a mapping, such as plugins: {tools: {…}}, leaves what it does not name on)"
}

// AgentToken is a token for one agent.
type AgentToken struct {
	Token   Secret `yaml:"token" required:"true" filled:"yes"`
	AgentID string `yaml:"agent_id" required:"true" shown:"yes" doc:"The agent that it is for: the session's agent_id, which a handshake may leave out."`
}

// Events says under which name tools and skills stream.
type Events string

// The values of Events.
const (
	EventsInvoke     Events = "invoke"
	EventsNamespaced Events = "namespaced"
)

// Limits are the limits of the host, in bytes and requests.
type Limits struct {
	MaxLineBytes   int `yaml:"max_line_bytes" min:"1024" max:"1073741824" doc:"Longest message line; longer ones are refused."`
	MaxQueue       int `yaml:"max_queue" min:"1" max:"16777216" doc:"Requests that may wait; more are answered overloaded."`
	MaxQueueBytes  int `yaml:"max_queue_bytes" min:"1024" max:"17179869184" doc:"Bytes of requests that may wait."`
	MaxOutputBytes int `yaml:"max_output_bytes" min:"1024" max:"1073741824" doc:"Longest output of one call; the rest is spilled to a file."`
}

// Audit configures the audit log. A section without `enabled`, even an empty one, turns it on; without
// the section it is off.
type Audit struct {
	Enabled         bool            `yaml:"enabled" doc:"Whether entries are written."`
	Path            string          `yaml:"path" shown:"yes" filled:"yes" doc:"The log file, relative to state_dir."`
	Key             Secret          `yaml:"key" doc:"The key that signs the entries, 16 characters or more, as ${VAR}; whoever has it can forge the log."`
	KeyFile         string          `yaml:"key_file" doc:"The file with that key, relative to state_dir; made when there is none. Without key and key_file it is one in the user's config folder."`
	SessionIDSource SessionIDSource `yaml:"session_id_source" enum:"uuid,host_id" doc:"What the entries carry as session_id: the session's own id, or host_id."`
}

// Checkpoints configures the checkpoints of the workspace. A section without enabled turns them on,
// and so does true in place of the section.
type Checkpoints struct {
	Enabled        bool  `yaml:"enabled" doc:"Whether checkpoints are made."`
	MaxCount       int   `yaml:"max_count" min:"2" max:"100000" doc:"How many are kept; the oldest are deleted."`
	MaxBytes       int64 `yaml:"max_bytes" min:"1048576" doc:"Size of their repository, in bytes; the oldest go."`
	MaxFileBytes   int64 `yaml:"max_file_bytes" min:"1" doc:"Largest file whose content is kept; for larger ones only the fact that they changed is known."`
	MaxFiles       int   `yaml:"max_files" min:"1" max:"10000000" doc:"Files in the workspace at most."`
	IncludeIgnored bool  `yaml:"include_ignored" doc:"Whether files that .gitignore names are kept too."`
	Restore        bool  `yaml:"restore" doc:"Whether agents get the tool checkpoint_restore. The user always has a2e undo."`
	Required       bool  `yaml:"required" doc:"Whether requests that may change files are refused when no checkpoint can be made. Otherwise a warning is logged."`
}

// SessionIDSource says which session id audit entries have.
type SessionIDSource string

// The values of SessionIDSource.
const (
	SessionIDFromUUID SessionIDSource = "uuid"
	SessionIDFromHost SessionIDSource = "host_id"
)

// HTTP configures a2e serve --http.
type HTTP struct {
	Token       Secret   `yaml:"token" doc:"Token that each request must bring, as Authorization: Bearer TOKEN. Without it only addresses of this machine are served. Best as a variable: ${A2E_HTTP_TOKEN}."`
	Origins     []string `yaml:"origins" shown:"yes" doc:"Origins of the web pages that may connect, such as https://app.example.org. Others are refused."`
	MaxSessions int      `yaml:"max_sessions" min:"1" max:"1000000" doc:"Sessions at once."`
	IdleSeconds int      `yaml:"idle_seconds" min:"1" max:"31536000" doc:"Seconds after which a session ends that has no stream and to which nothing is sent."`
	TLSCert     string   `yaml:"tls_cert" shown:"yes" doc:"PEM file with the certificate, and those it depends on. With it and tls_key all is https."`
	TLSKey      string   `yaml:"tls_key" shown:"yes" doc:"PEM file with its key."`
	Metrics     bool     `yaml:"metrics" doc:"Whether GET /metrics tells Prometheus, and who reads OpenMetrics, of requests, sessions and processes. It needs the token as all else does."`
}

// Store configures the store of the plugins.
type Store struct {
	Synchronous Synchronous `yaml:"synchronous" enum:"normal,full" doc:"What an acknowledged write survives: normal = the death of the host; full = a power loss too, as each commit waits for the disk."`
}

// Synchronous says which failures an acknowledged write survives.
type Synchronous string

// The values of Synchronous.
const (
	SynchronousNormal Synchronous = "normal"
	SynchronousFull   Synchronous = "full"
)

// Fleet configures this host as a worker.
type Fleet struct {
	AgentID       string   `yaml:"agent_id" shown:"yes" doc:"Name of the worker."`
	Model         string   `yaml:"model" shown:"yes" doc:"Model it works with."`
	ModelTier     string   `yaml:"model_tier" shown:"yes" doc:"Tier of that model."`
	ContextWindow int      `yaml:"context_window" min:"0" doc:"Context window of that model, in tokens."`
	Announce      Announce `yaml:"announce" enum:"first_task,startup" doc:"When the worker announces itself."`
	MaxTasks      int      `yaml:"max_tasks" min:"1" max:"1024" doc:"How many tasks it works on at once."`
	// Isolation and RequireClean concern the git repository of the workspace.
	Isolation    fleet.Isolation `yaml:"isolation" enum:"none,worktree" doc:"worktree: each task is done in its own git worktree, which leaves its changes on the branch a2e/TASK_ID; none: in the workspace."`
	RequireClean bool            `yaml:"require_clean" doc:"Refuse tasks that are marked as writing while the workspace has changes that are not committed."`
	// ReplyURL and ReplyToken are for tasks that arrive over HTTP, by A2A.
	ReplyURL     string  `yaml:"reply_url" shown:"yes" doc:"Where the result of a task over HTTP is posted, as SendMessage of A2A, if it takes longer than its client waits: the orchestrator's own endpoint, such as http://127.0.0.1:9000/jsonrpc."`
	AnswerWithin float64 `yaml:"answer_within" min:"0" max:"3600" doc:"Seconds that the answer to a message over HTTP waits for the end of its task; 0 = 25."`
	ReplyToken   Secret  `yaml:"reply_token" doc:"The bearer token for that. Best as a variable: ${A2E_REPLY_TOKEN}."`
}

// defaultFleet is the Fleet of a config that sets nothing about a fleet.
var defaultFleet = Fleet{Announce: AnnounceFirstTask, MaxTasks: 1, Isolation: fleet.IsolationNone}

// Given reports whether the config sets something about a fleet.
func (f Fleet) Given() bool { return f != defaultFleet }

// Announce says when a worker announces itself.
type Announce string

// The values of Announce.
const (
	AnnounceFirstTask Announce = "first_task"
	AnnounceStartup   Announce = "startup"
)

// Groups maps the name of each group to the names of its tools.
type Groups map[string][]string

// Children says what child processes may read besides the system's programs and the workspace, and
// what they may use: 0 is the default, -1 keeps the limit of the host.
type Children struct {
	Read         []string `yaml:"read" shown:"yes" filled:"yes"`
	MemoryBytes  int64    `yaml:"memory_bytes" min:"-1" least:"67108864"`
	AddressBytes int64    `yaml:"address_bytes" min:"-1" least:"67108864"`
	FileBytes    int64    `yaml:"file_bytes" min:"-1" doc:"Largest file that they may write; 0 = 2 GiB, -1 = no bound."`
	OpenFiles    int64    `yaml:"open_files" min:"-1" least:"16"`
	Processes    int64    `yaml:"processes" min:"-1" doc:"Processes and threads that one child may have with all its descendants; 0 = 1024, -1 = no bound."`
	DiskBytes    int64    `yaml:"disk_bytes" min:"-1" doc:"What all children together may leave in their homes, temporary and scratch folders, and in the folders of env workspace; 0 = 8 GiB; -1 = no bound. It is checked every second: the children that use the fullest folder are ended and the folder is emptied."`
	CPUSeconds   int64    `yaml:"cpu_seconds" min:"-1" doc:"Processor time of each process; 0 and -1 = no bound."`
}

// Plugin is one entry of `plugins`.
type Plugin struct {
	Name      string  `yaml:"name" required:"true" filled:"yes" doc:"Unique name of the plugin."`
	Type      string  `yaml:"type" required:"true" doc:"What it is; after loading never an alias."`
	Enabled   bool    `yaml:"-"` // from metadata
	Priority  int     `yaml:"-"` // from metadata; higher is asked first
	Exclusive bool    `yaml:"-"` // from metadata; answers its message types alone
	Options   Options `yaml:"metadata" doc:"enabled, priority, exclusive and the options of the type."`
}

// Default returns the configuration without a file: every plugin type in src.Available is on under its
// own name, the workspace is src.Dir, and the audit log is off.
func Default(src Source) *Config {
	c := &Config{
		Secrets:   cmp.Or(src.Secrets, redact.New(nil)),
		HostID:    "a2e",
		Workspace: ".",
		StateDir:  defaultStateDir(src.Getenv),
		Events:    EventsInvoke,
		Limits:    Limits{MaxLineBytes: 16 << 20, MaxQueue: 65536, MaxQueueBytes: 32 << 20, MaxOutputBytes: 1 << 20},
		Checkpoints: Checkpoints{
			MaxCount: checkpoint.DefaultMaxCount, MaxBytes: checkpoint.DefaultMaxBytes,
			MaxFileBytes: checkpoint.DefaultMaxFileBytes, MaxFiles: checkpoint.DefaultMaxFiles,
		},
		Store: Store{Synchronous: SynchronousNormal},
		Audit: Audit{Path: "audit.jsonl", SessionIDSource: SessionIDFromUUID},
		HTTP:  HTTP{MaxSessions: 1000, IdleSeconds: 600},
		Fleet: defaultFleet,
	}
	if address := envOr(src.Getenv)(EnvState); address != "" {
		c.State = NewSecret(address)
	}
	if src.UserConfigDir != "" {
		c.UserDir = filepath.Join(src.UserConfigDir, "a2e")
	}
	c.Plugins = defaultPlugins(src.Available)
	return c
}

func defaultPlugins(types []string) []Plugin {
	plugins := make([]Plugin, 0, len(types))
	for _, t := range types {
		if t == typeExec {
			continue // it needs its command
		}
		plugins = append(plugins, Plugin{Name: t, Type: t, Enabled: true})
	}
	return plugins
}
