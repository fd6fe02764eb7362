package hosttest_test

import (
	"fmt"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/plugins/env"
)

func TestEnv(t *testing.T) {
	reset := func(t testing.TB, p *hosttest.Pair) string {
		m := p.Call("env/reset/req", `{"env_name":"counter"}`)
		return m.Get("/obs/episode_id")
	}
	ep := func(format string) func(t testing.TB, p *hosttest.Pair) string {
		return func(t testing.TB, p *hosttest.Pair) string { return fmt.Sprintf(format, reset(t, p)) }
	}
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		p, err := env.New("counter", env.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, []hosttest.Sample{
		{Type: "env/reset/req", Fields: `{"env_name":"counter"}`},
		{Type: "env/reset/req", Name: "unknown", Fields: `{"env_name":"x"}`, Code: "unknown_env"},
		{Type: "env/step/req", Make: ep(`{"episode_id":%q,"action":{"type":"inc"}}`)},
		{Type: "env/observe/req", Make: ep(`{"episode_id":%q}`)},
		{Type: "env/close/req", Make: ep(`{"episode_id":%q}`)},
		{Type: "env/space/req", Fields: `{"env_name":"counter"}`},
		{Type: "env/render/req", Make: ep(`{"episode_id":%q}`)},
		{Type: "env/plan/req", Make: ep(`{"episode_id":%q}`)},
		{Type: "env/batch/step/req", Make: ep(`{"episode_ids":[%q],"actions":[{"type":"inc"}]}`)},
		{Type: "env/exp/list/req", Fields: `{}`},
	})
}
