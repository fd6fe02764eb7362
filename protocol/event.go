package protocol

// TypeInvokeEvent is the event that tools and skills stream.
const TypeInvokeEvent Type = "invoke/event"

// EventKind says what an event's `data` holds.
type EventKind string

// The kinds of WIRE section 5, each with its payload struct.
const (
	EventProgress EventKind = "progress" // Progress
	EventArtifact EventKind = "artifact" // Artifact
	EventLog      EventKind = "log"      // Log
	EventStatus   EventKind = "status"   // Status
)

// Event is the shape that `invoke/event`, `tool/event` and `skill/event` share,
// with its data as any JSON object.
type Event = EventOf[map[string]any]

// EventOf is an event whose data is a D: one of the payload structs below where
// the kind is known, a map where it is not.
type EventOf[D any] struct {
	Kind EventKind `json:"kind"`
	Data D         `json:"data"`
	Seq  int       `json:"seq"` // 0,1,2… within one request
}

// SetDefaults sets what the schema says for absent fields.
func (e *EventOf[D]) SetDefaults() { e.Kind = EventStatus }

// Progress is the data of a `progress` event.
type Progress struct {
	Pct     float64 `json:"pct"` // 0 to 100
	Message string  `json:"message"`
}

// Artifact is the data of an `artifact` event: a piece of a file.
type Artifact struct {
	Name  string `json:"name"`
	Mime  string `json:"mime"`
	Chunk []byte `json:"chunk"` // base64 on the wire
	Final bool   `json:"final"` // the last piece
}

// Log is the data of a `log` event: one line of output.
type Log struct {
	Level   string `json:"level"`
	Message string `json:"message"`
	Stream  string `json:"stream,omitzero"` // "stdout", "stderr" or absent
}

// Status is the data of a `status` event.
type Status struct {
	Message string `json:"message"`
}

// Stamp is the envelope of a message that stands inside another one, such as the
// events kept in a tool's result. Fields that are not set are left out.
type Stamp struct {
	Type    Type    `json:"type,omitzero"`
	ID      string  `json:"id,omitzero"`
	Version string  `json:"version,omitzero"`
	TS      float64 `json:"ts,omitzero"` // seconds since 1970
	ReqID   string  `json:"req_id,omitzero"`
}

// PastEvent is an event kept in the result of the call that sent it. Its Type is
// `tool/event` in a tool's result and `skill/event` in a skill's, or empty.
type PastEvent struct {
	Stamp
	Event
}
