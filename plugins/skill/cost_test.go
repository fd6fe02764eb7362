package skill

import (
	"fmt"
	"strings"
	"testing"

	"a2e/protocol"
)

// Where one of very many items does not fit, the schema of the others must not be made ready
// for each of them. What this guards against takes longer than a test waits for an answer.
func TestManyItemsAreCheckedInProportion(t *testing.T) {
	var choices strings.Builder
	for i := range 400 {
		fmt.Fprintf(&choices, "        p%d: {type: string, maxLength: 5, description: d}\n", i)
	}
	s := newStage(t, map[string]string{"list/SKILL.md": md("name: list\ndescription: d\ninputs:\n  list:\n    type: array\n    items:\n      type: [integer, object]\n      properties:\n"+choices.String(), "text")}, nil)
	if text := s.refused("list", `{"list":[`+strings.Repeat("1,", 150_000)+`"x"]}`, protocol.CodeSchemaViolation); !strings.Contains(text, "/arguments/list/150000") {
		t.Error(text)
	}
}

// A line without words has none, however often they are asked for.
func TestLineWithoutWordsIsSplitOnce(t *testing.T) {
	s := newStage(t, map[string]string{"line/SKILL.md": md("name: line\ndescription: d\nargument-hint: words", strings.Repeat("$1$2", 50_000)+" end")}, nil)
	if text := s.text("line", `{"args":"`+strings.Repeat(" ", 512<<10)+`"}`); text != " end" {
		t.Errorf("%.100s", text)
	}
}

// References put what they stand for in their place: a few kilobytes of front matter must not
// become megabytes in memory, and in each answer.
func TestReferencesDoNotMultiply(t *testing.T) {
	var properties strings.Builder
	for i := range 240 {
		fmt.Fprintf(&properties, "    p%d: {$ref: '#/$defs/a'}\n", i)
	}
	front := "name: large\ndescription: d\ninputs:\n  type: object\n  $defs:\n    a: {type: string, description: '" + strings.Repeat("x", 40_000) + "'}\n  properties:\n" + properties.String()
	s := newStage(t, map[string]string{"large/SKILL.md": md(front, "text")}, nil)
	if text := s.refused("large", "{}", protocol.CodeUnknownSkill); !strings.Contains(text, "with what references stand for") {
		t.Errorf("%.300s", text)
	}
	if len(s.discover()) != 0 {
		t.Error("a skill with a schema of 10 MB is listed")
	}
}

// What schemas take counts with the text of all skills.
func TestSchemasCountForAllSkillsTogether(t *testing.T) {
	files := map[string]string{}
	for i := range 4 {
		front := fmt.Sprintf("name: s%d\ndescription: d\ninputs:\n  type: object\n  $defs:\n    a: {type: string, description: '%s'}\n  properties: {", i, strings.Repeat("x", 1000))
		for p := range 50 {
			front += fmt.Sprintf("p%d: {$ref: '#/$defs/a'}, ", p)
		}
		files[fmt.Sprintf("s%d/SKILL.md", i)] = md(front+"}", "text")
	}
	s := newStage(t, files, nil)
	s.plugin.library.max.bytes = 120_000 // of which each has 2500, and 50,000 as a schema
	if all := names(s.discover()); all != "s0 s1 s2" {
		t.Errorf("%q", all)
	}
}

// A list of names is looked through for each of them.
func TestVeryManyInputsAreRefused(t *testing.T) {
	var list strings.Builder
	for i := range 600 {
		fmt.Fprintf(&list, "  - n%d\n", i)
	}
	s := newStage(t, map[string]string{"many/SKILL.md": md("name: many\ndescription: d\ninputs:\n"+list.String(), "text")}, nil)
	if text := s.refused("many", "{}", protocol.CodeUnknownSkill); !strings.Contains(text, "more than 500 entries") {
		t.Errorf("%.300s", text)
	}
}

// A space before the rule of a tool must not give the tool without its rule.
func TestRuleBehindSpaceStaysWithItsTool(t *testing.T) {
	s := newStage(t, map[string]string{
		"a/SKILL.md": md("name: a\ndescription: d\nallowed-tools: Read Bash (git:*)", "text"),
		"b/SKILL.md": md("name: b\ndescription: d\ntools: Read, Bash (git add:*), Grep", "text"),
	}, nil)
	if m := s.well("a", "{}"); m.Get("/data/data/tools/0/name") != "read_file" || m.Get("/data/data/tools/1/name") != "" {
		t.Errorf("%.2000s", m.Line)
	}
	if text := s.refused("b", "{}", protocol.CodeSkillError); !strings.Contains(text, `"Bash(git add:*)" has a rule`) {
		t.Error(text)
	}
}

// Nothing can stop a match under way, and a pattern of some bytes can take a minute for a
// megabyte.
func TestPatternsAreHeldAgainstBoundedTexts(t *testing.T) {
	s := newStage(t, map[string]string{
		"slow/SKILL.md":  md("name: slow\ndescription: d\ninputs: {x: {type: string, pattern: '((a{0,30}){0,30})b'}}", "{{x}}"),
		"names/SKILL.md": md("name: names\ndescription: d\ninputs: {type: object, properties: {}, patternProperties: {'((a{0,30}){0,30})b': {type: string}}}", "text"),
		"usual/SKILL.md": md("name: usual\ndescription: d\ninputs: {x: {type: string, pattern: '^[a-z]+$'}, y: string}", "{{x}}"),
	}, nil)
	long := `"` + strings.Repeat("a", 900_000) + `"`
	for _, name := range []string{"slow", "names"} {
		if text := s.refused(name, `{"x":`+long+`}`, protocol.CodeSchemaViolation); !strings.Contains(text, "too many to be held against the patterns") {
			t.Error(text)
		}
	}
	if text := s.text("slow", `{"x":"aab"}`); text != "aab" {
		t.Error(text)
	}
	if text := s.text("usual", `{"x":"aab","y":`+long+`}`); text != "aab" {
		t.Errorf("%.100s", text)
	}
}
