package protocol

// The message types of capability `proc`.
const (
	TypeProcSpawnReq   Type = "proc/spawn/req"
	TypeProcSpawnResp  Type = "proc/spawn/resp"
	TypeProcWriteReq   Type = "proc/write/req"
	TypeProcWriteResp  Type = "proc/write/resp"
	TypeProcReadEvent  Type = "proc/read/event"
	TypeProcKillReq    Type = "proc/kill/req"
	TypeProcKillResp   Type = "proc/kill/resp"
	TypeProcStatusReq  Type = "proc/status/req"
	TypeProcStatusResp Type = "proc/status/resp"
)

// ProcState is where a process is in its life.
type ProcState string

// The states of protocol/README.md, section 7.
const (
	ProcRunning   ProcState = "running"
	ProcCompleted ProcState = "completed"
	ProcFailed    ProcState = "failed"
	ProcKilled    ProcState = "killed"
	ProcTimedOut  ProcState = "timedout"
	ProcNotFound  ProcState = "not_found"
)

// ProcStream is where output of a process came from.
type ProcStream string

// The streams of protocol/README.md, section 7. StreamKilled marks the last event of a process
// that was killed.
const (
	StreamStdout ProcStream = "stdout"
	StreamStderr ProcStream = "stderr"
	StreamKilled ProcStream = "killed"
)

// ProcSpawnRequest starts a process (`proc/spawn/req`).
type ProcSpawnRequest struct {
	SessionID string   `json:"session_id"`
	Cmd       []string `json:"cmd"` // the first is a bare name of the allow list
	Cwd       string   `json:"cwd"` // within the workspace; "" = its root
	Env       Object   `json:"env"` // name to text
	StdinMode string   `json:"stdin_mode"`
	Timeout   int      `json:"timeout"` // seconds; 0 = the value in the config

	// Metadata is an extension of the schema: it asks for a terminal instead of pipes.
	Metadata ProcTerminal `json:"metadata,omitzero"`
}

// ProcTerminal is the `metadata` of a spawn that asks for a terminal (a pty), and
// of a write that resizes the terminal.
type ProcTerminal struct {
	PTY  bool `json:"pty"`
	Cols int  `json:"cols"` // 1 to 65535; 0 in a spawn = 80, in a write = unchanged
	Rows int  `json:"rows"` // 1 to 65535; 0 in a spawn = 24, in a write = unchanged
}

// SetDefaults sets what the schema says for absent fields.
func (r *ProcSpawnRequest) SetDefaults() { r.StdinMode = "pipe" }

// ProcSpawnResponse answers a ProcSpawnRequest (`proc/spawn/resp`). A refused
// spawn has OK false and Error set.
type ProcSpawnResponse struct {
	ProcID string `json:"proc_id"`
	OK     bool   `json:"ok"`
	PID    int    `json:"pid"`
	Error  string `json:"error"`
}

// ProcWriteRequest writes to a process's stdin (`proc/write/req`).
type ProcWriteRequest struct {
	ProcID string `json:"proc_id"`
	Data   string `json:"data"`
	EOF    bool   `json:"eof"` // close stdin after the data

	// Metadata is an extension of the schema: it resizes the process's terminal.
	Metadata ProcTerminal `json:"metadata,omitzero"`
}

// ProcWriteResponse answers a ProcWriteRequest (`proc/write/resp`).
type ProcWriteResponse struct {
	ProcID string `json:"proc_id"`
	OK     bool   `json:"ok"`
	PID    int    `json:"pid"`
	Error  string `json:"error"`
}

// ProcReadEvent is a piece of a process's output, or reports its end (`proc/read/event`).
type ProcReadEvent struct {
	Event                 // data: {"text":…,"lines":N}, {"base64":…,"lines":N}, at the end {"code":N} or {}
	ProcID     string     `json:"proc_id"`
	StreamType ProcStream `json:"stream_type"`
}

// SetDefaults sets what the schema says for absent fields.
func (e *ProcReadEvent) SetDefaults() {
	e.Event.SetDefaults()
	e.StreamType = StreamStdout
}

// ProcKillRequest signals a whole process tree (`proc/kill/req`).
type ProcKillRequest struct {
	ProcID string `json:"proc_id"`
	Signal string `json:"signal"` // such as "SIGTERM"
}

// SetDefaults sets what the schema says for absent fields.
func (r *ProcKillRequest) SetDefaults() { r.Signal = "SIGTERM" }

// ProcKillResponse answers a ProcKillRequest (`proc/kill/resp`).
type ProcKillResponse struct {
	OK    bool      `json:"ok"`
	State ProcState `json:"state"`
}

// ProcStatusRequest asks for the state of a process (`proc/status/req`).
type ProcStatusRequest struct {
	ProcID string `json:"proc_id"` // "" = all
}

// ProcStatusResponse answers a ProcStatusRequest (`proc/status/resp`).
type ProcStatusResponse struct {
	ProcID string    `json:"proc_id"`
	Status ProcState `json:"status"` // for all: running if any runs, else completed
	Error  string    `json:"error"`
	// Procs is an extension of the schema (protocol/README.md, section 7): the list for a request with
	// an empty ProcID; nil = left out.
	Procs []ProcInfo `json:"procs,omitzero"`
}

// ProcInfo is one process of a ProcStatusResponse.
type ProcInfo struct {
	ProcID    string    `json:"proc_id"`
	Cmd       []string  `json:"cmd"`
	State     ProcState `json:"state"`
	PID       int       `json:"pid"`
	ExitCode  *int      `json:"exit_code"`  // nil while it runs
	StartedAt float64   `json:"started_at"` // seconds since 1970
}
