package faults_test

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// row is a fault that begins while a host runs, or before it starts.
type row struct {
	fault  string                       // name of its row on the page
	args   []string                     // of the host
	config string                       // replaces the usual plugins
	fresh  bool                         // nothing is stored or started before the fault
	before func(s *stage)               // runs before the host starts
	bring  func(s *stage) (mend func()) // begins the fault; mend ends it
	meets  []meet                       // requests during the fault, and their answers
	log    string                       // text that the log has during the fault
	kept   func(s *stage)
}

// meet is a request and the answer that it should get.
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
	return tool("run_command", fmt.Sprintf(`{"command":[%q,"-c","echo ran > $TMPDIR/x && cat $TMPDIR/x"]}`, program),
		code, retry, says)
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

// TestFaults: while a fault lasts, every request has one answer, as the page says, and requests that do not need the
// broken part work. After the fault all works again in the same host, acknowledged data is there, and no file or
// process is left over.
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
				s.wants(tool("write_file", `{"path":"f","content":"old"}`, "", false, ""))
				s.runLong()
				s.wants(keep("before", "semantic", "", false, `"stored":[{"id":"before"}]`), plan("", false, ""),
					find("before", "", false, "kept"))
				before = s.files()
			}
			mend := r.bring(s)
			_, err := s.host.Ping(t.Context())
			must.OK(t, err)
			for range 2 {
				s.wants(append(r.meets, echo, keep("w", "working", "", false, ""))...)
			}
			if r.log != "" {
				hosttest.Eventually(t, "the log says "+r.log,
					func() bool { return strings.Contains(s.log.String(), r.log) })
			}
			mend()
			s.wants(echo, run("sh", "", false, "ran"), keep("after", "semantic", "", false, ""), plan("", false, ""),
				find("after", "", false, "kept"))
			if !r.fresh {
				s.wants(find("before", "", false, "kept"), tool("read_file", `{"path":"f"}`, "", false, "old"))
				hosttest.Eventually(t, fmt.Sprintf("no more than %d files are open", before),
					func() bool { return s.files() <= before })
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

// start is a fault that exists before the host starts, or a fault of its stdin and stderr.
type start struct {
	fault string
	line  string // shell script, run in an empty folder; ../lines has requests
	code  int
	lines int    // number of answers
	says  string // part of stderr; "" = stderr is empty
}

// TestFaultsAtTheEnds: the host and commands end with the right exit status and message if their input, log, files or
// folder are unusable.
func TestFaultsAtTheEnds(t *testing.T) {
	t.Parallel()
	busy := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { busy.Close() })
	for _, r := range starts() {
		t.Run(r.fault, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, &row{})
			s.write("busy", busy.Addr().String())
			s.write("lines", `{"type":"handshake/req","id":"h","agent_id":"x"}
{"type":"tool/call/req","id":"e","tool_name":"echo","arguments":{"text":"x"}}
{"type":"ping","id":"p"}
`)
			code, out, errs := s.shell(r.line)
			assert.That(t, code == r.code && strings.Count(out, "\n") == r.lines && strings.Contains(errs, r.says) &&
				(errs == "") == (r.says == ""),
				"%s: exit status %d, %d lines, stderr %q\nwant %d, %d, %q", r.line, code, strings.Count(out, "\n"),
				errs, r.code, r.lines, r.says)
		})
	}
}

func starts() []start {
	const input, unread, file = "stdin cannot be read", "the log is on a stderr that is full, closed or not read",
		"the file that an option names cannot be used"
	const untrusted, list = "the `a2e.yaml` of the folder cannot be read", "the list of trusted files is damaged, " +
		"or cannot be written"
	const refused, bare = "a command cannot write what it makes", "the current folder is gone"
	return []start{
		{input, "$A2E </", 4, 0, "the input failed: read /dev/stdin: is a directory"},
		{input, "$A2E 0>x", 4, 0, "the input failed"},
		{input, "$A2E <&-", 0, 0, ""},
		{unread, "$A2E --log-level debug <../lines 2>/dev/full", 0, 3, ""},
		{unread, "$A2E --log-level debug <../lines 2>&-", 0, 3, ""},
		{ // the log is far more than the pipe holds
			unread, "mkfifo p; sleep 1000 <p & { { head -n 1 ../lines; yes \"$(sed -n 2p ../lines)\" | head -n 2000; } | " +
				"$A2E --log-level trace; } 2>p; code=$?; kill $!; exit $code", 0, 2001, "",
		},
		{file, "$A2E --log-file . <../lines", 3, 0, "--log-file should name a file that can be written"},
		{file, "mkfifo p; $A2E --log-file p <../lines", 3, 0, "or a pipe that is read"},
		{file, "mkfifo p; $A2E serve --record p <../lines", 3, 0, "not a regular file; name another file"},
		{file, "$A2E --config . <../lines", 3, 0, "the config file ., named by --config, cannot be read: is a " +
			"directory"},
		{file, "A2E_CONFIG=none $A2E <../lines", 3, 0, "the config file none, named by A2E_CONFIG, cannot be read: " +
			"no such file"},
		{file, "$A2E --config /dev/zero <../lines", 3, 0, "larger than 1048576 bytes"},
		{untrusted, "mkfifo a2e.yaml; $A2E <../lines", 0, 3, "a2e.yaml: not trusted (it cannot be read: not a " +
			"regular file)"},
		{untrusted, "ln -s a2e.yaml a2e.yaml; $A2E <../lines", 0, 3, "too many levels of symbolic links"},
		{list, "echo 'plugins: {proc: {allowed_commands: [sh]}}' >a2e.yaml; mkdir -p ../.config/a2e/trusted.json; " +
			"$A2E <../lines", 0, 3, "the list of trusted files is not used"},
		{list, "echo 'plugins: {}' >a2e.yaml; ulimit -f 0; $A2E trust >/dev/null", 1, 0, "the list of trusted files " +
			"cannot be written"},
		{refused, "ulimit -f 0; $A2E plan add s", 1, 0, "no space is left for the store"},
		{
			refused, "$A2E plan add s >/dev/null; ulimit -f 0; $A2E state export -o x; code=$?; ls; exit $code", 1, 0,
			"no space is left for the store",
		},
		{refused, "$A2E plan add s >/dev/null; $A2E state export -o /dev/full", 1, 0, "no space left on device"},
		{bare, "exec 3<../lines; mkdir x; cd x; rmdir ../x; $A2E <&3", 3, 0, "getwd: no such file or directory"},
		{
			"the address of `--http` cannot be listened on", "$A2E serve --http $(cat ../busy)", 4, 0,
			"address already in use",
		},
	}
}

// TestPage: the page has a row for each fault of this package, with its error codes. Each other row names its test.
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
		own := false
		for _, name := range strings.Split(cells[3], ", ") {
			test, folder, elsewhere := strings.Cut(strings.ReplaceAll(name, "`", ""), " in ")
			if !elsewhere {
				folder, own = "host/cli/faults", true
			}
			assert.That(t, tests[folder+" "+test], "%s: there is no test %s", cells[0], name)
		}
		assert.That(t, own == here, "%s: it is of %s; rows here: %v", cells[0], cells[3], here)
	}
	assert.That(t, len(met) == 0, "the page lacks %q", slices.Sorted(maps.Keys(met)))
}

// testNames returns the tests of the repository, each as its folder and its name.
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
				folder, _ := filepath.Rel(root, filepath.Dir(path))
				names[filepath.ToSlash(folder)+" "+string(m[1])] = true
			}
			return err
		}))
	}
	return names
}
