package faults_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/protocol"
)

// rows returns the faults that begin while the host runs.
func rows() []row { return slices.Concat(stateRows(), movedRows(), fileRows(), programRows()) }

// fileRows returns the faults of files that the host writes beside the state, and of files that it opens.
func fileRows() []row {
	return []row{
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
				// the host refuses a file that others may write to; chmod is one step, so no entry is written
				// meanwhile
				must.OK(s.t, os.Chmod(s.at("state/audit.jsonl"), 0o666))
				return func() { must.OK(s.t, os.Chmod(s.at("state/audit.jsonl"), 0o600)) }
			},
			log: "the host goes on",
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
			before: func(s *stage) { s.write("state/checkpoints", "") },
			bring:  func(s *stage) func() { return func() { must.OK(s.t, os.Remove(s.at("state/checkpoints"))) } },
			meets:  []meet{tool("write_file", `{"path":"f","content":"new"}`, "", false, "")},
			log:    "no checkpoint was made; the next changes cannot be undone",
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
				hosttest.Eventually(s.t, "it is gone",
					func() bool { return os.RemoveAll(all[0]) == nil }) // the next launcher may be making folders in it
				return func() {}
			},
			meets: []meet{run("sh", "", false, "ran")},
		},
	}
}

// programRows returns the faults of programs and servers.
func programRows() []row {
	return []row{
		{
			fault: "a program cannot be run",
			config: "plugins: {tools: {allowed_commands: [sh, gone, lost, foreign, busy]}, proc: {allowed_commands: " +
				"[sh, lost]}}\n",
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
					{protocol.TypeToolCallReq, `{"tool_name":"http_get","arguments":{"url":"` + server +
						`/half"},"timeout":1}`, protocol.CodeTimeout, true, ""},
					tool("http_get", `{"url":"`+server+`/off"}`, protocol.CodeToolError, true, "EOF"),
					tool("http_get", `{"url":"`+server+`/reset"}`, protocol.CodeToolError, true, "reset"),
					tool("http_get", `{"url":"http://127.0.0.1:1/"}`, protocol.CodeToolError, true, "refused"),
				}
				return func() {}
			},
		},
	}
}

// quiet has the usual plugins without an audit trail, which would make the folder of the state.
const quiet = "plugins: {tools: {allowed_commands: [sh]}}\n"

func nothing(*stage) func() { return func() {} }

// stateRows returns the faults of files in state_dir.
func stateRows() []row {
	full := []meet{
		keep("full", "semantic", protocol.CodeMemoryFull, false, "{dir}/state/state.db: no space is left for the "+
			"store"),
		find("before", "", false, "kept"),
	}
	limited := func(s *stage) func() { return s.limit(unix.RLIMIT_FSIZE, 1000) }
	long := strings.Repeat("x", 1001) // a write of it fails half-way
	return []row{{
		fault:  "the disk of `state_dir` is full",
		before: smallDisk,
		bring: func(s *stage) func() {
			if !s.disk {
				return limited(s)
			}
			return fill(s.t, s.at("state/ballast"))
		},
		meets: append(full, keep("full", "episodic", protocol.CodeMemoryFull, false, "no space"),
			plan(protocol.CodeRuntimeError, true, "no space is left for the store")),
		log: "the host goes on",
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
		meets: []meet{
			keep("full", "semantic", protocol.CodeMemoryFull, false, "no space is left for the store"),
			plan(protocol.CodeRuntimeError, true, "no space is left for the store"),
		},
	}, {
		fault: "files may not grow (`ulimit -f`)",
		bring: limited,
		meets: append(full,
			tool("write_file", `{"path":"f","content":"`+long+`"}`, protocol.CodeToolError, false, "file too large"),
			tool("write_file", `{"path":"new","content":"`+long+`"}`, protocol.CodeToolError, false, "file too large"),
			tool("edit_file", `{"path":"f","old":"old","new":"`+long+`"}`, protocol.CodeToolError, false,
				"file too large"),
			tool("read_file", `{"path":"new"}`, protocol.CodeToolError, false, "does not exist")),
		log: "the host goes on",
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
		meets: []meet{
			keep("a", "semantic", protocol.CodeRuntimeError, true, "state_dir"),
			plan(protocol.CodeRuntimeError, true, "{dir}/state"),
		},
	}, {
		fault:  "`state_dir` cannot be made, or others may write to it",
		config: quiet,
		fresh:  true,
		bring: func(s *stage) func() {
			must.OK(s.t, os.Mkdir(s.at("state"), 0o700))
			must.OK(s.t, os.Chmod(s.at("state"), 0o777))
			return func() { must.OK(s.t, os.Chmod(s.at("state"), 0o700)) }
		},
		meets: []meet{
			keep("a", "semantic", protocol.CodeRuntimeError, true, "state_dir"),
			plan(protocol.CodeRuntimeError, true, "{dir}/state"),
		},
	}}
}

// movedRows returns the faults of a state that is not where it was.
func movedRows() (all []row) {
	moved := []meet{
		keep("lost", "semantic", protocol.CodeRuntimeError, true, "{dir}/state/state.db: the file was moved, "+
			"removed or replaced"),
		find("before", protocol.CodeRuntimeError, true, "restore it"),
		plan(protocol.CodeRuntimeError, true, "{dir}/state/state.db"),
	}
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

// smallDisk mounts a small disk at state_dir, which only this thread and its children see. If it may not, the rows
// set a limit on files instead.
func smallDisk(s *stage) {
	must.OK(s.t, os.Mkdir(s.at("state"), 0o700))
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	s.disk = unix.Unshare(unix.CLONE_NEWNS) == nil && unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE,
		"") == nil &&
		unix.Mount("none", s.at("state"), "tmpfs", 0, "size=8m,mode=700") == nil
	if s.disk {
		s.t.Cleanup(func() { must.OK(s.t, unix.Unmount(s.at("state"), unix.MNT_DETACH)) })
	}
}

// fill leaves no byte free on the disk of a file; mend removes the file.
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

// brokenServer starts a server that sends half an answer, or resets the connection.
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
