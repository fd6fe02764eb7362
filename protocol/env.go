package protocol

import "github.com/go-json-experiment/json/jsontext"

// The message types of capability `env`.
const (
	TypeEnvResetReq      Type = "env/reset/req"
	TypeEnvResetResp     Type = "env/reset/resp"
	TypeEnvStepReq       Type = "env/step/req"
	TypeEnvStepResp      Type = "env/step/resp"
	TypeEnvObserveReq    Type = "env/observe/req"
	TypeEnvObserveResp   Type = "env/observe/resp"
	TypeEnvCloseReq      Type = "env/close/req"
	TypeEnvCloseResp     Type = "env/close/resp"
	TypeEnvSpaceReq      Type = "env/space/req"
	TypeEnvSpaceResp     Type = "env/space/resp"
	TypeEnvRenderReq     Type = "env/render/req"
	TypeEnvRenderResp    Type = "env/render/resp"
	TypeEnvPlanReq       Type = "env/plan/req"
	TypeEnvPlanResp      Type = "env/plan/resp"
	TypeEnvBatchStepReq  Type = "env/batch_step/req"
	TypeEnvBatchStepResp Type = "env/batch_step/resp"
	TypeEnvExpListReq    Type = "env/exp/list/req"
	TypeEnvExpListResp   Type = "env/exp/list/resp"
	TypeEnvStatePush     Type = "env/state/push"
	TypeEnvDataResetReq  Type = "env/data/reset/req"
	TypeEnvDataResetResp Type = "env/data/reset/resp"
	TypeEnvDataAddReq    Type = "env/data/add/req"
	TypeEnvDataAddResp   Type = "env/data/add/resp"
	TypeEnvDataGetReq    Type = "env/data/get/req"
	TypeEnvDataGetResp   Type = "env/data/get/resp"
)

// EnvResetRequest starts a new episode (`env/reset/req`).
type EnvResetRequest struct {
	EnvName string `json:"env_name"` // a plugin's name or its environment's
	Seed    *int64 `json:"seed"`     // equal seeds lead to equal episodes; nil = any
	Options Object `json:"options"`
}

// EnvResetResponse answers an EnvResetRequest (`env/reset/resp`).
type EnvResetResponse struct {
	Obs EnvObservation `json:"obs"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvResetResponse) SetDefaults() { r.Obs.SetDefaults() }

// EnvObservation is what an agent sees of an episode after a reset or a step.
type EnvObservation struct {
	EpisodeID string         `json:"episode_id"`
	StepNum   int            `json:"step_num"` // steps taken so far
	State     map[string]any `json:"state"`
	Done      bool           `json:"done"`            // the episode reached its end
	Truncated bool           `json:"truncated"`       // the episode was cut short
	Reward    *float64       `json:"reward,omitzero"` // of the last step; 0 before the first
	CreatedAt float64        `json:"created_at"`
	Metadata  map[string]any `json:"metadata"`
}

// SetDefaults sets what the schema says for absent fields.
func (o *EnvObservation) SetDefaults() { o.Reward = new(0.0) }

// EnvStepRequest takes one action (`env/step/req`).
type EnvStepRequest struct {
	EpisodeID string `json:"episode_id"`
	Action    Object `json:"action"` // {"type":…} or {"action_type":…,"payload":{}}
}

// DecodeLine implements LineDecoder, because steps are the most frequent requests of an agent that
// learns.
func (r *EnvStepRequest) DecodeLine(obj Object) error {
	var f fieldReader
	for i := 0; i < len(obj.members); i += obj.members[i].step() {
		m := &obj.members[i]
		switch string(m.key.text(obj.text)) {
		case "episode_id":
			f.text("episode_id", m.val.of(obj.text), &r.EpisodeID)
		case "action":
			f.object("action", obj, i, &r.Action)
		}
	}
	return f.err()
}

// EnvStepResponse answers an EnvStepRequest (`env/step/resp`).
type EnvStepResponse struct {
	Obs EnvObservation `json:"obs"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvStepResponse) SetDefaults() { r.Obs.SetDefaults() }

// EnvObserveRequest looks without acting (`env/observe/req`).
type EnvObserveRequest struct {
	EpisodeID string `json:"episode_id"`
}

// EnvObserveResponse answers an EnvObserveRequest (`env/observe/resp`).
type EnvObserveResponse struct {
	Obs EnvObservation `json:"obs"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvObserveResponse) SetDefaults() { r.Obs.SetDefaults() }

// EnvCloseRequest ends an episode (`env/close/req`).
type EnvCloseRequest struct {
	EpisodeID string `json:"episode_id"`
}

// EnvCloseResponse answers an EnvCloseRequest (`env/close/resp`).
type EnvCloseResponse struct {
	Closed bool `json:"closed"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvCloseResponse) SetDefaults() { r.Closed = true }

// EnvSpaceRequest asks for the possible actions and states (`env/space/req`).
type EnvSpaceRequest struct {
	EnvName string `json:"env_name"`
}

// EnvSpaceResponse answers an EnvSpaceRequest (`env/space/resp`).
type EnvSpaceResponse struct {
	ActionSpace map[string]any `json:"action_space"`
	StateSchema map[string]any `json:"state_schema"` // JSON Schema of a state
	// ResetOptions is the JSON Schema of the `options` of a reset; nil = not known.
	ResetOptions map[string]any `json:"reset_options,omitzero"`
}

// EnvRenderRequest asks for a picture of an episode (`env/render/req`).
type EnvRenderRequest struct {
	EpisodeID string  `json:"episode_id"`
	Mode      *string `json:"mode"` // such as "screenshot" or "text"
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvRenderRequest) SetDefaults() { r.Mode = new("screenshot") }

// EnvRenderResponse answers an EnvRenderRequest (`env/render/resp`).
type EnvRenderResponse struct {
	Render jsontext.Value `json:"render"` // nil = null
}

// EnvPlanRequest asks which actions look good (`env/plan/req`).
type EnvPlanRequest struct {
	EpisodeID *string `json:"episode_id"`
	State     *Object `json:"state"`
}

// EnvPlanResponse answers an EnvPlanRequest (`env/plan/resp`).
type EnvPlanResponse struct {
	SuggestedActions []map[string]any `json:"suggested_actions"`
}

// EnvBatchStepRequest takes one action in each of several episodes
// (`env/batch_step/req`); both lists have the same length.
type EnvBatchStepRequest struct {
	EpisodeIDs []string `json:"episode_ids"`
	Actions    []Object `json:"actions"`
	Autoreset  string   `json:"autoreset,omitzero"` // "", "disabled", "next_step" or "same_step"
}

// DecodeLine implements LineDecoder, because a batch is long and this avoids a second scan.
func (r *EnvBatchStepRequest) DecodeLine(obj Object) error {
	var f fieldReader
	var problems []FieldError
	if val, ok := obj.Get("episode_ids"); ok && val.Kind() != 'n' {
		r.EpisodeIDs, problems = stringsOf("/episode_ids", val)
		f.problems = append(f.problems, problems...)
	}
	if val, ok := obj.Get("actions"); ok && val.Kind() != 'n' {
		r.Actions, problems = objectsOf("/actions", val)
		f.problems = append(f.problems, problems...)
	}
	if val, ok := obj.Get("autoreset"); ok {
		f.text("autoreset", val, &r.Autoreset)
	}
	return f.err()
}

// EnvBatchStepResponse answers an EnvBatchStepRequest (`env/batch_step/resp`). The
// results have the order of the request.
type EnvBatchStepResponse struct {
	Results []EnvBatchResult `json:"results"`
}

// EnvBatchResult is one step of a batch: an `env/step/resp` inside the answer.
type EnvBatchResult struct {
	Stamp
	Obs EnvObservation `json:"obs"`
}

// EnvExpListRequest asks for the recorded experiences (`env/exp/list/req`).
type EnvExpListRequest struct {
	EpisodeID string `json:"episode_id"` // "" = all
	Limit     int    `json:"limit"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvExpListRequest) SetDefaults() { r.Limit = 100 }

// EnvExpListResponse answers an EnvExpListRequest (`env/exp/list/resp`).
type EnvExpListResponse struct {
	Episodes []map[string]any `json:"episodes"`
}

// EnvStatePush reports a change that no request of the agent caused (`env/state/push`).
type EnvStatePush struct {
	EpisodeID  string           `json:"episode_id"`
	StepID     int              `json:"step_id"`
	ActionID   *string          `json:"action_id"`
	EventType  string           `json:"event_type"`
	Reason     string           `json:"reason"`
	Delta      map[string]any   `json:"delta"`
	Reward     *float64         `json:"reward"`
	RewardInfo NullableMap[any] `json:"reward_info"`
	Terminal   bool             `json:"terminal"`
}

// DefaultDataRoot is the data_root of requests that name none: the data root in the host's
// config.
const DefaultDataRoot = "/workspace/data"

// EnvDataResetRequest restores the data root to its state before any task
// (`env/data/reset/req`). It ends no episode.
type EnvDataResetRequest struct {
	Scope    string `json:"scope"` // all: empty the data root and stage the baseline; baseline: only stage the baseline
	DataRoot string `json:"data_root"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvDataResetRequest) SetDefaults() { r.Scope, r.DataRoot = "all", DefaultDataRoot }

// EnvDataResetResponse answers an EnvDataResetRequest (`env/data/reset/resp`).
type EnvDataResetResponse struct {
	OK       bool   `json:"ok"`
	Restored int    `json:"restored"` // files of the baseline that were staged
	DataRoot string `json:"data_root"`
	Detail   string `json:"detail"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvDataResetResponse) SetDefaults() { r.OK, r.DataRoot = true, DefaultDataRoot }

// EnvDataAddRequest stages files in the data root (`env/data/add/req`). It names the places where
// the host finds the files and does not have their contents.
type EnvDataAddRequest struct {
	Parts    []EnvDataPart `json:"parts"`
	DataRoot string        `json:"data_root"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvDataAddRequest) SetDefaults() { r.DataRoot = DefaultDataRoot }

// EnvDataPart is one file or folder to stage.
type EnvDataPart struct {
	Src       string `json:"src"`      // where the host finds it
	Dest      string `json:"dest"`     // relative to the data root; "" = the name in src
	URI       string `json:"uri"`      // copied to staged of the response
	Checksum  string `json:"checksum"` // sha256:HEX, compared with the staged file; "" = not compared
	SizeBytes *int64 `json:"size_bytes"`
	Mime      string `json:"mime"`
}

// EnvDataAddResponse answers an EnvDataAddRequest (`env/data/add/resp`).
type EnvDataAddResponse struct {
	OK     bool             `json:"ok"` // no part failed
	Added  int              `json:"added"`
	Errors []string         `json:"errors"` // one for each part that was not staged
	Staged []map[string]any `json:"staged"` // uri, dest, size_bytes and checksum of each staged part
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvDataAddResponse) SetDefaults() { r.OK = true }

// EnvDataGetRequest lists the files of the data root (`env/data/get/req`).
type EnvDataGetRequest struct {
	Query          string `json:"query"` // a glob or a part of the path; "" = all
	IncludeContent bool   `json:"include_content"`
	MaxBytes       int64  `json:"max_bytes"` // a larger file is listed without its content
	DataRoot       string `json:"data_root"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvDataGetRequest) SetDefaults() { r.MaxBytes, r.DataRoot = 1<<20, DefaultDataRoot }

// EnvDataGetResponse answers an EnvDataGetRequest (`env/data/get/resp`).
type EnvDataGetResponse struct {
	OK        bool             `json:"ok"`
	Items     []map[string]any `json:"items"`     // uri, dest, size_bytes, checksum, mime and content
	Truncated bool             `json:"truncated"` // a file or its content was left out
	Detail    string           `json:"detail"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *EnvDataGetResponse) SetDefaults() { r.OK = true }
