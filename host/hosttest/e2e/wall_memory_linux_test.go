package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// Bounds of the real host during the attacks: of its memory, and of its address space. A host that allocates
// terabytes, or too much for many requests together, fails at the second bound.
const (
	peakBytes    = 1536 << 20
	addressBytes = 6 << 30
)

// TestWallMemory: no request makes the host allocate without a bound. Each is sent four times at once to the real
// program, whose address space is limited; the host answers all of them, and a ping afterwards.
func TestWallMemory(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for name, text := range map[string]string{
		"a.txt":     strings.Repeat("a", 1<<20),
		"deep.json": strings.Repeat("[", 1<<20), "lines": strings.Repeat("x\n", 500_000),
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := command(t, dir, "./a2e")
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	must.OK(t, unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: addressBytes, Max: addressBytes}, nil))
	answers := make(chan string, 1000)
	go func() {
		defer close(answers)
		lines := bufio.NewReaderSize(out, 1<<20)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			head := line[:min(len(line), 300)] // parsing 14 MiB as JSON takes seconds with the race detector
			if m := answered.FindSubmatch(head); m != nil && !bytes.Contains(head, []byte(`/event"`)) {
				answers <- string(m[1])
			}
		}
	}()
	ask := func(id string, times int, request string) {
		t.Helper()
		for i := range times {
			must.Get(fmt.Fprintf(in, `{"id":"%s-%d",%s}`+"\n", id, i, request))(t)
		}
		for got := 0; got < times; {
			select {
			case a, ok := <-answers:
				must.That(t, ok, "the host ended")
				if strings.HasPrefix(a, id+"-") {
					got++
				}
			case <-time.After(3 * time.Minute):
				t.Fatal("no answer")
			}
		}
	}
	ask("hello", 1, `"type":"handshake/req","agent_id":"x","agent_caps":["tools","chains","memory","proc"]`)
	for _, attack := range memoryAttacks() {
		t.Run(attack[0], func(t *testing.T) {
			ask(strings.ReplaceAll(attack[0], " ", "_"), 4, attack[1])
			ask("ping", 1, `"type":"ping"`)
			peak := memoryOf(t, cmd.Process.Pid, "VmHWM")
			assert.That(t, peak <= peakBytes, "the host took %d MiB", peak>>20)
		})
	}
	t.Logf("peak of the host: %d MiB", memoryOf(t, cmd.Process.Pid, "VmHWM")>>20)
	must.OK(t, in.Close())
	for range answers {
	}
	assert.OK(t, cmd.Wait())
}

var answered = regexp.MustCompile(`"req_id":"([^"]+)"`)

// memoryOf returns a number of bytes of a process, such as VmHWM, the largest that its memory was.
func memoryOf(t *testing.T, pid int, name string) int64 {
	t.Helper()
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	_, after, _ := strings.Cut(string(status), name+":")
	kib := must.Get(strconv.ParseInt(strings.Fields(after)[0], 10, 64))(t)
	return kib << 10
}

// memoryAttacks returns pairs of a name and a request.
func memoryAttacks() [][2]string {
	big := strings.Repeat("x", 2<<20)
	list := "[" + strings.Repeat("0,", 47) + "0]"
	tool := func(name, args string) string {
		return fmt.Sprintf(`"type":"tool/call/req","timeout":20,"tool_name":%q,"arguments":%s`, name, args)
	}
	chain := func(nodes string) string {
		return fmt.Sprintf(`"type":"chain/req","timeout":60,"chain_id":"c","entry_node":"a","nodes":[%s],"initial_input":{"l":%s,"t":%q}`, nodes, list, big)
	}
	each := func(expr, more string) string {
		return chain(`{"node_id":"a","kind":"map","items_path":"input.l","map_node":"e"},{"node_id":"e","kind":"tool","name":"echo","input_map":{` + expr + `}` + more + `}`)
	}
	seven := `join('',[` + strings.TrimSuffix(strings.Repeat("input.t,", 7), ",") + `])`
	var row []string
	for i := range 200 {
		row = append(row, fmt.Sprintf(`{"node_id":"a%d","kind":"tool","name":"echo","input_map":{"text":"join('',[input.t,input.t,input.t,input.t])"}}`, i))
	}
	return [][2]string{
		{"edit all", tool("edit_file", `{"path":"a.txt","old":"a","new":"`+strings.Repeat("n",
			10<<20)+`","all":true}`)},
		{"edit all lines", tool("edit_file", `{"path":"lines","old":"\n","new":"`+strings.Repeat("n",
			1<<20)+`","all":true}`)},
		{"grep repeats", tool("grep", `{"pattern":"`+strings.Repeat("(a{1000})", 450)+`b"}`)},
		{"grep ranges", tool("grep", `{"pattern":"`+strings.Repeat(`\\PL`, 1300)+`"}`)},
		{"grep optional", tool("grep", `{"pattern":"`+strings.Repeat("([ab]{0,1000})", 200)+`[cd]"}`)},
		{"glob braces", tool("glob", `{"pattern":"`+strings.Repeat("{*,*a}", 600)+`"}`)},
		{"glob wide", tool("glob", `{"pattern":"{`+strings.Repeat("*,", 1500)+`}","limit":100000}`)},
		{"read all", tool("read_file", `{"path":"a.txt","limit":1000000000}`)},
		{"echo large", tool("echo", `{"text":"`+strings.Repeat("y", 14<<20)+`"}`)},
		{"echo escapes", tool("echo", `{"text":"`+strings.Repeat(`\u0001`, 2<<20)+`"}`)},
		{"write large", tool("write_file", `{"path":"w","content":"`+strings.Repeat("y", 14<<20)+`"}`)},
		{"stdin large", tool("run_command", `{"command":["cat"],"stdin":"`+strings.Repeat("y", 12<<20)+`"}`)},
		{"output large", tool("run_command", `{"command":["head","-c","300000000","/dev/zero"]}`)},
		{"map of large calls", each(`"text":"`+seven+`"`, "")},
		{"map of failing calls", each(`"nope":"`+seven+`"`, `,"on_error":"skip"`)},
		{"map of maps", chain(`{"node_id":"a","kind":"map","items_path":"input.l","map_node":"m"},{"node_id":"m","kind":"map","items_path":"input.l","map_node":"e"},` +
			`{"node_id":"e","kind":"tool","name":"echo","input_map":{"text":"input.t"}}`)},
		{"row of calls", strings.Replace(chain(strings.Join(row, ",")), `"entry_node":"a"`, `"entry_node":"a0"`, 1)},
		{"to_string", each(`"text":"to_string([input,input,input,input,input,input,input])"`, "")},
		{"doubling", each(`"text":"to_string(input`+strings.Repeat(" | [@,@]", 60)+`)"`, "")},
		{"replace", each(`"text":"replace(input.t, 'x', input.t)"`, "")},
		{"pad", each("\"text\":\"pad_left('', `1000000000000`)\"", "")},
		{"repeated join", each(`"text":"join(input.t, split(input.t, ''))"`, "")},
		{"search", fmt.Sprintf(`"type":"tool/search/req","query":%q,"limit":1000000`,
			strings.Repeat("read file ", 1<<20))},
		{"line of brackets", `"type":"tool/call/req","tool_name":"echo","arguments":{"text":` +
			strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`},
	}
}

// TestWallBombs: one request, however expensive, makes the host grow by less than 64 MiB. Meanwhile the host answers
// pings. The request is answered, after a cancel if it takes long, and SIGTERM ends a host that may still work on it.
func TestWallBombs(t *testing.T) {
	t.Parallel()
	const most = 64 << 20
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "as"), []byte(strings.Repeat("a", 5<<20)+"b"), 0o600),
		os.MkdirAll(filepath.Join(dir, strings.Repeat("deep/", 100)), 0o700))
	for name, line := range bombs() {
		t.Run(name, func(t *testing.T) {
			l := start(t, dir)
			l.send(`{"type":"handshake/req","id":"h","agent_id":"x","agent_caps":["tools","chains"]}`,
				`{"type":"ping","id":"p"}`)
			l.answer("h")
			l.answer("p")
			before, began, cancelled := memoryOf(t, l.cmd.Process.Pid, "VmRSS"), time.Now(), false
			id := "bomb"
			switch line[0] {
			case '{':
			case 'x':
				id = "" // the host reads no id in a line that is too long
			default:
				line = `{"type":"tool/call/req","id":"ID",` + line + `}`
			}
			l.send(strings.Replace(line, "ID", id, 1))
			for n := 0; l.passed[id] == nil; n++ {
				l.send(fmt.Sprintf(`{"type":"ping","id":"%d"}`, n))
				l.answer(fmt.Sprint(n))
				if !cancelled && time.Since(began) > 2*time.Second {
					cancelled = true
					l.send(`{"type":"cancel","id":"c","req_id":"bomb"}`)
				}
			}
			grew := memoryOf(t, l.cmd.Process.Pid, "VmHWM") - before
			assert.That(t, grew < most, "the host grew by %d KiB", grew>>10)
			must.OK(t, l.cmd.Process.Signal(unix.SIGTERM))
			assert.Equal(t, l.exit(), 0, "exit status")
		})
	}
}

// bombs returns expensive requests by name: fields of tool/call/req or, beginning with {, whole lines. ID is the id.
func bombs() map[string]string {
	grep := func(pattern string) string { return `"tool_name":"grep","arguments":{"pattern":"` + pattern + `"}` }
	maps := `{"node_id":"leaf","kind":"tool","name":"echo","input":{"text":"x"}}`
	for i := range 4 {
		maps += fmt.Sprintf(`,{"node_id":"m%d","kind":"map","items_path":"[`+strings.Repeat("input,",
			99)+`input]","map_node":%q}`, i, []string{"leaf", "m0", "m1", "m2"}[i])
	}
	return map[string]string{
		"deep JSON": `{"type":"tool/call/req","id":"ID","tool_name":"echo","arguments":{"text":` +
			strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}}`,
		"huge number": `{"type":"tool/call/req","id":"ID","tool_name":"echo","timeout":` +
			strings.Repeat("9", 4<<20) + `,"arguments":{"text":1e999999999}}`,
		"long line":     strings.Repeat("x", 64<<20),
		"regex":         grep(strings.Repeat("(a*)*", 50) + "$"),
		"counted regex": grep("((a{100}){100}){100}"),
		"glob": `"tool_name":"glob","arguments":{"pattern":"` + strings.Repeat("{a,b}", 40) +
			strings.Repeat("**/", 40) + `*"}`,
		"nested folders": `"tool_name":"glob","arguments":{"pattern":"**/deep/**/x"}`,
		"nested maps":    `{"type":"chain/req","id":"ID","timeout":2,"streaming":false,"nodes":[` + maps + `]}`,
		"endless output": `"timeout":1,"tool_name":"run_command","arguments":{"command":["bash","-c","cat /dev/zero"]}`,
	}
}
