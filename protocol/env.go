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
)

// EnvResetRequest starts a new episode (`env/reset/req`).
type EnvResetRequest struct {
	EnvName string `json:"env_name"` // a plugin's name or its environment's
	Seed    *int64 `json:"seed"`     // equal seeds give equal episodes; nil = any
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

// DecodeLine implements LineDecoder: steps are the most frequent requests of an agent that
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

// EnvSpaceRequest asks what actions and states there are (`env/space/req`).
type EnvSpaceRequest struct {
	EnvName string `json:"env_name"`
}

// EnvSpaceResponse answers an EnvSpaceRequest (`env/space/resp`).
type EnvSpaceResponse struct {
	ActionSpace map[string]any `json:"action_space"`
	StateSchema map[string]any `json:"state_schema"` // JSON Schema of a state
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
}

// DecodeLine implements LineDecoder: a batch is long, and read without a second look at it.
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
	return f.err()
}

// EnvBatchStepResponse answers an EnvBatchStepRequest, results in its order
// (`env/batch_step/resp`).
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

// EnvStatePush tells of a change that no request of the agent asked for (`env/state/push`).
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
