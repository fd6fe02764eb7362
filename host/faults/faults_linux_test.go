package faults_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/store"
	"a2e/protocol"
)

// row is a fault that comes while a host runs, or before it starts.
type row struct {
	fault  string         // its row of the page
	args   []string       // of the host
	config string         // in place of the usual plugins
	fresh  bool           // nothing is stored or started before it
	before func(s *stage) // the host starts
	bring  func(s *stage) (mend func())
	meets  []meet // what requests meet while it lasts
	log    string // what the log says
	kept   func(s *stage)
}

// meet is a request and its answer.
type meet struct {
	typ   protocol.Type
	body  string
	code  protocol.ErrorCode // "" = a response
	retry bool
	says  string // part of the message or the response
}

func tool(name, args string, code protocol.ErrorCode, retry bool, says string) meet {
	return meet{protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":%q,"arguments":%s}`, name, args), code, retry, says}
}

func run(program string, code protocol.ErrorCode, retry bool, says string) meet {
	return tool("run_command", fmt.Sprintf(`{"command":[%q,"-c","echo ran > $TMPDIR/x && cat $TMPDIR/x"]}`, program), code, retry, says)
}

func keep(key, tier string, code protocol.ErrorCode, retry bool, says string) meet {
	return meet{protocol.TypeMemoryStoreReq, fmt.Sprintf(`{"memory_id":"MEMORY","entries":[{"key":{"id":%q},"content":"kept","tier":%q,"tags":[]}]}`, key, tier), code, retry, says}
}

func find(key string, code protocol.ErrorCode, retry bool, says string) meet {
	return meet{protocol.TypeMemoryRetrieveReq, fmt.Sprintf(`{"memory_id":"MEMORY","tier":"semantic","keys":[{"id":%q}]}`, key), code, retry, says}
}

func plan(code protocol.ErrorCode, retry bool, says string) meet {
	return meet{protocol.TypePlanCreateReq, `{"name":"p"}`, code, retry, says}
}

var echo = tool("echo", `{"text":"still here"}`, "", false, "still here")

// TestFaults brings each fault about and takes it away again. While it lasts, every request has
// one answer, as the page says, and what does not need what is broken goes on. Afterwards all
// works again in the same host, with what was acknowledged, and nothing is left open or behind.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, r := range rows() {
		t.Run(r.fault, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, &r)
			if r.before != nil {
				r.before(s)
			}
			s.start()
			before := 0
			if !r.fresh {
				s.wants(tool("write_file", `{"path":"f","content":"old"}`, "", false, ""), run("sh", "", false, "ran"))
				s.wants(keep("before", "semantic", "", false, `"stored":[{"id":"before"}]`), plan("", false, ""), find("before", "", false, "kept"))
				before = s.files()
			}
			mend := r.bring(s)
			_, err := s.host.Ping(t.Context())
			must.OK(t, err)
			for range 2 {
				s.wants(append(r.meets, echo, keep("w", "working", "", false, ""))...)
			}
			if r.log != "" {
				hosttest.Eventually(t, "the log says "+r.log, func() bool { return strings.Contains(s.log.String(), r.log) })
			}
			mend()
			s.wants(echo, run("sh", "", false, "ran"), keep("after", "semantic", "", false, ""), plan("", false, ""), find("after", "", false, "kept"))
			if !r.fresh {
				s.wants(find("before", "", false, "kept"), tool("read_file", `{"path":"f"}`, "", false, "old"))
				hosttest.Eventually(t, fmt.Sprintf("no more than %d files are open", before), func() bool { return s.files() <= before })
			}
			s.end()
			if r.kept != nil {
				r.kept(s)
			}
			r.args = nil
			s.start()
			s.wants(find("after", "", false, "kept"))
			if !r.fresh {
				s.wants(find("before", "", false, "kept"))
			}
		})
	}
}

// rows are the faults that come while the host runs.
func rows() []row {
	return append(stateRows(), []row{
		{
			fault: "no descriptors are left (`ulimit -n`)",
			bring: func(s *stage) func() { return s.limit(unix.RLIMIT_NOFILE, 3) },
			meets: []meet{
				run("sh", protocol.CodeToolError, true, "too many open files"),
				tool("read_file", `{"path":"f"}`, protocol.CodeToolError, true, "too many open files"),
				{protocol.TypeProcSpawnReq, `{"cmd":["sh"]}`, "", false, "too many open files"},
			},
		}, {
			fault: "the audit trail cannot be written",
			bring: func(s *stage) func() {
				s.move("state/audit.jsonl", "kept")
				must.OK(s.t, os.Mkdir(s.at("state/audit.jsonl"), 0o700))
				return func() {
					must.OK(s.t, os.Remove(s.at("state/audit.jsonl")))
					s.move("kept", "state/audit.jsonl")
				}
			},
			log: "requests go on",
			kept: func(s *stage) {
				code, out, errs := s.shell("$A2E check --audit ../state/audit.jsonl")
				assert.That(s.t, code == 0, "verify: %s%s", out, errs)
			},
		}, {
			fault: "the record or the log cannot be written",
			args:  []string{"--record", "/dev/full"},
			bring: nothing,
			log:   "no space left on device; the host goes on",
		}, {
			fault: "the record or the log cannot be written",
			args:  []string{"--log-level", "debug", "--log-file", "/dev/full"},
			bring: nothing,
		}, {
			fault:  "a checkpoint cannot be kept",
			config: "checkpoints: {}\n" + quiet,
			fresh:  true,
			bring: func(s *stage) func() {
				s.write("state/checkpoints", "")
				return func() { must.OK(s.t, os.Remove(s.at("state/checkpoints"))) }
			},
			meets: []meet{tool("write_file", `{"path":"f","content":"new"}`, "", false, "")},
			log:   "no checkpoint was made; what comes next cannot be undone",
		}, {
			fault: "`TMPDIR` cannot be written, or what the host has there is removed",
			fresh: true,
			bring: func(s *stage) func() {
				s.move("tmp", "kept")
				return func() { s.move("kept", "tmp") }
			},
			meets: []meet{run("sh", protocol.CodeToolError, false, "TMPDIR should name a folder")},
		}, {
			fault: "`TMPDIR` cannot be written, or what the host has there is removed",
			bring: func(s *stage) func() {
				all := must.Get(filepath.Glob(s.at("tmp/*")))(s.t)
				must.That(s.t, len(all) == 1, "%q", all)
				hosttest.Eventually(s.t, "it is gone", func() bool { return os.RemoveAll(all[0]) == nil }) // the next launcher may be making folders in it
				return func() {}
			},
			meets: []meet{run("sh", "", false, "ran")},
		}, {
			fault:  "a program cannot be run",
			config: "plugins: {tools: {allowed_commands: [sh, gone, lost, foreign, busy]}, proc: {allowed_commands: [sh, lost]}}\n",
			before: func(s *stage) {
				s.write("bin/gone", "#!/bin/sh\n")
				s.write("bin/lost", "#!/no/such/shell\n")
				s.write("bin/foreign", "\x7fELF\x02\x01\x01"+strings.Repeat("\x00", 100))
				s.write("bin/busy", string(must.Get(os.ReadFile("/bin/true"))(s.t)))
			},
			bring: func(s *stage) func() {
				must.OK(s.t, os.Remove(s.at("bin/gone")))
				busy := must.Get(os.OpenFile(s.at("bin/busy"), os.O_WRONLY, 0))(s.t)
				return func() { busy.Close() }
			},
			meets: []meet{
				run("gone", protocol.CodeToolDenied, false, "its file is gone"),
				run("lost", protocol.CodeToolError, false, "the interpreter that its first line names, is not there"),
				run("foreign", protocol.CodeToolError, false, "it is for another machine"),
				run("busy", protocol.CodeToolError, true, "something is writing it, try again"),
				{protocol.TypeProcSpawnReq, `{"cmd":["lost"]}`, "", false, "is not there"},
			},
		}, {
			fault: "a server that a tool asks refuses, hangs or breaks off",
			bring: func(s *stage) func() {
				server := brokenServer(s.t)
				s.row.meets = []meet{
					{protocol.TypeToolCallReq, `{"tool_name":"http_get","arguments":{"url":"` + server + `/half"},"timeout":1}`, protocol.CodeTimeout, true, ""},
					tool("http_get", `{"url":"`+server+`/off"}`, protocol.CodeToolError, true, "EOF"),
					tool("http_get", `{"url":"`+server+`/reset"}`, protocol.CodeToolError, true, "reset"),
					tool("http_get", `{"url":"http://127.0.0.1:1/"}`, protocol.CodeToolError, true, "refused"),
				}
				return func() {}
			},
		},
	}...)
}

// quiet are the usual plugins without an audit trail, which makes the folder of the state.
const quiet = "plugins: {tools: {allowed_commands: [sh]}}\n"

func nothing(*stage) func() { return func() {} }

// stateRows are those of what is in state_dir.
func stateRows() []row {
	full := []meet{
		keep("full", "semantic", protocol.CodeMemoryFull, false, "{dir}/state/state.db: no space is left for the store"),
		find("before", "", false, "kept"),
	}
	limited := func(s *stage) func() { return s.limit(unix.RLIMIT_FSIZE, 1000) }
	long := strings.Repeat("x", 1001) // fails half-way
	moved := []meet{
		keep("lost", "semantic", protocol.CodeRuntimeError, true, "{dir}/state/state.db: the file was moved, removed or replaced"),
		find("before", protocol.CodeRuntimeError, true, "put it back"),
		plan(protocol.CodeRuntimeError, true, "{dir}/state/state.db"),
	}
	all := []row{{
		fault:  "the disk of `state_dir` is full",
		before: smallDisk,
		bring: func(s *stage) func() {
			if !s.disk {
				return limited(s)
			}
			return fill(s.t, s.at("state/ballast"))
		},
		meets: append(full, keep("full", "episodic", protocol.CodeMemoryFull, false, "no space"), plan(protocol.CodeRuntimeError, true, "no space is left for the store")),
		log:   "requests go on",
	}, {
		fault:  "the disk was full before the host opened the state",
		before: smallDisk,
		fresh:  true,
		bring: func(s *stage) func() {
			if !s.disk {
				return limited(s)
			}
			return fill(s.t, s.at("state/ballast"))
		},
		meets: []meet{keep("full", "semantic", protocol.CodeMemoryFull, false, "no space is left for the store"), plan(protocol.CodeRuntimeError, true, "no space is left for the store")},
	}, {
		fault: "files may not grow (`ulimit -f`)",
		bring: limited,
		meets: append(full,
			tool("write_file", `{"path":"f","content":"`+long+`"}`, protocol.CodeToolError, false, "file too large"),
			tool("write_file", `{"path":"new","content":"`+long+`"}`, protocol.CodeToolError, false, "file too large"),
			tool("edit_file", `{"path":"f","old":"old","new":"`+long+`"}`, protocol.CodeToolError, false, "file too large"),
			tool("read_file", `{"path":"new"}`, protocol.CodeToolError, false, "does not exist")),
		log: "requests go on",
	}, {
		fault:  "`state_dir` cannot be made, or others may write to it",
		config: quiet,
		fresh:  true,
		bring: func(s *stage) func() {
			s.write("state", "a file")
			return func() {
				assert.Equal(s.t, string(must.Get(os.ReadFile(s.at("state")))(s.t)), "a file", "it is now")
				must.OK(s.t, os.Remove(s.at("state")))
			}
		},
		meets: []meet{keep("a", "semantic", protocol.CodeRuntimeError, true, "state_dir"), plan(protocol.CodeRuntimeError, true, "{dir}/state")},
	}, {
		fault:  "`state_dir` cannot be made, or others may write to it",
		config: quiet,
		fresh:  true,
		bring: func(s *stage) func() {
			must.OK(s.t, os.Mkdir(s.at("state"), 0o700))
			must.OK(s.t, os.Chmod(s.at("state"), 0o777))
			return func() { must.OK(s.t, os.Chmod(s.at("state"), 0o700)) }
		},
		meets: []meet{keep("a", "semantic", protocol.CodeRuntimeError, true, "state_dir"), plan(protocol.CodeRuntimeError, true, "{dir}/state")},
	}}
	for _, replace := range []struct {
		what  string
		place func(s *stage)
	}{
		{"state/state.db", func(*stage) {}},
		{"state/state.db", func(s *stage) { must.OK(s.t, unix.Mkfifo(s.at("state/state.db"), 0o600)) }},
		{"state/state.db", func(s *stage) { must.OK(s.t, os.Symlink("../kept", s.at("state/state.db"))) }},
		{"state/state.db", func(s *stage) { s.write("state/state.db", "other") }},
		{"state", func(*stage) {}},
		{"state", func(s *stage) {
			must.OK(s.t, must.Get(store.Open(s.t.Context(), s.at("state/state.db"), store.Options{}))(s.t).Close())
		}},
	} {
		all = append(all, row{
			fault:  "the file of the state is moved, removed or replaced",
			config: quiet,
			bring: func(s *stage) func() {
				s.move(replace.what, "kept")
				replace.place(s)
				return func() {
					must.OK(s.t, os.RemoveAll(s.at(replace.what)))
					s.move("kept", replace.what)
				}
			},
			meets: moved,
		})
	}
	return all
}

// smallDisk puts a small disk in the place of state_dir, which only this thread sees and what it
// starts. Who may not do that meets a limit on files instead.
func smallDisk(s *stage) {
	must.OK(s.t, os.Mkdir(s.at("state"), 0o700))
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread() // for ever: the thread ends with the test
	s.disk = unix.Unshare(unix.CLONE_NEWNS) == nil && unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") == nil &&
		unix.Mount("none", s.at("state"), "tmpfs", 0, "size=8m,mode=700") == nil
	if s.disk {
		s.t.Cleanup(func() { must.OK(s.t, unix.Unmount(s.at("state"), unix.MNT_DETACH)) })
	}
}

// fill leaves no byte free on the disk of a file.
func fill(t *testing.T, path string) (mend func()) {
	t.Helper()
	ballast := must.Get(os.Create(path))(t)
	for block := 1 << 20; block > 0; block /= 16 {
		for err := error(nil); err == nil; {
			_, err = ballast.Write(make([]byte, block))
		}
	}
	return func() { must.OK(t, ballast.Close(), os.Remove(path)) }
}

// brokenServer answers half, or not at all.
func brokenServer(t *testing.T) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		if r.URL.Path == "/reset" {
			_ = conn.(*net.TCPConn).SetLinger(0)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nhalf")
		if r.URL.Path == "/half" {
			_, _ = conn.Read(make([]byte, 1)) // until the host gives up
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// start is a fault that is there before the host starts, or at its ends.
type start struct {
	fault string
	line  string // of a shell, in an empty folder; lines are the requests
	code  int
	lines int    // that it answers
	says  string // part of stderr; "" = nothing is said
}

// TestFaultsAtTheEnds starts the host, and commands, where something is wrong with what they are
// given.
func TestFaultsAtTheEnds(t *testing.T) {
	t.Parallel()
	for _, r := range starts() {
		t.Run(r.fault, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, &row{})
			s.write("lines", `{"type":"handshake/req","id":"h","agent_id":"x"}
{"type":"tool/call/req","id":"e","tool_name":"echo","arguments":{"text":"x"}}
{"type":"ping","id":"p"}
`)
			code, out, errs := s.shell(r.line)
			assert.That(t, code == r.code && strings.Count(out, "\n") == r.lines && strings.Contains(errs, r.says) && (errs == "") == (r.says == ""),
				"%s: exit status %d, %d lines, stderr %q\nwant %d, %d, %q", r.line, code, strings.Count(out, "\n"), errs, r.code, r.lines, r.says)
		})
	}
}

func starts() []start {
	const input, unread, file = "stdin cannot be read", "the log is on a stderr that is full, closed or not read", "the file that an option names cannot be used"
	const untrusted, list = "the `a2e.yaml` of the folder cannot be read", "the list of trusted files is damaged, or cannot be written"
	const refused, bare = "a command cannot write what it makes", "the current folder is gone"
	return []start{
		{input, "$A2E </", 4, 0, "the input failed: read /dev/stdin: is a directory"},
		{input, "$A2E 0>x", 4, 0, "the input failed"},
		{input, "$A2E <&-", 0, 0, ""},
		{unread, "$A2E --log-level debug <../lines 2>/dev/full", 0, 3, ""},
		{unread, "$A2E --log-level debug <../lines 2>&-", 0, 3, ""},
		{unread, "mkfifo p; sleep 1000 <p & { $A2E --log-level debug <../lines; } 2>p; code=$?; kill $!; exit $code", 0, 3, ""},
		{file, "$A2E --log-file . <../lines", 3, 0, "--log-file should name a file that can be written"},
		{file, "mkfifo p; $A2E --log-file p <../lines", 3, 0, "or a pipe that is read"},
		{file, "mkfifo p; $A2E serve --record p <../lines", 3, 0, "no regular file; name another file"},
		{file, "$A2E --config . <../lines", 3, 0, "the config file ., named by --config, cannot be read: is a directory"},
		{file, "A2E_CONFIG=none $A2E <../lines", 3, 0, "the config file none, named by A2E_CONFIG, cannot be read: no such file"},
		{file, "$A2E --config /dev/zero <../lines", 3, 0, "larger than 1048576 bytes"},
		{untrusted, "mkfifo a2e.yaml; $A2E <../lines", 0, 3, "a2e.yaml: not trusted (it cannot be read: not a regular file)"},
		{untrusted, "ln -s a2e.yaml a2e.yaml; $A2E <../lines", 0, 3, "too many levels of symbolic links"},
		{list, "echo 'plugins: {proc: {allowed_commands: [sh]}}' >a2e.yaml; mkdir -p ../.config/a2e/trusted.json; $A2E <../lines", 0, 3, "the list of trusted files is not believed"},
		{list, "echo 'plugins: {}' >a2e.yaml; ulimit -f 0; $A2E trust >/dev/null", 1, 0, "the list of trusted files cannot be written"},
		{refused, "ulimit -f 0; $A2E snapshot save s", 1, 0, "no space is left for the store"},
		{refused, "$A2E snapshot save s >/dev/null; ulimit -f 0; $A2E state export -o x; code=$?; ls; exit $code", 1, 0, "no space is left for the store"},
		{refused, "$A2E snapshot save s >/dev/null; $A2E state export -o /dev/full", 1, 0, "no space left on device"},
		{bare, "exec 3<../lines; mkdir x; cd x; rmdir ../x; $A2E <&3", 3, 0, "getwd: no such file or directory"},
		{"the address of `--http` cannot be listened on", "$A2E serve --http 192.0.2.1:80", 3, 0, "an address is HOST:PORT"},
	}
}

// TestPage: the page has a row for each fault that is brought about here, with the codes that are
// met, and names the test of each other.
func TestPage(t *testing.T) {
	t.Parallel()
	met := map[string]map[string]bool{}
	for _, r := range rows() {
		if met[r.fault] == nil {
			met[r.fault] = map[string]bool{}
		}
		for _, m := range r.meets {
			met[r.fault][string(m.code)] = true
		}
	}
	for _, r := range starts() {
		met[r.fault] = map[string]bool{}
		if r.code != 0 {
			met[r.fault][fmt.Sprint("exit status ", r.code)] = true
		}
	}
	text := must.Get(os.ReadFile("README.md"))(t)
	tests := testNames(t)
	for _, line := range regexp.MustCompile(`(?m)^\| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
		cells := strings.Split(line[1], " | ")
		if len(cells) != 4 || cells[0] == "fault" {
			continue
		}
		codes, here := met[cells[0]]
		delete(met, cells[0])
		for code := range codes {
			assert.That(t, strings.Contains(cells[1], code), "%s: the page lacks %s", cells[0], code)
		}
		names, own := strings.Split(cells[3], ", "), false
		for _, name := range names {
			assert.That(t, tests[strings.Trim(name, "`")], "%s: there is no test %s", cells[0], name)
			own = own || strings.HasPrefix(name, "`TestFaults")
		}
		assert.That(t, own == here, "%s: it is of %q; rows here: %v", cells[0], names, here)
	}
	assert.That(t, len(met) == 0, "the page lacks %q", slices.Sorted(maps.Keys(met)))
}

// testNames are those of all tests of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	root := must.Get(hosttest.Root())(t)
	for _, top := range []string{"host", "plugins", "protocol"} {
		must.OK(t, filepath.WalkDir(filepath.Join(root, top), func(path string, _ os.DirEntry, err error) error {
			if !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
				names[string(m[1])] = true
			}
			return err
		}))
	}
	return names
}
