package skill

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestWallHostileFiles: a SKILL.md that is not a plain text file is refused.
func TestWallHostileFiles(t *testing.T) {
	good := md("name: x\ndescription: d", "")
	for name, tc := range map[string]struct {
		make func(dir string) error // makes dir/SKILL.md
		want string
		line int
	}{
		"link out": {
			func(d string) error { return os.Symlink("../../secret.md", filepath.Join(d, "SKILL.md")) },
			"the file is a link", 0,
		},
		"link within": {
			func(d string) error { return os.Symlink("../good/SKILL.md", filepath.Join(d, "SKILL.md")) },
			"the file is a link", 0,
		},
		"link to self": {
			func(d string) error { return os.Symlink("SKILL.md", filepath.Join(d, "SKILL.md")) },
			"the file is a link", 0,
		},
		"link to none": {
			func(d string) error { return os.Symlink("gone", filepath.Join(d, "SKILL.md")) },
			"the file is a link", 0,
		},
		"folder": {
			func(d string) error { return os.Mkdir(filepath.Join(d, "SKILL.md"), 0o755) },
			"not a regular file", 0,
		},
		"pipe": {func(d string) error { return makePipe(filepath.Join(d, "SKILL.md")) }, "not a regular file", 0},
		"huge": {text(good + strings.Repeat("x", maxSkillBytes)), "at most 1048576 are taken", 0},
		"hole": {func(d string) error {
			if err := text(good)(d); err != nil {
				return err
			}
			return os.Truncate(filepath.Join(d, "SKILL.md"), 1<<40)
		}, "at most 1048576 are taken", 0},
		"empty":     {text(""), "description: is missing", 0},
		"latin":     {text("---\nname: x\ndescription: caf\xe9\n---\n"), "not UTF-8", 3},
		"NUL":       {text("---\nname: x\ndescription: d\n---\n\na\x00b"), "a NUL character", 6},
		"UTF-16":    {text("\xff\xfe-\x00-\x00-\x00"), "UTF-16", 1},
		"no end":    {text("---\nname: x\ndescription: d\n"), "has no end", 1},
		"program":   {text("\x7fELF\x02\x01\x01\x00\x00"), "a NUL character", 1},
		"only BOMs": {text(strings.Repeat("\xef\xbb\xbf", 3)), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			write(t, top, map[string]string{
				"secret.md":            md("name: secret\ndescription: d", ""),
				"skills/good/SKILL.md": good, "skills/bad/other": "",
			})
			must.OK(t, tc.make(filepath.Join(top, "skills", "bad")))
			all, err := CheckFolder(filepath.Join(top, "skills"))
			must.That(t, err == nil && len(all) == 2, "%v, %v", all, err)
			bad := all[0]
			assert.That(t, tc.want == "" || len(bad.Problems) != 0 && bad.Problems[0].Line == tc.line &&
				strings.Contains(bad.Problems[0].Text, tc.want), "should be told of line %d: %s; it is told %v",
				tc.line, tc.want, bad.Problems)
			assert.That(t, len(all[1].Problems) == 0 && all[1].Name == "x", "the good one is hidden: %+v", all[1])
		})
	}
}

// text returns a function that writes a SKILL.md with this content.
func text(content string) func(dir string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, "SKILL.md"), []byte(content), 0o644) }
}

// TestWallHostileFolders: links are never followed, and no folders make the search run without end.
func TestWallHostileFolders(t *testing.T) {
	top := t.TempDir()
	write(t, top, map[string]string{
		"outside/secret/SKILL.md":                         md("name: secret\ndescription: d", ""),
		"skills/good/SKILL.md":                            md("name: good\ndescription: d", ""),
		"skills/a/b/c/d/SKILL.md":                         md("name: deep\ndescription: d", ""),
		"skills/" + strings.Repeat("e/", 60) + "SKILL.md": md("name: abyss\ndescription: d", ""),
		"skills/.git/SKILL.md":                            md("name: hidden\ndescription: d", ""),
		"skills/node_modules/SKILL.md":                    md("name: module\ndescription: d", ""),
		"skills/odd/Skill.md":                             md("name: odd\ndescription: d", ""),
	})
	for link, target := range map[string]string{
		"out": "../outside", "out2": filepath.Join(top, "outside", "secret"),
		"loop": ".", "up": "..", "again": "good", "gone": "nothing",
	} {
		must.OK(t, os.Symlink(target, filepath.Join(top, "skills", link)))
	}
	const farm = 2_000
	for i := range farm {
		must.OK(t, os.Symlink("good", filepath.Join(top, "skills", fmt.Sprintf("farm%d", i))))
	}
	lib := newLibrary([]*root{{base: filepath.Join(top, "skills"), rel: ".", show: "skills", named: true}}, testNow,
		zerolog.Nop())
	repository := lib.current(true)
	assert.Equal(t, strings.Join(repository.names, " "), "deep good", "there")
	said := fmt.Sprint(repository.roots[lib.roots[0]])
	for _, want := range []string{
		"it has 2006 links", "more than 4 levels deep",
		`"odd/Skill.md" is not looked at; call it SKILL.md`,
	} {
		assert.Contains(t, said, want, "should be told …; it is told")
	}
}

// TestWallHostileNumbers: skills beyond the bounds are left out, and a note says so.
func TestWallHostileNumbers(t *testing.T) {
	for name, tc := range map[string]struct {
		max    bounds
		want   string
		skills int
	}{
		"skills":  {bounds{folders: 100, names: 100, skills: 7, bytes: 1000}, "there are more than 7 skills in it", 7},
		"folders": {bounds{folders: 5, names: 100, skills: 100, bytes: 1000}, "there are more than 5 folders in it", 4},
		"names":   {bounds{folders: 100, names: 11, skills: 100, bytes: 1000}, "there are more than 11 names in it", 3},
		"bytes": {
			bounds{folders: 100, names: 100, skills: 100, bytes: 75},
			"more than 75 bytes; this one is left out", 2,
		},
		"none": {bounds{folders: 100, names: 100, skills: 100, bytes: 1000}, "", 9},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			for i := range 9 {
				write(t, top, map[string]string{fmt.Sprintf("%d/SKILL.md",
					i): md(fmt.Sprintf("name: s%d\ndescription: d", i), "")})
			}
			lib := newLibrary([]*root{{base: top, rel: ".", show: "top", named: true}}, testNow, zerolog.Nop())
			lib.max = tc.max
			s := lib.current(true)
			said := fmt.Sprint(s.roots[lib.roots[0]].problems)
			for _, f := range s.all {
				said += fmt.Sprint(f.problems)
			}
			assert.That(t, len(s.skills) == tc.skills && strings.Contains(said, tc.want),
				"%d skills are left, should be %d; it says %s, should say %s", len(s.skills), tc.skills, said, tc.want)
		})
	}
}

// TestWallHostileSwap: a folder that becomes a link while it is read leads to nothing outside.
func TestWallHostileSwap(t *testing.T) {
	top := t.TempDir()
	write(t, top, map[string]string{
		"outside/SKILL.md":    md("name: secret\ndescription: d\nrun: go.sh", ""),
		"outside/go.sh":       "#!/bin/sh\n",
		"skills/x/SKILL.md":   md("name: fine\ndescription: d\nrun: go.sh", ""),
		"skills/x/go.sh":      "#!/bin/sh\n",
		"skills/y/z/SKILL.md": md("name: other\ndescription: d", ""),
	})
	dir := filepath.Join(top, "skills", "x")
	var stop atomic.Bool
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for !stop.Load() {
			_ = os.Rename(dir, dir+".away")
			_ = os.Symlink("../outside", dir)
			_ = os.Remove(dir)
			_ = os.Rename(dir+".away", dir)
		}
	})
	lib := newLibrary([]*root{{base: filepath.Join(top, "skills"), rel: ".", show: "skills"}}, testNow, zerolog.Nop())
	fine := 0
	for range 300 {
		lib.mu.Lock()
		lib.loadLocked()
		repository := lib.repository
		lib.mu.Unlock()
		if repository.byName["secret"] != nil {
			t.Error("a link was followed")
			break
		}
		if repository.byName["other"] == nil {
			t.Error("another skill is hidden")
			break
		}
		if s := repository.byName["fine"]; s != nil {
			fine++
			if own, err := s.open(); err == nil {
				text, _ := own.ReadFile("SKILL.md")
				own.Close()
				if strings.Contains(string(text), "secret") {
					t.Error("a link was followed when the folder was opened")
					break
				}
			}
		}
	}
	stop.Store(true)
	swapper.Wait()
	assert.That(t, fine != 0, "the skill was never seen")
}

// TestWallHostileWorkspace: the skill folders of the workspace cannot lead out of it.
func TestWallHostileWorkspace(t *testing.T) {
	for _, link := range []string{".a2e", ".a2e/skills", ".claude", ".claude/skills", ".agents/skills"} {
		top := t.TempDir()
		write(t, top, map[string]string{
			"outside/SKILL.md":                  md("name: secret\ndescription: d", ""),
			"outside/skills/SKILL.md":           md("name: secret2\ndescription: d", ""),
			"work/" + filepath.Dir(link) + "/x": "",
		})
		must.OK(t, os.Symlink(filepath.Join(top, "outside"), filepath.Join(top, "work", link)))
		all, err := Check(DefaultOptions(), host.Env{Workspace: filepath.Join(top, "work")})
		assert.That(t, err == nil && len(all) == 1 && all[0].Folder && strings.Contains(fmt.Sprint(all[0].Problems),
			"leads out of the folder"), "%s: %+v, %v", link, all, err)
	}
	work := t.TempDir()
	write(t, work, map[string]string{"own/SKILL.md": md("name: inside\ndescription: d", ""), ".a2e/x": ""})
	must.OK(t, os.Symlink("../own", filepath.Join(work, ".a2e", "skills")))
	all, err := Check(DefaultOptions(), host.Env{Workspace: work})
	assert.That(t, err == nil && len(all) == 1 && all[0].Name == "inside", "a link within the workspace: %+v, %v", all,
		err)
}

// TestWallHostileTaking: a skill whose folder was replaced by another is not run.
func TestWallHostileTaking(t *testing.T) {
	s := newStage(t, map[string]string{
		"x/SKILL.md": md("name: x\ndescription: d\nrun: go.sh", ""),
		"x/go.sh":    "#!/bin/sh\necho {}\n",
	}, nil)
	one := s.plugin.library.current(true).byName["x"]
	must.Get(one.place())(t)
	outside := t.TempDir()
	write(t, outside, map[string]string{
		"SKILL.md": md("name: x\ndescription: d\nrun: go.sh", ""),
		"go.sh":    "#!/bin/sh\ncat secret\n",
	})
	dir := filepath.Join(s.work, ".a2e", "skills", "x")
	must.OK(t, os.Rename(dir, dir+"2"))
	must.OK(t, os.Symlink(outside, dir))
	_, err := one.place()
	assert.That(t, err != nil && !strings.Contains(err.Error(), outside), "it would be run: %v", err)
	_, err = one.open()
	assert.That(t, err != nil, "its files would be read")
}

// TestWallHostileTexts: only arguments are put into a text, whatever the text or an argument contains.
func TestWallHostileTexts(t *testing.T) {
	t.Setenv("A2E_TEST_SECRET", "geheim")
	s := newStage(t, map[string]string{
		"env/SKILL.md": md("name: env\ndescription: d\narguments: [word]", "${A2E_TEST_SECRET} $A2E_TEST_SECRET "+
			"{{A2E_TEST_SECRET}} {{env.A2E_TEST_SECRET}} ${env:A2E_TEST_SECRET} !`env` $(env) {{word}}"),
		"bomb/SKILL.md":  md("name: bomb\ndescription: d\ninputs: {x: string}", strings.Repeat("{{x}}", 100_000)),
		"twice/SKILL.md": md("name: twice\ndescription: d\ninputs: {a: string, b: string}", "{{a}}|{a}|${a}|{{b}}"),
		"odd/SKILL.md": md("name: odd\ndescription: d\ninputs: {a: string}", "{{ {{{a}}} {{a }} {{a ${a {a $ "+
			"$ARGUMENTSX $ARGUMENTS[9] $ARGUMENTS[x] {{}} ${} {}"),
		"nth/SKILL.md": md("name: nth\ndescription: d", "First: $ARGUMENTS[0]"),
	}, nil)
	assert.Equal(t, s.text("nth", `{"args":"a b"}`), "First: a", "it")
	assert.Equal(t, s.text("env", `{"args":"$A2E_TEST_SECRET"}`), "${A2E_TEST_SECRET} $A2E_TEST_SECRET "+
		"{{A2E_TEST_SECRET}} {{env.A2E_TEST_SECRET}} ${env:A2E_TEST_SECRET} !`env` $(env) $A2E_TEST_SECRET")
	got := s.refused("bomb", fmt.Sprintf(`{"x":%q}`, strings.Repeat("y", 500_000)), protocol.CodeSkillError)
	assert.That(t, strings.Contains(got, "would have more than 1048576 bytes"), "the bomb: %s", got)
	got = s.text("twice", `{"a":"{{b}} $ARGUMENTS ${b}","b":"{{a}}"}`)
	assert.Equal(t, got, "{{b}} $ARGUMENTS ${b}|{{b}} $ARGUMENTS ${b}|{{b}} $ARGUMENTS ${b}|{{a}}", "it")
	assert.Equal(t, s.text("odd", `{"a":"v"}`), "{{ {v} v {{a ${a {a $ $ARGUMENTSX  v[x] {{}} ${} {}", "it")
}

// TestWallHostileArguments: arguments that do not match the schema are refused, each with its place.
func TestWallHostileArguments(t *testing.T) {
	s := onSamples(t)
	for _, tc := range []struct{ name, arguments, path, says string }{
		{"topic-analysis", `{}`, "/arguments/topic", "is missing"},
		{"topic-analysis", `{"topic":1}`, "/arguments/topic", "of type string"},
		{"topic-analysis", `{"topic":"x","topics":"y"}`, "/arguments/topics", `did you mean "topic"`},
		{"topic-analysis", `{"topic":"x","q/~":1}`, "/arguments/q~1~0", "there are: depth, style, topic"},
		{"topic-analysis", `{"topic":"x","depth":2.5}`, "/arguments/depth", "integer"},
		{"topic-analysis", `{"topic":"x","depth":6}`, "/arguments/depth", "greater"},
		{"topic-analysis", `{"topic":"x","style":"loud"}`, "/arguments/style", "should be one of"},
		{"topic-analysis", `{"topic":null}`, "/arguments/topic", "null"},
		{"topic-analysis", `{"topic":"a","args":"b","style":"plain"}`, "/arguments/args", "is not known"},
		{"book-room", `{"room":"a1","from":1}`, "/arguments/room", "pattern"},
		{"book-room", `{"room":"A1","from":24}`, "/arguments/from", "greater"},
		{
			"book-room", `{"room":"A1","from":1,"guests":[{"name":"x"},{"nome":"y"}]}`, "/arguments/guests/1/name",
			"is missing",
		},
		{"book-room", `{"room":"A1","from":1,"guests":[{"name":"x"},7]}`, "/arguments/guests/1", "object"},
		{"minimal", `{"args":7}`, "/arguments/args", "string"},
		{"minimal", `{"x":"` + strings.Repeat("y", maxArgumentBytes) + `"}`, "/arguments", "at most 1048576 are taken"},
		{"minimal", `[]`, "/arguments", "object"},
	} {
		m := s.ask(tc.name, tc.arguments)
		got := m.Get("/detail/errors/0/path") + ": " + m.Get("/detail/errors/0/message")
		assert.That(t, m.Code == protocol.CodeSchemaViolation && strings.HasPrefix(got, tc.path+": ") &&
			strings.Contains(got, tc.says), "%s %.100s: %.500s", tc.name, tc.arguments, m.Line)
	}
}
