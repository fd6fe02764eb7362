// The tests of this package run the engine in memory. Those of its promises need a clock that the test moves, plugins
// that misbehave, or an output that stalls:
//
//	once_test.go    any mix of requests and ends: each request is answered once
//	fault_test.go   each fault of a handler, and its error
//	bounds_test.go  the queue, the output and the time are bounded
//	late_test.go    the end: what is still read, and how long it may take
//
// The same promises of the binary are tested elsewhere: host/hosttest/sim plays random lines and faults and checks that
// nothing is lost, host/cli/faults has each fault of files and programs as a user meets it.
package host_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

// act is one thing that an agent does in TestExactlyOnce.
type act struct {
	what string
	pick int // selects the earlier request that a cancel names, counted from the last
	ms   int
}

// acts draws the actions of the agent. The clock is the one of a synctest bubble, so long waits cost no time.
func acts(t *rapid.T) []act {
	whats := []string{
		"echo", "panic", "goexit", "gopanic", "sleep", "nap", "stream", "huge", "nan", "bomb", "nilerror", "noanswer",
		"ask", "derived", "timeout", "stubborn", "handshake", "ping", "kill", "killpanic", "killexit", "cancel",
		"cancel",
		"broken", "unknown", "wait", "wait",
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) act {
		return act{
			what: rapid.SampledFrom(whats).Draw(t, "what"),
			pick: rapid.IntRange(0, 20).Draw(t, "pick"),
			ms:   rapid.SampledFrom([]int{0, 1, 20, 300, 900, 2000}).Draw(t, "ms"),
		}
	}), 1, 60).Draw(t, "acts")
}

// line returns the request of an act, or "" if the act sends none.
func (a act) line(id string, sent []string) string {
	switch a.what {
	case "wait":
		return ""
	case "cancel":
		target := "nobody"
		if len(sent) > 0 {
			target = sent[max(0, len(sent)-1-a.pick)]
		}
		return hosttest.Request(protocol.TypeCancel, id, fmt.Sprintf(`{"req_id":%q}`, target))
	case "handshake":
		return hosttest.Request(protocol.TypeHandshakeReq, id, `{"agent_caps":["tools","proc","mcp"]}`)
	case "ping":
		return hosttest.Request(protocol.TypePing, id, "")
	case "kill", "killpanic", "killexit":
		proc := map[string]string{"kill": "ok", "killpanic": "panic", "killexit": "goexit"}[a.what]
		return hosttest.Request(protocol.TypeProcKillReq, id, fmt.Sprintf(`{"proc_id":%q}`, proc))
	case "broken":
		return fmt.Sprintf(`{"id":%q,"type":"ping","x":}`, id)
	case "unknown":
		return hosttest.Request("no/such/req", id, "")
	case "timeout":
		return hosttest.Request(protocol.TypeToolCallReq, id, `{"timeout":1,`+tool("block", `{}`)[1:])
	}
	args := fmt.Sprintf(`{"ms":%d,"n":%d}`, a.ms, a.pick*10)
	return hosttest.Request(protocol.TypeToolCallReq, id, fmt.Sprintf(`{"timeout":3,"streaming":%t,`,
		a.pick%2 == 0)+tool(a.what, args)[1:])
}

// TestExactlyOnce: under any mix of requests, faults, cancels and handshakes, and however the session ends, the host
// answers each request that it has read exactly once. The Pair checks that no answer comes twice and that events come
// in order before it. An output buffer smaller than a message does not block the host.
func TestExactlyOnce(t *testing.T) {
	property.Check(t, func(r *rapid.T) {
		todo := acts(r)
		parallel := rapid.IntRange(1, 5).Draw(r, "parallel")
		limits := host.Limits{
			Queue:        rapid.SampledFrom([]int{1, 3, 1000}).Draw(r, "queue"),
			OutputBuffer: rapid.SampledFrom([]int{1, 1000, 1 << 20}).Draw(r, "buffer"),
		}
		ending := rapid.SampledFrom([]string{"eof", "shutdown", "shutdown now", "interrupt"}).Draw(r, "ending")
		synctest.Test(t, func(t *testing.T) {
			l := newLab()
			p := hosttest.Start(t, host.Options{
				Plugins:     []host.Plugin{l, &procs{gate: l.gate}, routes{"mcp", protocol.CapMCP, nil}},
				MaxParallel: parallel, Limits: limits,
			})
			p.Handshake("tools", "proc", "mcp")
			sent := playActs(p, todo)
			synctest.Wait()
			switch ending {
			case "eof":
				p.CloseInput()
			case "shutdown":
				p.Go(protocol.TypeShutdown, "")
			case "shutdown now":
				p.Go(protocol.TypeShutdown, `{"timeout":0}`)
			case "interrupt":
				p.Host.Interrupt()
			}
			assert.OK(t, p.WaitEnd())
			close(l.gate)
			time.Sleep(5 * time.Second) // the handlers that did not stop end now
			p.Close()
			for _, id := range sent {
				assert.Equal(t, len(p.Answers(id)), 1, "%s was answered … times", id)
			}
		})
		must.That(r, !t.Failed(), "see above: %d acts, %s", len(todo), ending)
	})
}

// playActs does the acts of the agent, and returns the ids that must be answered.
func playActs(p *hosttest.Pair, todo []act) (sent []string) {
	for i, a := range todo {
		if a.what == "wait" {
			time.Sleep(time.Duration(a.ms) * time.Millisecond)
			continue
		}
		id := fmt.Sprint(a.what, "-", i)
		p.Send(a.line(id, sent))
		if a.what != "cancel" {
			sent = append(sent, id)
		}
	}
	return sent
}
