package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	expsys "github.com/tetratelabs/wazero/experimental/sys"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// guestPlace returns a place whose skill has the guest module, and the folder for the compiled guest.
func guestPlace(t testing.TB) (*place, string) {
	t.Helper()
	code := must.Get(os.ReadFile(hosttest.Program(t, "./testdata/guest/main.go", "GOOS=wasip1", "GOARCH=wasm",
		"GOFLAGS=")))(t)
	p := newPlace(t, map[string]string{"guest.wasm": string(code), "data/words.txt": "some words"})
	return p, must.Get(cache())(t)
}

func TestWasm(t *testing.T) {
	p, cache := guestPlace(t)
	for _, link := range [][2]string{
		{"out", "../secret"},
		{"absolute", p.up + "/secret"},
		{"in", "data.txt"},
		{"up", ".."},
	} {
		must.OK(t, os.Symlink(link[1], filepath.Join(p.work, link[0])))
	}
	must.OK(t, makeFIFO(filepath.Join(p.work, "fifo")))
	type step struct{ do, want string }
	readOnly := []step{
		{`{"do":"read","path":"/skill/data/words.txt"}`, `"some words"`},
		{`{"do":"read","path":"data.txt"}`, `"the data"`},
		{`{"do":"list","path":"/skill"}`, `["data","guest.wasm"]`},
		{`{"do":"read","path":"in"}`, `"the data"`},
		{`{"do":"write","path":"new"}`, "error: open new: Read-only file system"},
		{`{"do":"append","path":"data.txt"}`, "ead-only"},
		{`{"do":"remove","path":"data.txt"}`, "ead-only"},
		{`{"do":"rename","path":"data.txt","to":"x"}`, "ead-only"},
		{`{"do":"truncate","path":"data.txt"}`, "ead-only"},
		{`{"do":"tree","path":"/workspace"}`, "ead-only"},
		{`{"do":"tree","path":"/tmp"}`, `"deep"`},
	}
	writing := []step{
		{`{"do":"write","path":"new","n":3}`, `null`},
		{`{"do":"append","path":"/workspace/new"}`, `null`},
		{`{"do":"read","path":"/workspace/new"}`, `"www+more"`},
		{`{"do":"truncate","path":"new","n":2}`, `null`},
		{`{"do":"read","path":"new"}`, `"ww"`},
		{`{"do":"rename","path":"new","to":"newer"}`, `null`},
		{`{"do":"remove","path":"newer"}`, `null`},
		{`{"do":"tree","path":"/workspace"}`, `"deep"`},
		{`{"do":"write","path":"/skill/new"}`, "ead-only"},
	}
	escapes := []step{
		{`{"do":"read","path":"out"}`, "not permitted"},
		{`{"do":"read","path":"absolute"}`, "not permitted"},
		{`{"do":"read","path":"up/secret"}`, "not permitted"},
		{`{"do":"list","path":"up"}`, "not permitted"},
		{`{"do":"write","path":"up/new"}`, "error: "},
		{`{"do":"write","path":"out"}`, "error: "},
		{`{"do":"truncate","path":"out"}`, "error: "},
		{`{"do":"rename","path":"data.txt","to":"up/data.txt"}`, "error: "},
		{`{"do":"read","path":"/workspace/../../../etc/passwd"}`, "error: "},
		{`{"do":"read","path":"../secret"}`, "error: "},
		{`{"do":"read","path":"/etc/passwd"}`, "error: "},
		{`{"do":"list","path":"/"}`, "error: "},
		{`{"do":"link","path":"planted","to":"/etc/passwd"}`, "error: "},
		{`{"do":"hardlink","path":"planted","to":"data.txt"}`, "error: "},
		{`{"do":"read","path":"fifo"}`, "error: "},
		{`{"do":"nothing"}`, "what is"},
	}
	for _, c := range []struct {
		steps []step
		write bool
	}{{slices.Concat(readOnly, escapes), false}, {slices.Concat(writing, escapes), true}} {
		var all []string
		for _, s := range c.steps {
			all = append(all, s.do)
		}
		j := p.job("guest.wasm")
		j.Args, j.Write, j.CacheDir, j.Network = jsontext.Value(`{"all":[`+strings.Join(all, ",")+`]}`), c.write, cache,
			true
		r, _, err := p.module(t, j)
		must.That(t, err == nil && !r.Failed && r.Summary == "did all", "%+v, %v", r, err)
		var went []string
		if err := json.Unmarshal(r.Data, &went); err != nil || len(went) != len(c.steps) {
			t.Fatalf("%s, %v", r.Data, err)
		}
		for i, s := range c.steps {
			assert.That(t, (went[i] == s.want || strings.HasPrefix(went[i], "error: ") &&
				strings.Contains(went[i], s.want)) && !strings.Contains(went[i], "geheim"), "write %v: %s: %s, want %s",
				c.write, s.do, went[i], s.want)
		}
	}
	for name, want := range map[string]bool{"up": true, "planted": false} {
		_, err := os.Lstat(filepath.Join(p.work, name))
		assert.Equal(t, (err == nil), want, "%s: %v", name, err)
	}
	_, err := os.Lstat(filepath.Join(p.up, "new"))
	assert.That(t, err != nil, "a file was written outside")
}

// TestWasmAnswers: the end of a module becomes a result or a failure.
func TestWasmAnswers(t *testing.T) {
	p, cache := guestPlace(t)
	for args, want := range map[string]string{
		`{"do":"echo","n":5}`: `{"args":["test"],"cwd":"/workspace","n":5}`,
		`{"do":"env"}`:        `["A2E_SKILL_DIR=/skill","A2E_WORKSPACE=/workspace","HOME=/tmp","LANG=C.UTF-8","PWD=/workspace","TMPDIR=/tmp"]`,
		`{"do":"panic"}`:      "the guest panics",
	} {
		j := p.job("guest.wasm")
		j.Args, j.CacheDir = jsontext.Value(args), cache
		r, lines, err := p.module(t, j)
		assert.That(t, err == nil && (string(r.Data) == want || r.Failed && *r.ExitCode == 2 &&
			strings.Contains(r.Failure, want)),
			"%s: %+v, %v", args, r, err)
		assert.That(t, !strings.Contains(args, "echo") || asLines(lines) == "progress 10 begun\nlog info stderr to "+
			"stderr" || asLines(lines) == "log info stderr to stderr\nprogress 10 begun", "%v", lines)
	}
}

// cSource is a skill in C without a library.
const cSource = `
typedef struct { const char *text; unsigned long size; } piece;
__attribute__((import_module("wasi_snapshot_preview1"), import_name("fd_write")))
int fd_write(int fd, const piece *pieces, unsigned long count, unsigned long *written);
static const char line[] = "{\\"result\\":\\"native\\"}\\n";
__attribute__((export_name("_start"))) void start(void) {
	static unsigned long written;
	static piece all;
	all.text = line;
	all.size = sizeof line - 1;
	fd_write(1, &all, 1, &written);
}
`

// nativeSkill returns that skill as a module: from clang if it can build for WebAssembly, otherwise the same written by
// hand.
func nativeSkill(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	source, out := filepath.Join(dir, "skill.c"), filepath.Join(dir, "skill.wasm")
	must.OK(t, os.WriteFile(source, []byte(cSource), 0o600))
	build := exec.Command("clang", "--target=wasm32", "-O1", "-nostdlib", "-Wl,--no-entry", "-o", out, source)
	if text, err := build.CombinedOutput(); err == nil {
		module := must.Get(os.ReadFile(out))(t)
		return module
	} else if text != nil {
		t.Logf("no clang with wasm-ld: %v", err)
	}
	const line = "{\"result\":\"native\"}\n"
	text := append([]byte{16, 0, 0, 0, byte(len(line)), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, line...)
	return (&asm{
		imports: [][]byte{wasi("fd_write", 2)}, body: slices.Concat(i32(1), i32(0), i32(1), i32(8), call(0), drop),
		data: slices.Concat([]byte{0}, i32(0), []byte{0x0b}, sized(text)),
	}).bytes()
}

func TestWasmWithoutLibrary(t *testing.T) {
	p := newPlace(t, map[string]string{"skill.wasm": string(nativeSkill(t))})
	for _, engine := range []string{p.engine, ""} { // "" = this test binary
		j := p.job("skill.wasm")
		j.Workspace, j.engine = "", engine
		r, _, err := p.module(t, j)
		assert.That(t, err == nil && string(r.Data) == `"native"`, "%+v, %v", r, err)
	}
	for _, file := range []string{"../secret", "none.wasm", "."} {
		_, _, err := p.module(t, p.job(file))
		assert.Equal(t, codeOf(err), "skill_error", "%s: %v", file, err)
	}
}

// TestWallWASIHardLinks guards against a hard link in the workspace to a file outside. Neither paths nor os.Root show
// that, and a module could once read and change the file.
func TestWallWASIHardLinks(t *testing.T) {
	p, cache := guestPlace(t)
	secret := filepath.Join(p.up, "secret")
	before := must.Get(os.ReadFile(secret))(t)
	for _, err := range []error{
		os.Mkdir(filepath.Join(p.work, "sub"), 0o755), os.Link(secret, filepath.Join(p.work, "second")),
		os.Link(secret, filepath.Join(p.work, "sub", "third")),
		os.Symlink("second", filepath.Join(p.work, "to-second")), os.Link(secret, filepath.Join(p.work, "moved")),
		os.Link(secret, filepath.Join(p.skill, "in-skill")),
	} {
		must.OK(t, err)
	}
	for name, do := range map[string]string{
		"read": `{"do":"read","path":"second"}`, "read below": `{"do":"read","path":"sub/third"}`,
		"read by a link":    `{"do":"read","path":"to-second"}`,
		"read of the skill": `{"do":"read","path":"/skill/in-skill"}`, "write": `{"do":"write","path":"second","n":3}`,
		"write by a link": `{"do":"write","path":"to-second","n":3}`,
		"append":          `{"do":"append","path":"sub/third"}`, "truncate": `{"do":"truncate","path":"second","n":0}`,
		"moved and read": `{"do":"rename","path":"moved","to":"m"},{"do":"read","path":"m"}`,
	} {
		t.Run(name, func(t *testing.T) {
			j := p.job("guest.wasm")
			j.Args, j.Write, j.CacheDir = jsontext.Value(`{"all":[`+do+`]}`), true, cache
			r, _, err := p.module(t, j)
			var went []string
			assert.That(t, err == nil && json.Unmarshal(r.Data, &went) == nil && len(went) != 0 &&
				strings.HasPrefix(went[len(went)-1], "error: "), "it went well: %+v, %v", r, err)
			now, err := os.ReadFile(secret)
			assert.That(t, err == nil && string(now) == string(before), "the file outside was changed: %q, %v", now,
				err)
		})
	}
	t.Run("times", func(t *testing.T) {
		d, up := newFolder(t, true)
		must.OK(t, os.Link(filepath.Join(up, "secret"), filepath.Join(up, "in", "second")))
		was, err := os.Stat(filepath.Join(up, "secret"))
		errno := d.Utimens("second", 0, 0)
		assert.That(t, errno == expsys.EPERM && err == nil, "%v, %v", errno, err)
		now, err := os.Stat(filepath.Join(up, "secret"))
		assert.That(t, err == nil && now.ModTime().Equal(was.ModTime()), "the time of the file outside is %v, was "+
			"%v (%v)", now.ModTime().Format(time.RFC3339), was.ModTime(), err)
		assert.Equal(t, d.Utimens("file", 0, 0), 0, "a file of one name")
	})
}
