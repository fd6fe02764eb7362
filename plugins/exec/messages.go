package exec

import (
	"cmp"
	"context"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/plugins/env"
	"a2e/plugins/learning"
	"a2e/plugins/planning"
	"a2e/plugins/proc"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// handler answers requests with the body of an answer.
type handler = func(context.Context, protocol.Object, host.Emitter) (jsontext.Value, error)

// message is what the plugin knows of one request type beyond the protocol's table.
type message struct {
	route func(protocol.Type, handler) host.Route
	names string                      // the field that says what it is about; "" = it has none
	list  bool                        // answers of several plugins are put together
	feeds bool                        // messages with its id may follow the answer
	quick bool                        // it waits for no place
	valid func(protocol.Object) error // does an answer fit? nil = it is not looked at
}

// known says what is known of each request that an agent may send.
func known() map[protocol.Type]message {
	all := make(map[protocol.Type]message)
	for _, info := range protocol.Types() {
		if info.Capability != protocol.CapCore && info.Direction == protocol.AgentRequest {
			all[info.Type] = message{route: host.Raw}
		}
	}
	for _, set := range []map[protocol.Type]message{merging(), named(), ordered()} {
		for t, m := range set {
			base := all[t]
			if m.route != nil {
				base.route = m.route
			}
			base.names, base.list = cmp.Or(base.names, m.names), base.list || m.list
			base.feeds, base.quick = base.feeds || m.feeds, base.quick || m.quick
			if m.valid != nil {
				base.valid = m.valid
			}
			all[t] = base
		}
	}
	return all
}

// merging are the types whose answers are put together.
func merging() map[protocol.Type]message {
	return map[protocol.Type]message{
		protocol.TypeToolListReq:          merged(tools.MergeLists),
		protocol.TypeToolkitListReq:       merged(mergeToolkits),
		protocol.TypeSkillDiscoverReq:     merged(mergeSkills),
		protocol.TypeEnvExpListReq:        {list: true, route: inOrder(env.RawExperiences, "episode_id")},
		protocol.TypeProcStatusReq:        merged(proc.MergeStatus),
		protocol.TypeLearnStatsReq:        reading(merged(learning.MergeStats)),
		protocol.TypeRefinementHistoryReq: reading(merged(learning.MergeHistory)),
		protocol.TypeMCPServerListReq:     merged(mergeServers),
		protocol.TypeMCPResourceListReq:   {list: true},
		protocol.TypeMCPPromptListReq:     {list: true},
		protocol.TypePlanListReq:          reading(merged(planning.MergePlans)),
		protocol.TypePlanBoardReq:         reading(merged(planning.MergeBoards)),
		protocol.TypeTaskListReq:          reading(merged(planning.MergeTasks)),
		protocol.TypeAgentListReq:         merged(mergeAgents),
		protocol.TypeSubagentListReq:      merged(mergeSubagents),
	}
}

// named says which field tells whose a request is.
func named() map[protocol.Type]message {
	all := map[protocol.Type]message{
		protocol.TypeToolCallReq:          {names: fieldTool},
		protocol.TypeSkillCallReq:         {names: fieldSkill},
		protocol.TypeToolkitConfigureReq:  {names: "toolkit_name"},
		protocol.TypeEnvResetReq:          {names: fieldEnv, feeds: true},
		protocol.TypeEnvSpaceReq:          {names: fieldEnv},
		protocol.TypeProcSpawnReq:         {feeds: true},
		protocol.TypeProcWriteReq:         {names: fieldProc},
		protocol.TypeProcKillReq:          {names: fieldProc},
		protocol.TypeMCPServerRegisterReq: {feeds: true},
	}
	for field, types := range map[string][]protocol.Type{
		"episode_id": {protocol.TypeEnvStepReq, protocol.TypeEnvObserveReq, protocol.TypeEnvCloseReq, protocol.TypeEnvRenderReq, protocol.TypeEnvPlanReq},
		"memory_id":  {protocol.TypeMemoryStoreReq, protocol.TypeMemoryRetrieveReq, protocol.TypeMemoryForgetReq},
		"plan_id":    {protocol.TypeTaskAddReq, protocol.TypeTaskUpdateReq},
		"server_id":  {protocol.TypeMCPServerUnregisterReq, protocol.TypeMCPResourceReadReq, protocol.TypeMCPPromptGetReq},
		"subagent_id": {
			protocol.TypeAgentAwaitReq, protocol.TypeAgentTerminateReq, protocol.TypeSubagentAwaitReq, protocol.TypeSubagentCancelReq, protocol.TypeSubagentTerminateReq,
		},
	} {
		for _, t := range types {
			all[t] = message{names: field}
		}
	}
	all[protocol.TypeMCPResourceSubscribeReq] = message{names: "server_id", feeds: true}
	for _, t := range []protocol.Type{protocol.TypeAgentDelegateReq, protocol.TypeSubagentDelegateReq} {
		all[t] = message{names: "subagent_id", feeds: true}
	}
	for _, t := range []protocol.Type{protocol.TypeAgentSpawnReq, protocol.TypeSubagentSpawnReq} {
		all[t] = message{feeds: true}
	}
	return all
}

// ordered are the types whose requests keep their order, as those of the plugins in Go do.
func ordered() map[protocol.Type]message {
	all := map[protocol.Type]message{
		protocol.TypeProcWriteReq:    {quick: true, route: func(t protocol.Type, h handler) host.Route { return host.Raw(t, h).Immediate().InOrderOf("proc_id") }},
		protocol.TypeProcKillReq:     {quick: true, route: func(t protocol.Type, h handler) host.Route { return host.Raw(t, h).Immediate().InOrderOf("proc_id") }},
		protocol.TypeEnvBatchStepReq: {route: inOrder(host.Raw, "episode_ids")},
	}
	for _, t := range []protocol.Type{protocol.TypeEnvStepReq, protocol.TypeEnvObserveReq, protocol.TypeEnvCloseReq, protocol.TypeEnvRenderReq, protocol.TypeEnvPlanReq} {
		all[t] = message{route: inOrder(host.Raw, "episode_id")}
	}
	for _, t := range []protocol.Type{
		protocol.TypeMemoryInitReq, protocol.TypeMemoryStoreReq, protocol.TypeMemoryForgetReq, protocol.TypePlanCreateReq, protocol.TypeTaskAddReq, protocol.TypeTaskUpdateReq,
		protocol.TypeLearnFeedbackReq, protocol.TypeLearnExperienceReq, protocol.TypeLearnAdaptReq, protocol.TypeRefinementApplyReq, protocol.TypeRefinementRollbackReq,
	} {
		all[t] = message{route: func(t protocol.Type, h handler) host.Route { return host.Raw(t, h).Changes() }}
	}
	for _, t := range []protocol.Type{protocol.TypeMemoryRetrieveReq, protocol.TypeRefinementPlanReq, protocol.TypeRefinementReviewReq} {
		all[t] = reading(message{route: host.Raw})
	}
	return all
}

func inOrder(route func(protocol.Type, handler) host.Route, field string) func(protocol.Type, handler) host.Route {
	return func(t protocol.Type, h handler) host.Route { return route(t, h).InOrderOf(field) }
}

// reading gives a message that sees the changes before it.
func reading(m message) message {
	route := m.route
	m.route = func(t protocol.Type, h handler) host.Route { return route(t, h).Reads() }
	return m
}

// merged makes the row of a list.
func merged[Resp any](merge func(dst, src *Resp)) message {
	return message{
		list:  true,
		route: func(t protocol.Type, h handler) host.Route { return host.RawList(t, h, merge) },
		valid: func(obj protocol.Object) error { return protocol.Decode(obj, nil, new(Resp)) },
	}
}

// These add what a plugin of lower priority has, except names that are taken.
func mergeToolkits(dst, src *protocol.ToolkitListResponse) {
	dst.Toolkits = added(dst.Toolkits, src.Toolkits, func(t protocol.ToolkitDefinition) string { return t.Name })
}

func mergeSkills(dst, src *protocol.SkillDiscoverResponse) {
	dst.Skills = added(dst.Skills, src.Skills, func(s protocol.SkillDefinition) string { return s.Name })
}

func mergeServers(dst, src *protocol.MCPServerListResponse) {
	dst.Servers = added(dst.Servers, src.Servers, func(s map[string]any) string { return idOf(s, "server_id") })
}

func mergeAgents(dst, src *protocol.AgentListResponse) {
	dst.Subagents = added(dst.Subagents, src.Subagents, func(a map[string]any) string { return idOf(a, "subagent_id") })
}

func mergeSubagents(dst, src *protocol.SubagentListResponse) {
	dst.Subagents = added(dst.Subagents, src.Subagents, func(a protocol.SubagentInfo) string { return a.SubagentID })
}

func idOf(row map[string]any, field string) string {
	id, _ := row[field].(string)
	return id
}

// added gives dst with the entries of src whose name it does not have.
func added[T any](dst, src []T, name func(T) string) []T {
	for _, s := range src {
		if !slices.ContainsFunc(dst, func(d T) bool { return name(d) == name(s) }) {
			dst = append(dst, s)
		}
	}
	return dst
}
