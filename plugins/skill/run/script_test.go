package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/child/spill"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
)

// TestScriptContract: the output of a script becomes the right data, summary and events.
func TestScriptContract(t *testing.T) {
	for name, c := range map[string]struct {
		script, data, summary string
		lines                 []string
	}{
		"result":            {`echo '{"result":{"a":1},"summary":"done"}'`, `{"a":1}`, "done", nil},
		"the last result":   {`echo '{"result":1}'; echo '{"result":2}'`, `2`, "", nil},
		"result is null":    {`echo '{"x":1}'; echo '{"result":null}'`, `null`, "", nil},
		"last object":       {`echo '{"a":1}'; echo '{"b":2}'`, `{"b":2}`, "", nil},
		"result over other": {`echo '{"result":1}'; echo '{"b":2}'`, `1`, "", nil},
		"plain text": {`echo one; echo two`, `"one\ntwo"`, "", []string{
			"log info stdout one",
			"log info stdout two",
		}},
		"no last newline": {`printf 'a b'`, `"a b"`, "", []string{"log info stdout a b"}},
		"nothing":         {`:`, ``, "", nil},
		"object over lines": {
			`printf '{\n "a": 1\n}\n'`, "{\n \"a\": 1\n}", "",
			[]string{"log info stdout {", `log info stdout  "a": 1`, "log info stdout }"},
		},
		"carriage returns": {`printf '{"result":3}\r\n'`, `3`, "", nil},
		"text and object": {
			`echo hello; echo '{"a":1}'; echo bye`, `{"a":1}`, "",
			[]string{"log info stdout hello", "log info stdout bye"},
		},
		"events": {
			`echo '{"kind":"progress","data":{"pct":50,"message":"half"}}'; echo '{"kind":"status","data":{"message":"s"}}'
			echo '{"kind":"log","data":{"level":"warn","message":"w"}}'; echo '{"kind":"artifact","data":{"name":"n","mime":"text/plain","chunk":"aGk=","final":true}}'
			echo '{"kind":"custom","data":[1]}'; echo '{"result":true}'`,
			`true`, "",
			[]string{
				"progress 50 half", "status s", "log warn  w", "artifact n text/plain hi true",
				"event custom [1]",
			},
		},
		"no event": {`echo '{"kind":5,"data":{}}'; echo '{"kind":"x"}'`, `{"kind":"x"}`, "", nil},
		"wrong data": {
			`echo '{"kind":"progress","data":{"pct":"x"}}'`, ``, "",
			[]string{`log info stdout an event of kind progress with other data than it has: {"pct":"x"}`},
		},
		"stdin":         {`cat`, `{"n":1}`, "", nil},
		"cwd":           {`cat data.txt`, `"the data"`, "", []string{"log info stdout the data"}},
		"skill folder":  {`test "$A2E_SKILL_DIR/run.sh" -ef "$0" && echo '{"result":"same"}'`, `"same"`, "", nil},
		"stderr":        {`echo oops >&2; echo '{"result":1}'`, `1`, "", []string{"log info stderr oops"}},
		"duplicate key": {`echo '{"a":1,"a":2}'`, `"{\"a\":1,\"a\":2}"`, "", []string{`log info stdout {"a":1,"a":2}`}},
	} {
		t.Run(name, func(t *testing.T) {
			r, lines, _, err := sh(t, c.script, nil)
			must.OK(t, err)
			assert.That(t, string(r.Data) == c.data && r.Summary == c.summary && !r.Failed && !r.Truncated &&
				r.ExitCode != nil && *r.ExitCode == 0, "got %+v with data %s", r, r.Data)
			assert.Equal(t, asLines(lines), asLines(c.lines), "events:\n…\nwant")
		})
	}
}

// TestLongTextOfAScript: of a long text, the result has both ends, and a file has all of it. Text beside a result or of
// a failed script is not kept.
func TestLongTextOfAScript(t *testing.T) {
	state := t.TempDir()
	kept := func(j *Job) { j.Spill, j.MaxOutputBytes = spill.New(state, nil), 2000 }
	for what, result := range map[string]string{"beside a result": `echo '{"result":1}'`, "of a failure": "exit 3"} {
		r, _, _, err := sh(t, "seq 1 5000; "+result, kept)
		files := must.Get(filepath.Glob(filepath.Join(state, "spill", "*", "*")))(t)
		assert.That(t, err == nil && !r.Truncated && len(files) == 0, "%s: %+v, %v, kept %v", what, r, err, files)
	}
	r, _, _, err := sh(t, "seq 1 5000", kept)
	must.OK(t, err)
	var text string
	must.OK(t, json.Unmarshal(r.Data, &text))
	files := must.Get(filepath.Glob(filepath.Join(state, "spill", "*", "*-test.spill")))(t)
	must.Equal(t, len(files), 1, "files")
	uri := "spill:///" + filepath.Base(files[0])
	all := string(must.Get(os.ReadFile(files[0]))(t))
	assert.That(t, strings.HasPrefix(all, "1\n2\n") && strings.HasSuffix(all, "4999\n5000\n") && len(all) == 23893,
		"kept %d bytes", len(all))
	summary := "the output was cut; read_file " + uri + " has all of it"
	assert.That(t, r.Truncated && r.Summary == summary && len(r.Data) <= 2000,
		"truncated %v, %q, %d bytes", r.Truncated, r.Summary, len(r.Data))
	assert.That(t, strings.HasPrefix(text, "1\n2\n") && strings.HasSuffix(text, "\n4999\n5000\n") &&
		strings.Contains(text, " bytes are missing here; all of it is in "+uri+"]\n"), "%s", text)
}

// TestScriptInterpreters: the first line or the extension of a file decides which program runs it.
func TestScriptInterpreters(t *testing.T) {
	for name, c := range map[string]struct{ file, text, data, wrong string }{
		"sh": {"a.sh", `echo '{"result":"sh"}'`, `"sh"`, ""},
		"python": {
			"dir/a.py", "import json, sys\nprint(json.dumps({'result': json.load(sys.stdin)['n'] + 1}))",
			`2`, "",
		},
		"shebang":      {"tool", "#!/usr/bin/env python3\nprint('{\"result\": 5}')", `5`, ""},
		"its argument": {"tool", "#!/bin/sh -e\nfalse\necho '{\"result\": 5}'", ``, "exit status 1"},
		"env -S":       {"tool", "#!/usr/bin/env -S python3 -B\nprint('{\"result\": 6}')", `6`, ""},
		"first line":   {"a.sh", "#!/usr/bin/env python3\nprint('{\"result\": 7}')", `7`, ""},
		"python 2":     {"tool", "#!/usr/bin/python\nprint('{\"result\": 8}')", `8`, ""},
		"neither":      {"tool", "echo hello", ``, "does not say what runs it"},
		"env alone":    {"tool", "#!/usr/bin/env\n", ``, "names no interpreter"},
		"env with set": {"tool", "#!/usr/bin/env LD_PRELOAD=x sh\n", ``, "names no interpreter"},
		"missing":      {"tool", "#!/usr/bin/env nosuchprogram\n", ``, `the program "nosuchprogram"`},
		"endless line": {"tool", "#!" + strings.Repeat("x", 1000), ``, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, map[string]string{c.file: c.text})
			r, _, err := p.script(t, p.job(c.file))
			switch {
			case err != nil:
				assert.That(t, c.wrong != "" && strings.Contains(err.Error(), c.wrong), "%v", err)
			case r.Failed:
				assert.That(t, c.wrong != "" && strings.Contains(r.Failure, c.wrong), "%+v", r)
			case string(r.Data) != c.data || c.wrong != "":
				t.Errorf("%+v %s", r, r.Data)
			}
		})
	}
	p := newPlace(t, nil)
	file := must.Get(sandbox.LookPath("true", p.launcher.Path(), ""))(t)
	data := must.Get(os.ReadFile(file))(t)
	must.OK(t, os.WriteFile(filepath.Join(p.skill, "native"), data, 0o755))
	r, _, err := p.script(t, p.job("native"))
	assert.That(t, err == nil && !r.Failed, "a program without interpreter: %+v, %v", r, err)
}

// TestScriptFiles: a job may only name a regular file within the skill's folder.
func TestScriptFiles(t *testing.T) {
	p := newPlace(t, map[string]string{"real.sh": "echo '{\"result\":1}'"})
	for name, target := range map[string]string{
		"inside.sh": "real.sh", "outside.sh": "../secret",
		"absolute.sh": p.up + "/secret", "gone.sh": "nothing",
	} {
		must.OK(t, os.Symlink(target, filepath.Join(p.skill, name)))
	}
	must.OK(t, makeFIFO(filepath.Join(p.skill, "fifo.sh")))
	for file, well := range map[string]bool{
		"real.sh": true, "inside.sh": true, "./real.sh": true, "outside.sh": false, "absolute.sh": false,
		"gone.sh": false, "fifo.sh": false,
		"../secret": false, "/etc/passwd": false, ".": false, "": false, "x\x00y": false,
	} {
		r, _, err := p.script(t, p.job(file))
		assert.Equal(t, (err == nil && !r.Failed), well, "%q: %+v, %v", file, r, err)
		assert.That(t, err == nil || codeOf(err) == "skill_error" && !strings.Contains(err.Error(), p.up), "%q: %v",
			file, err)
	}
}

// TestScriptRights: a script can write to the workspace only if the job says so, and never to the skill's own folder.
func TestScriptRights(t *testing.T) {
	const script = `cd "$A2E_WORKSPACE"; (echo x > made) 2>/dev/null && echo wrote; (echo x >> "$0") 2>/dev/null && echo changed itself
		(echo x > "$A2E_SKILL_DIR/new") 2>/dev/null && echo wrote beside itself
		echo x > "$HOME/a" && echo x > "$TMPDIR/b" && echo own; (echo x > /tmp/c) 2>/dev/null && echo tmp; cat data.txt`
	own := func(p *place, before string) string { // the output to expect
		// Without namespaces, the script has no /tmp of its own.
		if p.launcher.Mechanism() != sandbox.MechanismSubreaper {
			before += `tmp\n`
		}
		return `"` + before + `the data"`
	}
	for _, write := range []bool{false, true} {
		r, _, p, err := sh(t, script, func(j *Job) { j.Write = write })
		want := own(p, `own\n`)
		if write {
			want = own(p, `wrote\nown\n`)
		}
		assert.That(t, err == nil && string(r.Data) == want, "write %v: %s, %v", write, r.Data, err)
		_, err = os.Stat(filepath.Join(p.work, "made"))
		assert.That(t, (err == nil) == write, "write %v: %v", write, err)
	}
	// This skill is in the workspace.
	p := newPlace(t, nil)
	dir := filepath.Join(p.work, ".a2e", "skills", "own")
	must.OK(t, os.MkdirAll(dir, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(dir, "run.sh"), []byte(script), 0o755))
	j := p.job("run.sh")
	j.Dir, j.Write = dir, true
	r, _, err := p.script(t, j)
	if p.launcher.Mechanism() == sandbox.MechanismSubreaper {
		return // without namespaces, a folder in an open folder cannot be closed, so the script can change itself
	}
	assert.That(t, err == nil && string(r.Data) == own(p, `wrote\nown\n`), "a skill in the workspace: %+v, %v", r, err)
}

// TestScriptEnv: the environment of a script has the skill's folder, and no variable of the host.
func TestScriptEnv(t *testing.T) {
	t.Setenv("A2E_TEST_TOKEN", "geheim")
	r, _, p, err := sh(t, `env`, nil)
	assert.That(t, err == nil && strings.Contains(string(r.Data), "A2E_SKILL_DIR="+p.skill) &&
		!strings.Contains(string(r.Data), "geheim"), "%s, %v", r.Data, err)
}

// TestScriptFails: a failed script has its exit code, and its last words on stderr.
func TestScriptFails(t *testing.T) {
	r, _, _, err := sh(t, `echo '{"result":1}'; echo first >&2; echo last words >&2; exit 3`, nil)
	assert.That(t, err == nil && r.Failed && *r.ExitCode == 3 && r.Data == nil &&
		strings.Contains(r.Failure, "exit status 3") && strings.Contains(r.Failure, "last words"), "%+v, %v", r, err)
	r, _, _, err = sh(t, `kill -9 $$`, nil)
	assert.That(t, err == nil && r.Failed && *r.ExitCode == 137 && strings.Contains(r.Failure, "signal"), "%+v, %v", r,
		err)
}
