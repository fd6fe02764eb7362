package skill

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// hostileFront is a front matter that is refused, with a part of the error and its line in the file.
type hostileFront struct {
	front, want string
	line        int
}

// hostileFronts returns all hostile front matters by name.
func hostileFronts() map[string]hostileFront {
	all := hostilePaths()
	maps.Copy(all, hostileNames())
	maps.Copy(all, hostileSchemas())
	maps.Copy(all, hostileValues())
	return all
}

func hostilePaths() map[string]hostileFront {
	return map[string]hostileFront{
		"run above":    {"name: x\ndescription: d\nrun: ../evil.sh", "leads out of the skill's folder", 4},
		"run absolute": {"name: x\ndescription: d\nrun: /bin/sh", "leads out of the skill's folder", 4},
		"run down and up": {
			"name: x\ndescription: d\nrun: scripts/../../evil.sh",
			"leads out of the skill's folder", 4,
		},
		"run the folder": {"name: x\ndescription: d\nrun: scripts/..", "leads out of the skill's folder", 4},
		"run a drive":    {"name: x\ndescription: d\nrun: 'C:\\evil.bat'", "characters that a path here may not have", 4},
		"run a stream":   {"name: x\ndescription: d\nrun: 'ok.sh::$DATA'", "characters that a path here may not have", 4},
		"run with backslashes": {"name: x\ndescription: d\nrun: '..\\..\\evil.sh'", "characters that a path here " +
			"may not have", 4},
		"run with NUL": {"name: x\ndescription: d\nrun: \"ok.sh\\0.txt\"", "characters that a path here " +
			"may not have", 4},
		"run with a line end": {"name: x\ndescription: d\nrun: \"ok.sh\\n-rf\"", "characters that a path here " +
			"may not have", 4},
		"run turned around": {"name: x\ndescription: d\nrun: \"ok\\u202Ehs.\"", "characters that a path here " +
			"may not have", 4},
		"run nothing":            {"name: x\ndescription: d\nrun: ''", "should be the name of a file", 4},
		"run a list":             {"name: x\ndescription: d\nrun: [sh, -c, id]", "should be the name of a file", 4},
		"run a command":          {"name: x\ndescription: d\nrun: sh -c id", "it is not there", 4},
		"run what is missing":    {"name: x\ndescription: d\nrun: nothing.sh", "it is not there", 4},
		"run a link out":         {"name: x\ndescription: d\nrun: out.sh", "it leads out of the folder", 4},
		"run through a link out": {"name: x\ndescription: d\nrun: outdir/secret", "it leads out of the folder", 4},
		"run a folder":           {"name: x\ndescription: d\nrun: sub", "is not a regular file", 4},
		"wasm above":             {"name: x\ndescription: d\nwasm: ../evil.wasm", "leads out of the skill's folder", 4},
		"wasm absolute":          {"name: x\ndescription: d\nwasm: /etc/passwd", "leads out of the skill's folder", 4},
		"wasm with network":      {"name: x\ndescription: d\nwasm: ok.sh\nnetwork: true", "a module has no network", 5},
		"run and wasm":           {"name: x\ndescription: d\nrun: ok.sh\nwasm: ok.sh", "keep one of run, wasm and agent", 5},
		"run and agent":          {"name: x\ndescription: d\nagent: true\nrun: ok.sh", "keep one of run, wasm and agent", 4},
	}
}

func hostileNames() map[string]hostileFront {
	return map[string]hostileFront{
		"name above":            {"name: ../../etc\ndescription: d", "a name is not a path", 2},
		"name is dots":          {"name: ..\ndescription: d", "is the name of a folder above", 2},
		"name with a slash":     {"name: a/b\ndescription: d", "a name is not a path", 2},
		"name with a backslash": {"name: 'a\\b'\ndescription: d", "a name is not a path", 2},
		"name with a line end":  {"name: \"a\\nb\"\ndescription: d", "U+000A", 2},
		"name with an escape":   {"name: \"a\\e[2J\"\ndescription: d", "U+001B", 2},
		"name turned around":    {"name: \"a\\u202Eb\"\ndescription: d", "U+202E", 2},
		"name without width":    {"name: \"a\\u200Bb\"\ndescription: d", "U+200B", 2},
		"name too long":         {"name: " + strings.Repeat("n", 129) + "\ndescription: d", "has 129 bytes", 2},
		"name of spaces":        {"name: '  '\ndescription: d", "is empty", 2},
		"name a list":           {"name: [a]\ndescription: d", "must be a string, not a list", 2},
		"name twice":            {"name: a\ndescription: d\nname: b", "appears twice, first in line 2", 4},
	}
}

func hostileSchemas() map[string]hostileFront {
	schema := func(text string) string { return "name: x\ndescription: d\ninputs:\n" + text }
	doubling := "  type: object\n  $defs:\n    d0: {type: string}\n"
	for i := range 30 {
		doubling += fmt.Sprintf("    d%d: {allOf: [{$ref: \"#/$defs/d%d\"}, {$ref: \"#/$defs/d%d\"}]}\n", i+1, i, i)
	}
	doubling += "  properties: {x: {$ref: \"#/$defs/d30\"}}\n"
	return map[string]hostileFront{
		"schema in a circle": {schema("  type: object\n  $ref: '#'"), "refers to itself", 4},
		"schema round a corner": {schema("  type: object\n  $defs: {a: {items: {$ref: '#/$defs/a'}}}\n  " +
			"properties: {x: {$ref: '#/$defs/a'}}"), "refers to itself", 4},
		"schema from a file": {
			schema("  type: object\n  properties: {x: {$ref: 'file:///etc/passwd'}}"),
			"\"file:///etc/passwd\" leads out of the schema", 4,
		},
		"schema from elsewhere": {
			schema("  type: object\n  properties: {x: {$ref: 'http://127.0.0.1/x'}}"),
			"leads out of the schema", 4,
		},
		"schema that doubles": {schema(doubling), "has too many parts, with what references stand for", 4},
		"schema of choices":   {schema("  x: {anyOf: [" + strings.Repeat("{},", 33) + "]}"), "at most 32", 5},
		"schema with anchors": {schema("  x: {$dynamicRef: '#a'}"), "$dynamicRef is not understood", 4},
		"schema with a pattern": {
			schema("  x: {type: string, pattern: '('}"), "is not a JSON Schema that can be used",
			4,
		},
		"schema of a wrong type": {schema("  x: {type: frob}"), `the type "frob" is not known`, 5},
		"schema of a list":       {schema("  type: array\n  properties: {}"), "should be an object", 5},
		"schema that is a text":  {"name: x\ndescription: d\ninputs: text", "should be a mapping such as", 4},
		"inputs twice":           {schema("  - {name: a}\n  - {name: a}"), "appears twice", 6},
		"inputs without a name":  {schema("  - {type: string, x: y}"), "each entry needs a name", 5},
		"a wrong default": {
			schema("  x: {type: integer, default: many}"),
			"is not a JSON Schema that can be used", 4,
		},
		"a number beyond all": {schema("  x: {type: number, maximum: .inf}"), "cannot be written in JSON", 4},
	}
}

func hostileValues() map[string]hostileFront {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", 'b'+i, 'b'+i,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", 'a'+i), 9), ","))
	}
	return map[string]hostileFront{
		"tools in two spellings": {
			"name: x\ndescription: d\nallowed-tools: a\nallowed_tools: b",
			`appears twice, as "allowed-tools" in line 4`, 5,
		},
		"no description":        {"name: x", "description: is missing", 0},
		"description a mapping": {"name: x\ndescription: {a: b}", "must be a string, not a mapping", 3},
		"laughs":                {"name: x\n" + bomb, "aliases stand for more", 6},
		"a circle":              {"name: x\na: &a [*a]", "an alias stands within its own anchor", 3},
		"deep": {
			"name: x\na: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
			"not valid YAML", 3,
		},
		"deep mappings": {
			"name: x\na: " + strings.Repeat("{a: ", 40) + "b" + strings.Repeat("}", 40),
			"not valid YAML", 3,
		},
		"long":                {"name: x\na: " + strings.Repeat("a", maxFrontBytes), "the front matter has 65", 1},
		"many keys":           {"name: x\n" + strings.Repeat("a: 1\n", 5000), "appears twice", 4},
		"an own tag":          {"name: x\ndescription: !!python/object/apply:os.system [id]", "own tags", 3},
		"a merge":             {"name: x\ndescription: &a {b: c}\n<<: *a", "<< has no meaning here", 4},
		"a key that is none":  {"name: x\n? {a: b}\n: c", "a key must be a string", 3},
		"a list":              {"- name: x", "is a list; it should be a mapping", 2},
		"broken YAML":         {"name: x\ndescription: 'd\nb: c", "not valid YAML", 3},
		"turns below zero":    {"name: x\ndescription: d\nmax_turns: -1", "whole number of 1 to 1000", 4},
		"turns without end":   {"name: x\ndescription: d\nmax_turns: 1e99", "whole number of 1 to 1000", 4},
		"time without end":    {"name: x\ndescription: d\ntimeout_seconds: .inf", "whole number of 1 to 86400", 4},
		"time that is none":   {"name: x\ndescription: d\ntimeout_seconds: [1]", "whole number of 1 to 86400", 4},
		"write perhaps":       {"name: x\ndescription: d\nrun: ok.sh\nwrite: perhaps", "should be true or false", 5},
		"metadata a list":     {"name: x\ndescription: d\nmetadata: [a]", "must be a mapping", 4},
		"metadata beyond all": {"name: x\ndescription: d\nmetadata: {a: .nan}", "cannot be written in JSON", 4},
		"tools without end":   {"name: x\ndescription: d\ntools: " + "t" + manyWords(300), "names 300 tools", 4},
		"tools in mappings":   {"name: x\ndescription: d\ntools: [{tool: a}]", "each entry must be a string", 4},
		"triggers a mapping":  {"name: x\ndescription: d\ntriggers: {a: b}", "must be a list of strings", 4},
	}
}

func manyWords(n int) string {
	var b strings.Builder
	for i := range n - 1 {
		fmt.Fprintf(&b, " t%d", i)
	}
	return b.String()
}

// TestWallHostileFrontMatter: each is refused with its line and in calls, and none hides another skill.
func TestWallHostileFrontMatter(t *testing.T) {
	s := newStage(t, map[string]string{
		"../outside/secret": "#!/bin/sh\necho got out\n",
		"a-good/SKILL.md":   md("name: a-good\ndescription: d", "Do it."),
		"z-good/SKILL.md":   md("name: z-good\ndescription: d", ""),
	}, nil)
	skills, hostile := filepath.Join(s.work, ".a2e", "skills"), map[string]hostileFront{}
	for name, tc := range hostileFronts() {
		folder := strings.ReplaceAll(name, " ", "-")
		hostile[folder] = tc
		dir := filepath.Join(skills, folder)
		write(t, dir, map[string]string{"SKILL.md": md(tc.front, ""), "ok.sh": "#!/bin/sh\n", "sub/file": ""})
		must.OK(t, os.Symlink("../../outside/secret", filepath.Join(dir, "out.sh")),
			os.Symlink("../../outside", filepath.Join(dir, "outdir")))
	}
	assert.That(t, len(hostile) >= 60, "there are %d of them", len(hostile))
	for _, e := range must.Get(CheckFolder(skills))(t) {
		folder := filepath.Base(filepath.Dir(e.File))
		tc, bad := hostile[folder]
		if !bad {
			assert.That(t, (e.Folder || e.Kind != "") && len(e.Problems) == 0, "%s is hidden: %+v", folder, e)
			continue
		}
		assert.That(t, slices.ContainsFunc(e.Problems,
			func(n Diagnostic) bool { return n.Line == tc.line && strings.Contains(n.Text, tc.want) }),
			"%s: should be told of line %d: %s\nit is told %v", folder, tc.line, tc.want, e.Problems)
		assert.That(t, slices.Contains([]string{"x", "a", folder}, e.Name), "%s: it is called %q", folder, e.Name)
		for _, n := range e.Problems {
			assert.That(t, !strings.Contains(n.Text, s.work) && len(n.Text) <= 1000, "%s: it is told %s", folder,
				n.Text)
		}
		public := must.Get(Validate(filepath.Join(skills, folder)))(t)
		assert.That(t, public.Name != "", "%s: the public format has no name for it: %+v", folder, public)
		said := s.refused(folder, `{}`, protocol.CodeUnknownSkill)
		assert.Contains(t, said, fmt.Sprintf("skill %q is broken: ", folder), "called by its folder")
		assert.That(t, !strings.Contains(said, "line 0"), "%s", said)
		delete(hostile, folder)
	}
	assert.Equal(t, len(hostile), 0, "are not checked: %v", hostile)
	for _, name := range []string{"x", "../../etc", ".."} {
		s.refused(name, `{}`, protocol.CodeUnknownSkill)
	}
	assert.Contains(t, s.refused("", `{}`, protocol.CodeSchemaViolation), "/name: is required")
	assert.Contains(t, s.refused("x", `{}`, protocol.CodeUnknownSkill), `skill "x" is broken: `, "a broken skill")
	assert.Equal(t, names(s.discover()), "a-good z-good", "there")
	s.well("a-good", `{}`)
}
