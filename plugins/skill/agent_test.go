package skill

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// agentFiles returns the files of a skill that a model carries out.
func agentFiles() map[string]string {
	return map[string]string{"tidy/SKILL.md": md("name: tidy\ndescription: Tidies up.\nagent: true\nmax_turns: "+
		"3\ntools: [Read, Write]\nallowed-tools: Read\ninputs: {file: string}\noutputs: {subject: string}",
		"Read {{file}}.")}
}

// TestAgentBySampling: the agent's own model is asked, and its tool calls run on this host.
func TestAgentBySampling(t *testing.T) {
	s := newStage(t, agentFiles(), nil)
	write(t, s.work, map[string]string{"notes.txt": "about tides"})
	s.Handshake(protocol.CapSkill, protocol.CapMCP)
	id := s.Go(protocol.TypeSkillCallReq, `{"name":"tidy","arguments":{"file":"notes.txt"}}`)
	asked := map[string]bool{}
	answer := func(text string) hosttest.Message {
		m := s.Wait("a question", func(m hosttest.Message) bool { return m.IsRequest() && !asked[m.ID] })
		asked[m.ID] = true
		s.sampled(m, text)
		return m
	}
	first := answer(`{"tool":"read_file","arguments":{"path":"notes.txt"}}`)
	line := string(first.Line)
	assert.That(t, strings.Contains(line, "Read notes.txt.") && strings.Contains(line, "Tidies up.") &&
		strings.Contains(line, `\"subject\"`) && !strings.Contains(line, "write_file"), "it asks %s", line)
	second := answer(`{"tool":"write_file","arguments":{"path":"notes.txt","content":"gone"}}`)
	assert.Contains(t, string(second.Line), "about tides")
	third := answer(`{"subject":"tides"}`)
	assert.Contains(t, string(third.Line), "write_file", "what is not among allowed-tools cannot be called, and the "+
		"model is told:")
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(s.work, "notes.txt")))(t)), "about tides")
	m := s.Answer(id)
	assert.That(t, m.Get("/data/success") == "true" && m.Get("/data/data/subject") == "tides", "%s", m.Line)
	kinds := ""
	for _, e := range s.Messages() {
		if e.ReqID == id && e.IsEvent() {
			kinds += e.Get("/kind") + " "
		}
	}
	assert.That(t, strings.Contains(kinds, "status tool_call tool_result status"), "the steps are %s", kinds)
}

// TestAgentByEndpoint: the endpoint of the config is asked with its key, which is sent nowhere else.
func TestAgentByEndpoint(t *testing.T) {
	var mu sync.Mutex
	var keys []string
	const answer = `{"message":{"role":"assistant","content":"{\"subject\":\"x\"}"},"finish_reason":"stop"}`
	url := endpoint(t, answer, func(key, body string) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, key+" "+fmt.Sprint(strings.Contains(body, `"model":"other"`)))
	})
	other := endpoint(t, answer, func(string, string) { t.Error("the other endpoint was asked") })
	const key = "sk-configured-0123456789"
	for _, allowed := range []bool{false, true} {
		s := newStage(t, agentFiles(), func(o *Options, _ *host.Env) {
			o.LLM, o.AllowLLMOverride = agent.LLM{URL: url, Model: "own", APIKey: config.NewSecret(key)}, allowed
			o.TrustWorkspace = true
		})
		assert.Equal(t, s.well("tidy", `{"file":"f"}`).Get("/data/data/subject"), "x")
		override := func(config, credentials string) hosttest.Message {
			return s.Call(protocol.TypeSkillCallReq,
				fmt.Sprintf(`{"name":"tidy","llm_override":{"provider_name":"p","provider_config":%s,"provider_credentials":%s}}`, config, credentials))
		}
		m := override(`{"model":"other"}`, `{}`)
		if !allowed {
			assert.That(t, m.Code == protocol.CodeSkillError && strings.Contains(m.Get("/message"),
				"allow_llm_override"), "%s", m.Line)
			continue
		}
		assert.That(t, m.Get("/data/success") == "true", "another model: %s", m.Line)
		if m = override(`{"model":"other"}`, `{"api_key":"sk-own"}`); m.Get("/data/success") != "true" {
			t.Errorf("another key: %s", m.Line)
		}
		if m = override(fmt.Sprintf(`{"url":%q,"model":"other"}`, other),
			`{}`); m.Code != protocol.CodeSkillError || !strings.Contains(m.Get("/message"), "private network") {
			t.Errorf("an URL of this machine: %s", m.Line)
		}
		if m = override(`{"url":"ftp://x"}`, `{}`); m.Code != protocol.CodeSchemaViolation ||
			m.Get("/detail/errors/0/path") != "/llm_override" {
			t.Errorf("a wrong URL: %s", m.Line)
		}
		for _, line := range s.Messages() {
			assert.That(t, !strings.Contains(string(line.Line), "sk-"), "a key is told: %s", line.Line)
		}
	}
	assert.Equal(t, strings.Join(keys, ", "), "Bearer "+key+" false, Bearer "+key+" false, Bearer "+key+" true, Bearer sk-own true", "the keys sent are")
}

// TestOverrides: instructions that a refinement has set replace the skill's own. The model of the config does not carry
// them out, wherever the skill is, because an agent may have written them.
func TestOverrides(t *testing.T) {
	url := endpoint(t, "", func(string, string) { t.Error("the endpoint of the config was asked") })
	user := t.TempDir()
	write(t, filepath.Join(user, "skills"), map[string]string{
		"greet/SKILL.md": md("name: greet\ndescription: d\ninputs: {who: string}", "Greet {who}."),
		"think/SKILL.md": md("name: think\ndescription: d\nagent: true", "Think."),
	})
	text := func(of, to string) *host.Override {
		return &host.Override{Texts: map[string]host.Text{host.TextInstructions: {
			Of: sha256.Sum256([]byte(of)),
			To: to,
		}}}
	}
	s := newStage(t, nil, func(o *Options, e *host.Env) {
		o.LLM, e.UserDir = agent.LLM{URL: url, Model: "m", APIKey: config.NewSecret("sk-0123456789")}, user
	}, hosttest.Overrides{host.KindSkill: {
		"greet": text("Greet {who}.", "Greet {who} loudly."),
		"think": text("Think.", "Think twice."),
	}})
	assert.Equal(t, s.text("greet", `{"who":"Ada"}`), "Greet Ada loudly.")
	got := s.one("greet").Instructions
	assert.That(t, got != nil && *got == "Greet {who} loudly.", "listed is %v", got)
	if got, _ := s.plugin.Instructions("greet"); got != "Greet {who}." {
		t.Errorf("its own are %q", got)
	}
	s.Handshake(protocol.CapSkill, protocol.CapMCP)
	id := s.Go(protocol.TypeSkillCallReq, `{"name":"think"}`)
	m := s.Wait("a question to the agent", func(m hosttest.Message) bool { return m.IsRequest() })
	assert.That(t, strings.Contains(string(m.Line), "Think twice."), "it asks %s", m)
	s.sampled(m, "done")
	s.Answer(id).Has(t, "/data/success", "true")
}

// TestAgentTurns: the config limits the turns, whatever a skill says.
func TestAgentTurns(t *testing.T) {
	asked := 0
	url := endpoint(t, `{"message":{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"read_file","arguments":"{\"path\":\"x\"}"}}]},"finish_reason":"tool_calls"}`,
		func(string, string) { asked++ })
	for _, most := range []int{2, 100} {
		s := newStage(t, agentFiles(), func(o *Options, _ *host.Env) {
			o.LLM, o.MaxTurns, o.TrustWorkspace = agent.LLM{URL: url, Model: "m"}, most, true
		})
		before := asked
		m := s.ask("tidy", `{}`)
		want := min(most, 3)
		assert.That(t, m.Get("/data/success") == "false" && asked-before == want &&
			strings.Contains(m.Get("/data/error"), "within "+protocol.Count(want, "turn")),
			"at most %d: it asked %d times: %s", most, asked-before, m.Line)
	}
}
