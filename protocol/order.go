package protocol

// Access is how a request uses the thing that a Claim names.
type Access int

// The accesses. An exclusive request waits for earlier exclusive and shared requests of its key. A
// shared request, and one that follows, waits for earlier exclusive requests. No request waits
// for one that follows, as its duration is unknown.
const (
	Shared Access = iota + 1
	Exclusive
	Follows
)

// WaitsFor reports whether a request with this access waits for an earlier one of the same
// key.
func (a Access) WaitsFor(earlier Access) bool {
	return earlier == Exclusive || a == Exclusive && earlier == Shared
}

// Claim names one thing that a request uses. Requests whose keys overlap, because one key is a
// prefix of the other, take effect in the order in which they arrived.
type Claim struct {
	// Key is the thing, such as "memory/". A key that ends in a slash includes all keys below it.
	Key string
	// Field is the member of the request whose string, or list of strings, is appended to Key, with
	// a slash at its end. "" = none; a request without that member claims Key itself.
	Field  string
	Access Access
}

// The keys that more than one capability claims.
const (
	KeyWorkspace = "workspace/" // the files of the workspace; the path follows
	KeyTools     = "tools/"     // the list of tools; the tool's name follows
)

// Of returns the claims of a request: one for each name in the member Field, or c without that member.
func (c Claim) Of(obj Object) []Claim {
	if c.Field == "" {
		return []Claim{c}
	}
	val, _ := obj.Get(c.Field)
	names, _ := val.Strings()
	if one, _ := val.Str(); one != "" {
		names = []string{one}
	}
	if len(names) == 0 {
		return []Claim{{Key: c.Key, Access: c.Access}}
	}
	claims := make([]Claim, len(names))
	for i, name := range names {
		claims[i] = Claim{Key: c.Key + name + "/", Access: c.Access}
	}
	return claims
}

// ordered is a row of the table of order: the claims of requests of some types.
type ordered struct {
	types  []Type
	claims []Claim
	noSlot bool // see Info.NoSlot
}

// claims returns a row with claims and without types.
func claims(of ...Claim) ordered { return ordered{claims: of} }

// by returns the row with its types set.
func (o ordered) by(types ...Type) ordered {
	o.types = types
	return o
}

// noSlotBy returns the row with its types set, whose requests take no slot of max_parallel.
func (o ordered) noSlotBy(types ...Type) ordered {
	o.noSlot = true
	return o.by(types...)
}

func on(key string, access Access) Claim { return Claim{Key: key, Access: access} }

func named(key, field string, access Access) Claim {
	return Claim{Key: key, Field: field, Access: access}
}

// orderRows returns the table of order. A type without a row has no claims.
func orderRows() []ordered {
	sees, calls := on(KeyWorkspace, Follows), on(KeyTools, Follows) // Follows, as programs may run for minutes
	return []ordered{
		claims(on("", Exclusive)).by(TypeHandshakeReq), // every key begins with ""

		claims(named(KeyTools, "tool_name", Follows)).by(TypeToolCallReq), // a tool may have more claims of its own
		claims(calls).by(TypeToolListReq, TypeMCPServerListReq, TypeMCPResourceListReq, TypeMCPResourceReadReq,
			TypeMCPResourceSubscribeReq, TypeMCPPromptListReq, TypeMCPPromptGetReq),
		claims(sees, calls).by(TypeSkillDiscoverReq, TypeSkillCallReq, TypeChainReq),
		claims(sees).by(TypeProcSpawnReq, TypeEnvResetReq),

		claims(sees, on(KeyTools, Exclusive)).by(TypeMCPServerRegisterReq),
		claims(on(KeyTools, Exclusive)).by(TypeMCPServerUnregisterReq),
		claims(sees, on(KeyTools, Exclusive), on("toolkits/", Exclusive)).by(TypeToolkitConfigureReq),
		claims(on("toolkits/", Shared)).by(TypeToolkitListReq),

		claims(named("env/", "episode_id", Exclusive)).by(TypeEnvStepReq, TypeEnvObserveReq, TypeEnvCloseReq,
			TypeEnvRenderReq, TypeEnvPlanReq, TypeEnvExpListReq),
		claims(named("env/", "episode_ids", Exclusive)).by(TypeEnvBatchStepReq),
		claims(on("env/", Exclusive)).by(TypeEnvDataResetReq, TypeEnvDataAddReq, TypeEnvDataGetReq),

		claims(named("proc/", "proc_id", Exclusive)).noSlotBy(TypeProcWriteReq, TypeProcKillReq),
		claims(named("proc/", "proc_id", Follows)).by(TypeProcStatusReq),

		claims(on("memory/", Exclusive)).by(TypeMemoryInitReq, TypeMemoryStoreReq, TypeMemoryForgetReq),
		claims(on("memory/", Shared)).by(TypeMemoryRetrieveReq),
		claims(on("planning/", Exclusive)).by(TypePlanCreateReq, TypeTaskAddReq, TypeTaskUpdateReq),
		claims(on("planning/", Shared)).by(TypePlanListReq, TypeTaskListReq, TypePlanBoardReq),
		claims(on("learning/", Exclusive)).by(TypeLearnFeedbackReq, TypeLearnExperienceReq, TypeLearnAdaptReq,
			TypeRefinementApplyReq, TypeRefinementRollbackReq),
		claims(on("learning/", Shared)).by(TypeLearnStatsReq, TypeRefinementPlanReq, TypeRefinementReviewReq,
			TypeRefinementHistoryReq),

		claims(on("agents/", Exclusive)).by(TypeAgentSpawnReq, TypeSubagentSpawnReq, TypeSubagentMessageReq),
		claims(on("agents/", Exclusive), sees, calls).by(TypeAgentDelegateReq, TypeSubagentDelegateReq),
		claims(on("agents/", Shared)).by(TypeAgentAwaitReq, TypeSubagentAwaitReq, TypeAgentListReq,
			TypeSubagentListReq, TypeSubagentMergeReq),
		// these have a separate key so that they need not wait for a task under way
		claims(named("agent/", "subagent_id", Exclusive)).noSlotBy(TypeSubagentCancelReq, TypeSubagentTerminateReq,
			TypeAgentTerminateReq),
	}
}

// inOrder adds the table of order to the rows of the message types.
func inOrder(byType map[string]*Info) {
	for _, row := range orderRows() {
		for _, t := range row.types {
			byType[string(t)].Order, byType[string(t)].NoSlot = row.claims, row.noSlot
		}
	}
}
