package env

import (
	"fmt"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

func TestWorkspaceContract(t *testing.T) {
	tasks := taskFolder(t, map[string]string{"a/task.yaml": fine, "a/files/x": "y", "a/check": "#!/bin/sh\nexit 0\n"})
	episode := func(fields string) func(testing.TB, *hosttest.Pair) string {
		return func(t testing.TB, p *hosttest.Pair) string {
			var resp protocol.EnvResetResponse
			p.Call(protocol.TypeEnvResetReq, `{"env_name":"tasks"}`).Decode(t, &resp)
			return fmt.Sprintf(fields, resp.Obs.EpisodeID)
		}
	}
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		p, err := New("tasks", Options{Env: "workspace", Workspace: WorkspaceOptions{Tasks: tasks}}, workshop(t))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, []hosttest.Sample{
		{Type: protocol.TypeEnvResetReq, Fields: `{"env_name":"workspace","seed":3,"options":{"task":"a"}}`},
		{Name: "unknown task", Type: protocol.TypeEnvResetReq, Fields: `{"env_name":"tasks","options":{"task":"b"}}`, Code: protocol.CodeResetDenied},
		{Type: protocol.TypeEnvSpaceReq, Fields: `{"env_name":"workspace"}`},
		{Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"type":"read_file","path":"x"}}`)},
		{Name: "refused by the tool", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"type":"read_file","payload":{"path":"/x"}}}`)},
		{Name: "submit", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"type":"submit"}}`)},
		{Name: "no action", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"type":"fly"}}`), Code: protocol.CodeUnknownAction},
		{Type: protocol.TypeEnvObserveReq, Make: episode(`{"episode_id":%q}`)},
		{Type: protocol.TypeEnvRenderReq, Make: episode(`{"episode_id":%q,"mode":"text"}`)},
		{Type: protocol.TypeEnvPlanReq, Make: episode(`{"episode_id":%q}`)},
		{Type: protocol.TypeEnvBatchStepReq, Make: episode(`{"episode_ids":[%[1]q,%[1]q],"actions":[{"type":"write_file","path":"a","content":""},{"type":"read_file","path":"a"}]}`)},
		{Type: protocol.TypeEnvExpListReq, Fields: `{"limit":5}`},
		{Type: protocol.TypeEnvCloseReq, Make: episode(`{"episode_id":%q}`)},
	})
}

// BenchmarkNewWorkspace is what the environment adds to the start of a host.
func BenchmarkNewWorkspace(b *testing.B) {
	tasks, e := realTasks(b), workshop(b)
	for b.Loop() {
		if _, err := newWorkspace(WorkspaceOptions{Tasks: tasks}, e); err != nil {
			b.Fatal(err)
		}
	}
}
