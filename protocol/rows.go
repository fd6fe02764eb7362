package protocol

import (
	"slices"
)

// The rows of the table, capability by capability, in the order of messages.json.

func coreRows() []Info {
	return []Info{
		row[HandshakeRequest](TypeHandshakeReq, CapCore, AgentRequest, TypeHandshakeResp),
		row[HandshakeResponse](TypeHandshakeResp, CapCore, HostResponse, ""),
		row[Ping](TypePing, CapCore, AgentRequest, TypePong),
		row[Pong](TypePong, CapCore, HostResponse, ""),
		row[Shutdown](TypeShutdown, CapCore, AgentRequest, ""),
		row[Error](TypeError, CapCore, HostResponse, "", "code"),
		row[Event](TypeInvokeEvent, CapCore, HostEvent, ""),
	}
}

func toolRows() []Info {
	return []Info{
		row[ToolListRequest](TypeToolListReq, CapTools, AgentRequest, TypeToolListResp),
		row[ToolListResponse](TypeToolListResp, CapTools, HostResponse, ""),
		row[ToolCallRequest](TypeToolCallReq, CapTools, AgentRequest, TypeToolCallResp, "arguments"),
		row[Event](TypeToolEvent, CapTools, HostEvent, ""),
		row[ToolCallResponse](TypeToolCallResp, CapTools, HostResponse, "", "data"),
	}
}

func toolkitRows() []Info {
	return []Info{
		row[ToolkitListRequest](TypeToolkitListReq, CapToolkits, AgentRequest, TypeToolkitListResp),
		row[ToolkitListResponse](TypeToolkitListResp, CapToolkits, HostResponse, ""),
		row[ToolkitConfigureRequest](TypeToolkitConfigureReq, CapToolkits, AgentRequest, TypeToolkitConfigureResp),
		row[ToolkitConfigureResponse](TypeToolkitConfigureResp, CapToolkits, HostResponse, ""),
	}
}

func skillRows() []Info {
	return []Info{
		row[SkillDiscoverRequest](TypeSkillDiscoverReq, CapSkill, AgentRequest, TypeSkillDiscoverResp),
		row[SkillDiscoverResponse](TypeSkillDiscoverResp, CapSkill, HostResponse, ""),
		row[SkillCallRequest](TypeSkillCallReq, CapSkill, AgentRequest, TypeSkillCallResp),
		row[SkillCallResponse](TypeSkillCallResp, CapSkill, HostResponse, "", "data"),
		row[Event](TypeSkillEvent, CapSkill, HostEvent, ""),
	}
}

func envRows() []Info {
	return []Info{
		row[EnvResetRequest](TypeEnvResetReq, CapEnv, AgentRequest, TypeEnvResetResp, "env_name"),
		row[EnvResetResponse](TypeEnvResetResp, CapEnv, HostResponse, "", "obs"),
		row[EnvStepRequest](TypeEnvStepReq, CapEnv, AgentRequest, TypeEnvStepResp, "episode_id", "action"),
		row[EnvStepResponse](TypeEnvStepResp, CapEnv, HostResponse, "", "obs"),
		row[EnvObserveRequest](TypeEnvObserveReq, CapEnv, AgentRequest, TypeEnvObserveResp, "episode_id"),
		row[EnvObserveResponse](TypeEnvObserveResp, CapEnv, HostResponse, "", "obs"),
		row[EnvCloseRequest](TypeEnvCloseReq, CapEnv, AgentRequest, TypeEnvCloseResp, "episode_id"),
		row[EnvCloseResponse](TypeEnvCloseResp, CapEnv, HostResponse, ""),
		row[EnvSpaceRequest](TypeEnvSpaceReq, CapEnv, AgentRequest, TypeEnvSpaceResp, "env_name"),
		row[EnvSpaceResponse](TypeEnvSpaceResp, CapEnv, HostResponse, "", "action_space", "state_schema"),
		row[EnvRenderRequest](TypeEnvRenderReq, CapEnv, AgentRequest, TypeEnvRenderResp, "episode_id"),
		row[EnvRenderResponse](TypeEnvRenderResp, CapEnv, HostResponse, "", "render"),
		row[EnvPlanRequest](TypeEnvPlanReq, CapEnv, AgentRequest, TypeEnvPlanResp),
		row[EnvPlanResponse](TypeEnvPlanResp, CapEnv, HostResponse, ""),
		row[EnvBatchStepRequest](TypeEnvBatchStepReq, CapEnv, AgentRequest, TypeEnvBatchStepResp, "episode_ids", "actions"),
		row[EnvBatchStepResponse](TypeEnvBatchStepResp, CapEnv, HostResponse, "", "results"),
		row[EnvExpListRequest](TypeEnvExpListReq, CapEnv, AgentRequest, TypeEnvExpListResp),
		row[EnvExpListResponse](TypeEnvExpListResp, CapEnv, HostResponse, ""),
		row[EnvStatePush](TypeEnvStatePush, CapEnv, HostEvent, "", "episode_id", "step_id", "event_type"),
	}
}

func envDataRows() []Info {
	return []Info{
		row[EnvDataResetRequest](TypeEnvDataResetReq, CapEnv, AgentRequest, TypeEnvDataResetResp),
		row[EnvDataResetResponse](TypeEnvDataResetResp, CapEnv, HostResponse, ""),
		row[EnvDataAddRequest](TypeEnvDataAddReq, CapEnv, AgentRequest, TypeEnvDataAddResp),
		row[EnvDataAddResponse](TypeEnvDataAddResp, CapEnv, HostResponse, ""),
		row[EnvDataGetRequest](TypeEnvDataGetReq, CapEnv, AgentRequest, TypeEnvDataGetResp),
		row[EnvDataGetResponse](TypeEnvDataGetResp, CapEnv, HostResponse, ""),
	}
}

func procRows() []Info {
	return []Info{
		row[ProcSpawnRequest](TypeProcSpawnReq, CapProc, AgentRequest, TypeProcSpawnResp),
		row[ProcSpawnResponse](TypeProcSpawnResp, CapProc, HostResponse, ""),
		row[ProcWriteRequest](TypeProcWriteReq, CapProc, AgentRequest, TypeProcWriteResp),
		row[ProcWriteResponse](TypeProcWriteResp, CapProc, HostResponse, ""),
		row[ProcReadEvent](TypeProcReadEvent, CapProc, HostEvent, ""),
		row[ProcKillRequest](TypeProcKillReq, CapProc, AgentRequest, TypeProcKillResp),
		row[ProcKillResponse](TypeProcKillResp, CapProc, HostResponse, ""),
		row[ProcStatusRequest](TypeProcStatusReq, CapProc, AgentRequest, TypeProcStatusResp),
		row[ProcStatusResponse](TypeProcStatusResp, CapProc, HostResponse, "", "proc_id", "status", "error"),
	}
}

func memoryRows() []Info {
	return []Info{
		row[MemoryInitRequest](TypeMemoryInitReq, CapMemory, AgentRequest, TypeMemoryInitResp),
		row[MemoryInitResponse](TypeMemoryInitResp, CapMemory, HostResponse, "", "memory_id", "namespace"),
		row[MemoryStoreRequest](TypeMemoryStoreReq, CapMemory, AgentRequest, TypeMemoryStoreResp, "memory_id"),
		row[MemoryStoreResponse](TypeMemoryStoreResp, CapMemory, HostResponse, ""),
		row[MemoryRetrieveRequest](TypeMemoryRetrieveReq, CapMemory, AgentRequest, TypeMemoryRetrieveResp, "memory_id"),
		row[MemoryRetrieveResponse](TypeMemoryRetrieveResp, CapMemory, HostResponse, ""),
		row[MemoryForgetRequest](TypeMemoryForgetReq, CapMemory, AgentRequest, TypeMemoryForgetResp, "memory_id"),
		row[MemoryForgetResponse](TypeMemoryForgetResp, CapMemory, HostResponse, ""),
	}
}

func learnRows() []Info {
	return []Info{
		row[LearnFeedbackRequest](TypeLearnFeedbackReq, CapLearning, AgentRequest, TypeLearnFeedbackResp, "feedbacks"),
		row[LearnFeedbackResponse](TypeLearnFeedbackResp, CapLearning, HostResponse, ""),
		row[LearnExperienceRequest](TypeLearnExperienceReq, CapLearning, AgentRequest, TypeLearnExperienceResp),
		row[LearnExperienceResponse](TypeLearnExperienceResp, CapLearning, HostResponse, ""),
		row[LearnAdaptRequest](TypeLearnAdaptReq, CapLearning, AgentRequest, TypeLearnAdaptResp),
		row[LearnAdaptResponse](TypeLearnAdaptResp, CapLearning, HostResponse, ""),
		row[LearnStatsRequest](TypeLearnStatsReq, CapLearning, AgentRequest, TypeLearnStatsResp),
		row[LearnStatsResponse](TypeLearnStatsResp, CapLearning, HostResponse, ""),
	}
}

func refinementRows() []Info {
	return []Info{
		row[RefinementPlanRequest](TypeRefinementPlanReq, CapLearning, AgentRequest, TypeRefinementPlanResp),
		row[RefinementPlanResponse](TypeRefinementPlanResp, CapLearning, HostResponse, ""),
		row[RefinementApplyRequest](TypeRefinementApplyReq, CapLearning, AgentRequest, TypeRefinementApplyResp),
		row[RefinementApplyResponse](TypeRefinementApplyResp, CapLearning, HostResponse, ""),
		row[RefinementRollbackRequest](TypeRefinementRollbackReq, CapLearning, AgentRequest, TypeRefinementRollbackResp),
		row[RefinementRollbackResponse](TypeRefinementRollbackResp, CapLearning, HostResponse, ""),
		row[RefinementReviewRequest](TypeRefinementReviewReq, CapLearning, AgentRequest, TypeRefinementReviewResp),
		row[RefinementReviewResponse](TypeRefinementReviewResp, CapLearning, HostResponse, ""),
		row[RefinementHistoryRequest](TypeRefinementHistoryReq, CapLearning, AgentRequest, TypeRefinementHistoryResp),
		row[RefinementHistoryResponse](TypeRefinementHistoryResp, CapLearning, HostResponse, ""),
	}
}

func chainRows() []Info {
	return []Info{
		row[ChainRequest](TypeChainReq, CapChains, AgentRequest, TypeChainResp),
		row[ChainEvent](TypeChainEvent, CapChains, HostEvent, ""),
		row[ChainResponse](TypeChainResp, CapChains, HostResponse, ""),
	}
}

func mcpRows() []Info {
	return []Info{
		row[MCPServerListRequest](TypeMCPServerListReq, CapMCP, AgentRequest, TypeMCPServerListResp),
		row[MCPServerListResponse](TypeMCPServerListResp, CapMCP, HostResponse, ""),
		row[MCPServerRegisterRequest](TypeMCPServerRegisterReq, CapMCP, AgentRequest, TypeMCPServerRegisterResp),
		row[MCPServerRegisterResponse](TypeMCPServerRegisterResp, CapMCP, HostResponse, ""),
		row[MCPServerUnregisterRequest](TypeMCPServerUnregisterReq, CapMCP, AgentRequest, TypeMCPServerUnregisterResp),
		row[MCPServerUnregisterResponse](TypeMCPServerUnregisterResp, CapMCP, HostResponse, ""),
		row[MCPResourceListRequest](TypeMCPResourceListReq, CapMCP, AgentRequest, TypeMCPResourceListResp),
		row[MCPResourceListResponse](TypeMCPResourceListResp, CapMCP, HostResponse, ""),
		row[MCPResourceReadRequest](TypeMCPResourceReadReq, CapMCP, AgentRequest, TypeMCPResourceReadResp),
		row[MCPResourceReadResponse](TypeMCPResourceReadResp, CapMCP, HostResponse, ""),
		row[MCPResourceSubscribeRequest](TypeMCPResourceSubscribeReq, CapMCP, AgentRequest, TypeMCPResourceSubscribeResp),
		row[MCPResourceSubscribeResponse](TypeMCPResourceSubscribeResp, CapMCP, HostResponse, ""),
		row[MCPPromptListRequest](TypeMCPPromptListReq, CapMCP, AgentRequest, TypeMCPPromptListResp),
		row[MCPPromptListResponse](TypeMCPPromptListResp, CapMCP, HostResponse, ""),
		row[MCPPromptGetRequest](TypeMCPPromptGetReq, CapMCP, AgentRequest, TypeMCPPromptGetResp),
		row[MCPPromptGetResponse](TypeMCPPromptGetResp, CapMCP, HostResponse, ""),
		row[MCPRootListRequest](TypeMCPRootListReq, CapMCP, HostRequest, TypeMCPRootListResp),
		row[MCPRootListResponse](TypeMCPRootListResp, CapMCP, AgentResponse, ""),
		row[MCPSampleRequest](TypeMCPSampleReq, CapMCP, HostRequest, TypeMCPSampleResp),
		row[MCPSampleResponse](TypeMCPSampleResp, CapMCP, AgentResponse, ""),
	}
}

func planningRows() []Info {
	return []Info{
		row[PlanCreateRequest](TypePlanCreateReq, CapPlanning, AgentRequest, TypePlanCreateResp),
		row[PlanListRequest](TypePlanListReq, CapPlanning, AgentRequest, TypePlanListResp),
		row[TaskAddRequest](TypeTaskAddReq, CapPlanning, AgentRequest, TypeTaskAddResp, "plan_id", "title"),
		row[TaskUpdateRequest](TypeTaskUpdateReq, CapPlanning, AgentRequest, TypeTaskUpdateResp, "plan_id"),
		row[TaskListRequest](TypeTaskListReq, CapPlanning, AgentRequest, TypeTaskListResp),
		row[PlanBoardRequest](TypePlanBoardReq, CapPlanning, AgentRequest, TypePlanBoardResp),
		row[PlanCreateResponse](TypePlanCreateResp, CapPlanning, HostResponse, ""),
		row[PlanListResponse](TypePlanListResp, CapPlanning, HostResponse, ""),
		row[TaskAddResponse](TypeTaskAddResp, CapPlanning, HostResponse, ""),
		row[TaskUpdateResponse](TypeTaskUpdateResp, CapPlanning, HostResponse, ""),
		row[TaskListResponse](TypeTaskListResp, CapPlanning, HostResponse, ""),
		row[PlanBoardResponse](TypePlanBoardResp, CapPlanning, HostResponse, ""),
	}
}

func agentRows() []Info {
	return []Info{
		row[AgentSpawnRequest](TypeAgentSpawnReq, CapMultiAgent, AgentRequest, TypeAgentSpawnResp, "name"),
		row[AgentDelegateRequest](TypeAgentDelegateReq, CapMultiAgent, AgentRequest, TypeAgentDelegateResp, "subagent_id", "task_name", "instruction"),
		row[AgentAwaitRequest](TypeAgentAwaitReq, CapMultiAgent, AgentRequest, TypeAgentAwaitResp, "subagent_id"),
		row[AgentListRequest](TypeAgentListReq, CapMultiAgent, AgentRequest, TypeAgentListResp),
		row[AgentTerminateRequest](TypeAgentTerminateReq, CapMultiAgent, AgentRequest, TypeAgentTerminateResp, "subagent_id"),
		row[AgentSpawnResponse](TypeAgentSpawnResp, CapMultiAgent, HostResponse, ""),
		row[AgentDelegateResponse](TypeAgentDelegateResp, CapMultiAgent, HostResponse, ""),
		row[AgentAwaitResponse](TypeAgentAwaitResp, CapMultiAgent, HostResponse, ""),
		row[AgentListResponse](TypeAgentListResp, CapMultiAgent, HostResponse, ""),
		row[AgentTerminateResponse](TypeAgentTerminateResp, CapMultiAgent, HostResponse, ""),
	}
}

func subagentRows() []Info {
	return []Info{
		row[SubagentAwaitRequest](TypeSubagentAwaitReq, CapMultiAgent, AgentRequest, TypeSubagentAwaitResp, "subagent_id"),
		row[SubagentAwaitResponse](TypeSubagentAwaitResp, CapMultiAgent, HostResponse, "", "subagent_id", "status"),
		row[SubagentCancelRequest](TypeSubagentCancelReq, CapMultiAgent, AgentRequest, TypeAgentTerminateResp, "subagent_id"),
		row[SubagentDelegateRequest](TypeSubagentDelegateReq, CapMultiAgent, AgentRequest, TypeSubagentDelegateResp, "subagent_id", "task"),
		row[SubagentDelegateResponse](TypeSubagentDelegateResp, CapMultiAgent, HostResponse, "", "status"),
		row[SubagentEvent](TypeSubagentEvent, CapMultiAgent, HostEvent, "", "subagent_id", "event"),
		row[SubagentListRequest](TypeSubagentListReq, CapMultiAgent, AgentRequest, TypeSubagentListResp),
		row[SubagentListResponse](TypeSubagentListResp, CapMultiAgent, HostResponse, "", "subagents"),
		row[SubagentMergeRequest](TypeSubagentMergeReq, CapMultiAgent, AgentRequest, TypeSubagentMergeResp, "subagent_ids"),
		row[SubagentMergeResponse](TypeSubagentMergeResp, CapMultiAgent, HostResponse, "", "merged_result"),
		row[SubagentMessageRequest](TypeSubagentMessageReq, CapMultiAgent, AgentRequest, TypeSubagentMessageResp, "from_subagent_id", "to_subagent_id", "message"),
		row[SubagentMessageResponse](TypeSubagentMessageResp, CapMultiAgent, HostResponse, ""),
		row[SubagentSpawnRequest](TypeSubagentSpawnReq, CapMultiAgent, AgentRequest, TypeSubagentSpawnResp, "agent"),
		row[SubagentSpawnResponse](TypeSubagentSpawnResp, CapMultiAgent, HostResponse, "", "subagent_id", "status"),
		row[SubagentTerminateRequest](TypeSubagentTerminateReq, CapMultiAgent, AgentRequest, TypeAgentTerminateResp, "subagent_id"),
	}
}

func pushRows() []Info {
	return []Info{
		row[MCPServerPush](TypeMCPServerPush, CapMCP, HostEvent, ""),
	}
}

// table has one row per message type, in the order of messages.json. Nothing
// changes it, nor the index, once the package is loaded.
var table = slices.Concat(coreRows(), toolRows(), toolkitRows(), skillRows(), envRows(),
	procRows(), memoryRows(), learnRows(), refinementRows(), chainRows(), mcpRows(),
	planningRows(), agentRows(), subagentRows(), pushRows(), envDataRows())

// index finds a row by its type, and by the other names of WIRE section 6.
var index = indexOf(table)

func indexOf(rows []Info) map[string]*Info {
	byType := make(map[string]*Info, len(rows)+8)
	for i := range rows {
		byType[string(rows[i].Type)] = &rows[i]
	}
	for _, alias := range []Type{
		"env/spaces/req", "env/spaces/resp", "mcp/sampling/req", "mcp/sampling/resp",
		"mcp/roots/list/req", "mcp/roots/list/resp",
	} {
		byType[string(alias)] = byType[string(Canonical(alias))]
	}
	return inOrder(byType)
}

// row makes one row; T is the struct of its type, and response is "" for what
// has no answer.
func row[T any](t Type, c Capability, d Direction, response Type, required ...string) Info {
	return Info{
		Type: t, Capability: c, Direction: d, Response: response, Required: required,
		New: func() any { return new(T) },
	}
}

// Types lists the message types of the protocol in the order of messages.json.
// The extension `cancel` is not among them.
func Types() []Info { return slices.Clone(table) }

// Lookup finds the row of a type. Another name of WIRE section 6 finds the row of
// the type that it stands for. The row is shared: do not change it.
func Lookup(t Type) (*Info, bool) {
	info, ok := index[string(t)]
	return info, ok
}

// Canonical returns the type that another name of WIRE section 6 stands for; every
// other type comes back as it is. What depends on the direction is the host's:
// `env/plan/resp` and an `mcp/sample/req` with a `req_id`, from the agent.
func Canonical(t Type) Type {
	switch t {
	case "env/spaces/req":
		return TypeEnvSpaceReq
	case "env/spaces/resp":
		return TypeEnvSpaceResp
	case "mcp/sampling/req":
		return TypeMCPSampleReq
	case "mcp/sampling/resp":
		return TypeMCPSampleResp
	case "mcp/roots/list/req":
		return TypeMCPRootListReq
	case "mcp/roots/list/resp":
		return TypeMCPRootListResp
	}
	return t
}
