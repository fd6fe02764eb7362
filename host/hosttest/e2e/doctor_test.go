package e2e_test

import (
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

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// report is what `a2e doctor --json` promises.
type report struct {
	OK      bool           `json:"ok"`
	Summary map[string]int `json:"summary"`
	Checks  []reportLine   `json:"checks"`
}

type reportLine struct {
	Section, Level, Name, Place, Text, Fix string
	Live                                   bool
}

// in returns the lines of a section.
func (r report) in(section string) (lines []reportLine) {
	for _, c := range r.Checks {
		if c.Section == section {
			lines = append(lines, c)
		}
	}
	return lines
}

// missing returns the parts of the sandbox that the mode required needs and the machine lacks.
func (r report) missing() (names []string) {
	for _, c := range r.in("sandbox") {
		if strings.HasPrefix(c.Text, "Not available: ") && !strings.HasSuffix(c.Name, "(optional)") {
			names = append(names, c.Name)
		}
	}
	return names
}

// mode returns the line on a mode of the sandbox.
func (r report) mode(t *testing.T, mode string) reportLine {
	t.Helper()
	for _, c := range r.in("sandbox") {
		if c.Name == "sandbox" && strings.HasPrefix(c.Text, "mode "+mode) {
			return c
		}
	}
	t.Fatalf("nothing is said of the mode %s: %+v", mode, r)
	return reportLine{}
}

// readReport parses the JSON and checks what holds for every report.
func readReport(t *testing.T, text []byte) (r report) {
	t.Helper()
	err := json.Unmarshal(text, &r, json.MatchCaseInsensitiveNames(true))
	must.That(t, err == nil, "%v in %s", err, text)
	count := map[string]int{"fine": 0, "warning": 0, "error": 0, "note": 0}
	for _, c := range r.Checks {
		count[c.Level]++
		assert.That(t, c.Section != "" && c.Name != "" && c.Text != "", "%+v", c)
	}
	assert.Equal(t, len(count), 4, "levels")
	delete(count, "note")
	for level, n := range count {
		assert.Equal(t, r.Summary[level], n, level)
	}
	assert.That(t, r.OK == (count["error"] == 0), "ok %t with %v", r.OK, count)
	assert.That(t, len(r.in("sandbox")) >= 13, "only %d lines on the sandbox", len(r.in("sandbox")))
	missing := r.missing()
	bestEffort := r.mode(t, "best_effort")
	for mode, starts := range map[string]bool{
		"required":    missing == nil,
		"best_effort": !strings.Contains(bestEffort.Text, "do not start"), "off": true,
	} {
		v := r.mode(t, mode)
		assert.That(t, strings.Contains(v.Text, "do not start") != starts, "%s: %s, as %q are missing", mode, v.Text,
			missing)
		assert.That(t, !strings.Contains(v.Text, "(as configured)") || (v.Level == "fine") == starts, "%+v", v)
		for _, name := range missing {
			assert.That(t, mode == "off" || strings.Contains(v.Text, name), "the verdict of %s lacks %s: %s", mode,
				name, v.Text)
		}
	}
	return r
}

// of returns the line of a name in a section.
func of(t *testing.T, r report, section, name string) reportLine {
	t.Helper()
	for _, c := range r.in(section) {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("nothing is said of %q: %+v", name, r)
	return reportLine{}
}

func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// writeConfig writes a config into a folder, and trusts it.
func writeConfig(t *testing.T, dir, text string) {
	t.Helper()
	writeFile(t, dir, "a2e.yaml", text)
	run(t, dir, nil, "trust").want(t, 0, "trusted until it changes")
}

func TestDoctorOfAGoodConfig(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "state_dir: state/deep\nplugins:\n- {name: t, type: tools, metadata: {allowed_commands: "+
		"[sh, ls]}}\n"+
		"- {name: p, type: proc, metadata: {allowed_commands: [ls, sh]}}\n- {name: q, type: proc, metadata: "+
		"{allowed_commands: [cat]}}\n")
	out, err := command(t, dir, "./a2e", "doctor", "--json").Output()
	must.That(t, err == nil, "%v\n%s", err, out)
	d := readReport(t, out)
	programs := map[string]bool{}
	for _, p := range d.in("programs") {
		programs[p.Name] = p.Level == "fine" && filepath.IsAbs(p.Text)
	}
	assert.That(t, d.OK && programs["sh"] && programs["ls"] && programs["cat"], "%+v", d)
	if left, err := os.ReadDir(dir); err != nil ||
		len(left) != 3 { // the binary, the config and the list of what is trusted
		t.Errorf("it left something in the workspace: %v, %v", left, err)
	}
	cmd := command(t, dir, "./a2e", "doctor", "--all")
	cmd.Env = append(cmd.Env, "TERM=")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%v, stderr %s", err, stderr.String())
	}
	want := []string{
		`^a2e `, `^ok +config +/.*/a2e.yaml$`,
		`^note +plugins +off, as the list under plugins does not name them: skill, .*, mcp, multi_agent \(`,
		`^ok +workspace +/`, `^ok +state_dir +.*/state/deep \(does not exist yet`,
		`^ok +programs +t, p may start ls, sh$`, `^ok +programs +q may start cat$`, `^ok +sh +/`,
		`These start any program or run any code.*: sh\. exec: strict `,
		`mode best_effort \(as configured\): children start`, `mode required: `,
	}
	for _, c := range d.in("sandbox") {
		want = append(want, `^\w+ +`+regexp.QuoteMeta(c.Name)+" +"+regexp.QuoteMeta(c.Text))
	}
	for _, w := range want {
		assert.That(t, regexp.MustCompile(`(?m)`+w).MatchString(stdout.String()), "no line %q in:\n%s", w,
			stdout.String())
	}
	short, err := command(t, dir, "./a2e", "doctor").Output()
	assert.That(t, err == nil && bytes.Count(short, []byte("\n")) < 20 && bytes.Contains(short,
		[]byte("; --all shows ")), "it is no screen: %v\n%s", err, short)
}

// Each defect has its exit status, and the report names it.
func TestDoctorFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, config string
		code         int
		says         string
	}{
		{"nothing", "host_id: x\n", 0, `(?m)^ok +config +/.*/a2e.yaml$`},
		{
			"unknown key", "host_id: x\nsandbxo: off\n", 3,
			`(?m)^wrong +config +a2e.yaml:2:1: unknown key "sandbxo".*"sandbox"`,
		},
		{
			"bad option", "plugins: [{name: p, type: proc, metadata: {max_porcs: 3}}]\n", 3,
			`(?m)^wrong +config +a2e.yaml:1:44: .*"max_procs"`,
		},
		{
			"no program of proc", "plugins: [{name: p, type: proc, metadata: {allowed_commands: [a/b]}}]\n", 3,
			`(?m)^wrong +config +a2e.yaml:1:62: .*"a/b" is not a bare program name`,
		},
		{
			"no program of tools", "plugins: [{name: p, type: tools, metadata: {ALLOWED_COMMANDS: [-x]}}]\n", 3,
			`(?m)^wrong +config +a2e.yaml:1:63: .*"-x" is not a bare program name`,
		},
		{"read path", "children:\n  read: [gone]\n", 3, `(?m)^wrong +config +a2e.yaml:2:10: .*gone cannot be read`},
		{
			"missing program", "plugins: [{name: p, type: proc, metadata: {allowed_commands: [sh, no-such-program]}}]\n",
			1, `(?m)^wrong +no-such-program +not found, and p may start it$`,
		},
		{
			"unwritable state_dir", "state_dir: /proc/nowhere/state\n", 1,
			`(?m)^wrong +state_dir +/proc/nowhere/state \(cannot be written: `,
		},
		{
			"unwritable workspace", "workspace: /proc\nstate_dir: state\n", 1,
			`(?m)^wrong +workspace +/proc \(cannot be written: `,
		},
		{"a warning", "transport: {type: http}\n", 0, `(?m)^warning +config +a2e.yaml:1:1: transport has no meaning`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := workDir(t)
			writeConfig(t, dir, c.config)
			out, err := command(t, dir, "./a2e", "doctor").Output()
			if code := exitCode(err); code != c.code || !regexp.MustCompile(c.says).Match(out) {
				t.Errorf("exit status %d, want %d and %q in:\n%s", code, c.code, c.says, out)
			}
			assert.Contains(t, string(out), " sandbox ", "nothing on the sandbox:\n%s", out)
			out, err = command(t, dir, "./a2e", "doctor", "--json").Output()
			if d := readReport(t, out); exitCode(err) != c.code || d.OK != (c.code == 0) ||
				(d.in("config")[0].Level == "error") != (c.code == 3) {
				t.Errorf("--json: exit status %d, %+v", exitCode(err), d)
			}
		})
	}
}

// TestDoctorWhereMuchIsMissing: within the sandbox of a child no other sandbox can be set up, and doctor says so.
func TestDoctorWhereMuchIsMissing(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for _, mode := range []string{"best_effort", "required"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, "inner.yaml"), []byte("sandbox: "+mode+"\n"), 0o600))
		const script = `{"command":["sh","-c","./a2e doctor -c inner.yaml --json > report; echo $? > code"]}`
		out, err := command(t, dir, "./a2e", "tools", "call", "run_command", "--args", script).CombinedOutput()
		must.That(t, err == nil, "%v\n%s", err, out)
		text := must.Get(os.ReadFile(filepath.Join(dir, "report")))(t)
		code := must.Get(os.ReadFile(filepath.Join(dir, "code")))(t)
		d := readReport(t, text)
		if !slices.Contains(d.missing(), "mount_namespace") {
			t.Errorf("%s: a sandbox in the sandbox has all but %q", mode, d.missing())
		}
		want := map[string]string{"best_effort": "0", "required": "1"}[mode]
		got := strings.TrimSpace(string(code))
		assert.That(t, got == want && d.OK == (want == "0") && strings.Contains(d.mode(t, mode).Text,
			"(as configured)"), "%s: exit status %s, want %s; %+v", mode, got, want, d)
	}
}

// TestServeWhereMuchIsMissing: on such a machine a host with best_effort warns once in the log and runs programs; a
// host with required refuses them and says why.
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
		if out, err := command(t, dir, "./a2e", "tools", "call", "run_command", "--args",
			script).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out := must.Get(os.ReadFile(filepath.Join(dir, "out")))(t)
		log := must.Get(os.ReadFile(filepath.Join(dir, "log")))(t)
		assert.Equal(t, strings.Count(string(out), want.answer), 4, "%s: … of 4 answers say %q:\n%s", mode, want.answer,
			out)
		n := strings.Count(string(out), `"sandbox":"`+mode+`"`)
		assert.Equal(t, n, 2, "%s: … of 2 plugins say so in the handshake:\n%s", mode, out)
		if n := strings.Count(string(log), "a2e doctor"); n != want.warnings ||
			n != strings.Count(string(log), `"mount_namespace: `) {
			t.Errorf("%s: %d warnings, want %d:\n%s", mode, n, want.warnings, log)
		}
	}
}

// TestDoctorWithoutAReader: a report that nobody reads ends the command with exit status 4, and the private folder of
// the sandbox is removed.
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

// TestDoctorPath: doctor names a folder of PATH that would show private files to children, with the reason, and does
// not find its programs.
func TestDoctorPath(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	work := filepath.Join(dir, "work")
	must.OK(t, os.Mkdir(work, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(dir, "hometool"), []byte("#!/bin/sh\n"), 0o755))
	writeConfig(t, dir, "workspace: work\nstate_dir: state\nplugins:\n- {name: t, type: tools, metadata: "+
		"{allowed_commands: [sh, hometool]}}\n")
	cmd := command(t, dir, "./a2e", "--config", "a2e.yaml", "doctor")
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH")+":"+dir+":bin:"+work)
	out, err := cmd.Output()
	assert.Equal(t, exitCode(err), 1, "exit status")
	for _, want := range []string{
		`wrong +hometool`, `PATH +` + regexp.QuoteMeta(dir) +
			` is left out for children: it (is or )?holds`, `PATH +bin is left out for children: it is relative`,
		`PATH +` + work + ` is left out for children: it lies in the workspace`,
	} {
		assert.That(t, regexp.MustCompile(want).Match(out), "it lacks %s:\n%s", want, out)
	}
}

// doctorOfStore returns the lines on the store: those of --json, and the text.
func doctorOfStore(t *testing.T, dir string, code int) (lines []reportLine, text string) {
	t.Helper()
	out := run(t, dir, nil, "doctor", "--json").want(t, code, "")
	lines = readReport(t, []byte(out.stdout)).in("store")
	out = run(t, dir, nil, "doctor", "--all").want(t, code, "")
	for line := range strings.Lines(out.stdout) {
		if strings.Contains(line, " store ") || strings.HasPrefix(line, " ") {
			text += line
		}
	}
	must.That(t, len(lines) > 0 && text != "", "nothing is said of the store:\n%s", out.stdout)
	return lines, text
}

func TestDoctorWithoutAStore(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	_, text := doctorOfStore(t, dir, 0)
	assert.That(t, regexp.MustCompile(`^ok +store +/.*/state/state\.db \(does not exist yet; it is made when it is needed\)\n$`).MatchString(text),
		"got %q", text)
	_, err := os.Stat(filepath.Join(dir, "state"))
	assert.That(t, err != nil, "doctor made the folder")
	writeConfig(t, dir, "nonsense: 1\n")
	out := run(t, dir, nil, "doctor").want(t, 3, "")
	assert.That(t, !strings.Contains(out.stdout, " store "), "without a config it looked at some store:\n%s",
		out.stdout)
}

func TestDoctorOfAGoodStore(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	remember(t, dir, "w1", entry("a", "semantic", "something to embed"))
	_, text := doctorOfStore(t, dir, 0)
	for _, want := range []string{
		`(?m)^ok +store +/.*/state/state\.db \(\d+ KiB\)$`,
		`(?m)^note +store +it keeps memory, version \d+$`, `(?m)^note +store +it keeps planning, version \d+$`,
	} {
		assert.That(t, regexp.MustCompile(want).MatchString(text), "no line %q in:\n%s", want, text)
	}
	assert.That(t, !strings.Contains(text, "vectors"), "it names a model:\n%s", text)
}

// withChecksum corrects the checksum of a changed first page, so that a host could have written the page.
func withChecksum(file []byte) []byte {
	content, castagnoli := file[:4096-8], crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(make([]byte, 8), castagnoli), castagnoli, content)
	other := crc32.Update(crc32.ChecksumIEEE(make([]byte, 8)), crc32.IEEETable, content)
	for i := range 4 {
		file[4096-8+i], file[4096-4+i] = byte(sum>>(24-8*i)), byte(other>>(24-8*i))
	}
	return file
}

// TestDoctorOfABadStore: doctor reports a store that cannot be used, with advice, and does not change the file.
func TestDoctorOfABadStore(t *testing.T) {
	t.Parallel()
	const pageSize, userVersion = 4096, 60 // SQLite's page size, and the offset of the version in the file
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
		{
			"another kind of file", func([]byte) []byte { return bytes.Repeat([]byte("some text\n"), 1000) },
			"not an a2e store", "move the file away",
		},
		{
			"newer", func(f []byte) []byte { f[userVersion+3] = 99; return withChecksum(f) }, "newer a2e",
			"use the newer",
		},
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
			lines, text := doctorOfStore(t, dir, 1)
			assert.That(t, slices.ContainsFunc(lines,
				func(l reportLine) bool { return l.Level == "error" && strings.Contains(l.Text, c.problem) }) &&
				strings.Contains(lines[len(lines)-1].Fix+text, c.advice), "%+v", lines)
			assert.That(t, strings.Contains(text, "wrong  ") && strings.Contains(text, "  fix: ") &&
				!strings.Contains(text, "ok  "), "the text:\n%s", text)
			now, err := os.ReadFile(filepath.Join(dir, storeFile))
			assert.That(t, err == nil && bytes.Equal(now, spoilt), "the file was changed: %v", err)
		})
	}
}
