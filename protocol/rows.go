package protocol

import "sync"

// The rows of the table, capability by capability, in the order of testdata/wire/messages.json.

var coreRows = []row{
	{TypeHandshakeReq, CapCore, AgentRequest, TypeHandshakeResp, of[HandshakeRequest], nil},
	{TypeHandshakeResp, CapCore, HostResponse, "", of[HandshakeResponse], nil},
	{TypePing, CapCore, AgentRequest, TypePong, of[Ping], nil},
	{TypePong, CapCore, HostResponse, "", of[Pong], nil},
	{TypeShutdown, CapCore, AgentRequest, "", of[Shutdown], nil},
	{TypeError, CapCore, HostResponse, "", of[Error], fields{"code"}},
	{TypeInvokeEvent, CapCore, HostEvent, "", of[Event], nil},
}

var toolRows = []row{
	{TypeToolListReq, CapTools, AgentRequest, TypeToolListResp, of[ToolListRequest], nil},
	{TypeToolListResp, CapTools, HostResponse, "", of[ToolListResponse], nil},
	{TypeToolCallReq, CapTools, AgentRequest, TypeToolCallResp, of[ToolCallRequest], fields{"arguments"}},
	{TypeToolEvent, CapTools, HostEvent, "", of[Event], nil},
	{TypeToolCallResp, CapTools, HostResponse, "", of[ToolCallResponse], fields{"data"}},
}

var toolkitRows = []row{
	{TypeToolkitListReq, CapToolkits, AgentRequest, TypeToolkitListResp, of[ToolkitListRequest], nil},
	{TypeToolkitListResp, CapToolkits, HostResponse, "", of[ToolkitListResponse], nil},
	{TypeToolkitConfigureReq, CapToolkits, AgentRequest, TypeToolkitConfigureResp, of[ToolkitConfigureRequest], nil},
	{TypeToolkitConfigureResp, CapToolkits, HostResponse, "", of[ToolkitConfigureResponse], nil},
}

var skillRows = []row{
	{TypeSkillDiscoverReq, CapSkill, AgentRequest, TypeSkillDiscoverResp, of[SkillDiscoverRequest], nil},
	{TypeSkillDiscoverResp, CapSkill, HostResponse, "", of[SkillDiscoverResponse], nil},
	{TypeSkillCallReq, CapSkill, AgentRequest, TypeSkillCallResp, of[SkillCallRequest], nil},
	{TypeSkillCallResp, CapSkill, HostResponse, "", of[SkillCallResponse], fields{"data"}},
	{TypeSkillEvent, CapSkill, HostEvent, "", of[Event], nil},
}

var envRows = []row{
	{TypeEnvResetReq, CapEnv, AgentRequest, TypeEnvResetResp, of[EnvResetRequest], fields{"env_name"}},
	{TypeEnvResetResp, CapEnv, HostResponse, "", of[EnvResetResponse], fields{"obs"}},
	{TypeEnvStepReq, CapEnv, AgentRequest, TypeEnvStepResp, of[EnvStepRequest], fields{"episode_id", "action"}},
	{TypeEnvStepResp, CapEnv, HostResponse, "", of[EnvStepResponse], fields{"obs"}},
	{TypeEnvObserveReq, CapEnv, AgentRequest, TypeEnvObserveResp, of[EnvObserveRequest], fields{"episode_id"}},
	{TypeEnvObserveResp, CapEnv, HostResponse, "", of[EnvObserveResponse], fields{"obs"}},
	{TypeEnvCloseReq, CapEnv, AgentRequest, TypeEnvCloseResp, of[EnvCloseRequest], fields{"episode_id"}},
	{TypeEnvCloseResp, CapEnv, HostResponse, "", of[EnvCloseResponse], nil},
	{TypeEnvSpaceReq, CapEnv, AgentRequest, TypeEnvSpaceResp, of[EnvSpaceRequest], fields{"env_name"}},
	{TypeEnvSpaceResp, CapEnv, HostResponse, "", of[EnvSpaceResponse], fields{"action_space", "state_schema"}},
	{TypeEnvRenderReq, CapEnv, AgentRequest, TypeEnvRenderResp, of[EnvRenderRequest], fields{"episode_id"}},
	{TypeEnvRenderResp, CapEnv, HostResponse, "", of[EnvRenderResponse], fields{"render"}},
	{TypeEnvPlanReq, CapEnv, AgentRequest, TypeEnvPlanResp, of[EnvPlanRequest], nil},
	{TypeEnvPlanResp, CapEnv, HostResponse, "", of[EnvPlanResponse], nil},
	{
		TypeEnvBatchStepReq, CapEnv, AgentRequest, TypeEnvBatchStepResp,
		of[EnvBatchStepRequest],
		fields{"episode_ids", "actions"},
	},
	{TypeEnvBatchStepResp, CapEnv, HostResponse, "", of[EnvBatchStepResponse], fields{"results"}},
	{TypeEnvExpListReq, CapEnv, AgentRequest, TypeEnvExpListResp, of[EnvExpListRequest], nil},
	{TypeEnvExpListResp, CapEnv, HostResponse, "", of[EnvExpListResponse], nil},
	{TypeEnvStatePush, CapEnv, HostEvent, "", of[EnvStatePush], fields{"episode_id", "step_id", "event_type"}},
}

var envDataRows = []row{
	{TypeEnvDataResetReq, CapEnv, AgentRequest, TypeEnvDataResetResp, of[EnvDataResetRequest], nil},
	{TypeEnvDataResetResp, CapEnv, HostResponse, "", of[EnvDataResetResponse], nil},
	{TypeEnvDataAddReq, CapEnv, AgentRequest, TypeEnvDataAddResp, of[EnvDataAddRequest], nil},
	{TypeEnvDataAddResp, CapEnv, HostResponse, "", of[EnvDataAddResponse], nil},
	{TypeEnvDataGetReq, CapEnv, AgentRequest, TypeEnvDataGetResp, of[EnvDataGetRequest], nil},
	{TypeEnvDataGetResp, CapEnv, HostResponse, "", of[EnvDataGetResponse], nil},
}

var procRows = []row{
	{TypeProcSpawnReq, CapProc, AgentRequest, TypeProcSpawnResp, of[ProcSpawnRequest], nil},
	{TypeProcSpawnResp, CapProc, HostResponse, "", of[ProcSpawnResponse], nil},
	{TypeProcWriteReq, CapProc, AgentRequest, TypeProcWriteResp, of[ProcWriteRequest], nil},
	{TypeProcWriteResp, CapProc, HostResponse, "", of[ProcWriteResponse], nil},
	{TypeProcReadEvent, CapProc, HostEvent, "", of[ProcReadEvent], nil},
	{TypeProcKillReq, CapProc, AgentRequest, TypeProcKillResp, of[ProcKillRequest], nil},
	{TypeProcKillResp, CapProc, HostResponse, "", of[ProcKillResponse], nil},
	{TypeProcStatusReq, CapProc, AgentRequest, TypeProcStatusResp, of[ProcStatusRequest], nil},
	{TypeProcStatusResp, CapProc, HostResponse, "", of[ProcStatusResponse], fields{"proc_id", "status", "error"}},
}

var memoryRows = []row{
	{TypeMemoryInitReq, CapMemory, AgentRequest, TypeMemoryInitResp, of[MemoryInitRequest], nil},
	{TypeMemoryInitResp, CapMemory, HostResponse, "", of[MemoryInitResponse], fields{"memory_id", "namespace"}},
	{TypeMemoryStoreReq, CapMemory, AgentRequest, TypeMemoryStoreResp, of[MemoryStoreRequest], fields{"memory_id"}},
	{TypeMemoryStoreResp, CapMemory, HostResponse, "", of[MemoryStoreResponse], nil},
	{
		TypeMemoryRetrieveReq, CapMemory, AgentRequest, TypeMemoryRetrieveResp,
		of[MemoryRetrieveRequest],
		fields{"memory_id"},
	},
	{TypeMemoryRetrieveResp, CapMemory, HostResponse, "", of[MemoryRetrieveResponse], nil},
	{
		TypeMemoryForgetReq, CapMemory, AgentRequest, TypeMemoryForgetResp,
		of[MemoryForgetRequest],
		fields{"memory_id"},
	},
	{TypeMemoryForgetResp, CapMemory, HostResponse, "", of[MemoryForgetResponse], nil},
}

var learnRows = []row{
	{
		TypeLearnFeedbackReq, CapLearning, AgentRequest, TypeLearnFeedbackResp,
		of[LearnFeedbackRequest],
		fields{"feedbacks"},
	},
	{TypeLearnFeedbackResp, CapLearning, HostResponse, "", of[LearnFeedbackResponse], nil},
	{TypeLearnExperienceReq, CapLearning, AgentRequest, TypeLearnExperienceResp, of[LearnExperienceRequest], nil},
	{TypeLearnExperienceResp, CapLearning, HostResponse, "", of[LearnExperienceResponse], nil},
	{TypeLearnAdaptReq, CapLearning, AgentRequest, TypeLearnAdaptResp, of[LearnAdaptRequest], nil},
	{TypeLearnAdaptResp, CapLearning, HostResponse, "", of[LearnAdaptResponse], nil},
	{TypeLearnStatsReq, CapLearning, AgentRequest, TypeLearnStatsResp, of[LearnStatsRequest], nil},
	{TypeLearnStatsResp, CapLearning, HostResponse, "", of[LearnStatsResponse], nil},
}

var refinementRows = []row{
	{TypeRefinementPlanReq, CapLearning, AgentRequest, TypeRefinementPlanResp, of[RefinementPlanRequest], nil},
	{TypeRefinementPlanResp, CapLearning, HostResponse, "", of[RefinementPlanResponse], nil},
	{TypeRefinementApplyReq, CapLearning, AgentRequest, TypeRefinementApplyResp, of[RefinementApplyRequest], nil},
	{TypeRefinementApplyResp, CapLearning, HostResponse, "", of[RefinementApplyResponse], nil},
	{
		TypeRefinementRollbackReq, CapLearning, AgentRequest, TypeRefinementRollbackResp,
		of[RefinementRollbackRequest], nil,
	},
	{TypeRefinementRollbackResp, CapLearning, HostResponse, "", of[RefinementRollbackResponse], nil},
	{TypeRefinementReviewReq, CapLearning, AgentRequest, TypeRefinementReviewResp, of[RefinementReviewRequest], nil},
	{TypeRefinementReviewResp, CapLearning, HostResponse, "", of[RefinementReviewResponse], nil},
	{
		TypeRefinementHistoryReq, CapLearning, AgentRequest, TypeRefinementHistoryResp,
		of[RefinementHistoryRequest], nil,
	},
	{TypeRefinementHistoryResp, CapLearning, HostResponse, "", of[RefinementHistoryResponse], nil},
}

var chainRows = []row{
	{TypeChainReq, CapChains, AgentRequest, TypeChainResp, of[ChainRequest], nil},
	{TypeChainEvent, CapChains, HostEvent, "", of[ChainEvent], nil},
	{TypeChainResp, CapChains, HostResponse, "", of[ChainResponse], nil},
}

var mcpRows = []row{
	{TypeMCPServerListReq, CapMCP, AgentRequest, TypeMCPServerListResp, of[MCPServerListRequest], nil},
	{TypeMCPServerListResp, CapMCP, HostResponse, "", of[MCPServerListResponse], nil},
	{TypeMCPServerRegisterReq, CapMCP, AgentRequest, TypeMCPServerRegisterResp, of[MCPServerRegisterRequest], nil},
	{TypeMCPServerRegisterResp, CapMCP, HostResponse, "", of[MCPServerRegisterResponse], nil},
	{
		TypeMCPServerUnregisterReq, CapMCP, AgentRequest, TypeMCPServerUnregisterResp,
		of[MCPServerUnregisterRequest], nil,
	},
	{TypeMCPServerUnregisterResp, CapMCP, HostResponse, "", of[MCPServerUnregisterResponse], nil},
	{TypeMCPResourceListReq, CapMCP, AgentRequest, TypeMCPResourceListResp, of[MCPResourceListRequest], nil},
	{TypeMCPResourceListResp, CapMCP, HostResponse, "", of[MCPResourceListResponse], nil},
	{TypeMCPResourceReadReq, CapMCP, AgentRequest, TypeMCPResourceReadResp, of[MCPResourceReadRequest], nil},
	{TypeMCPResourceReadResp, CapMCP, HostResponse, "", of[MCPResourceReadResponse], nil},
	{
		TypeMCPResourceSubscribeReq, CapMCP, AgentRequest, TypeMCPResourceSubscribeResp,
		of[MCPResourceSubscribeRequest], nil,
	},
	{TypeMCPResourceSubscribeResp, CapMCP, HostResponse, "", of[MCPResourceSubscribeResponse], nil},
	{TypeMCPPromptListReq, CapMCP, AgentRequest, TypeMCPPromptListResp, of[MCPPromptListRequest], nil},
	{TypeMCPPromptListResp, CapMCP, HostResponse, "", of[MCPPromptListResponse], nil},
	{TypeMCPPromptGetReq, CapMCP, AgentRequest, TypeMCPPromptGetResp, of[MCPPromptGetRequest], nil},
	{TypeMCPPromptGetResp, CapMCP, HostResponse, "", of[MCPPromptGetResponse], nil},
	{TypeMCPRootListReq, CapMCP, HostRequest, TypeMCPRootListResp, of[MCPRootListRequest], nil},
	{TypeMCPRootListResp, CapMCP, AgentResponse, "", of[MCPRootListResponse], nil},
	{TypeMCPSampleReq, CapMCP, HostRequest, TypeMCPSampleResp, of[MCPSampleRequest], nil},
	{TypeMCPSampleResp, CapMCP, AgentResponse, "", of[MCPSampleResponse], nil},
}

var planningRows = []row{
	{TypePlanCreateReq, CapPlanning, AgentRequest, TypePlanCreateResp, of[PlanCreateRequest], nil},
	{TypePlanListReq, CapPlanning, AgentRequest, TypePlanListResp, of[PlanListRequest], nil},
	{TypeTaskAddReq, CapPlanning, AgentRequest, TypeTaskAddResp, of[TaskAddRequest], fields{"plan_id", "title"}},
	{TypeTaskUpdateReq, CapPlanning, AgentRequest, TypeTaskUpdateResp, of[TaskUpdateRequest], fields{"plan_id"}},
	{TypeTaskListReq, CapPlanning, AgentRequest, TypeTaskListResp, of[TaskListRequest], nil},
	{TypePlanBoardReq, CapPlanning, AgentRequest, TypePlanBoardResp, of[PlanBoardRequest], nil},
	{TypePlanCreateResp, CapPlanning, HostResponse, "", of[PlanCreateResponse], nil},
	{TypePlanListResp, CapPlanning, HostResponse, "", of[PlanListResponse], nil},
	{TypeTaskAddResp, CapPlanning, HostResponse, "", of[TaskAddResponse], nil},
	{TypeTaskUpdateResp, CapPlanning, HostResponse, "", of[TaskUpdateResponse], nil},
	{TypeTaskListResp, CapPlanning, HostResponse, "", of[TaskListResponse], nil},
	{TypePlanBoardResp, CapPlanning, HostResponse, "", of[PlanBoardResponse], nil},
}

var agentRows = []row{
	{TypeAgentSpawnReq, CapMultiAgent, AgentRequest, TypeAgentSpawnResp, of[AgentSpawnRequest], fields{"name"}},
	{
		TypeAgentDelegateReq, CapMultiAgent, AgentRequest, TypeAgentDelegateResp,
		of[AgentDelegateRequest],
		fields{"subagent_id", "task_name", "instruction"},
	},
	{
		TypeAgentAwaitReq, CapMultiAgent, AgentRequest, TypeAgentAwaitResp,
		of[AgentAwaitRequest],
		fields{"subagent_id"},
	},
	{TypeAgentListReq, CapMultiAgent, AgentRequest, TypeAgentListResp, of[AgentListRequest], nil},
	{
		TypeAgentTerminateReq, CapMultiAgent, AgentRequest, TypeAgentTerminateResp,
		of[AgentTerminateRequest],
		fields{"subagent_id"},
	},
	{TypeAgentSpawnResp, CapMultiAgent, HostResponse, "", of[AgentSpawnResponse], nil},
	{TypeAgentDelegateResp, CapMultiAgent, HostResponse, "", of[AgentDelegateResponse], nil},
	{TypeAgentAwaitResp, CapMultiAgent, HostResponse, "", of[AgentAwaitResponse], nil},
	{TypeAgentListResp, CapMultiAgent, HostResponse, "", of[AgentListResponse], nil},
	{TypeAgentTerminateResp, CapMultiAgent, HostResponse, "", of[AgentTerminateResponse], nil},
}

var subagentRows = []row{
	{
		TypeSubagentAwaitReq, CapMultiAgent, AgentRequest, TypeSubagentAwaitResp,
		of[SubagentAwaitRequest],
		fields{"subagent_id"},
	},
	{
		TypeSubagentAwaitResp, CapMultiAgent, HostResponse, "",
		of[SubagentAwaitResponse],
		fields{"subagent_id", "status"},
	},
	{
		TypeSubagentCancelReq, CapMultiAgent, AgentRequest, TypeAgentTerminateResp,
		of[SubagentCancelRequest],
		fields{"subagent_id"},
	},
	{
		TypeSubagentDelegateReq, CapMultiAgent, AgentRequest, TypeSubagentDelegateResp,
		of[SubagentDelegateRequest],
		fields{"subagent_id", "task"},
	},
	{TypeSubagentDelegateResp, CapMultiAgent, HostResponse, "", of[SubagentDelegateResponse], fields{"status"}},
	{TypeSubagentEvent, CapMultiAgent, HostEvent, "", of[SubagentEvent], fields{"subagent_id", "event"}},
	{TypeSubagentListReq, CapMultiAgent, AgentRequest, TypeSubagentListResp, of[SubagentListRequest], nil},
	{TypeSubagentListResp, CapMultiAgent, HostResponse, "", of[SubagentListResponse], fields{"subagents"}},
	{
		TypeSubagentMergeReq, CapMultiAgent, AgentRequest, TypeSubagentMergeResp,
		of[SubagentMergeRequest],
		fields{"subagent_ids"},
	},
	{TypeSubagentMergeResp, CapMultiAgent, HostResponse, "", of[SubagentMergeResponse], fields{"merged_result"}},
	{
		TypeSubagentMessageReq, CapMultiAgent, AgentRequest, TypeSubagentMessageResp,
		of[SubagentMessageRequest],
		fields{"from_subagent_id", "to_subagent_id", "message"},
	},
	{TypeSubagentMessageResp, CapMultiAgent, HostResponse, "", of[SubagentMessageResponse], nil},
	{
		TypeSubagentSpawnReq, CapMultiAgent, AgentRequest, TypeSubagentSpawnResp,
		of[SubagentSpawnRequest],
		fields{"agent"},
	},
	{
		TypeSubagentSpawnResp, CapMultiAgent, HostResponse, "",
		of[SubagentSpawnResponse],
		fields{"subagent_id", "status"},
	},
	{
		TypeSubagentTerminateReq, CapMultiAgent, AgentRequest, TypeAgentTerminateResp,
		of[SubagentTerminateRequest],
		fields{"subagent_id"},
	},
}

var pushRows = []row{
	{TypeMCPServerPush, CapMCP, HostEvent, "", of[MCPServerPush], nil},
}

// index finds the rows by their types, and by the other names of protocol/README.md, section 6. all has the rows in the
// order of messages.json. An index does not change once it is made.
type index struct {
	all    []Info
	byType map[string]*Info
}

// table makes the index at the first look-up, so that a start of the program does not build it.
var table = sync.OnceValue(func() *index {
	t := &index{all: make([]Info, 0, 144), byType: make(map[string]*Info, 160)}
	for _, rows := range [][]row{
		coreRows, toolRows, toolkitRows, skillRows, envRows, procRows, memoryRows, learnRows, refinementRows,
		chainRows, mcpRows, planningRows, agentRows, subagentRows, pushRows, envDataRows,
	} {
		for _, r := range rows {
			t.all = append(t.all, Info{
				Type: r.Type, Capability: r.Capability, Direction: r.Direction, Response: r.Response,
				Required: r.required, New: r.create,
			})
		}
	}
	for i := range t.all {
		t.byType[string(t.all[i].Type)] = &t.all[i]
	}
	for _, alias := range []Type{
		"env/spaces/req", "env/spaces/resp", "mcp/sampling/req", "mcp/sampling/resp",
		"mcp/roots/list/req", "mcp/roots/list/resp",
	} {
		t.byType[string(alias)] = t.byType[string(Canonical(alias))]
	}
	inOrder(t.byType)
	return t
})

// row is one row of the table of message types, without its order.
type row struct {
	Type       Type
	Capability Capability
	Direction  Direction
	Response   Type // "" = the message has no answer
	create     func() any
	required   fields
}

type fields = []string

// of makes the struct of a message type.
func of[T any]() any { return new(T) }

// Types lists the message types of the protocol in the order of testdata/wire/messages.json.
// The extension `cancel` is not among them. The rows are shared: do not change them.
func Types() []Info { return table().all }

// Lookup finds the row of a type. For an alias of protocol/README.md, section 6 it finds the row of
// the type that the alias stands for. The row is shared: do not change it.
func Lookup(t Type) (*Info, bool) {
	info, ok := table().byType[string(t)]
	return info, ok
}

// Canonical returns the type that an alias of protocol/README.md, section 6 stands for, and every
// other type unchanged. The host itself handles the aliases that depend on the direction:
// `env/plan/resp`, and `mcp/sample/req` with a `req_id`, from the agent.
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
