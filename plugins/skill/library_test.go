package skill

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestRoots: skills come from all the folders of the config, the user and the workspace, and of several with one name
// the first wins.
func TestRoots(t *testing.T) {
	user, first, second := t.TempDir(), t.TempDir(), t.TempDir()
	named := func(from string) string { return md("name: shared\ndescription: from "+from, "") }
	write(t, first, map[string]string{"a/SKILL.md": named("first"), "f/SKILL.md": md("name: in-first\ndescription: d",
		"")})
	write(t, second, map[string]string{
		"SKILL.md":                   named("second"),
		"skills/below/SKILL.md":      md("name: below\ndescription: d", ""),
		"skills/below/more/SKILL.md": named("none"),
	}) // more is not found, because below is a skill itself
	write(t, user, map[string]string{
		"skills/u/SKILL.md": md("name: in-user\ndescription: d", ""),
		"skills/s/SKILL.md": named("user"),
	})
	s := newStage(t, map[string]string{"s/SKILL.md": named(".a2e"), "w/SKILL.md": md("name: in-work\ndescription: d",
		"")}, func(o *Options, e *host.Env) {
		o.SkillsPath, e.UserDir = []any{first, second}, user
	})
	write(t, s.work, map[string]string{
		".claude/skills/c/SKILL.md": md("name: in-claude\ndescription: d", ""),
		".agents/skills/g/SKILL.md": md("name: in-agents\ndescription: d", ""),
	})
	var got []string
	for _, d := range s.discover() {
		got = append(got, d.Name+" "+d.Source)
	}
	want := "below system, in-agents project, in-claude project, in-first system, in-user user, in-work project, " +
		"shared system"
	assert.Equal(t, strings.Join(got, ", "), want, "there")
	d := s.one("shared")
	assert.Equal(t, d.Description, "from first", "it is that")
	all := must.Get(Check(s.plugin.opts, s.plugin.env))(t)
	shadowed := 0
	for _, e := range all {
		if e.ShadowedBy == filepath.Join(first, "a", "SKILL.md") {
			shadowed++
		}
	}
	assert.Equal(t, shadowed, 3, "… are shadowed: %+v", all)
	off := newStage(t, map[string]string{"s/SKILL.md": named(".a2e")}, func(o *Options, e *host.Env) {
		o.WorkspaceSkills, o.UserSkills, e.UserDir = false, false, user
	})
	if all := off.discover(); len(all) != 0 {
		t.Errorf("there are %s", names(all))
	}
}

// TestOptions: invalid options are refused with the name of the option.
func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"skills_path: should be a path":  {SkillsPath: 7},
		"skills_path: should be a path,": {SkillsPath: []any{"a", 7}},
		"skills_path: a path is empty":   {SkillsPath: ""},
		"skills_path: a path is empty, ": {SkillsPath: []any{"a\x00"}},
		"url must be an address":         {LLM: agent.LLM{URL: "ftp://x", Model: "m"}},
		"url must be":                    {LLM: agent.LLM{Model: "m"}},
		"model is missing":               {LLM: agent.LLM{URL: "http://127.0.0.1:1"}},
	} {
		_, err := New("p", o, host.Env{})
		assert.That(t, err != nil && strings.Contains(err.Error(), `plugin "p": `) &&
			strings.Contains(err.Error(), want), "%+v: %v, should have %q", o, err, want)
	}
	p := must.Get(New("p", Options{SkillsPath: "not-there"}, host.Env{}))(t)
	all, err := Check(p.opts, p.env)
	assert.That(t, err == nil && len(all) == 1 && strings.Contains(fmt.Sprint(all[0].Problems), "it is not there"),
		"%+v, %v", all, err)
}

// TestConfigOptions: the options load from a config file.
func TestConfigOptions(t *testing.T) {
	getenv := func(name string) string { return map[string]string{"SKILLS": "from-env"}[name] }
	for text, want := range map[string]string{
		"skills_path: one":                          "[one]",
		"skills_path: [one, '${SKILLS}/two']":       "[one from-env/two]",
		"skills_path: []":                           "[]",
		"llm: {url: '${URL:-}', api_key: '${K:-}'}": "[]",
	} {
		o := DefaultOptions()
		parsed, err := config.ParseOptions("f", []byte(text), getenv)
		if err == nil {
			err = parsed.Decode(&o)
		}
		must.OK(t, err)
		paths, err := pathsOf(o.SkillsPath)
		got := fmt.Sprint(paths)
		assert.That(t, err == nil && got == want && o.UserSkills && o.NetworkDisabled, "%s gives %s, %v: %+v", text,
			got, err, o)
		_, err = New("p", o, host.Env{})
		assert.That(t, err == nil, "%s: %v", text, err)
	}
}

// TestReload: the next request sees every change of the files.
func TestReload(t *testing.T) {
	s := newStage(t, map[string]string{"x/SKILL.md": md("name: x\ndescription: d", "first")}, nil)
	skills := filepath.Join(s.work, ".a2e", "skills")
	assert.Equal(t, s.text("x", `{}`), "first", "it")
	write(t, skills, map[string]string{"x/SKILL.md": md("name: x\ndescription: d", "again")})
	assert.Equal(t, s.text("x", `{}`), "again", "changed, it")
	write(t, skills, map[string]string{"deep/er/y/SKILL.md": md("name: y\ndescription: d\nrun: later.sh", "")})
	s.refused("y", `{}`, protocol.CodeUnknownSkill)
	write(t, skills, map[string]string{"deep/er/y/later.sh": "#!/bin/sh\n"})
	assert.Equal(t, names(s.discover()), "x y", "with its script there")
	write(t, skills, map[string]string{"x/SKILL.md": "---\nname: x\n: :"})
	got := s.refused("x", `{}`, protocol.CodeUnknownSkill)
	assert.That(t, strings.Contains(got, `skill "x" is broken`) || strings.Contains(got, "unknown skill"),
		"broken, it is called %s", got)
	must.OK(t, os.RemoveAll(skills))
	assert.Equal(t, names(s.discover()), "", "removed, there")
	write(t, skills, map[string]string{"z/SKILL.md": md("name: z\ndescription: d", "back")})
	assert.Equal(t, s.text("z", `{}`), "back", "it")
}

// TestReloadIsCheap: without a change nothing is read again. With very many files, the host does not even look for
// changes at each request.
func TestReloadIsCheap(t *testing.T) {
	top := t.TempDir()
	write(t, top, map[string]string{"x/SKILL.md": md("name: x\ndescription: d", "")})
	now := testNow()
	lib := newLibrary([]*root{
		{base: top, rel: ".", show: "top"},
		{base: top, rel: ".", show: "same"},
		{base: filepath.Join(top, "none"), rel: ".", show: "none"},
	}, func() time.Time { return now }, zerolog.Nop())
	first := lib.current(false)
	again := lib.current(true)
	assert.That(t, again == first, "it was loaded again without a change")
	for i := range fewWatched/2 + 1 {
		write(t, top, map[string]string{fmt.Sprintf("%d/SKILL.md", i): md(fmt.Sprintf("name: s%d\ndescription: d", i),
			"")})
	}
	many := lib.current(false)
	must.Equal(t, len(many.skills), fewWatched/2+2, "there")
	write(t, top, map[string]string{"new/SKILL.md": md("name: new\ndescription: d", "")})
	assert.That(t, lib.current(false) == many, "it looked at once")
	now = now.Add(checkEvery)
	assert.That(t, lib.current(false).byName["new"] != nil, "it did not look after a while")
	write(t, top, map[string]string{"newer/SKILL.md": md("name: newer\ndescription: d", "")})
	assert.That(t, lib.current(true).byName["newer"] != nil, "it did not look when asked to")
}

// TestReloadSoonAfter: a file that has just changed is read again, because it may change twice within one tick of the
// clock for file times.
func TestReloadSoonAfter(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "x", "SKILL.md")
	write(t, top, map[string]string{"x/SKILL.md": md("name: x\ndescription: d", "first")})
	info := must.Get(os.Stat(path))(t)
	now := info.ModTime()
	lib := newLibrary([]*root{{base: top, rel: ".", show: "top"}}, func() time.Time { return now }, zerolog.Nop())
	rewrite := func(body string) {
		write(t, top, map[string]string{"x/SKILL.md": md("name: x\ndescription: d", body)})
		must.OK(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	}
	lib.current(false)
	rewrite("again")
	assert.Equal(t, lib.current(false).byName["x"].body, "again", "it")
	now = now.Add(2 * freshChange)
	kept := lib.current(false)
	assert.That(t, lib.current(false) == kept, "it is read again and again")
}

// TestReloadWhileCalled: skills come, go and change under load, and each request is answered from one consistent state
// of them.
func TestReloadWhileCalled(t *testing.T) {
	s := newStage(t, map[string]string{"stays/SKILL.md": md("name: stays\ndescription: d", "here")}, nil)
	dir := filepath.Join(s.work, ".a2e", "skills", "comes")
	var all sync.WaitGroup
	all.Go(func() {
		for i := range 50 {
			write(t, dir, map[string]string{"SKILL.md": md("name: comes\ndescription: d", fmt.Sprint("version ", i))})
			_ = os.RemoveAll(dir)
		}
	})
	for range 3 {
		all.Go(func() {
			for range 50 {
				s.ask("stays", `{}`).Has(t, "/data/data/instructions", "here")
				m := s.ask("comes", `{}`)
				assert.That(t, m.Code == protocol.CodeUnknownSkill || m.Code == protocol.CodeSkillError ||
					strings.HasPrefix(m.Get("/data/data/instructions"), "version "), "%s", m.Line)
			}
		})
	}
	all.Wait()
}

// TestFilters: tags and categories match without regard to case, and one match of each kind is enough.
func TestFilters(t *testing.T) {
	s := newStage(t, map[string]string{
		"a/SKILL.md": md("name: a\ndescription: d\ntags: [Red, green]\ncategory: Paint", ""),
		"b/SKILL.md": md("name: b\ndescription: d\ntags: [blue]\ncategory: paint", ""),
		"c/SKILL.md": md("name: c\ndescription: d", ""),
	}, nil)
	for _, tc := range []struct {
		tags, categories []string
		want             string
	}{
		{nil, nil, "a b c"},
		{[]string{"red"}, nil, "a"},
		{[]string{"RED", "blue"}, nil, "a b"},
		{[]string{"none"}, nil, ""},
		{nil, []string{"PAINT"}, "a b"},
		{[]string{"blue"}, []string{"paint"}, "b"},
		{nil, []string{""}, ""},
	} {
		got := names(s.discover("filter_tags", append([]string{}, tc.tags...), "filter_categories",
			append([]string{}, tc.categories...)))
		assert.Equal(t, got, tc.want, "%v %v", tc.tags, tc.categories)
	}
}

// TestListsAreBounded: a list of skills has a bounded size, so that an agent can read it.
func TestListsAreBounded(t *testing.T) {
	files := map[string]string{"0long/SKILL.md": md("name: 0long\ndescription: d", strings.Repeat("x", 101))}
	for i := range 14 {
		files[fmt.Sprintf("f%02d/SKILL.md", i)] = md(fmt.Sprintf("name: f%02d\ndescription: %s", i,
			strings.Repeat("y", 1000)), strings.Repeat("z", 100))
	}
	s := newStage(t, files, nil)
	s.plugin.room = room{text: 100, texts: 450, all: 10_000}
	all := s.discover()
	must.Equal(t, len(all), 15, "there")
	told, whole := "", ""
	for _, d := range all {
		if d.Instructions != nil {
			told += " " + d.Name
		}
		if d.Metadata["brief"] == nil {
			whole += " " + d.Name
		}
	}
	assert.That(t, told == " f00 f01 f02 f03" && whole == " 0long f00 f01 f02 f03 f04 f05 f06 f07 f08",
		"the texts of%s are told, and%s are whole", told, whole)
	d := all[14]
	assert.That(t, d.Name == "f13" && len(d.Description) == briefBytes && d.Status == protocol.SkillPublished,
		"in brief it is %+v", d)
	s.well("f13", `{}`)
}

// TestNearest: the error for an unknown name suggests similar names.
func TestNearest(t *testing.T) {
	s := newStage(t, map[string]string{
		"a/SKILL.md": md("name: code-review\ndescription: d", ""),
		"b/SKILL.md": md("name: code-reviews\ndescription: d", ""), "c/SKILL.md": md("name: other\ndescription: d", ""),
	}, nil)
	for name, want := range map[string]string{
		"code_review":               `did you mean "code-review" or "code-reviews"? There are: code-review, code-reviews, other`,
		"Code-Revew":                `did you mean "code-review"`,
		"xyz":                       `unknown skill "xyz"; there are: code-review, code-reviews, other`,
		strings.Repeat("é", 10_000): `…; there are`,
	} {
		m := s.ask(name, `{}`)
		got := m.Get("/message")
		assert.That(t, m.Code == protocol.CodeUnknownSkill && strings.Contains(got, want) &&
			m.Get("/retryable") == "false" && len(got) <= 500, "%.50s: %.1000s", name, m.Line)
		assert.That(t, m.Get("/detail/known") != "", "the names are not listed: %s", m.Line)
	}
}

// TestSeveralPlugins: a list has the skills of both plugins, and a call goes to the plugin with the skill. If both have
// the name, the first plugin wins.
func TestSeveralPlugins(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	write(t, one, map[string]string{
		"a/SKILL.md": md("name: a\ndescription: one", "one"),
		"s/SKILL.md": md("name: s\ndescription: one", "one"),
	})
	write(t, two, map[string]string{
		"b/SKILL.md": md("name: b\ndescription: two", "two"),
		"s/SKILL.md": md("name: s\ndescription: two", "two"),
	})
	s := &stage{t: t}
	s.Pair = hosttest.New(t, optionsOf(newPlugin(t, one), newPlugin(t, two)))
	s.Handshake(protocol.CapSkill)
	assert.Equal(t, names(s.discover()), "a b s", "there")
	for name, want := range map[string]string{"a": "one", "b": "two", "s": "one"} {
		assert.Equal(t, s.text(name, `{}`), want, "%s", name)
	}
	assert.Contains(t, s.refused("c", `{}`, protocol.CodeUnknownSkill), "a, b, s", "it")
}

// judge is a Python program that runs the reference validator on many folders, and prints the problems of each.
const judge = `
import json, sys
from pathlib import Path
from skills_ref.validator import validate
def verdict(path):
    try:
        return validate(Path(path))
    except Exception as e:
        return [repr(e)]
print(json.dumps([verdict(p) for p in json.load(sys.stdin)]))
`

// judged returns the problems that the reference validator finds in each folder.
func judged(t *testing.T, dirs []string) (all [][]string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../testdata/peers/venv/bin/python", "-c", judge)
	cmd.Stdin = strings.NewReader(string(must.Get(json.Marshal(dirs))(t)))
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	must.That(t, err == nil, "%v: %s; `make tools` installs the reference validator", err, said.String())
	must.OK(t, json.Unmarshal(out, &all))
	return all
}

// documents returns the documents that both validators judge. %s stands for the folder's name. A document that has no
// "---", or begins with "license: ", gets a valid name and description, and "---" around all of it.
func documents() []string {
	long := strings.Repeat("é", 1024)
	return []string{
		"", "license: MIT", "license: [MIT]", "license:", "license:\n  name: MIT", "version: 1.0", "Name: x",
		"metadata:\n  a: 1\n  b: true",
		"metadata: {a: b}", "metadata: []", "metadata: text", "metadata:\n  a:\n    b: c\n  d:\n      e: f",
		"metadata:\n  a:\n    b: c\n  d:\n    e: f", "metadata:\n  - a\n  - b: c\n    d: e",
		"compatibility: Requires git", "compatibility:", "compatibility: " + long[:1000],
		"compatibility: " + long[:1002], "compatibility:\n  - git", "compatibility: [git]",
		"allowed-tools: Bash(git:*) Read", "allowed-tools: Read, Write", "allowed-tools:\n  - Read\n  - Write",
		"allowed-tools: [Read, Write]", "allowed_tools: Read", "allowed-tools:",
		"license: &a MIT", "license: *a", "license: !!str MIT", "license: '&a'", "license: \"[MIT]\"", "license: a: b",
		"license: 'MIT", "license: @x", "license: `x`", "license: %x", "license: x # y",
		"license: |\n  two\n  lines", "license: >-\n  two\n  lines", "license: two\n  lines",
		"license: two\n lines\n x", "license\n", "? license\n: MIT", "? [a]\n: b", "license: MIT\nlicense: MIT",
		"metadata:\n  a: 1\n  a: 2",
		"metadata:\n\ta: 1", "license:\tMIT", "license: MIT\t# x", " license: MIT", "# a comment", "license: MIT\n...",
		"license: MIT\n...\nmore: x", "license: a --- b", "license: ---",
		"license: \x01", "license: \x00", "license: a\u00a0b", "license: a\u2028b", "license: \ufeffa",
		"license: \U0001f600", "license: \x7f", "license: a\u0085b", "license: a\u0080b", "license: a\u009fb",
		"license: a\ufffeb", "license: a\ufffdb", "license: a\ue000b", "license: a\x1bb", "license: a\u2029b",
		"license: a\tb", "license: 'a\tb'", "license: |\n  a\tb", "license: |\n  a\n\tb", "license: |\n  a\n  \tb",
		"license: >-\t\n  a", "license: a\t", "license: a # \tb", "# a\tb", "\t# a", "license: 'a'\t",
		"license: a\n\t",
		"'<<':\n  license: x", "<<:\n  version: x", "<<:\n  - license: x\n  - version: y", "<<:\n  - x",
		"metadata:\n  <<: x", "metadata:\n  <<:\n    a: b", "license: \xff",
		"---\nname: %s\n---\n", "---\ndescription: d\n---\n", "---\nname: %s\ndescription:\n---\n",
		"---\nname: %s\ndescription: ' '\n---\n", "---\nname: %s\ndescription: [a]\n---\n",
		"---\nname: %s\ndescription:\n  a: b\n---\n",
		"---\nname: %s\ndescription: " + long + "\n---\n", "---\nname: %s\ndescription: " + long + "e\n---\n",
		"---\nname: %s\ndescription: >\n  folded\n  text\n\n  more\n---\n", "---\nname: %s\ndescription: a --- " +
			"b\n---\n",
		"---\nname:\ndescription: d\n---\n", "---\nname: [x]\ndescription: d\n---\n",
		"---\nname: other\ndescription: d\n---\n", "---\nname: ' %s '\ndescription: d\n---\n",
		"---\nname: \"%s\"\ndescription: d\n---\n", "---\nname: 12\ndescription: d\n---\n",
		"name: %s\ndescription: d\n", "---\nname: %s\ndescription: d\n", "---\n---\n", "---\n\n...\nname: " +
			"%s\ndescription: d\n---\n", "------\n", "---\n[]\n---\n", "---\n- name: %s\n---\n",
		"---\njust text\n---\n", "----\nname: %s\ndescription: d\n---\n", "--- \nname: %s\ndescription: d\n---\n",
		"---name: %s\ndescription: d\n---\n", "--- name: %s\ndescription: d\n---\n", "\n---\nname: %s\ndescription: " +
			"d\n---\n", " ---\nname: %s\n---\n", "\ufeff---\nname: %s\ndescription: d\n---\n",
		"---\r\nname: %s\r\ndescription: d\r\n---\r\nbody\r\n",
		"---\rname: %s\rdescription: d\r---\r", "---\n# only a comment\n---\n", "---\n~\n---\n",
		"---\nname: %s\ndescription: d\n---", "---\nname: %s\ndescription: d\n--- more\n",
		"---\nname: %s\ndescription: d---\n", "---\n{name: %s, description: d}\n---\n",
		"---\n%%YAML 1.2\n---\nname: %s\n---\n", "---\n<<:\n  license: MIT\nname: %s\ndescription: d\n---\n",
		"---\n<<: x\nname: %s\ndescription: d\n---\n", "---\nname: %s\ndescription: \"a\\qb\"\n---\n",
		"---\nname: %s\ndescription: \"a\\u00e9\"\n---\n",
		"---\n1: x\nname: %s\ndescription: d\n---\n", "---\n'': x\nname: %s\ndescription: d\n---\n",
		"---\nname: %s\ndescription: yes\n---\n", "---\nname: %s\ndescription: null\n---\n",
		"---\nname: %s\ndescription: ~\n---\n", "---\nname: %s\ndescription: - x\n---\n",
		"---\nname: %s\ndescription: 'it''s'\n---\n",
	}
}

// publicNames returns names of folders that both validators judge, each with a document that has the same name.
func publicNames() []string {
	return []string{
		"a", "pdf-processing", "a1", "1", "a--b", "-a", "a-", "-", "A", "aB", "a_b", "a.b", "a b", "übersetzen",
		"Übersetzen", "技能", "навык", "ελλάς", "ß", "ﬁle", "e\u0301t", "é", "ⅻ", "Ⅻ", "²", "½", "a\u200bb", "ａ", "İ",
		"ŉ", "ǆ", "ǅ", "x\U0001f600", "क्षेत्र", "كلمة",
		strings.Repeat("a", 64), strings.Repeat("a", 65), strings.Repeat("é", 64), "true", "null", "~", "'q'",
	}
}

// TestSameVerdictsAsTheReference: each document is valid here and for the reference validator, or for neither.
func TestSameVerdictsAsTheReference(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	var dirs []string
	put := func(group, name, text string) {
		dir := filepath.Join(top, group, name)
		must.OK(t, os.MkdirAll(dir, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(dir, "SKILL.md"), []byte(text), 0o644))
		dirs = append(dirs, dir)
	}
	for i, text := range documents() {
		name := fmt.Sprint("skill-", i)
		if !strings.Contains(text, "---") || strings.HasPrefix(text, "license: ") {
			text = "---\nname: %s\ndescription: d\n" + text + "\n---\nbody\n"
		}
		put("documents", name, strings.NewReplacer("%s", name, "%%", "%").Replace(text))
	}
	for i, name := range publicNames() {
		put(fmt.Sprint("name-", i), name, "---\nname: \""+name+"\"\ndescription: d\n---\n")
	}
	for _, special := range []string{"empty", "folder", "lower", "both", "dangling"} {
		dir := filepath.Join(top, special)
		must.OK(t, os.MkdirAll(dir, 0o755))
		dirs = append(dirs, dir)
	}
	must.OK(t, os.Mkdir(filepath.Join(top, "folder", "SKILL.md"), 0o755))
	must.OK(t, os.WriteFile(filepath.Join(top, "lower", "skill.md"), []byte("---\nname: lower\ndescription: d\n---\n"),
		0o644))
	must.OK(t, os.WriteFile(filepath.Join(top, "both", "skill.md"), []byte("---\nname: both\ndescription: d\n---\n"),
		0o644))
	if runtime.GOOS == "linux" {
		must.OK(t, os.WriteFile(filepath.Join(top, "both", "SKILL.md"), []byte("none"), 0o644))
		must.OK(t, os.Symlink("nowhere", filepath.Join(top, "dangling", "SKILL.md")))
	}
	dirs = append(dirs, must.Get(filepath.Glob("../../testdata/skills/*"))(t)...)
	dirs = append(dirs, must.Get(filepath.Glob("../../testdata/skills/office/*"))(t)...)
	verdicts := judged(t, dirs)
	valid := 0
	for i, dir := range dirs {
		e, err := Validate(dir)
		must.OK(t, err)
		text, _ := os.ReadFile(e.File)
		assert.That(t, (len(e.Problems) == 0) == (len(verdicts[i]) == 0), "%s: %v, but the reference says %q, of\n%s",
			dir, e.Problems, verdicts[i], text)
		if len(e.Problems) == 0 {
			valid++
		}
	}
	t.Logf("%d skills, %d valid", len(dirs), valid)
}
