package multiagent

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// Whatever comes in whatever order: each request has its one answer, and at the end nothing
// is left.
func TestStorm(t *testing.T) {
	opts := options(shell("quick", "cat"), shell("slow", "sleep 60"))
	opts.MaxSubagents = 12
	plugin := newPlugin(t, t.TempDir(), opts, Env{})
	s := &stage{t: t, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})}
	s.Handshake()
	var ids []string
	for i := range 8 {
		parent := ""
		if i%2 == 1 {
			parent = ids[i-1]
		}
		ids = append(ids, s.spawn(fmt.Sprint("n", i), parent, ""))
	}
	var mu sync.Mutex
	var sent []string
	var all sync.WaitGroup
	for part := range 4 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(part), 7))
			for range 60 {
				typ, fields := stormRequest(random, ids)
				id := s.Go(typ, fields)
				mu.Lock()
				sent = append(sent, id)
				mu.Unlock()
				if random.IntN(8) == 0 {
					s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
				}
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		sent = append(sent, s.Go(protocol.TypeSubagentTerminateReq, sub(id))) // ends the awaits
	}
	may := []protocol.ErrorCode{"", protocol.CodeCancelled, protocol.CodeUnknownSubagent, protocol.CodeSubagentLimit, protocol.CodeOverloaded}
	for _, id := range sent {
		m := s.Answer(id)
		assert.That(t, slices.Contains(may, m.Code), "%s", m)
	}
	plugin.mu.Lock()
	for _, g := range plugin.groups {
		if n := len(g.idsLocked()); n != g.alive || n != plugin.alive || g.waits != 0 {
			t.Errorf("%d children are alive, counted as %d and %d; %d wait", n, g.alive, plugin.alive, g.waits)
		}
	}
	plugin.mu.Unlock()
	s.Close()
	assert.That(t, plugin.alive == 0 && len(plugin.groups) == 0, "%d children of %d sessions are left", plugin.alive, len(plugin.groups))
}

func stormRequest(random *rand.Rand, ids []string) (protocol.Type, string) {
	id, other := ids[random.IntN(len(ids))], ids[random.IntN(len(ids))]
	switch random.IntN(10) {
	case 0:
		return protocol.TypeSubagentSpawnReq, fmt.Sprintf(`{"agent":{"name":"n","model":"m"},"parent_agent_id":%q}`, id)
	case 1:
		return protocol.TypeSubagentMessageReq, fmt.Sprintf(`{"from_subagent_id":%q,"to_subagent_id":%q,"message":{"type":"t","content":1}}`, other, id)
	case 2:
		return protocol.TypeSubagentCancelReq, sub(id)
	case 3:
		return protocol.TypeSubagentListReq, `{}`
	case 4:
		return protocol.TypeSubagentMergeReq, `{"subagent_ids":["` + strings.Join(ids, `","`) + `"]}`
	case 5, 6:
		return protocol.TypeAgentAwaitReq, sub(id)
	case 7:
		if random.IntN(10) == 0 {
			return protocol.TypeAgentTerminateReq, sub(id)
		}
	}
	worker := []string{"quick", "quick", "slow"}[random.IntN(3)]
	return protocol.TypeSubagentDelegateReq, fmt.Sprintf(`{"subagent_id":%q,"task":{"name":"t","instruction":"i","metadata":{"worker":%q}}}`, id, worker)
}
