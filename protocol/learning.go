package protocol

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The message types of capability `learning`; those for refinements are below.
const (
	TypeLearnFeedbackReq    Type = "learn/feedback/req"
	TypeLearnFeedbackResp   Type = "learn/feedback/resp"
	TypeLearnExperienceReq  Type = "learn/experience/req"
	TypeLearnExperienceResp Type = "learn/experience/resp"
	TypeLearnAdaptReq       Type = "learn/adapt/req"
	TypeLearnAdaptResp      Type = "learn/adapt/resp"
	TypeLearnStatsReq       Type = "learn/stats/req"
	TypeLearnStatsResp      Type = "learn/stats/resp"
)

// FeedbackPolarity says whether a feedback is positive, negative, neutral or a correction.
type FeedbackPolarity string

// The polarities. PolarityCorrective needs a correction.
const (
	PolarityPositive   FeedbackPolarity = "positive"
	PolarityNegative   FeedbackPolarity = "negative"
	PolarityNeutral    FeedbackPolarity = "neutral"
	PolarityCorrective FeedbackPolarity = "corrective"
)

// FeedbackDimension says which quality of an answer is rated.
type FeedbackDimension string

// The dimensions.
const (
	DimensionCorrectness FeedbackDimension = "correctness"
	DimensionHelpfulness FeedbackDimension = "helpfulness"
	DimensionSafety      FeedbackDimension = "safety"
	DimensionTone        FeedbackDimension = "tone"
	DimensionPlanQuality FeedbackDimension = "plan_quality"
)

// FeedbackSource says who rates.
type FeedbackSource string

// The sources.
const (
	SourceHuman FeedbackSource = "human"
	SourceEnv   FeedbackSource = "env"
	SourceSelf  FeedbackSource = "self"
)

// AdaptStrategy says how routing weights are computed from records.
type AdaptStrategy string

// The strategies. The public specification does not have StrategyThompson.
const (
	StrategyPPO           AdaptStrategy = "ppo"
	StrategyUCB1          AdaptStrategy = "ucb1"
	StrategyEpsilonGreedy AdaptStrategy = "epsilon_greedy"
	StrategySoftmax       AdaptStrategy = "softmax"
	StrategyThompson      AdaptStrategy = "thompson"
	StrategyCustom        AdaptStrategy = "custom"
)

// LearnFeedbackRequest rates turns (`learn/feedback/req`).
type LearnFeedbackRequest struct {
	Feedbacks []Feedback `json:"feedbacks"`
}

// Feedback rates one turn.
type Feedback struct {
	FeedbackID     string            `json:"feedback_id"`
	CorrelationID  string            `json:"correlation_id"` // of the call that is rated
	SessionID      string            `json:"session_id"`
	RatedTurn      *RatedTurn        `json:"rated_turn"`
	Polarity       FeedbackPolarity  `json:"polarity"`
	Score          float64           `json:"score"` // -1 to 1
	Dimension      FeedbackDimension `json:"dimension"`
	Confidence     float64           `json:"confidence"` // 0 to 1
	Comment        string            `json:"comment"`
	Correction     string            `json:"correction"`
	CorrectionSpan *[2]int           `json:"correction_span"` // from, to
	Source         FeedbackSource    `json:"source"`
	AnnotatorID    string            `json:"annotator_id"`
	TS             float64           `json:"ts"` // seconds since 1970
}

// SetDefaults sets what the schema says for absent fields.
func (f *Feedback) SetDefaults() {
	f.Dimension, f.Confidence, f.Source = DimensionHelpfulness, 1, SourceHuman
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It sets the defaults first.
func (f *Feedback) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	type plain Feedback
	*f = Feedback{}
	f.SetDefaults()
	return json.UnmarshalDecode(dec, (*plain)(f))
}

// RatedTurn is the turn that a Feedback is about.
type RatedTurn struct {
	Prompt      string         `json:"prompt"`
	Response    string         `json:"response"`
	Model       string         `json:"model"`
	Environment jsontext.Value `json:"environment"` // nil = null
	Version     *string        `json:"version"`
}

// LearnFeedbackResponse answers a LearnFeedbackRequest (`learn/feedback/resp`).
type LearnFeedbackResponse struct {
	Recorded int      `json:"recorded"`
	NewScore *float64 `json:"new_score"`
}

// LearnExperienceRequest sends experiences (`learn/experience/req`).
type LearnExperienceRequest struct {
	Experiences []Experience `json:"experiences"`
}

// Experience is one step of an episode: state, action, reward, next state.
type Experience struct {
	ExperienceID string  `json:"experience_id"`
	State        Object  `json:"state"`
	Action       Object  `json:"action"`
	Reward       float64 `json:"reward"`
	NextState    Object  `json:"next_state"`
	Done         bool    `json:"done"`
	EpisodeID    string  `json:"episode_id"`
	Step         int     `json:"step"`
	TS           float64 `json:"ts"` // seconds since 1970
}

// LearnExperienceResponse answers a LearnExperienceRequest (`learn/experience/resp`).
type LearnExperienceResponse struct {
	Stored int `json:"stored"`
}

// LearnAdaptRequest recomputes routing weights (`learn/adapt/req`).
type LearnAdaptRequest struct {
	ComponentName string        `json:"component_name"` // "" = all
	Strategy      AdaptStrategy `json:"strategy"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *LearnAdaptRequest) SetDefaults() { r.Strategy = StrategyPPO }

// LearnAdaptResponse answers a LearnAdaptRequest (`learn/adapt/resp`).
type LearnAdaptResponse struct {
	Updated []map[string]any `json:"updated"` // records, each with its routing_weight
	Message string           `json:"message"`
}

// LearnStatsRequest asks for the records of components (`learn/stats/req`).
type LearnStatsRequest struct {
	ComponentName string `json:"component_name"` // "" = all
	History       bool   `json:"history"`        // also list former weights and scores; an extension
}

// LearnStatsResponse answers a LearnStatsRequest (`learn/stats/resp`).
type LearnStatsResponse struct {
	Components []map[string]any `json:"components"` // records, each with its routing_weight
	// with history: {ts, kind, component_name} and either a routing_weight with its strategy and the worth at that
	// time, or an avg_score; an extension
	History []map[string]any `json:"history,omitzero"`
}

// The message types with which capability `learning` refines skills and prompts.
const (
	TypeRefinementPlanReq      Type = "learn/refinement/plan/req"
	TypeRefinementPlanResp     Type = "learn/refinement/plan/resp"
	TypeRefinementApplyReq     Type = "learn/refinement/apply/req"
	TypeRefinementApplyResp    Type = "learn/refinement/apply/resp"
	TypeRefinementRollbackReq  Type = "learn/refinement/rollback/req"
	TypeRefinementRollbackResp Type = "learn/refinement/rollback/resp"
	TypeRefinementReviewReq    Type = "learn/refinement/review/req"
	TypeRefinementReviewResp   Type = "learn/refinement/review/resp"
	TypeRefinementHistoryReq   Type = "learn/refinement/history/req"
	TypeRefinementHistoryResp  Type = "learn/refinement/history/resp"
)

// RefinementPlanRequest asks for proposals (`learn/refinement/plan/req`).
type RefinementPlanRequest struct {
	ComponentName string `json:"component_name"` // "" = all
	Scope         string `json:"scope"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *RefinementPlanRequest) SetDefaults() { r.Scope = "local" }

// RefinementPlanResponse answers a RefinementPlanRequest (`learn/refinement/plan/resp`).
type RefinementPlanResponse struct {
	PlanID    string           `json:"plan_id"`
	Proposals []map[string]any `json:"proposals"`
	Status    string           `json:"status"`
}

// RefinementApplyRequest applies a proposal (`learn/refinement/apply/req`).
type RefinementApplyRequest struct {
	Proposal Object `json:"proposal"`
}

// RefinementApplyResponse answers a RefinementApplyRequest (`learn/refinement/apply/resp`).
type RefinementApplyResponse struct {
	RefinementID      string `json:"refinement_id"`
	AppliedEdits      int    `json:"applied_edits"`
	FailedEdits       int    `json:"failed_edits"`
	RollbackAvailable bool   `json:"rollback_available"`
	Error             string `json:"error"`
}

// RefinementRollbackRequest undoes an applied proposal (`learn/refinement/rollback/req`).
type RefinementRollbackRequest struct {
	RefinementID string `json:"refinement_id"`
}

// RefinementRollbackResponse answers a RefinementRollbackRequest (`learn/refinement/rollback/resp`).
type RefinementRollbackResponse struct {
	RefinementID string `json:"refinement_id"`
	RolledBack   bool   `json:"rolled_back"`
	Error        string `json:"error"`
}

// RefinementReviewRequest asks for a review of a proposal (`learn/refinement/review/req`).
type RefinementReviewRequest struct {
	Proposal Object `json:"proposal"`
}

// RefinementReviewResponse answers a RefinementReviewRequest (`learn/refinement/review/resp`).
type RefinementReviewResponse struct {
	Approved           bool     `json:"approved"`
	ConfidenceAdjusted float64  `json:"confidence_adjusted"` // 0 to 1
	Reasons            []string `json:"reasons"`
	RiskLevel          string   `json:"risk_level"` // low, medium, high
}

// SetDefaults sets what the schema says for absent fields.
func (r *RefinementReviewResponse) SetDefaults() { r.RiskLevel = "low" }

// RefinementHistoryRequest asks for the refinements so far (`learn/refinement/history/req`).
type RefinementHistoryRequest struct{}

// RefinementHistoryResponse answers a RefinementHistoryRequest (`learn/refinement/history/resp`).
type RefinementHistoryResponse struct {
	Entries []map[string]any `json:"entries"`
}
