//go:build linux

package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest/must"
)

// Ends starts idle hosts and closes their input. It returns how long each host took to end.
func Ends(t testing.TB, opts Options, runs int) (took []time.Duration) {
	s := newSim(t, opts)
	defer s.keep()
	s.alone()
	for range runs {
		h := s.start(s.models[0], false)
		must.OK(t, h.to.close())
		took = append(took, h.wait("the end of its input", 0))
		s.life++
	}
	slices.Sort(took)
	return took
}

// alone writes a config that starts no children, whose time would otherwise be measured.
func (s *Sim) alone() {
	must.OK(s.t, os.WriteFile(filepath.Join(s.dir, "config.yaml"), []byte("auth_token: ${SIM_TOKEN}\nworkspace: "+
		"ws\nstate_dir: state\n"), 0o600))
}

// Crowd sends requests at once, closes the input, and checks that each is answered.
func Crowd(t testing.TB, opts Options, requests int) {
	s := newSim(t, opts)
	defer s.keep()
	h := s.start(s.models[0], false)
	d := s.newDraw(s.rng, "crowd", s.models[0])
	for range requests {
		h.do(d.native("r", "tool/call/req", d.of(`"tool_name":"echo","arguments":{"text":"x"}`,
			`"tool_name":"list_dir","arguments":{"path":"."}`, `"tool_name":"nothing","arguments":{}`)))
	}
	must.OK(t, h.to.close())
	h.wait("the end of its input", 0)
	if due := h.judge.due(); len(due) > 0 {
		h.fail("%d of %d were not answered: %s", len(due), requests, due[0])
	}
}

// Bomb is the effect of one expensive request on a host.
type Bomb struct {
	Name           string
	Grew           int // growth of its peak memory in kilobytes
	Ping, Took, To time.Duration
}

// bombs returns expensive requests by name: fields of tool/call/req or, beginning with {, whole lines.
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
		"regex":         grep(strings.Repeat("(a*)*", 50) + "$"),
		"counted regex": grep("((a{100}){100}){100}"),
		"glob": `"tool_name":"glob","arguments":{"pattern":"` + strings.Repeat("{a,b}", 40) +
			strings.Repeat("**/", 40) + `*"}`,
		"nested folders": `"tool_name":"glob","arguments":{"pattern":"**/deep/**/x"}`,
		"nested maps":    `{"type":"chain/req","id":"ID","timeout":2,"streaming":false,"nodes":[` + maps + `]}`,
		"endless output": `"timeout":1,"tool_name":"run_command","arguments":{"command":["bash","-c","cat /dev/zero"]}`,
	}
}

// Bombs sends each bomb to a new host, and pings the host until it has answered. Then it sends a line of long MiB.
func Bombs(t testing.TB, opts Options, long int) (all []Bomb) {
	opts.Line = 16 << 20
	s := newSim(t, opts)
	defer s.keep()
	s.alone()
	must.OK(t, os.WriteFile(filepath.Join(s.dir, "ws", "as"), []byte(strings.Repeat("a", 5<<20)+"b"), 0o600))
	for name, line := range bombs() {
		all = append(all, s.drop(name, line))
	}
	h := s.start(s.models[0], false)
	before := h.measure().resident
	began := time.Now()
	h.judge.expect("a2e ", "a line without an end", nil)
	for range long {
		must.OK(t, h.to.send(strings.Repeat("x", 1<<20)))
	}
	must.OK(t, h.to.send("\n"))
	return append(all, s.defuse(h, Bomb{Name: "long line", Took: time.Since(began), Ping: h.ping()}, before))
}

// drop sends one bomb.
func (s *Sim) drop(name, line string) Bomb {
	h := s.start(s.models[0], false)
	h.ping()
	before, began, b := h.measure().resident, time.Now(), Bomb{Name: name}
	if line[0] != '{' {
		line = `{"type":"tool/call/req","id":"ID",` + line + `}`
	}
	h.do(step{line: strings.Replace(line, `"ID"`, `"kbomb"`, 1), speak: "a2e", key: "kbomb"})
	for answered := false; !answered; {
		b.Ping = max(b.Ping, h.ping())
		h.judge.mu.Lock()
		answered = h.judge.kept["kbomb"] != nil
		h.judge.mu.Unlock()
		if time.Since(began) > 2*time.Second {
			h.do(step{line: `{"type":"cancel","id":"c","req_id":"kbomb"}`, speak: "a2e"})
			h.settle()
		}
	}
	b.Took = time.Since(began)
	return s.defuse(h, b, before)
}

// defuse ends the host of a bomb, which may still work on it, and returns b with the measured effects.
func (s *Sim) defuse(h *host, b Bomb, before int) Bomb {
	h.settle()
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	_, peak, _ := strings.Cut(string(text), "VmHWM:")
	n, _ := strconv.Atoi(strings.Fields(peak)[0])
	b.Grew = n - before
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	b.To = h.wait("SIGTERM", 0)
	s.life++
	return b
}

// ping returns how long the answer to a ping takes.
func (h *host) ping() time.Duration {
	began := time.Now()
	h.ask("ping", `"x":1`)
	return time.Since(began)
}
