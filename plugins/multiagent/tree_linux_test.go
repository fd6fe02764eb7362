package multiagent

import (
	"fmt"
	"os"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// TestTheWholeTreeEnds: however a child ends, its task, its children and all their processes end, too. A child beside
// it goes on, unless all end.
func TestTheWholeTreeEnds(t *testing.T) {
	for i, how := range []string{"cancel", "terminate", "terminate short", "session", "host"} {
		t.Run(how, func(t *testing.T) {
			mark := fmt.Sprintf("97%d%d", i, os.Getpid()) // seconds of sleep, which mark the processes of this test
			s := newStage(t, options(shell("w", `setsid sh -c "sleep `+mark+` & wait" & wait`)))
			top := s.spawn("top", "", "")
			low := s.spawn("low", s.spawn("mid", top, ""), "")
			beside := s.spawn("beside", "", "")
			for _, id := range []string{top, low, beside} {
				s.delegate(id, "go")
			}
			wait := s.Go(protocol.TypeSubagentAwaitReq, sub(low))
			hosttest.Eventually(t, "all processes", func() bool { return hosttest.Running(t, mark) == 3 })
			left, want := 1, protocol.SubagentTerminated // the answer comes after the processes have ended
			switch how {
			case "cancel":
				want = protocol.SubagentCancelled
				got := ask[protocol.AgentTerminateResponse](s, protocol.TypeSubagentCancelReq, sub(top))
				assert.That(t, got.Success && got.SubagentID == top, "%+v", got)
				got = ask[protocol.AgentTerminateResponse](s, protocol.TypeSubagentCancelReq, sub(top))
				assert.That(t, !got.Success, "again: %+v", got)
			case "terminate", "terminate short":
				typ := map[string]protocol.Type{
					"terminate":       protocol.TypeSubagentTerminateReq,
					"terminate short": protocol.TypeAgentTerminateReq,
				}[how]
				for range 2 {
					got := ask[protocol.AgentTerminateResponse](s, typ, sub(top))
					assert.That(t, got.Success, "%+v", got)
				}
			default:
				left = 0
				// Otherwise the end of the session waits for this request.
				s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, wait))
				if s.Answer(wait); how == "session" {
					s.Handshake()
				} else {
					s.Close()
				}
			}
			if left == 0 { // the end of a session or a host does not wait for its processes for long
				hosttest.Eventually(t, "the end of all processes",
					func() bool { return hosttest.Running(t, mark) == 0 })
				return
			}
			assert.Equal(t, hosttest.Running(t, mark), left, "… processes are left")
			got := answered[protocol.SubagentAwaitResponse](s, protocol.TypeSubagentAwaitReq, wait)
			assert.That(t, got.Status == want && got.Error != nil && got.Result == nil, "the await of %s: %+v", low,
				got)
			a, b := s.status(low), s.status(beside)
			assert.That(t, a == want && b == protocol.SubagentRunning, "%s %s", a, b)
			event := map[bool]string{true: eventCancelled, false: eventTerminated}[how == "cancel"]
			s.event(low, event)
			if how != "cancel" {
				s.refused(protocol.CodeUnknownSubagent, protocol.TypeSubagentSpawnReq,
					fmt.Sprintf(`{"agent":{"name":"n","model":"m"},"parent_agent_id":%q}`, top))
				return
			}
			accepted, _ := s.try(top, "go on")
			assert.That(t, accepted, "a cancelled child takes no task")
		})
	}
}
