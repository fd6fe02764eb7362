package cli_test

import (
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// diagnosis is what the tests read of `a2e doctor --json`.
type diagnosis struct {
	OK     bool `json:"ok"`
	Config struct {
		OK       bool     `json:"ok"`
		Problems []string `json:"problems"`
	} `json:"config"`
	Walls []struct {
		OK   bool   `json:"ok"`
		Name string `json:"name"`
	} `json:"walls"`
	Programs []struct {
		Plugins  []string `json:"plugins"`
		Programs []struct {
			OK   bool   `json:"ok"`
			Name string `json:"name"`
			Path string `json:"path"`
		} `json:"programs"`
	} `json:"programs"`
	Sandbox struct {
		OK       bool   `json:"ok"`
		Mode     string `json:"mode"`
		Findings []struct {
			OK       bool   `json:"ok"`
			Optional bool   `json:"optional"`
			Name     string `json:"name"`
			Effect   string `json:"effect"`
			Reason   string `json:"reason"`
		} `json:"findings"`
		Verdicts []struct {
			OK   bool   `json:"ok"`
			Mode string `json:"mode"`
			Text string `json:"text"`
		} `json:"verdicts"`
	} `json:"sandbox"`
}

// missing names what required insists on and the machine lacks.
func (d *diagnosis) missing() (names []string) {
	for _, f := range d.Sandbox.Findings {
		if !f.OK && !f.Optional {
			names = append(names, f.Name)
		}
	}
	return names
}

// readDiagnosis reads the JSON and checks what always holds for it.
func readDiagnosis(t *testing.T, text []byte) *diagnosis {
	t.Helper()
	var d diagnosis
	err := json.Unmarshal(text, &d)
	must.That(t, err == nil, "%v in %s", err, text)
	assert.That(t, len(d.Sandbox.Findings) >= 10, "only %d mechanisms", len(d.Sandbox.Findings))
	for _, f := range d.Sandbox.Findings {
		assert.That(t, f.Name != "" && f.Effect != "" && f.OK == (f.Reason == ""),
			"%+v: it needs a name, an effect, and a reason if it is missing", f)
	}
	missing := d.missing()
	open := len(d.Walls) > 0 && slices.Contains(missing, "mount_namespace") // then best_effort may refuse too
	for _, v := range d.Sandbox.Verdicts {
		want := v.Mode != "required" || missing == nil
		assert.That(t, v.OK == want || open && v.Mode == "best_effort", "%s: ok %t, want %t, as %q are missing", v.Mode, v.OK, want, missing)
		for _, name := range missing {
			assert.That(t, v.Mode == "off" || strings.Contains(v.Text, name), "the verdict of %s lacks %s: %s", v.Mode, name, v.Text)
		}
	}
	return &d
}

func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// writeConfig returns a folder a config that the user trusts.
func writeConfig(t *testing.T, dir, text string) {
	t.Helper()
	writeFile(t, dir, "a2e.yaml", text)
	run(t, dir, nil, "trust").want(t, 0, "trusted until it changes")
}

func TestDoctorOfAGoodConfig(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "state_dir: state/deep\nplugins:\n- {name: t, type: tools, metadata: {allowed_commands: [sh, ls]}}\n"+
		"- {name: p, type: proc, metadata: {allowed_commands: [ls, sh]}}\n- {name: q, type: proc, metadata: {allowed_commands: [cat]}}\n")
	out, err := command(t, dir, "./a2e", "doctor", "--json").Output()
	must.That(t, err == nil, "%v\n%s", err, out)
	d := readDiagnosis(t, out)
	assert.That(t, d.OK && d.Config.OK && d.Sandbox.Mode == "best_effort" && len(d.Programs) == 2 && strings.Join(d.Programs[0].Plugins, " ") == "t p", "%+v", d)
	for _, p := range d.Programs[0].Programs {
		assert.That(t, p.OK && filepath.IsAbs(p.Path), "%+v", p)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 { // the binary, the config and the list of what is trusted
		t.Errorf("it left something in the workspace: %v, %v", left, err)
	}
	cmd := command(t, dir, "./a2e", "doctor")
	cmd.Env = append(cmd.Env, "TERM=")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%v, stderr %s", err, stderr.String())
	}
	want := []string{`^a2e `, `^  ok +/.*/a2e.yaml$`, `^  note  off, as the list under plugins does not name them: skill, .*, mcp, multi_agent \(`, `^  ok  workspace  /`, `^  ok  state_dir  .*/state/deep \(does not exist yet`, `^programs that t and p may start$`,
		`^  ok  sh  /`, `^  These start any program or run any code.*: sh\. exec: strict `, `best_effort \(as configured\)  children start`, `^  sandbox: required  `}
	for _, f := range d.Sandbox.Findings {
		state, effect := "ok", f.Effect
		if !f.OK {
			state, effect = "missing", strings.TrimSuffix(f.Effect, ".")
		}
		want = append(want, "^  "+state+" +"+f.Name+`\b.*`+regexp.QuoteMeta(effect)+".*"+regexp.QuoteMeta(f.Reason))
	}
	for _, w := range want {
		assert.That(t, regexp.MustCompile(`(?m)`+w).MatchString(stdout.String()), "no line %q in:\n%s", w, stdout.String())
	}
}

// Each defect has its exit status, and the report names it.
func TestDoctorFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, config string
		code         int
		says         string
	}{
		{"nothing", "host_id: x\n", 0, `(?m)^  ok  /.*/a2e.yaml$`},
		{"unknown key", "host_id: x\nsandbxo: off\n", 3, `(?m)^  wrong  a2e.yaml:2:1: unknown key "sandbxo".*"sandbox"`},
		{"bad option", "plugins: [{name: p, type: proc, metadata: {max_porcs: 3}}]\n", 3, `(?m)^  wrong  a2e.yaml:1:44: .*"max_procs"`},
		{"no program of proc", "plugins: [{name: p, type: proc, metadata: {allowed_commands: [a/b]}}]\n", 3, `(?m)^  wrong  a2e.yaml:1:62: .*"a/b" is not a bare program name`},
		{"no program of tools", "plugins: [{name: p, type: tools, metadata: {ALLOWED_COMMANDS: [-x]}}]\n", 3, `(?m)^  wrong  a2e.yaml:1:63: .*"-x" is not a bare program name`},
		{"read path", "children:\n  read: [gone]\n", 3, `(?m)^  wrong  a2e.yaml:2:10: .*gone cannot be read`},
		{"missing program", "plugins: [{name: p, type: proc, metadata: {allowed_commands: [sh, no-such-program]}}]\n", 1, `(?m)^  missing  no-such-program *$`},
		{"unwritable state_dir", "state_dir: /proc/nowhere/state\n", 1, `(?m)^  wrong  state_dir  /proc/nowhere/state \(cannot be written: `},
		{"unwritable workspace", "workspace: /proc\nstate_dir: state\n", 1, `(?m)^  wrong  workspace  /proc \(cannot be written: `},
		{"a warning", "transport: {type: http}\n", 0, `(?m)^  warning +a2e.yaml:1:1: transport has no meaning`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := workDir(t)
			writeConfig(t, dir, c.config)
			out, err := command(t, dir, "./a2e", "doctor").Output()
			if code := exitCode(err); code != c.code || !regexp.MustCompile(c.says).Match(out) {
				t.Errorf("exit status %d, want %d and %q in:\n%s", code, c.code, c.says, out)
			}
			assert.Contains(t, string(out), "\nsandbox\n", "no section on the sandbox:\n%s", out)
			out, err = command(t, dir, "./a2e", "doctor", "--json").Output()
			if d := readDiagnosis(t, out); exitCode(err) != c.code || d.OK != (c.code == 0) || d.Config.OK == (c.code == 3) {
				t.Errorf("--json: exit status %d, %+v", exitCode(err), d)
			}
		})
	}
}

// In the sandbox of a child, no other one can be set up: doctor has to say so.
func TestDoctorWhereMuchIsMissing(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for _, mode := range []string{"best_effort", "required"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, "inner.yaml"), []byte("sandbox: "+mode+"\n"), 0o600))
		const script = `{"command":["sh","-c","./a2e doctor -c inner.yaml --json > report; echo $? > code"]}`
		out, err := command(t, dir, "./a2e", "tools", "call", "run_command", "--args", script).CombinedOutput()
		must.That(t, err == nil, "%v\n%s", err, out)
		report := must.Get(os.ReadFile(filepath.Join(dir, "report")))(t)
		code := must.Get(os.ReadFile(filepath.Join(dir, "code")))(t)
		d := readDiagnosis(t, report)
		if !slices.Contains(d.missing(), "mount_namespace") {
			t.Errorf("%s: a sandbox in the sandbox has all but %q", mode, d.missing())
		}
		want := map[string]string{"best_effort": "0", "required": "1"}[mode]
		got := strings.TrimSpace(string(code))
		assert.That(t, got == want && d.OK == (want == "0") && d.Sandbox.Mode == mode, "%s: exit status %s, want %s; %+v", mode, got, want, d)
	}
}

// The same machine, as a host meets it: best_effort warns once in the log and
// goes on, required refuses and says why.
func TestServeWhereMuchIsMissing(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for mode, want := range map[string]struct {
		answer   string
		warnings int
	}{
		"best_effort": {`"stdout":"inner\n"`, 1},
		"required":    {`the sandbox is required, but this machine lacks: `, 0},
		"off":         {`"stdout":"inner\n"`, 0},
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, "inner.yaml"), []byte("sandbox: '"+mode+"'\n"), 0o600))
		lines := []string{`{"type":"handshake/req","id":"h","agent_caps":["tools","proc"]}`}
		for i := range 4 {
			lines = append(lines, call(strconv.Itoa(i), "run_command", `{"command":["echo","inner"]}`))
		}
		must.OK(t, os.WriteFile(filepath.Join(dir, "lines"), []byte(strings.Join(lines, "\n")), 0o600))
		const script = `{"command":["sh","-c","./a2e -c inner.yaml serve < lines > out 2> log"]}`
		if out, err := command(t, dir, "./a2e", "tools", "call", "run_command", "--args", script).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out := must.Get(os.ReadFile(filepath.Join(dir, "out")))(t)
		log := must.Get(os.ReadFile(filepath.Join(dir, "log")))(t)
		assert.Equal(t, strings.Count(string(out), want.answer), 4, "%s: … of 4 answers say %q:\n%s", mode, want.answer, out)
		n := strings.Count(string(out), `"sandbox":"`+mode+`"`)
		assert.Equal(t, n, 2, "%s: … of 2 plugins say so in the handshake:\n%s", mode, out)
		if n := strings.Count(string(log), "a2e doctor"); n != want.warnings || n != strings.Count(string(log), `"mount_namespace: `) {
			t.Errorf("%s: %d warnings, want %d:\n%s", mode, n, want.warnings, log)
		}
	}
}

// A report that nobody reads ends the command, with its own exit status and
// without leaving the private folder of the sandbox behind.
func TestDoctorWithoutAReader(t *testing.T) {
	t.Parallel()
	dir, tmp := workDir(t), t.TempDir()
	r, w, err := os.Pipe()
	must.OK(t, err)
	r.Close()
	defer w.Close()
	cmd := command(t, dir, "./a2e", "doctor")
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	cmd.Stdout, cmd.Stderr = w, w
	assert.Equal(t, exitCode(cmd.Run()), 4, "exit status …, want 4")
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestDoctorPath: a folder of PATH that would show children what is private is named, with
// the reason, and its programs are not found.
func TestDoctorPath(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	work := filepath.Join(dir, "work")
	must.OK(t, os.Mkdir(work, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(dir, "hometool"), []byte("#!/bin/sh\n"), 0o755))
	writeConfig(t, dir, "workspace: work\nstate_dir: state\nplugins:\n- {name: t, type: tools, metadata: {allowed_commands: [sh, hometool]}}\n")
	cmd := command(t, dir, "./a2e", "--config", "a2e.yaml", "doctor")
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH")+":"+dir+":bin:"+work)
	out, err := cmd.Output()
	assert.Equal(t, exitCode(err), 1, "exit status")
	for _, want := range []string{`missing +hometool`, `left out +` + regexp.QuoteMeta(dir) + ` +It (is or )?holds`, `left out +bin +It is relative`, `left out +` + work + ` +It lies in the workspace`} {
		assert.That(t, regexp.MustCompile(want).Match(out), "it lacks %s:\n%s", want, out)
	}
}

// storeReport is what `a2e doctor --json` says of the store.
type storeReport struct {
	OK       bool           `json:"ok"`
	Path     string         `json:"path"`
	Exists   bool           `json:"exists"`
	Bytes    int64          `json:"bytes"`
	Parts    map[string]int `json:"parts"`
	Model    string         `json:"model"`
	Problems []string       `json:"problems"`
	Advice   string         `json:"advice"`
}

func doctorOfStore(t *testing.T, dir string, code int) (r storeReport, text string) {
	t.Helper()
	out := run(t, dir, nil, "doctor", "--json").want(t, code, "")
	var d struct {
		OK    bool         `json:"ok"`
		Store *storeReport `json:"store"`
	}
	err := json.Unmarshal([]byte(out.stdout), &d)
	must.That(t, err == nil && d.Store != nil, "%v in %s", err, out.stdout)
	assert.That(t, d.OK == (code == 0) && d.Store.OK == (code == 0) && d.Store.Problems != nil && d.Store.Parts != nil,
		"with exit status %d: ok %t, %+v", code, d.OK, d.Store)
	out = run(t, dir, nil, "doctor").want(t, code, "")
	_, text, found := strings.Cut(out.stdout, "\nstore\n")
	must.That(t, found, "no section on the store:\n%s", out.stdout)
	text, _, _ = strings.Cut(text, "\n\n")
	return *d.Store, text
}

func TestDoctorWithoutAStore(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	r, text := doctorOfStore(t, dir, 0)
	assert.That(t, !r.Exists && r.Bytes == 0 && strings.HasSuffix(r.Path, filepath.FromSlash("/"+storeFile)), "%+v", r)
	assert.That(t, regexp.MustCompile(`^  ok  /.*/state/state\.db \(does not exist yet; it is made when it is needed\)$`).MatchString(text),
		"got %q", text)
	_, err := os.Stat(filepath.Join(dir, "state"))
	assert.That(t, err != nil, "doctor made the folder")
	writeConfig(t, dir, "nonsense: 1\n")
	out := run(t, dir, nil, "doctor").want(t, 3, "")
	assert.That(t, !strings.Contains(out.stdout, "\nstore\n"), "without a config it looked at some store:\n%s", out.stdout)
}

func TestDoctorOfAGoodStore(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	remember(t, dir, "w1", entry("a", "semantic", "something to embed"))
	r, text := doctorOfStore(t, dir, 0)
	assert.That(t, r.Exists && r.Bytes >= 4096 && r.Parts["memory"] >= 1 && r.Parts["planning"] >= 1 && r.Model == "", "%+v", r)
	for _, want := range []string{`(?m)^  ok +/.*/state/state\.db \(\d+ KiB\)$`, `(?m)^  part +memory, version \d+$`, `(?m)^  part +planning, version \d+$`} {
		assert.That(t, regexp.MustCompile(want).MatchString(text), "no line %q in:\n%s", want, text)
	}
	writeConfig(t, dir, stateConfig+"plugins: [{name: t, type: tools}]\n")
	if r, _ = doctorOfStore(t, dir, 0); r.Model != "" {
		t.Errorf("without a memory it names the model %q", r.Model)
	}
}

// withChecksum makes a changed first page one that a host would have written.
func withChecksum(file []byte) []byte {
	content, castagnoli := file[:4096-8], crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(make([]byte, 8), castagnoli), castagnoli, content)
	other := crc32.Update(crc32.ChecksumIEEE(make([]byte, 8)), crc32.IEEETable, content)
	for i := range 4 {
		file[4096-8+i], file[4096-4+i] = byte(sum>>(24-8*i)), byte(other>>(24-8*i))
	}
	return file
}

// A file that cannot be used is told with advice, and stays as it is.
func TestDoctorOfABadStore(t *testing.T) {
	t.Parallel()
	const pageSize, userVersion = 4096, 60 // and where SQLite's header has them
	good := stateDir(t)
	var entries []string
	for i := range 200 {
		entries = append(entries, entry(fmt.Sprint(i), "semantic", strings.Repeat("many words ", 50)+fmt.Sprint(i)))
	}
	remember(t, good, "w1", entries...)
	store, err := os.ReadFile(filepath.Join(good, storeFile))
	must.That(t, err == nil && len(store) >= 20*pageSize, "%v, %d bytes", err, len(store))
	for _, c := range []struct {
		name    string
		spoil   func(file []byte) []byte
		problem string
		advice  string
	}{
		{"another kind of file", func([]byte) []byte { return bytes.Repeat([]byte("some text\n"), 1000) }, "not an a2e store", "move the file away"},
		{"newer", func(f []byte) []byte { f[userVersion+3] = 99; return withChecksum(f) }, "newer a2e", "use the newer"},
		{"damaged inside", func(f []byte) []byte {
			for p := 5 * pageSize; p < len(f); p += 4 * pageSize {
				copy(f[p:], bytes.Repeat([]byte{0xa5}, 256))
			}
			return f
		}, "", "state export"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := stateDir(t)
			spoilt := c.spoil(bytes.Clone(store))
			must.OK(t, os.Mkdir(filepath.Join(dir, "state"), 0o700))
			must.OK(t, os.WriteFile(filepath.Join(dir, storeFile), spoilt, 0o600))
			r, text := doctorOfStore(t, dir, 1)
			assert.That(t, r.Exists && slices.ContainsFunc(r.Problems, func(p string) bool { return strings.Contains(p, c.problem) }) && strings.Contains(r.Advice, c.advice), "%+v", r)
			assert.That(t, strings.Contains(text, "  wrong ") && strings.Contains(text, "  advice  "+r.Advice) && !strings.Contains(text, "  ok "), "the text:\n%s", text)
			now, err := os.ReadFile(filepath.Join(dir, storeFile))
			assert.That(t, err == nil && bytes.Equal(now, spoilt), "the file was changed: %v", err)
		})
	}
}
