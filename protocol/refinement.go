package protocol

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

// RefinementApplyRequest carries a proposal out (`learn/refinement/apply/req`).
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

// RefinementRollbackRequest takes an applied proposal back (`learn/refinement/rollback/req`).
type RefinementRollbackRequest struct {
	RefinementID string `json:"refinement_id"`
}

// RefinementRollbackResponse answers a RefinementRollbackRequest (`learn/refinement/rollback/resp`).
type RefinementRollbackResponse struct {
	RefinementID string `json:"refinement_id"`
	RolledBack   bool   `json:"rolled_back"`
	Error        string `json:"error"`
}

// RefinementReviewRequest asks what to think of a proposal (`learn/refinement/review/req`).
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

// RefinementHistoryRequest asks what was refined so far (`learn/refinement/history/req`).
type RefinementHistoryRequest struct{}

// RefinementHistoryResponse answers a RefinementHistoryRequest (`learn/refinement/history/resp`).
type RefinementHistoryResponse struct {
	Entries []map[string]any `json:"entries"`
}
