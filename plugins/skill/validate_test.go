package skill

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// judge is the reference validator, asked about many folders at once: what is wrong with each.
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

// judged returns what the reference validator says of folders.
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

// The documents that both validators judge. %s is the folder's name, "---" and a good name and
// description stand around those that do not begin with it.
func documents() []string {
	long := strings.Repeat("é", 1024)
	return []string{
		"", "license: MIT", "license: [MIT]", "license:", "license:\n  name: MIT", "version: 1.0", "Name: x", "metadata:\n  a: 1\n  b: true",
		"metadata: {a: b}", "metadata: []", "metadata: text", "metadata:\n  a:\n    b: c\n  d:\n      e: f", "metadata:\n  a:\n    b: c\n  d:\n    e: f", "metadata:\n  - a\n  - b: c\n    d: e",
		"compatibility: Requires git", "compatibility:", "compatibility: " + long[:1000], "compatibility: " + long[:1002], "compatibility:\n  - git", "compatibility: [git]",
		"allowed-tools: Bash(git:*) Read", "allowed-tools: Read, Write", "allowed-tools:\n  - Read\n  - Write", "allowed-tools: [Read, Write]", "allowed_tools: Read", "allowed-tools:",
		"license: &a MIT", "license: *a", "license: !!str MIT", "license: '&a'", "license: \"[MIT]\"", "license: a: b", "license: 'MIT", "license: @x", "license: `x`", "license: %x", "license: x # y",
		"license: |\n  two\n  lines", "license: >-\n  two\n  lines", "license: two\n  lines", "license: two\n lines\n x", "license\n", "? license\n: MIT", "? [a]\n: b", "license: MIT\nlicense: MIT", "metadata:\n  a: 1\n  a: 2",
		"metadata:\n\ta: 1", "license:\tMIT", "license: MIT\t# x", " license: MIT", "# a comment", "license: MIT\n...", "license: MIT\n...\nmore: x", "license: a --- b", "license: ---",
		"license: \x01", "license: \x00", "license: a\u00a0b", "license: a\u2028b", "license: \ufeffa", "license: \U0001f600", "license: \x7f", "license: a\u0085b", "license: a\u0080b", "license: a\u009fb", "license: a\ufffeb", "license: a\ufffdb", "license: a\ue000b", "license: a\x1bb", "license: a\u2029b",
		"license: a\tb", "license: 'a\tb'", "license: |\n  a\tb", "license: |\n  a\n\tb", "license: |\n  a\n  \tb", "license: >-\t\n  a", "license: a\t", "license: a # \tb", "# a\tb", "\t# a", "license: 'a'\t", "license: a\n\t",
		"'<<':\n  license: x", "<<:\n  version: x", "<<:\n  - license: x\n  - version: y", "<<:\n  - x", "metadata:\n  <<: x", "metadata:\n  <<:\n    a: b", "license: \xff",
		"---\nname: %s\n---\n", "---\ndescription: d\n---\n", "---\nname: %s\ndescription:\n---\n", "---\nname: %s\ndescription: ' '\n---\n", "---\nname: %s\ndescription: [a]\n---\n", "---\nname: %s\ndescription:\n  a: b\n---\n",
		"---\nname: %s\ndescription: " + long + "\n---\n", "---\nname: %s\ndescription: " + long + "e\n---\n", "---\nname: %s\ndescription: >\n  folded\n  text\n\n  more\n---\n", "---\nname: %s\ndescription: a --- b\n---\n",
		"---\nname:\ndescription: d\n---\n", "---\nname: [x]\ndescription: d\n---\n", "---\nname: other\ndescription: d\n---\n", "---\nname: ' %s '\ndescription: d\n---\n", "---\nname: \"%s\"\ndescription: d\n---\n", "---\nname: 12\ndescription: d\n---\n",
		"name: %s\ndescription: d\n", "---\nname: %s\ndescription: d\n", "---\n---\n", "---\n\n...\nname: %s\ndescription: d\n---\n", "------\n", "---\n[]\n---\n", "---\n- name: %s\n---\n", "---\njust text\n---\n", "----\nname: %s\ndescription: d\n---\n", "--- \nname: %s\ndescription: d\n---\n",
		"---name: %s\ndescription: d\n---\n", "--- name: %s\ndescription: d\n---\n", "\n---\nname: %s\ndescription: d\n---\n", " ---\nname: %s\n---\n", "\ufeff---\nname: %s\ndescription: d\n---\n", "---\r\nname: %s\r\ndescription: d\r\n---\r\nbody\r\n",
		"---\rname: %s\rdescription: d\r---\r", "---\n# only a comment\n---\n", "---\n~\n---\n", "---\nname: %s\ndescription: d\n---", "---\nname: %s\ndescription: d\n--- more\n", "---\nname: %s\ndescription: d---\n", "---\n{name: %s, description: d}\n---\n",
		"---\n%%YAML 1.2\n---\nname: %s\n---\n", "---\n<<:\n  license: MIT\nname: %s\ndescription: d\n---\n", "---\n<<: x\nname: %s\ndescription: d\n---\n", "---\nname: %s\ndescription: \"a\\qb\"\n---\n", "---\nname: %s\ndescription: \"a\\u00e9\"\n---\n",
		"---\n1: x\nname: %s\ndescription: d\n---\n", "---\n'': x\nname: %s\ndescription: d\n---\n", "---\nname: %s\ndescription: yes\n---\n", "---\nname: %s\ndescription: null\n---\n", "---\nname: %s\ndescription: ~\n---\n", "---\nname: %s\ndescription: - x\n---\n", "---\nname: %s\ndescription: 'it''s'\n---\n",
	}
}

// names are those of folders that both judge, with a document that has the same name.
func publicNames() []string {
	return []string{
		"a", "pdf-processing", "a1", "1", "a--b", "-a", "a-", "-", "A", "aB", "a_b", "a.b", "a b", "übersetzen", "Übersetzen", "技能", "навык", "ελλάς", "ß", "ﬁle", "e\u0301t", "é", "ⅻ", "Ⅻ", "²", "½", "a\u200bb", "ａ", "İ", "ŉ", "ǆ", "ǅ", "x\U0001f600", "क्षेत्र", "كلمة",
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
	must.OK(t, os.WriteFile(filepath.Join(top, "lower", "skill.md"), []byte("---\nname: lower\ndescription: d\n---\n"), 0o644))
	must.OK(t, os.WriteFile(filepath.Join(top, "both", "skill.md"), []byte("---\nname: both\ndescription: d\n---\n"), 0o644))
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
		assert.That(t, (len(e.Problems) == 0) == (len(verdicts[i]) == 0), "%s: %v, but the reference says %q, of\n%s", dir, e.Problems, verdicts[i], text)
		if len(e.Problems) == 0 {
			valid++
		}
	}
	t.Logf("%d skills, %d valid", len(dirs), valid)
}
