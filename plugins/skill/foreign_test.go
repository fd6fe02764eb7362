package skill

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// A skill that an agent could have written gets neither the network nor the model and key of
// the config because its own text asks for them. Each case is run with trust_workspace as
// well, where it does.
func TestWallTrustSkillOfTheWorkspace(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"done"},"finish_reason":"stop"}]}`)
	}))
	defer server.Close()
	files := map[string]string{
		"net/SKILL.md":   md("name: net\ndescription: d\nrun: go.sh\nnetwork: true", ""),
		"net/go.sh":      "#!/bin/sh\n",
		"model/SKILL.md": md("name: model\ndescription: d\nagent: true", "Say something."),
	}
	network := func(t *testing.T, s *stage) bool {
		one := s.plugin.library.current(true).byName["net"]
		job, err := (&skillCall{Plugin: s.plugin, skill: one, args: &arguments{}}).job()
		if err != nil {
			t.Fatal(err)
		}
		_, blocked, err := s.plugin.look(t.Context(), one, &inventory{})
		if err != nil || (blocked == "") != job.Network {
			t.Errorf("network %t, blocked %q, %v", job.Network, blocked, err)
		}
		return job.Network
	}
	model := func(fields string) func(*testing.T, *stage) bool {
		return func(_ *testing.T, s *stage) bool {
			s.Handshake(protocol.CapSkill, protocol.CapMCP)
			before := asked.Load()
			id := s.Go(protocol.TypeSkillCallReq, fields)
			answers := func(m hosttest.Message) bool { return m.ReqID == id && !strings.HasSuffix(string(m.Type), "/event") }
			m := s.Wait("the answer, or a question to the agent", func(m hosttest.Message) bool { return m.IsRequest() || answers(m) })
			if m.IsRequest() {
				s.Send(`{"a2e":"1.0","type":"mcp/sample/resp","id":"r","req_id":"` + m.ID + `","role":"assistant","content":{"type":"text","text":"done"},"model":"m","stop_reason":"endTurn"}`)
				s.Wait("the answer", answers)
			}
			return asked.Load() > before
		}
	}
	harms := map[string]func(*testing.T, *stage) bool{
		"network": network, "model of the config": model(`{"name":"model","arguments":{}}`),
		"key of the config by an override": model(`{"name":"model","llm_override":{"provider_name":"p","provider_config":{"model":"other"},"provider_credentials":{}}}`),
		"URL of the config by an override": model(`{"name":"model","llm_override":{"provider_name":"p","provider_config":{"url":"` + server.URL + `","model":"other"},"provider_credentials":{}}}`),
	}
	places := map[string]func(t *testing.T, work string, o *Options, e *Env){
		"found in the workspace": func(*testing.T, string, *Options, *Env) {},
		"skills_path in the workspace": func(_ *testing.T, work string, o *Options, _ *Env) {
			o.SkillsPath, o.WorkspaceSkills = filepath.Join(work, ".a2e", "skills"), false
		},
		"skills_path by a link into the workspace": func(t *testing.T, work string, o *Options, _ *Env) {
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(filepath.Join(work, ".a2e", "skills"), link); err != nil {
				t.Fatal(err)
			}
			o.SkillsPath, o.WorkspaceSkills = link, false
		},
		"skills_path is one skill of it": func(_ *testing.T, work string, o *Options, _ *Env) {
			o.SkillsPath = []string{filepath.Join(work, ".a2e", "skills", "net"), filepath.Join(work, ".a2e", "skills", "model")}
		},
	}
	for place, put := range places {
		for harm, does := range harms {
			t.Run(place+": "+harm, func(t *testing.T) {
				for _, trusted := range []bool{false, true} {
					s := newStage(t, files, func(o *Options, e *Env) {
						o.LLM = LLM{URL: server.URL, Model: "m", APIKey: config.NewSecret("sk-0123456789")}
						o.NetworkDisabled, o.AllowLLMOverride, o.TrustWorkspace = false, true, trusted
						put(t, e.Workspace, o, e)
					})
					if got := does(t, s); got != trusted {
						t.Errorf("trust_workspace %t: it got it: %t", trusted, got)
					}
				}
			})
		}
	}
}

// Skills outside of the workspace get what the config gives.
func TestSkillsOfTheUserGetTheNetwork(t *testing.T) {
	for _, source := range []string{sourceSystem, sourceUser} {
		user := t.TempDir()
		write(t, filepath.Join(user, "skills"), map[string]string{"net/SKILL.md": md("name: net\ndescription: d\nrun: go.sh\nnetwork: true", ""), "net/go.sh": "#!/bin/sh\n"})
		s := newStage(t, nil, func(o *Options, e *Env) {
			o.NetworkDisabled = false
			if e.UserDir = user; source == sourceSystem {
				o.SkillsPath = filepath.Join(user, "skills")
			}
		})
		one := s.plugin.library.current(true).byName["net"]
		if job, err := (&skillCall{Plugin: s.plugin, skill: one, args: &arguments{}}).job(); err != nil || !job.Network || one.root.source != source {
			t.Errorf("%s: %+v, %v", source, job, err)
		}
		if reasons := s.plugin.refused(one); len(reasons) > 0 {
			t.Errorf("%s: %s", source, strings.Join(reasons, "; "))
		}
	}
}
