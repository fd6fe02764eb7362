package e2e_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// putSkills writes the files of skills below .a2e/skills of a folder.
func putSkills(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, ".a2e", "skills", filepath.FromSlash(name))
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text), 0o755))
	}
}

const greetSkill = "---\nname: greet\ndescription: Greets people. In many ways.\ninputs: {name: {type: string, " +
	"required: true}}\ntags: [polite]\n---\nSay \"hello\" to {{name}}.\x1b[2J\n\tThen go.\n"

// skillsDir returns a folder with the binary, a config and some skills.
func skillsDir(t *testing.T) string {
	t.Helper()
	dir := workDir(t)
	writeConfig(t, dir, "state_dir: state\nsandbox: best_effort\n")
	putSkills(t, dir, map[string]string{
		"greet/SKILL.md":   greetSkill,
		"blocked/SKILL.md": "---\nname: blocked\ndescription: d\ntools: [frobnicate]\nallowed-tools: [Frob]\n---\n",
		"count/SKILL.md":   "---\nname: count\ndescription: Counts.\nrun: go.sh\n---\n",
		"count/go.sh": "#!/bin/sh\nprintf '{\"kind\":\"status\",\"data\":{\"message\":\"at " +
			"work\"}}\\n{\"result\":{\"n\":3}}\\n'\n",
		"fail/SKILL.md": "---\nname: fail\ndescription: Fails.\nrun: go.sh\n---\n",
		"fail/go.sh":    "#!/bin/sh\nexit 4\n",
	})
	return dir
}

func TestSkillsList(t *testing.T) {
	t.Parallel()
	dir := skillsDir(t)
	out := run(t, dir, nil, "skills", "list").want(t, 0, "")
	want := `SKILL    KIND          STATUS     DESCRIPTION
blocked  instructions  Blocked    there is no tool "frobnicate"
count    run           Published  Counts
fail     run           Published  Fails
greet    instructions  Published  Greets people
`
	assert.Equal(t, out.stdout, want)
	if out = run(t, dir, nil, "skills", "list", "--tag", "POLITE").want(t, 0, ""); strings.Count(out.stdout,
		"\n") != 2 || !strings.Contains(out.stdout, "\ngreet ") {
		t.Errorf("with a tag it shows %s", out.stdout)
	}
	out = run(t, dir, nil, "skills", "list", "--tag", "polite", "--json").want(t, 0, "")
	var defs []map[string]any
	err := json.Unmarshal([]byte(out.stdout), &defs)
	assert.That(t, err == nil && len(defs) == 1 && defs[0]["name"] == "greet" && !strings.Contains(out.stdout, "\x1b"),
		"%v in %q", err, out.stdout)
	run(t, dir, nil, "skills", "list", "--category", "none").want(t, 2, `there is no category "none"`)
	writeConfig(t, dir, "plugins: [{name: e, type: env}]\n")
	run(t, dir, nil, "skills", "list").want(t, 3, "no plugin of the config provides skill")
	run(t, dir, nil, "skills", "check").want(t, 3, "no plugin of the config provides skill")
}

func TestSkillsShow(t *testing.T) {
	t.Parallel()
	dir := skillsDir(t)
	out := run(t, dir, nil, "skills", "show", "greet").want(t, 0, "").stdout
	for _, want := range []string{
		"name          greet\n", "status        Published\n", "arguments     name\n",
		"tags          polite\n", "\nSay \"hello\" to {{name}}.\\x1b[2J\n\tThen go.\n",
	} {
		assert.Contains(t, out, want, "… is not in")
	}
	if out = run(t, dir, nil, "skills", "show", "blocked").want(t, 0, "").stdout; !strings.Contains(out,
		"status        Blocked: there is no tool \"frobnicate\"\n") {
		t.Errorf("it shows %s", out)
	}
	run(t, dir, nil, "skills", "show", "greet", "--json").want(t, 0, "")
	run(t, dir, nil, "skills", "show", "great").want(t, 1, "there is no skill \"great\"; did you mean \"greet\"? "+
		"there are: blocked, count, fail, greet")
	putSkills(t, dir, map[string]string{"broken/SKILL.md": "---\nname: another\nrun: gone.sh\n---\n"})
	run(t, dir, nil, "skills", "show", "broken").want(t, 1, `the skill "broken" is broken: `)
	assert.Contains(t, run(t, dir, nil, "skills", "check", "--json").want(t, 1, "").stdout, `"skill": "broken"`)
}

func TestSkillsCheck(t *testing.T) {
	t.Parallel()
	dir := skillsDir(t)
	out := run(t, dir, nil, "skills", "check").want(t, 0, "4 good, 0 broken")
	for _, want := range []string{": blocked: there is no tool \"frobnicate\"\n", ": hint: allowed-tools: there is " +
		"no tool Frob here; that does not block the skill\n"} {
		assert.Contains(t, out.stdout, want, "… is not in")
	}
	putSkills(t, dir, map[string]string{
		"bad1/SKILL.md":  "---\nname: bad1\ndescription: d\nrun: ../../x\n---\n",
		"bad2/SKILL.md":  "---\nname: bad2\ndescription: \"d\nx: y\n---\n",
		"again/SKILL.md": strings.Replace(greetSkill, "tags", "tagz", 1),
	})
	out = run(t, dir, nil, "skills", "check").want(t, 1, "5 good, 2 broken")
	root := filepath.Join(".a2e", "skills") + string(filepath.Separator)
	for _, want := range []string{
		root + filepath.Join("bad1", "SKILL.md") + ":4: run: \"../../x\" leads out of the skill's folder; name a " +
			"file in it, such as scripts/main.py\n",
		root + filepath.Join("bad2", "SKILL.md") + ":3: not valid YAML",
		root + filepath.Join("again", "SKILL.md") + ":5: hint: the key \"tagz\" has no meaning here; did you mean " +
			"\"tags\"?\n",
		root + filepath.Join("greet", "SKILL.md") + ": shadowed: the name greet is that of " + root +
			filepath.Join("again", "SKILL.md") + ", which comes first\n",
	} {
		assert.Contains(t, out.stdout, want, "… is not in")
	}
	one := filepath.Join(".a2e", "skills", "bad1")
	if out = run(t, dir, nil, "skills", "check", one).want(t, 1, "0 good, 1 broken"); strings.Count(out.stdout,
		"\n") != 1 {
		t.Errorf("of one skill it says %s", out.stdout)
	}
	out = run(t, dir, nil, "skills", "check", "--json", one).want(t, 1, "")
	var lines []map[string]any
	err := json.Unmarshal([]byte(out.stdout), &lines)
	assert.That(t, err == nil && len(lines) == 1 && lines[0]["line"] == 4.0 && lines[0]["level"] == "error" &&
		lines[0]["skill"] == "bad1", "%v in %s", err, out.stdout)
	for _, how := range [][]string{{"skills", "check", "--json"}, {"skills", "validate", "--json"}} {
		out = run(t, dir, nil, append(how, filepath.Join(".a2e", "skills", "bad2"))...).want(t, 1, "")
		assert.Contains(t, out.stdout, `"skill": "bad2"`, "front matter that cannot be read keeps its folder's name")
	}
	run(t, dir, nil, "skills", "check", filepath.Join(".a2e", "skills", "greet")).want(t, 0, "1 good, 0 broken")
	run(t, dir, nil, "skills", "check", "nowhere").want(t, 2, "nowhere")
	run(t, dir, nil, "skills", "check", "a2e.yaml").want(t, 2, "this is not a folder")
}

func TestSkillsRun(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		return // there is no sh
	}
	dir := skillsDir(t)
	out := run(t, dir, nil, "skills", "run", "greet", "name=Ada").want(t, 0, "")
	assert.Equal(t, out.stdout, "Say \"hello\" to Ada.\\x1b[2J\n\tThen go.\n", "it prints")
	out = run(t, dir, nil, "skills", "run", "count").want(t, 0, "status: at work")
	assert.Equal(t, out.stdout, "{\n  \"n\": 3\n}\n", "it prints")
	out = run(t, dir, nil, "skills", "run", "--quiet", "--json", "count").want(t, 0, "")
	assert.That(t, out.stderr == "" && strings.Contains(out.stdout, `"duration_ms"`), "it prints %q and %q", out.stdout,
		out.stderr)
	run(t, dir, nil, "skills", "run", "fail").want(t, 1, "fail failed: it ended with exit status 4")
	run(t, dir, nil, "skills", "run", "greet").want(t, 2, "greet needs:\n  name=STRING\n")
	run(t, dir, nil, "skills", "run", "greet", "name").want(t, 2, "write key=value")
	run(t, dir, nil, "skills", "run", "great").want(t, 1, `did you mean "greet"?`)
}

func TestSkillsNewAndValidate(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "state_dir: state\n")
	doc := filepath.Join(".a2e", "skills", "pdf-forms", "SKILL.md")
	out := run(t, dir, nil, "skills", "new", "pdf-forms", "--description", "Fills --- in \"forms\".\nAnd more.").want(t,
		0, "")
	assert.Equal(t, out.stdout, doc+"\n")
	before := must.Get(os.ReadFile(filepath.Join(dir, doc)))(t)
	for says, args := range map[string][]string{
		"is there already; nothing was changed": {"pdf-forms"}, "should be in lower case": {"PDF"},
		"letters, digits and hyphens": {"../x"}, "1 to 64 characters": {""},
		"begin or end with a hyphen": {"x-"}, "two hyphens side by side": {"a--b"},
		"at most 1024":           {"long", "--description", strings.Repeat("x", 1025)},
		"can't be used together": {"x", "--user", "--in", "y"},
	} {
		run(t, dir, nil, append([]string{"skills", "new"}, args...)...).want(t, 2, says)
	}
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(dir, doc)))(t)), string(before), "the skill was changed")
	run(t, dir, nil, "skills", "new", "of-user", "--user").want(t, 0, "")
	run(t, dir, nil, "skills", "new", "12", "--in", filepath.Join("more", "skills")).want(t, 0, "")
	run(t, dir, nil, "skills", "validate").want(t, 0, "2 valid, 0 not")
	run(t, dir, nil, "skills", "validate", filepath.Join("more", "skills", "12"), doc).want(t, 0, "2 valid, 0 not")
	out = run(t, dir, nil, "skills", "list").want(t, 0, "")
	assert.That(t, strings.Contains(out.stdout, "of-user ") && strings.Contains(out.stdout, "Fills --- in \"forms\""),
		"%s", out.stdout)
	putSkills(t, dir, map[string]string{"bad/SKILL.md": "---\nname: other\nlicense: MIT\nrun: x\n---\n"})
	out = run(t, dir, nil, "skills", "validate").want(t, 1, "2 valid, 1 not")
	bad := filepath.Join(".a2e", "skills", "bad", "SKILL.md")
	for _, want := range []string{bad + ": description: is missing", bad + ":2: name: \"other\" should be the name " +
		"of the folder, \"bad\"", bad + ":4: the public format has no key \"run\""} {
		assert.Contains(t, out.stdout, want)
	}
	run(t, dir, nil, "skills", "validate", "nowhere").want(t, 2, "nowhere")
	run(t, dir, nil, "skills", "validate", "a2e.yaml").want(t, 2, "this is not a folder")
	if runtime.GOOS != "windows" {
		outside := t.TempDir()
		must.OK(t, os.RemoveAll(filepath.Join(dir, ".a2e")))
		must.OK(t, os.Symlink(outside, filepath.Join(dir, ".a2e")))
		run(t, dir, nil, "skills", "new", "escapes").want(t, 2, "escapes from parent")
		assert.Equal(t, len(must.Get(os.ReadDir(outside))(t)), 0, "files outside")
	}
}

// TestScriptsOfSkillsElsewhere: programs of the agent run the scripts of skills in the user's folder and in the
// folders of the config. They can change nothing there, and see no file beside. The folders of an untrusted config
// are not opened.
func TestScriptsOfSkillsElsewhere(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // on other systems programs read all that their user reads
	}
	home, dir, more := t.TempDir(), workDir(t), t.TempDir()
	user := filepath.Join(home, ".config", "a2e")
	for _, base := range []string{filepath.Join(user, "skills"), more} {
		must.OK(t, os.MkdirAll(filepath.Join(base, "hi", "scripts"), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(base, "hi", "SKILL.md"), []byte("---\nname: hi\ndescription: "+
			"d\n---\nRun scripts/hi.sh\n"), 0o644))
		must.OK(t, os.WriteFile(filepath.Join(base, "hi", "scripts", "hi.sh"), []byte("#!/bin/sh\necho hi $1\n"),
			0o755))
	}
	must.OK(t, os.WriteFile(filepath.Join(user, "secret"), []byte("s"), 0o644))
	writeConfig(t, dir, "state_dir: state\nplugins: {skill: {skills_path: ["+more+", "+filepath.Dir(home)+"]}}\n")
	as := []string{"--config", "a2e.yaml"}
	sh := func(line string) string {
		cmd := command(t, dir, "./a2e", append(as, "tools", "call", "run_command",
			"command:="+string(must.Get(json.Marshal([]string{"sh", "-c", line}))(t)))...)
		cmd.Env = append(cmd.Env, "HOME="+home)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	for _, base := range []string{filepath.Join(user, "skills"), more} {
		script := filepath.Join(base, "hi", "scripts", "hi.sh")
		assert.Contains(t, sh(script+" there"), "hi there")
		assert.Contains(t, sh("echo x > "+script), "Read-only file system")
		assert.Contains(t, sh("mv "+filepath.Join(base, "hi")+" "+filepath.Join(base, "ho")), "Read-only file system")
		assert.Contains(t, string(must.Get(os.ReadFile(script))(t)), "echo hi")
	}
	assert.Contains(t, sh("cat "+filepath.Join(user, "secret")), "No such file")
	must.OK(t, os.WriteFile(filepath.Join(home, "beside"), nil, 0o644))
	assert.Contains(t, sh("ls "+home+"/beside"), "No such file", "a folder of skills that holds the home is not "+
		"opened:")
	as = nil // found in the folder, the config is not trusted by this home
	assert.Contains(t, sh(filepath.Join(more, "hi", "scripts", "hi.sh")), "not found")
	assert.Contains(t, sh(filepath.Join(user, "skills", "hi", "scripts", "hi.sh")+" again"), "hi again")
}
