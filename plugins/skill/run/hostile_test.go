package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// short is a time limit that a hostile script certainly reaches. When in this time the script does harm does not
// matter.
const short = 600 * time.Millisecond

// hostile is a hostile script, and the outcome that the test expects.
type hostile struct {
	script string
	file   string             // default: run.sh
	change func(*Job)         // changes the script's job
	limit  time.Duration      // 0 = one that only a failing test reaches
	code   protocol.ErrorCode // code of the error; "" = it ends without an error
	orLost bool               // or sandbox_crash if no process is left for its launcher, or it cannot fork
	orWell bool               // or it succeeds: it only takes long
	says   string             // part of the error or of Failure
	data   string             // the result, if it does not fail
	gone   string             // a word that must be in no command line afterwards
	after  func(t *testing.T, p *place, r *Result, lines []string)
}

const py = "#!/usr/bin/env python3\n"

func hostileScripts(mark string) map[string]hostile {
	sleep := "sleep " + mark
	small := func(j *Job) { j.MemoryBytes = 96 << 20 }
	return map[string]hostile{
		// output
		"endless lines":  {script: `exec yes`, code: "skill_error", says: "printed more than 32 MiB"},
		"endless line":   {script: `exec cat /dev/zero`, code: "skill_error", says: "printed more than 32 MiB"},
		"endless stderr": {script: `exec yes >&2`, code: "skill_error", says: "printed more than 32 MiB"},
		"both streams":   {script: `yes >&2 & exec yes`, code: "skill_error", says: "printed more than 32 MiB"},
		"endless events": {
			script: `exec yes '{"kind":"status","data":{"message":"x"}}'`, code: "skill_error",
			says: "more than 10000 events",
		},
		"endless own events": {
			script: `exec yes '{"kind":"x","data":1}'`, code: "skill_error",
			says: "more than 10000 events",
		},
		"endless results": {script: `exec yes '{"result":1}'`, code: "skill_error", says: "printed more than 32 MiB"},
		"result of 100 MB": {script: py + "import sys\nsys.stdout.write('{\"result\":\"')\nfor i in range(100): " +
			"sys.stdout.write('x' * 1000000)\nprint('\"}')", code: "skill_error", says: "printed more than 32 MiB"},
		"result of 5 MB": {
			script: py + "print('{\"result\":\"' + 'x' * 5000000 + '\"}')",
			says:   "more than 1048576 bytes",
		},
		"result a bit large": {
			script: py + "print('{\"result\":\"' + 'x' * 1048576 + '\"}')",
			says:   "more than 1048576 bytes",
		},
		"object over a small": {
			script: py + "print('{\"a\":1}')\nprint('{\"a\":\"' + 'x' * 5000000 + '\"}')",
			says:   "more than 1048576 bytes",
		},
		"text of 5 MB": {script: py + "print('x' * 5000000)", after: truncated},
		"text of escapes": {
			script: py + "import sys\nsys.stdout.buffer.write(b'\\x00\\x01' * 2500000)",
			after:  truncated,
		},
		"nested result": {script: py + "print('{\"result\":' + '[' * 5000 + ']' * 5000 + '}')", after: isText},
		"nested object": {script: py + "print('{\"a\":' * 100000)", after: isText},
		"many keys": {script: py + "print('{\"result\":{' + ','.join('\"k%d\":0' % i for i in " +
			"range(90000)) + '}}')", after: isObjectResult},
		"the same key":     {script: `echo '{"result":1,"result":2}'`, data: `"{\"result\":1,\"result\":2}"`},
		"binary":           {script: py + "import os\nos.write(1, bytes(range(256)) * 100)", after: validJSON},
		"NULs":             {script: `printf 'a\000b'`, data: `"a\u0000b"`},
		"bad UTF-8":        {script: `printf '{"result":"\377"}\n'`, data: `"{\"result\":\"` + "\uFFFD" + `\"}"`},
		"half a surrogate": {script: `printf '{"result":"\\ud800"}\n'`, after: validJSON},
		"huge number":      {script: py + "print('{\"result\":1' + '0' * 100000 + '}')", after: validJSON},
		"many log lines":   {script: `i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done`, after: fewEvents},
		"many error lines": {script: `seq 1 100000 >&2; exit 1`, says: "100000", after: fewEvents},
		"fake answer": {
			script: `echo '{"a2e":"1.0","type":"skill/call/resp","id":"x","req_id":"q2","data":{"success":true}}'`,
			data:   `{"a2e":"1.0","type":"skill/call/resp","id":"x","req_id":"q2","data":{"success":true}}`,
		},
		"fake events": {script: `echo '{"kind":"tool_result","data":{"success":true},"seq":0,"req_id":"other"}'; echo '{"kind":"","data":1}'; echo '{"kind":"` + strings.Repeat("k", 100) + `","data":1}'`, after: func(t *testing.T, _ *place, r *Result, lines []string) {
			assert.Equal(t, asLines(lines), `event tool_result {"success":true}`, "%v", lines)
		}},
		"fake artifact": {
			script: `echo '{"kind":"artifact","data":{"name":"../../x","chunk":"no base64!"}}'`,
			after: func(t *testing.T, _ *place, _ *Result, lines []string) {
				assert.That(t, len(lines) == 1 && strings.HasPrefix(lines[0], "log info stdout an event of kind "+
					"artifact with other data"),
					"%v", lines)
			},
		},
		// resources
		"memory": {
			script: py + "x = []\nwhile True: x.append(b'x' * 1000000)", change: small,
			code: "out_of_memory", says: "more memory than allowed",
		},
		"memory of many": {script: `for i in 1 2 3 4 5 6 7 8; do python3 -c 'import time; x = b"x" * 30000000; time.sleep(60)' & done; wait`, change: small, code: "out_of_memory"},
		"memory by doubling": {
			script: `x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done`, change: small,
			code: "out_of_memory",
		},
		"fork bomb": {
			script: `f() { f | f & }; f; ` + sleep, limit: short, orLost: true, code: "timeout",
			gone: mark,
		},
		"forks": {
			script: `while :; do ` + sleep + ` & done`, limit: short, orLost: true, code: "timeout",
			gone: mark,
		},
		"endless loop":       {script: `while :; do :; done`, limit: short, code: "timeout"},
		"sleeps":             {script: `exec ` + sleep, limit: short, code: "timeout", gone: mark},
		"closes its streams": {script: `exec <&- >&- 2>&-; ` + sleep, limit: short, code: "timeout", gone: mark},
		"ignores signals": {
			script: `trap '' TERM INT HUP QUIT; ` + sleep + `; ` + sleep, limit: short,
			code: "timeout", gone: mark,
		},
		"stops itself": {script: `kill -STOP $$; ` + sleep, limit: short, code: "timeout"},
		"does not read": {
			script: `echo '{"result":1}'`,
			change: func(j *Job) { j.Args = jsontext.Value(`{"a":"` + strings.Repeat("x", 4<<20) + `"}`) }, data: `1`,
		},
		"endless sparse": {
			script: `truncate -s 100T big 2>/dev/null && echo made; cat data.txt`,
			change: func(j *Job) { j.Write = true }, data: `"the data"`,
		},
		// processes left behind
		"daemon": {
			script: `setsid ` + sleep + ` >/dev/null 2>&1 </dev/null & echo '{"result":1}'`, data: `1`,
			gone: mark,
		},
		"double daemon": {script: `(setsid sh -c 'trap "" HUP TERM; ` + sleep + ` & ` + sleep +
			`' &) & echo '{"result":1}'`, data: `1`, gone: mark},
		"holds a stream": {script: `(` + sleep + ` &) ; echo '{"result":1}'`, data: `1`, gone: mark},
		// access to other things
		"kills its parent": {
			script: `kill -9 $PPID 2>/dev/null; kill -9 1 2>/dev/null; echo '{"result":"alive"}'`,
			data:   `"alive"`,
		},
		"kills all": {script: `trap '' TERM; kill -TERM -1; echo '{"result":"alive"}'`, data: `"alive"`},
		"kills the host": {
			script: fmt.Sprintf(`kill -9 %d 2>/dev/null; echo '{"result":"alive"}'`, os.Getpid()),
			data:   `"alive"`,
		},
		"environment": {script: `env; cat /proc/*/environ 2>/dev/null | tr '\0' '\n'; cat /proc/$$/environ /proc/1/environ; echo end`, after: noSecret},
		"other processes": {
			script: `ls /proc | grep -c '^[0-9]*$' | awk '{print ($1 < 20 ? "few" : "many")}'`,
			data:   `"few"`,
		},
		"host's memory": {
			script: fmt.Sprintf(`cat /proc/%d/maps 2>/dev/null | head -c 10; echo end`, os.Getpid()),
			data:   `"end"`,
		},
		"descriptors": {script: py + "import os\nprint('{\"result\":%d}' % len([f for f in " +
			"os.listdir('/proc/self/fd') if int(f) > 2 and os.path.exists('/proc/self/fd/' + f)]))", data: `0`},
		"files beside":    {script: `cat "$A2E_WORKSPACE/../secret" "$A2E_SKILL_DIR/../secret" /etc/shadow ~root/.ssh/id_rsa 2>/dev/null; ls -A "$A2E_WORKSPACE/.."; true`, after: noSecret},
		"planted links":   {script: `cat out absolute up/secret 2>/dev/null; echo x > up/planted; ls up 2>/dev/null; echo end`, change: func(j *Job) { j.Write = true }, after: noSecret},
		"writes outside":  {script: `echo x > "$A2E_WORKSPACE/../planted"; echo x > /usr/bin/planted; echo x > /etc/planted; echo end`, after: noSecret},
		"writes by links": {script: `ln -s "$A2E_WORKSPACE/.." /tmp/l; echo x > /tmp/l/planted; ln -s /etc/passwd p; echo end`, after: noSecret},
		"opens again":     {script: `mount -o remount,rw "$A2E_WORKSPACE"; umount -l "$A2E_WORKSPACE"; unshare -rm true; echo x > planted; echo end`, after: noSecret},
		"replaces itself": {script: `rm -f "$0"; mv "$A2E_SKILL_DIR" /tmp/x; chmod 777 "$A2E_SKILL_DIR"; test -f "$0" && echo '{"result":"there"}'`, change: func(j *Job) { j.Write = true }, data: `"there"`},
	}
}

func truncated(t *testing.T, _ *place, r *Result, _ []string) {
	assert.That(t, r.Truncated && len(r.Data) <= maxOutput && r.Data.IsValid() &&
		len(r.Data) >= maxOutput/2,
		"truncated %v, %d bytes", r.Truncated, len(r.Data))
}

func isText(t *testing.T, _ *place, r *Result, _ []string) {
	assert.Equal(t, r.Data.Kind(), '"', "%.100s", r.Data)
}

func isObjectResult(t *testing.T, _ *place, r *Result, _ []string) {
	assert.Equal(t, r.Data.Kind(), '{', "%.100s", r.Data)
}

func validJSON(t *testing.T, _ *place, r *Result, _ []string) {
	assert.That(t, r.Data.IsValid(), "%.100s", r.Data)
}

func fewEvents(t *testing.T, _ *place, _ *Result, lines []string) {
	assert.That(t, len(lines) >= logBurst && len(lines) <= 15_000 && strings.Contains(lines[len(lines)-1],
		"more lines that came too fast"), "%d events, the last: %s", len(lines), lines[len(lines)-1])
}

func noSecret(t *testing.T, p *place, r *Result, lines []string) {
	all := string(r.Data) + asLines(lines)
	assert.That(t, !strings.Contains(all, "geheim"), "%s", all)
	for _, name := range []string{
		p.up + "/planted", p.work + "/planted", p.work + "/p", "/etc/planted",
		"/usr/bin/planted",
	} {
		_, err := os.Lstat(name)
		assert.That(t, err != nil, "%s was made", name)
	}
}

func TestHostileScripts(t *testing.T) {
	t.Setenv("A2E_HOST_TOKEN", "geheim")
	mark := fmt.Sprint(100_000_000 + os.Getpid())
	for name, c := range hostileScripts(mark) {
		t.Run(name, func(t *testing.T) {
			file := c.file
			if file == "" {
				file = "run.sh"
			}
			p := newPlace(t, map[string]string{file: c.script})
			for link, to := range map[string]string{"out": "../secret", "absolute": p.up + "/secret", "up": ".."} {
				must.OK(t, os.Symlink(to, filepath.Join(p.work, link)))
			}
			j := p.job(file)
			if c.change != nil {
				c.change(&j)
			}
			r, lines, err := runs(Script).within(t, cmp.Or(c.limit, patient), p, j)
			if name == "other processes" && p.launcher.Mechanism() == sandbox.MechanismSubreaper {
				return // without namespaces, a script can see other processes of its user
			}
			c.check(t, p, r, err, lines)
		})
	}
}

// check compares the outcome with the expected one.
func (c *hostile) check(t *testing.T, p *place, r *Result, err error, lines []string) {
	t.Helper()
	assert.That(t, c.gone == "" || !running(t, c.gone), "something still runs")
	switch {
	case c.orLost && err == nil:
		cannot := strings.Contains(r.Failure, "Cannot fork") || strings.Contains(r.Failure,
			"fork: ") // as dash and bash write it; "fork" alone is also in the script's path
		assert.That(t, r.Failed && cannot, "%+v, want %s, or that it cannot fork", r, c.code)
		return
	case c.code != "":
		lost := c.orLost && codeOf(err) == protocol.CodeSandboxCrash
		assert.That(t, (lost || codeOf(err) == c.code) && strings.Contains(err.Error(), c.says) &&
			len(err.Error()) <= 2000, "%v, want %s with %q", err, c.code, c.says)
		return
	case err != nil:
		t.Fatal(err)
	case c.says != "":
		assert.That(t, r.Failed && strings.Contains(r.Failure, c.says) && len(r.Failure) <= 4000 && r.Data == nil,
			"%+v, want %q", r, c.says)
	case r.Failed:
		t.Fatal(r.Failure)
	case c.data != "" && string(r.Data) != c.data:
		t.Errorf("%s, want %s", r.Data, c.data)
	}
	if c.after != nil {
		c.after(t, p, r, lines)
	}
}

// TestScriptNetwork: a script reaches a server of this machine only if its job allows the network.
func TestScriptNetwork(t *testing.T) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("geheim"))
			_ = conn.Close()
		}
	}()
	script := py + fmt.Sprintf("import socket\nprint(socket.create_connection(('127.0.0.1', %d), 5).recv(10).decode())",
		listener.Addr().(*net.TCPAddr).Port)
	for _, network := range []bool{false, true} {
		r, _, _, err := sh(t, script, func(j *Job) { j.Network = network })
		assert.That(t, err == nil && r.Failed != network && network == (string(r.Data) == `"geheim"`),
			"network %v: %+v %s, %v", network, r, r.Data, err)
	}
}

// TestScriptCancel: a caller that goes away gets its own reason as the error.
func TestScriptCancel(t *testing.T) {
	gone := errors.New("gone")
	p := newPlace(t, map[string]string{"run.sh": "echo begun; exec sleep 1000"})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var h heard
	go func() {
		hosttest.Eventually(t, "it begins", func() bool { return len(h.all()) > 0 })
		cancel(gone)
	}()
	_, err := Script(ctx, p.launcher, p.job("run.sh"), &h, h.event)
	assert.That(t, errors.Is(err, gone), "%v", err)
	_, err = Script(ctx, p.launcher, p.job("run.sh"), &h, h.event)
	assert.That(t, errors.Is(err, gone), "%v", err)
}
