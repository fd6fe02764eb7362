// Package config reads the host's configuration: one YAML file, or none.
//
// Everything in it is strict: an unknown key, a key that stands twice, a value
// of the wrong type or out of range and a missing variable are errors that name
// file, line and column and say what would be right, all of them at once.
// Values may hold ${NAME} and ${NAME:-default}; $${ stands for ${. A variable
// that is unset or empty counts as missing. Error and warning texts never hold
// the value of a variable or of a secret.
//
// The same struct tags drive decoding and the JSON Schema, here and in the
// option structs of plugins (see [Options.Decode]):
//
//	yaml:"name"        key of the field; "-" leaves it out, ",inline" lifts a struct's fields
//	doc:"text"         description in the schema
//	enum:"a,b"         the texts allowed
//	min:"1" max:"9"    bounds of a number
//	required:"true"    the key must be there
package config

import (
	"path/filepath"

	"a2e/protocol/fleet"
)

// Config is the whole configuration. Load gives it with every path absolute
// or relative to the current folder, and every default filled in.
type Config struct {
	File string `yaml:"-"` // the file it was read from; "" = none, all defaults
	// UserDir is the user's config folder of a2e, where skills may lie; "" = there is none.
	UserDir string `yaml:"-"`
	// Agent is the child agent that the host was started for, from the environment; nil =
	// it was started for no particular one.
	Agent *fleet.Agent `yaml:"-"`

	HostID        string        `yaml:"host_id" doc:"Name of this host; the audit log shows it when session_id_source is host_id."`
	AuthToken     Secret        `yaml:"auth_token" doc:"Token that agents must present; empty = open. Best as a variable: ${A2E_AUTH_TOKEN:-}."`
	Workspace     string        `yaml:"workspace" doc:"The folder the agent works in, relative to the current folder. It must exist."`
	StateDir      string        `yaml:"state_dir" doc:"Where the host keeps its files: spilled output, the audit log, stores."`
	MaxParallel   int           `yaml:"max_parallel" min:"1" max:"1024" doc:"How many requests run at once in a session."`
	Events        Events        `yaml:"events" enum:"invoke,namespaced" doc:"Name of streamed events: invoke/event, or tool/event and skill/event."`
	Limits        Limits        `yaml:"limits" doc:"Bounds of what the host holds in memory."`
	Audit         Audit         `yaml:"audit" doc:"The audit log. It is off without this section, and on with it unless enabled is false."`
	SnapshotStore SnapshotStore `yaml:"snapshot_store" doc:"Where snapshots are kept."`
	SnapshotMode  string        `yaml:"snapshot_mode" doc:"Who decides what is in a snapshot: host = only what the host collects, which is what sessions had in memory when they ended; plugin = only what plugins keep in the store; hybrid = both. Other values are ignored with a warning."`
	Fleet         Fleet         `yaml:"fleet" doc:"What this host says of itself as a worker of a fleet."`
	Sandbox       string        `yaml:"sandbox" enum:"required,best_effort,off" doc:"How child processes are confined. Without it: required for skills, best_effort for the rest."`
	Children      Children      `yaml:"children" doc:"What child processes may see and use beyond that. It has no effect where sandbox is off, save for the bounds that are set."`
	Plugins       []Plugin      `yaml:"plugins" doc:"What the host offers. Without this key every plugin of this build is on; an empty list offers nothing."`
}

// Events is the name under which tools and skills stream.
type Events string

// The values of Events.
const (
	EventsInvoke     Events = "invoke"
	EventsNamespaced Events = "namespaced"
)

// Limits bounds what the host holds, in bytes and requests.
type Limits struct {
	MaxLineBytes   int `yaml:"max_line_bytes" min:"1024" max:"1073741824" doc:"Longest message line; longer ones are refused."`
	MaxQueue       int `yaml:"max_queue" min:"1" max:"16777216" doc:"Requests that may wait; more are answered overloaded."`
	MaxQueueBytes  int `yaml:"max_queue_bytes" min:"1024" max:"17179869184" doc:"Bytes of requests that may wait."`
	MaxOutputBytes int `yaml:"max_output_bytes" min:"1024" max:"1073741824" doc:"Longest output of one call; the rest is spilled to a file."`
}

// Audit says where the audit log goes. A section without `enabled` turns it
// on, an empty one too; without the section it is off.
type Audit struct {
	Enabled         bool            `yaml:"enabled" doc:"Whether entries are written."`
	Path            string          `yaml:"path" doc:"The log file, relative to state_dir."`
	Rotate          Rotate          `yaml:"rotate" doc:"When a new file is begun."`
	SessionIDSource SessionIDSource `yaml:"session_id_source" enum:"uuid,host_id" doc:"What the entries carry as session_id: the session's own id, or host_id."`
}

// Rotate bounds the audit files. A 0 in the file means never to rotate, as it
// does for the Python host; it becomes -1 here, which audit.Options takes so.
type Rotate struct {
	MaxBytes    int64 `yaml:"max_bytes" min:"0" doc:"Size at which a new file is begun, 1024 or more; 0 = never."`
	BackupCount int   `yaml:"backup_count" min:"0" max:"10000" doc:"How many older files are kept; 0 = one file that is never rotated."`
}

// SessionIDSource names the session id of audit entries.
type SessionIDSource string

// The values of SessionIDSource.
const (
	SessionIDFromUUID SessionIDSource = "uuid"
	SessionIDFromHost SessionIDSource = "host_id"
)

// SnapshotStore names a place for snapshots.
type SnapshotStore struct {
	Type   string         `yaml:"type" enum:"sqlite,file,custom" doc:"Kind of store."`
	Config map[string]any `yaml:"config" doc:"Options of that kind: path, the file of sqlite or the folder of file, relative to state_dir."`
}

// Fleet describes this host as a worker.
type Fleet struct {
	AgentID       string   `yaml:"agent_id" doc:"Name of the worker."`
	Model         string   `yaml:"model" doc:"Model it works with."`
	ModelTier     string   `yaml:"model_tier" doc:"Tier of that model."`
	ContextWindow int      `yaml:"context_window" min:"0" doc:"Context window of that model, in tokens."`
	Announce      Announce `yaml:"announce" enum:"first_task,startup" doc:"When the worker announces itself."`
	MaxTasks      int      `yaml:"max_tasks" min:"1" max:"1024" doc:"Tasks it works on at once."`
}

// Announce says when a worker announces itself.
type Announce string

// The values of Announce.
const (
	AnnounceFirstTask Announce = "first_task"
	AnnounceStartup   Announce = "startup"
)

// Children says what child processes may read beyond the system's programs and
// the workspace, and what they may use: 0 is the default, -1 leaves what the
// host has.
type Children struct {
	Read         []string `yaml:"read" doc:"Further files and folders that they may read, relative to the current folder. They must exist."`
	MemoryBytes  int64    `yaml:"memory_bytes" min:"-1" doc:"Memory of a child and all that it starts, together; 0 = half of the machine's, but at least 4 GiB; -1 = no bound."`
	AddressBytes int64    `yaml:"address_bytes" min:"-1" doc:"Address space of each process. Some programs reserve far more than they use. 0 or -1 = no bound."`
	FileBytes    int64    `yaml:"file_bytes" min:"-1" doc:"Largest file that they may write; 0 = 2 GiB, -1 = no bound."`
	OpenFiles    int64    `yaml:"open_files" min:"-1" doc:"Open files of each process; 0 = 16384, -1 = what the host may have."`
	Processes    int64    `yaml:"processes" min:"-1" doc:"Processes and threads that one child may have with all its descendants; 0 = 1024, -1 = no bound."`
	CPUSeconds   int64    `yaml:"cpu_seconds" min:"-1" doc:"Processor time of each process; 0 and -1 = no bound."`
}

// Plugin is one entry of `plugins`.
type Plugin struct {
	Name      string  `yaml:"name" required:"true" doc:"Unique name of the plugin."`
	Type      string  `yaml:"type" required:"true" doc:"What it is; after loading never an alias."`
	Enabled   bool    `yaml:"-"` // from metadata
	Priority  int     `yaml:"-"` // from metadata; higher is asked first
	Exclusive bool    `yaml:"-"` // from metadata; answers its message types alone
	Options   Options `yaml:"metadata" doc:"enabled, priority, exclusive and the options of the type."`
}

// Default is the configuration without a file: every plugin type of
// src.Available on under its own name, the workspace src.Dir, the audit off.
func Default(src Source) *Config {
	c := &Config{
		HostID:        "a2e",
		Workspace:     ".",
		StateDir:      defaultStateDir(src.Getenv),
		MaxParallel:   4,
		Events:        EventsInvoke,
		Limits:        Limits{MaxLineBytes: 16 << 20, MaxQueue: 65536, MaxQueueBytes: 32 << 20, MaxOutputBytes: 1 << 20},
		Audit:         Audit{Path: "audit.jsonl", Rotate: Rotate{MaxBytes: 10 << 20, BackupCount: 5}, SessionIDSource: SessionIDFromUUID},
		SnapshotStore: SnapshotStore{Type: "sqlite"},
		SnapshotMode:  "hybrid",
		Fleet:         Fleet{Announce: AnnounceFirstTask, MaxTasks: 1},
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
			continue // it is nothing without its command
		}
		plugins = append(plugins, Plugin{Name: t, Type: t, Enabled: true})
	}
	return plugins
}
