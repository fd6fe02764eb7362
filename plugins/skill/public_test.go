package skill

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// onSamples returns a host with the skills of testdata.
func onSamples(t *testing.T) *stage {
	return newStage(t, nil, func(o *Options, _ *host.Env) { o.SkillsPath = samples() })
}

// TestPublicSkills: skills in the form of many different projects load with all that they say.
func TestPublicSkills(t *testing.T) {
	s := onSamples(t)
	all := s.discover()
	want := "book-room csv-columns from-windows greet-module minimal move-component no-front-matter old-reports " +
		"pdf-forms release-notes review-pr slides spreadsheets tidy-notes topic-analysis word-count übersetzen"
	must.Equal(t, names(all), want, "there")
	for _, tc := range []struct {
		name string
		get  func(protocol.SkillDefinition) any
		want any
	}{
		{"pdf-forms", func(d protocol.SkillDefinition) any { return d.Metadata["version"] }, "2.1"},
		{
			"pdf-forms", func(d protocol.SkillDefinition) any { return d.Metadata["license"] },
			"Complete terms in LICENSE.txt",
		},
		{"pdf-forms", func(d protocol.SkillDefinition) any { return d.Metadata["uri"] }, "skill://pdf-forms/"},
		{
			"pdf-forms", func(d protocol.SkillDefinition) any { return filepath.Base(filepath.Dir(*d.FilePath)) },
			"pdf-forms",
		},
		{"pdf-forms", func(d protocol.SkillDefinition) any { return d.Source }, "system"},
		{"review-pr", func(d protocol.SkillDefinition) any { return d.Description }, "Review a pull request: bugs " +
			"first, style last"},
		{"review-pr", func(d protocol.SkillDefinition) any { return d.ArgumentHint }, "[number] [focus]"},
		{"review-pr", func(d protocol.SkillDefinition) any { return d.Status }, protocol.SkillPublished},
		{
			"review-pr", func(d protocol.SkillDefinition) any { return fmt.Sprint(d.Metadata["unknown_tools"]) },
			"[Bash(git diff:*) Bash(gh pr view:*)]",
		},
		{
			"move-component", func(d protocol.SkillDefinition) any { return d.Description },
			"Moves a component of a user interface from one framework to another.",
		},
		{
			"move-component", func(d protocol.SkillDefinition) any { return fmt.Sprint(d.Arguments) },
			"[component from to args]",
		},
		{"topic-analysis", func(d protocol.SkillDefinition) any {
			return fmt.Sprintf("%v %v %s %d %d", d.Triggers, d.Tags, *d.Category, *d.MaxTurns, *d.TimeoutSeconds)
		}, "[/topic-analysis look into] [analysis Reporting] analysis 5 60"},
		{"topic-analysis", func(d protocol.SkillDefinition) any { return d.Status }, protocol.SkillPublished},
		{"word-count", func(d protocol.SkillDefinition) any {
			return fmt.Sprintf("%s %q %s", d.Version, d.Tags, d.Metadata["kind"])
		}, `1.0 ["text" "counting"] run`},
		{
			"no-front-matter", func(d protocol.SkillDefinition) any { return d.Description },
			"Turn it off, count to ten, and turn it on again.",
		},
		{"from-windows", func(d protocol.SkillDefinition) any { return *d.Instructions }, "# First\n\nSecond line."},
		{"old-reports", func(d protocol.SkillDefinition) any { return d.Status }, protocol.SkillArchived},
		{"release-notes", func(d protocol.SkillDefinition) any { return d.WhenToUse }, "Writes the notes of a release"},
		{"release-notes", func(d protocol.SkillDefinition) any { return *d.Icon }, "📦"},
		{"übersetzen", func(d protocol.SkillDefinition) any { return d.ArgumentHint }, "текст [ziel]"},
	} {
		i := slices.IndexFunc(all, func(d protocol.SkillDefinition) bool { return d.Name == tc.name })
		got := tc.get(all[i])
		assert.That(t, got == tc.want, "%s: it says %v, should be %v", tc.name, got, tc.want)
	}
}

// TestPublicSchemas: all ways to write inputs and outputs become JSON Schemas.
func TestPublicSchemas(t *testing.T) {
	m := onSamples(t).Call(protocol.TypeSkillDiscoverReq, `{}`)
	var resp struct {
		Skills []struct {
			Name string         `json:"name"`
			In   map[string]any `json:"input_schema"`
			Out  map[string]any `json:"output_schema"`
		} `json:"skills"`
	}
	m.Decode(t, &resp)
	hour := `{"type":"integer","minimum":0,"maximum":23`
	for name, want := range map[string][2]string{
		"topic-analysis": {
			`{"type":"object","properties":{"topic":{"type":"string","description":"What to look at"},"depth":{"type":"integer","default":2,"minimum":1,"maximum":5},
				"style":{"type":"string","enum":["plain","formal"]}},"required":["topic"],"additionalProperties":false}`,
			`{"type":"object","properties":{"summary":{"type":"string"},"findings":{"type":"array","items":{"type":"string"}}}}`,
		},
		"word-count": {
			`{"type":"object","properties":{"text":{"type":"string","description":"The text"}},"required":["text"],"additionalProperties":false}`,
			`{"type":"object","properties":{"words":{"type":"integer"}},"required":["words"]}`,
		},
		"book-room": {
			`{"type":"object","properties":{"room":{"type":"string","pattern":"^[A-Z][0-9]+$"},"from":` + hour + `,"description":"first hour"},"to":` + hour + `,"default":23},
				"guests":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}},"required":["room","from"],"additionalProperties":false}`,
			`{}`,
		},
		"review-pr": {
			`{"type":"object","properties":{"args":{"type":"string","description":"[number] [focus]"}}}`,
			`{}`,
		},
	} {
		for _, s := range resp.Skills {
			if s.Name == name {
				same(t, []byte(fields(t, "in", s.In, "out", s.Out)), `{"in":`+want[0]+`,"out":`+want[1]+`}`)
			}
		}
	}
}

// TestPublicInstructions: the agent's model gets the instructions with the arguments put in.
func TestPublicInstructions(t *testing.T) {
	s := onSamples(t)
	folder, _ := filepath.Abs(filepath.Join(samples(), "review-pr"))
	for _, tc := range []struct{ name, arguments, want string }{
		{"minimal", `{}`, "Do it."},
		{"minimal", `{"a":[1],"b":"x"}`, "Do it.\n\nARGUMENTS: {\"a\":[1],\"b\":\"x\"}"},
		{"minimal", `{"args":"one two"}`, "Do it.\n\nARGUMENTS: one two"},
		{"review-pr", `{"args":"17 'the tests'"}`, "Review pull request #17. All that was asked for: 17 'the " +
			"tests'\n\n1. See what it changes: !`gh pr diff 17`\n2. Read the files around the changes, not only the " +
			"changes.\n3. Pay attention to the tests if that is given.\n\nRules of the house are in " + folder +
			"/RULES.md."},
		{"move-component", `{"args":"Button React Vue"}`, "Move the component Button from React to Vue. Keep its " +
			"tests: they must pass before and after.\nCosts of  and variables such as $HOME stay as they are."},
		{"move-component", `{"component":"$to","to":"{{from}}","from":"x"}`, "Move the component $to from x to " +
			"{{from}}. Keep its tests: they must pass before and after.\nCosts of  and variables such as $HOME stay " +
			"as they are."},
		{"topic-analysis", `{"topic":"tides"}`, "# Topic analysis\n\n**Topic:** tides\n\nGo 2 levels deep and write " +
			"in a  way. Do not write {\"json\": true} or {other} things."},
		{"topic-analysis", `{"args":"the tides of the sea","depth":4}`, "# Topic analysis\n\n**Topic:** the tides " +
			"of the sea\n\nGo 4 levels deep and write in a  way. Do not write {\"json\": true} or {other} things."},
		{"release-notes", `{"since":"v1"}`, "Write what changed since v1."},
		{"release-notes", `{}`, "Write what changed since {{since}}."},
		{"book-room", `{"room":"A1","from":9,"guests":[{"name":"Bo"}]}`, "Book A1 from 9 to 23 for " +
			"[{\"name\":\"Bo\"}]."},
		{"übersetzen", `{"текст":"Привет"}`, "Übersetze nach : «Привет»"},
		{"pdf-forms", `{}`, "python3 scripts/list_fields.py form.pdf | awk '{print $1}'"},
	} {
		got := s.text(tc.name, tc.arguments)
		assert.That(t, got == tc.want || tc.name == "pdf-forms" &&
			strings.Contains(got, tc.want), "%s %s gives\n%s\nshould be\n%s", tc.name, tc.arguments, got, tc.want)
	}
	m := s.well("pdf-forms", `{}`)
	same(t, []byte(m.Get("/data/data/files")), `["skill://pdf-forms/LICENSE.txt","skill://pdf-forms/assets/values.json","skill://pdf-forms/references/field-types.md","skill://pdf-forms/scripts/fill.py","skill://pdf-forms/scripts/list_fields.py"]`)
	assert.Equal(t, m.Get("/data/data/tools"), "[]", "pdf-forms names no tools and gets")
	m = s.well("topic-analysis", `{"topic":"x"}`)
	got := m.Get("/data/data/tools/0/name") + " " + m.Get("/data/data/tools/1/name") + " " +
		m.Get("/data/data/tools/2/name")
	assert.Equal(t, got, "glob grep read_file", "its tools")
	assert.Equal(t, m.Get("/data/data/output_schema/type"), "object", "the outputs are not told: %s", m.Line)
}

// TestPublicFilesAreRead: read_file and list_dir can read the files of a skill.
func TestPublicFilesAreRead(t *testing.T) {
	s := onSamples(t)
	read := func(tool, path string) string {
		m := s.Call(protocol.TypeToolCallReq, fields(t, "tool_name", tool, "arguments",
			map[string]string{"path": path}))
		if m.Code != "" {
			return string(m.Code) + " " + m.Get("/message")
		}
		return m.Get("/data/data")
	}
	for _, tc := range []struct{ tool, path, want string }{
		{"read_file", "skill://pdf-forms/assets/values.json", `Lovelace`},
		{"read_file", "skill://slides/examples/SKILL.md", `part-of-slides`},
		{"read_file", "skill://übersetzen/SKILL.md", `Übersetze`},
		{"list_dir", "skill://pdf-forms", `"references"`},
		{"list_dir", "skill://office", `unknown_skill unknown skill "office"`},
		{"read_file", "skill://minimall/SKILL.md", `did you mean "minimal"?`},
		{"read_file", "skill://minimal/../pdf-forms/LICENSE.txt", "tool_denied"},
		{"read_file", "skill://minimal//etc/passwd", "tool_denied"},
		{"read_file", "skill:///minimal/SKILL.md", "unknown_skill"},
		{"write_file", "skill://minimal/x", ""},
	} {
		assert.Contains(t, read(tc.tool, tc.path), tc.want, "%s %s gives …, should have", tc.tool, tc.path)
	}
	_, err := os.Stat(filepath.Join(samples(), "minimal", "x"))
	assert.That(t, err != nil, "a file was written into a skill")
}

// TestPublicScriptsRun: the skills of testdata that are programs run.
func TestPublicScriptsRun(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // Windows has no sh; the tests of package run check what runs a script
	}
	s := onSamples(t)
	write(t, s.work, map[string]string{"data.csv": "a;b;c\n1;2;3\n"})
	m := s.well("word-count", `{"text":"one two  three"}`)
	assert.Equal(t, m.Get("/data/data/words")+m.Get("/data/summary"), "33 words", "%s", m.Line)
	m = s.well("csv-columns", `{"path":"data.csv","separator":";"}`)
	same(t, []byte(m.Get("/data/data")), `{"columns":["a","b","c"]}`)
	text, err := os.ReadFile(filepath.Join(s.work, "columns.txt"))
	assert.Equal(t, string(text), "a\nb\nc\n", "columns.txt has %q, %v", text, err)
	for range 2 { // compiled the first time, and cached for the second
		m = s.well("greet-module", `{}`)
		same(t, []byte(m.Get("/data/data")), `{"hello":"world"}`)
	}
}

// TestOwnMetadata: a skill's own metadata cannot take the place of the host's metadata.
func TestOwnMetadata(t *testing.T) {
	s := newStage(t, map[string]string{"x/SKILL.md": md("name: x\ndescription: d\nmetadata: {kind: wasm, uri: "+
		"'skill://y/', blocked_reason: none, routing_weight: 9, brief: true, unknown_tools: [a], a: b}", "")}, nil)
	raw := must.Get(json.Marshal(s.one("x").Metadata))(t)
	same(t, raw, `{"kind":"instructions","uri":"skill://x/","a":"b"}`)
}

// TestPublicHints: a person is told the hints about these skills.
func TestPublicHints(t *testing.T) {
	all := must.Get(CheckFolder(samples()))(t)
	var got []string
	for _, e := range all {
		for _, n := range e.Problems {
			t.Errorf("%s:%d: %s", e.File, n.Line, n.Text)
		}
		for _, n := range e.Hints {
			text, _, _ := strings.Cut(n.Text, ";")
			got = append(got, fmt.Sprintf("%s:%d %s", filepath.Base(filepath.Dir(e.File)), n.Line, text))
		}
	}
	want := []string{
		`no-front-matter:0 there is no name`,
		`no-front-matter:0 there is no description`,
		`no-front-matter:1 there is no front matter`,
		`release-notes:8 the key "tagz" has no meaning here`,
		`release-notes:9 the key "homepage" has no meaning here`,
		`review-pr:3 the value is not valid YAML and is read as a text`,
		`review-pr:4 allowed-tools: the rule in "Bash(git diff:*)" cannot be kept here, so the skill gets no tool for it`,
		`review-pr:4 allowed-tools: the rule in "Bash(gh pr view:*)" cannot be kept here, so the skill gets no tool for it`,
		`review-pr:5 the value is not valid YAML and is read as a text`,
		`review-pr:8 the key "context" has no meaning here`,
		`review-pr:9 agent: the name of an agent of another host has no meaning here`,
		`übersetzen:2 name: "übersetzen" does not follow the public format: at most 64 lower-case letters, digits and single hyphens`,
	}
	assert.Slice(t, got, want, "the hints are\n%s\nshould be\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

// TestWallTrustSkillOfTheWorkspace: a skill that an agent could have written gets neither the network nor the model and
// key of the config just because its own text asks for them. With trust_workspace, each case does get what it asks for.
func TestWallTrustSkillOfTheWorkspace(t *testing.T) {
	var asked atomic.Int32
	url := endpoint(t, `{"message":{"role":"assistant","content":"done"},"finish_reason":"stop"}`,
		func(string, string) { asked.Add(1) })
	files := map[string]string{
		"net/SKILL.md":   md("name: net\ndescription: d\nrun: go.sh\nnetwork: true", ""),
		"net/go.sh":      "#!/bin/sh\n",
		"model/SKILL.md": md("name: model\ndescription: d\nagent: true", "Say something."),
	}
	network := func(t *testing.T, s *stage) bool {
		one, job := s.job("net")
		_, blocked, err := s.plugin.look(t.Context(), one, &inventory{})
		assert.That(t, err == nil && (blocked == "") == job.Network, "network %t, blocked %q, %v", job.Network, blocked,
			err)
		return job.Network
	}
	model := func(fields string) func(*testing.T, *stage) bool {
		return func(_ *testing.T, s *stage) bool {
			s.Handshake(protocol.CapSkill, protocol.CapMCP)
			before := asked.Load()
			id := s.Go(protocol.TypeSkillCallReq, fields)
			answers := func(m hosttest.Message) bool {
				return m.ReqID == id && !strings.HasSuffix(string(m.Type), "/event")
			}
			m := s.Wait("the answer, or a question to the agent",
				func(m hosttest.Message) bool { return m.IsRequest() || answers(m) })
			if m.IsRequest() {
				s.sampled(m, "done")
				s.Wait("the answer", answers)
			}
			return asked.Load() > before
		}
	}
	harms := map[string]func(*testing.T, *stage) bool{
		"network": network, "model of the config": model(`{"name":"model","arguments":{}}`),
		"key of the config by an override": model(`{"name":"model","llm_override":{"provider_name":"p","provider_config":{"model":"other"},"provider_credentials":{}}}`),
		"URL of the config by an override": model(`{"name":"model","llm_override":{"provider_name":"p","provider_config":{"url":"` + url + `","model":"other"},"provider_credentials":{}}}`),
	}
	places := map[string]func(t *testing.T, work string, o *Options){
		"found in the workspace": func(*testing.T, string, *Options) {},
		"skills_path in the workspace": func(_ *testing.T, work string, o *Options) {
			o.SkillsPath, o.WorkspaceSkills = filepath.Join(work, ".a2e", "skills"), false
		},
		"skills_path by a link into the workspace": func(t *testing.T, work string, o *Options) {
			link := filepath.Join(t.TempDir(), "link")
			must.OK(t, os.Symlink(filepath.Join(work, ".a2e", "skills"), link))
			o.SkillsPath, o.WorkspaceSkills = link, false
		},
		"skills_path is one skill of it": func(_ *testing.T, work string, o *Options) {
			skills := filepath.Join(work, ".a2e", "skills")
			o.SkillsPath = []string{filepath.Join(skills, "net"), filepath.Join(skills, "model")}
		},
	}
	for place, put := range places {
		for harm, does := range harms {
			t.Run(place+": "+harm, func(t *testing.T) {
				for _, trusted := range []bool{false, true} {
					s := newStage(t, files, func(o *Options, e *host.Env) {
						o.LLM = agent.LLM{URL: url, Model: "m", APIKey: config.NewSecret("sk-0123456789")}
						o.NetworkDisabled, o.AllowLLMOverride, o.TrustWorkspace = false, true, trusted
						put(t, e.Workspace, o)
					})
					assert.Equal(t, does(t, s), trusted, "trust_workspace …: it got it")
				}
			})
		}
	}
}

// TestSkillsOfTheUserGetTheNetwork: skills outside of the workspace get the network if the config allows it.
func TestSkillsOfTheUserGetTheNetwork(t *testing.T) {
	for _, source := range []string{sourceSystem, sourceUser} {
		user := t.TempDir()
		write(t, filepath.Join(user, "skills"), map[string]string{"net/SKILL.md": md("name: net\ndescription: "+
			"d\nrun: go.sh\nnetwork: true", ""), "net/go.sh": "#!/bin/sh\n"})
		s := newStage(t, nil, func(o *Options, e *host.Env) {
			o.NetworkDisabled = false
			if e.UserDir = user; source == sourceSystem {
				o.SkillsPath = filepath.Join(user, "skills")
			}
		})
		one, job := s.job("net")
		assert.That(t, job.Network && one.root.source == source, "%s: %+v", source, job)
		reasons := s.plugin.refused(one)
		assert.That(t, len(reasons) == 0, "%s: %s", source, strings.Join(reasons, "; "))
	}
}

// TestManyItemsAreCheckedInProportion: if one of very many items is invalid, the schema of the others is not compiled
// for each of them. Otherwise this test would take longer than it waits for an answer.
func TestManyItemsAreCheckedInProportion(t *testing.T) {
	var choices strings.Builder
	for i := range 400 {
		fmt.Fprintf(&choices, "        p%d: {type: string, maxLength: 5, description: d}\n", i)
	}
	s := newStage(t, map[string]string{"list/SKILL.md": md("name: list\ndescription: d\ninputs:\n  list:\n    type: "+
		"array\n    items:\n      type: [integer, object]\n      properties:\n"+choices.String(), "text")}, nil)
	text := s.refused("list", `{"list":[`+strings.Repeat("1,", 150_000)+`"x"]}`, protocol.CodeSchemaViolation)
	assert.That(t, strings.Contains(text, "/arguments/list/150000"), "%v", text)
}

// TestLineWithoutWordsIsSplitOnce: a line without words has none, however often the text asks for one, and is split
// only once.
func TestLineWithoutWordsIsSplitOnce(t *testing.T) {
	s := newStage(t, map[string]string{"line/SKILL.md": md("name: line\ndescription: d\nargument-hint: words",
		strings.Repeat("$1$2", 50_000)+" end")}, nil)
	assert.Equal(t, s.text("line", `{"args":"`+strings.Repeat(" ", 512<<10)+`"}`), " end")
}

// TestReferencesStandForInputs: a reference works as if its target stood in its place: for names, for defaults, and for
// the input that takes a line of words.
func TestReferencesStandForInputs(t *testing.T) {
	front := "name: r\ndescription: d\ninputs:\n  $defs:\n    all: {type: object, properties: {n: {$ref: " +
		"'#/$defs/n'}, text: {type: str}}}\n    n: {type: int, default: 3}\n  $ref: '#/$defs/all'"
	s := newStage(t, map[string]string{"r/SKILL.md": md(front, "{n} {text}")}, nil)
	assert.Equal(t, s.text("r", `{"args":"a b"}`), "3 a b")
	assert.Contains(t, s.refused("r", `{"n":"x"}`, protocol.CodeSchemaViolation), "/arguments/n")
}

// TestReferencesDoNotMultiply: references copy their target: a few kilobytes of front matter must not become megabytes
// in memory and in each answer.
func TestReferencesDoNotMultiply(t *testing.T) {
	var properties strings.Builder
	for i := range 240 {
		fmt.Fprintf(&properties, "    p%d: {$ref: '#/$defs/a'}\n", i)
	}
	front := "name: large\ndescription: d\ninputs:\n  type: object\n  $defs:\n    a: {type: string, description: '" +
		strings.Repeat("x", 40_000) + "'}\n  properties:\n" + properties.String()
	s := newStage(t, map[string]string{"large/SKILL.md": md(front, "text")}, nil)
	assert.Contains(t, s.refused("large", "{}", protocol.CodeUnknownSkill), "with what references stand for")
	assert.Equal(t, len(s.discover()), 0, "a skill with a schema of 10 MB is listed")
}

// TestSchemasCountForAllSkillsTogether: the size of schemas counts together with the text of all skills.
func TestSchemasCountForAllSkillsTogether(t *testing.T) {
	files := map[string]string{}
	for i := range 4 {
		front := fmt.Sprintf("name: s%d\ndescription: d\ninputs:\n  type: object\n  $defs:\n    a: {type: string, "+
			"description: '%s'}\n  properties: {", i, strings.Repeat("x", 1000))
		for p := range 50 {
			front += fmt.Sprintf("p%d: {$ref: '#/$defs/a'}, ", p)
		}
		files[fmt.Sprintf("s%d/SKILL.md", i)] = md(front+"}", "text")
	}
	s := newStage(t, files, nil)
	s.plugin.library.max.bytes = 120_000 // each skill has 2,500 bytes of text, and 50,000 bytes of schema
	assert.Equal(t, names(s.discover()), "s0 s1 s2")
}

// TestVeryManyInputsAreRefused: the number of inputs is bounded, because each name is compared with all others.
func TestVeryManyInputsAreRefused(t *testing.T) {
	var list strings.Builder
	for i := range 600 {
		fmt.Fprintf(&list, "  - n%d\n", i)
	}
	s := newStage(t, map[string]string{"many/SKILL.md": md("name: many\ndescription: d\ninputs:\n"+list.String(),
		"text")}, nil)
	assert.Contains(t, s.refused("many", "{}", protocol.CodeUnknownSkill), "more than 500 entries")
}

// TestRuleBehindSpaceStaysWithItsTool: a space before the rule of a tool does not separate the rule from the tool:
// otherwise a skill would get the tool without the rule.
func TestRuleBehindSpaceStaysWithItsTool(t *testing.T) {
	s := newStage(t, map[string]string{
		"a/SKILL.md": md("name: a\ndescription: d\nallowed-tools: Read Bash (git:*)", "text"),
		"b/SKILL.md": md("name: b\ndescription: d\ntools: Read, Bash (git add:*), Grep", "text"),
	}, nil)
	s.well("a", "{}").Has(t, "/data/data/tools/0/name", "read_file", "/data/data/tools/1/name", "")
	assert.Contains(t, s.refused("b", "{}", protocol.CodeSkillError), `"Bash(git add:*)" has a rule`)
}

// TestPatternsAreHeldAgainstBoundedTexts: texts that are matched against patterns are bounded, because nothing can stop
// a match once it runs, and a pattern of a few bytes can take a minute for a megabyte.
func TestPatternsAreHeldAgainstBoundedTexts(t *testing.T) {
	s := newStage(t, map[string]string{
		"slow/SKILL.md": md("name: slow\ndescription: d\ninputs: {x: {type: string, pattern: '((a{0,30}){0,30})b'}}",
			"{{x}}"),
		"names/SKILL.md": md("name: names\ndescription: d\ninputs: {type: object, properties: {}, "+
			"patternProperties: {'((a{0,30}){0,30})b': {type: string}}}", "text"),
		"usual/SKILL.md": md("name: usual\ndescription: d\ninputs: {x: {type: string, pattern: '^[a-z]+$'}, y: string}",
			"{{x}}"),
	}, nil)
	long := `"` + strings.Repeat("a", 900_000) + `"`
	for _, name := range []string{"slow", "names"} {
		assert.Contains(t, s.refused(name, `{"x":`+long+`}`, protocol.CodeSchemaViolation),
			"too many to check against the patterns")
	}
	assert.Equal(t, s.text("slow", `{"x":"aab"}`), "aab")
	assert.Equal(t, s.text("usual", `{"x":"aab","y":`+long+`}`), "aab")
}
