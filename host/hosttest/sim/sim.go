//go:build linux

// Package sim tests the real binary with random input: valid and broken lines in all four
// protocols, with faults between them, on one state that several hosts use in turn.
//
//	sim.go      one seed: a folder, its config, the lives of its hosts
//	lines.go    the lines to send; changes.go: those with a known effect
//	faults.go   the faults
//	storm.go    hosts that are all killed; marathon.go: one long life
//	host.go     one host and its agent; http.go: over HTTP
//	judge.go    checks of the output: exactly one answer for each request, in its dialect
//	model.go    the state that must exist after the end of a host
//
// It is the place for promises that must hold under random trouble: each request is answered once, acknowledged
// changes are kept, no process or secret is left, and a host that goes on for long does not grow. The table in
// host/cli/faults has what a user sees of each fault, the tests of the engine (host/once_test.go) what needs a clock
// that the test moves.
//
// A seed always draws the same lines and faults in the same order. The ids that hosts make and
// the scheduling of the kernel differ in each run.
package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// Options are the options of one run.
type Options struct {
	Seed   uint64
	Binary string                   // a2e
	Chaos  string                   // the program of host/hosttest/peers/chaos
	Check  func(state string) error // looks for damage in a state_dir that no host uses
	State  string                   // lines of the config that say where the state is; "" = in state_dir
	Sever  func()                   // lets the store's server drop its connections; nil = no server
	Lives  int                      // how often hosts are started on its state; 0 = maxLives
	Plain  bool                     // hosts cannot make namespaces
	Kills  int                      // > 0: play a storm until this number of hosts was killed
	Rests  int                      // > 0: play a marathon with this number of rounds
}

// Figures are the numbers of a run. Kills is the number of hosts that a signal ended at once; Starved
// is the number of hosts that ended before that by themselves, as they got no more memory.
type Figures struct {
	Lines, Answers, Faults, Lives, Kills, Starved int

	Rest []rest // of the first host of each life, when nothing was under way
}

// Add adds the figures of another seed.
func (f *Figures) Add(more Figures) {
	f.Lines, f.Answers, f.Faults, f.Lives = f.Lines+more.Lines, f.Answers+more.Answers, f.Faults+more.Faults,
		f.Lives+more.Lives
	f.Kills, f.Starved = f.Kills+more.Kills, f.Starved+more.Starved
	f.Rest = append(f.Rest, more.Rest...)
}

// String returns the figures as text for a log.
func (f Figures) String() string {
	return fmt.Sprintf("%d lines, %d answers, %d faults, %d lives, %d of them killed, %d starved; at rest, mean and "+
		"slope per hour: %s",
		f.Lines, f.Answers, f.Faults, f.Lives, f.Kills, f.Starved, trends(f.Rest))
}

// Sim is the world of one seed.
type Sim struct {
	Options
	t      testing.TB
	bin    string // path of the binary for the hosts
	dir    string
	rng    *rand.Rand
	plan   string
	models []*model
	life   int
	starts int
	disk   bool         // state_dir is a small disk
	full   sync.RWMutex // held while the disk is full; a storm verifies the state only at other times

	mu         sync.Mutex // guards the fields below
	transcript strings.Builder
	violations int
	done       map[string]string // task to the agent that has done it
	figures    Figures
}

const (
	maxLives = 4                 // of one seed
	most     = 3                 // hosts at once
	maxLine  = 1 << 18           // bytes
	patience = 5 * poll.Patience // for a silent host; long, as other programs may use the machine
)

// Run plays a seed. It fails the test at each violation, and then logs the path of the transcript.
func Run(t testing.TB, opts Options) Figures {
	t.Helper()
	s := newSim(t, opts)
	defer s.keep()
	switch {
	case s.Kills > 0:
		s.storm()
	case s.Rests > 0:
		s.marathon()
	default:
		s.lives()
	}
	return s.figures
}

// lives plays lives of hosts that end in different ways.
func (s *Sim) lives() {
	for s.life = range s.Lives {
		for range s.rng.IntN(4) {
			s.brief()
		}
		s.live()
		if s.broken() {
			break
		}
	}
}

// newSim makes the Sim of a seed.
func newSim(t testing.TB, opts Options) *Sim {
	t.Helper()
	opts.Lives = cmp.Or(opts.Lives, maxLives)
	s := &Sim{
		Options: opts, t: t, dir: t.TempDir(), rng: rand.New(rand.NewPCG(opts.Seed, 0)),
		done: map[string]string{},
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // so that hosts do not inherit an ignored SIGHUP if nohup runs the tests
	t.Cleanup(func() { signal.Stop(hup) })
	s.prepare()
	s.disk = s.mount()
	for i := range most {
		s.models = append(s.models, newModel(fmt.Sprint("m", i)))
	}
	return s
}

// ways returns the misbehaviours of the MCP servers, see the program chaos.
func ways() []string {
	return []string{"good", "crash", "hang", "flood", "junk", "twice", "late", "change", "mute", "ask"}
}

// prepare makes the folder with the config and the workspace.
func (s *Sim) prepare() {
	ws := filepath.Join(s.dir, "ws")
	must.OK(s.t, os.Mkdir(filepath.Join(s.dir, "tmp"), 0o700), os.Mkdir(ws, 0o700), s.hostile(ws))
	s.bin = filepath.Join(s.dir, "a2e")
	for from, to := range map[string]string{s.Binary: s.bin, s.Chaos: filepath.Join(ws, "chaos")} {
		must.OK(s.t, os.Symlink(from, to))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `auth_token: ${SIM_TOKEN}
workspace: ws
state_dir: state
%smax_parallel: 8
limits: {max_line_bytes: %d, max_queue: 500}
audit: {}
fleet: {agent_id: sim, max_tasks: 2}
children: {read: [%q, %q]}
plugins:
  tools:
    allowed_commands: [bash, sh, cat]
    commands: [{name: told, command: [sh, -c, 'echo "$1"; echo "$1" >&2; exit 3', sh, "${SIM_ARG_TOKEN}"]}]
  words: {type: exec, command: [./chaos, plugin, "${SIM_ARG_TOKEN}"], env: {LABEL_TOKEN: "${SIM_LABEL_TOKEN}"}, capabilities: [tools]}
  maze: {type: env, env: gridworld, max_steps: 0}
  multi_agent:
    workers:
      - {name: shell, command: [sh, -s], contract: false, timeout: 5, env: {LABEL_TOKEN: "${SIM_LABEL_TOKEN}"}}
      - {name: host, mode: fleet, timeout: 5, max_tasks: 2, env: {A2E_STATE_DIR: %q}, command: [%q, worker, --agent-id, w, --no-contract, --, sh, -s]}
  mcp:
    mcpServers:
`, s.State, maxLine, s.Binary, s.Chaos, filepath.Join(s.dir, "worker-state"), s.Binary)
	for _, way := range ways() {
		fmt.Fprintf(&b, "      %s: {command: ./chaos, args: [mcp, %s, \"${SIM_ARG_TOKEN}\"], env: {LABEL_TOKEN: "+
			"\"${SIM_LABEL_TOKEN}\"}, start_timeout: 2, timeout: 1}\n", way, way)
	}
	must.OK(s.t, os.WriteFile(filepath.Join(s.dir, "config.yaml"), []byte(b.String()), 0o600))
}

// secret returns a secret of the config or of the hosts' environment.
func (s *Sim) secret(name string) string { return fmt.Sprintf("cnry-%s-%x", name, s.Seed+1<<40) }

func (s *Sim) secrets() []string {
	return []string{s.secret("token"), s.secret("arg"), s.secret("label"), s.secret("env")}
}

// environ returns the environment of the hosts.
func (s *Sim) environ() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + filepath.Join(s.dir, "tmp"), "GOTRACEBACK=all",
		"SIM_TOKEN=" + s.secret("token"), "SIM_ARG_TOKEN=" + s.secret("arg"), "SIM_LABEL_TOKEN=" + s.secret("label"),
		"SIM_API_KEY=" + s.secret("env"),
	}
}

// live plays one life of the hosts. The first host verifies the state of the previous hosts.
func (s *Sim) live() {
	n := 1 + s.rng.IntN(most)*s.rng.IntN(2)
	if s.life == s.Lives-1 { // the last life verifies the whole state
		n = most
	}
	seeds := []uint64{s.rng.Uint64(), s.rng.Uint64(), s.rng.Uint64()}
	var hosts []*host
	for i := range n {
		h := s.start(s.models[i], s.rng.IntN(5) == 0)
		s.models[i].verify(h)
		hosts = append(hosts, h)
	}
	s.makePlan(hosts[0])
	var all sync.WaitGroup
	for i, h := range hosts {
		all.Go(func() { s.play(h, rand.New(rand.NewPCG(s.Seed, seeds[i]))) })
	}
	all.Wait()
	s.after()
}

// makePlan makes the plan for the tasks, if there is none yet.
func (s *Sim) makePlan(h *host) {
	if s.plan == "" {
		if a := h.look("planning/plan/create", `"name":"sim"`); a != nil {
			s.plan = a.get("plan_id")
		}
	}
}

// after checks what is left when all hosts have ended.
func (s *Sim) after() {
	s.t.Helper()
	poll.Within(s.t, patience, "no process is left", func() bool { return len(inDir(s.dir)) == 0 })
	if err := s.Check(filepath.Join(s.dir, "state")); err != nil {
		s.fail("the state is damaged: %v", err)
	}
	s.noSecrets()
}

// brief starts a host, sends changes to it, and kills it a moment later. The first host is killed while
// it makes its files.
func (s *Sim) brief() {
	h := s.start(s.models[0], false)
	if s.plan != "" {
		h.model.verify(h)
	}
	d := s.newDraw(rand.New(rand.NewPCG(s.Seed, s.rng.Uint64())), h.name, h.model)
	for range d.IntN(30) {
		h.do(d.change())
	}
	time.Sleep(time.Duration(d.IntN(30_000)) * time.Microsecond)
	s.end(h, d, 0)
	s.tally(h)
}

// tally adds the figures of a host that has ended.
func (s *Sim) tally(h *host) {
	h.writing.Lock()
	sent := h.sent
	h.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.figures.Lines += sent
	s.figures.Answers += h.judge.answers()
	s.figures.Lives++
}

// play sends an agent's lines to a host, and ends the host.
func (s *Sim) play(h *host, rng *rand.Rand) {
	d := s.newDraw(rng, h.name, h.model)
	d.begin(h)
	for round := range 1 + d.IntN(3) {
		for range 5 + d.IntN(40) {
			s.act(h, d)
		}
		if round == 0 || d.IntN(2) == 0 {
			h.settle()
			s.rested(h)
		}
	}
	s.end(h, d, d.IntN(8))
	s.tally(h)
}

// act draws and does one thing: a line, several at once, a fault, a new session.
func (s *Sim) act(h *host, d *draw) {
	switch n := d.IntN(100); {
	case n < 8:
		h.do(d.fault())
		s.mu.Lock()
		s.figures.Faults++
		s.mu.Unlock()
	case n < 10:
		for range 100 + d.IntN(900) { // a flood of more requests than may wait
			h.do(d.native("r", "tool/call/req", `"tool_name":"echo","arguments":{"text":"x"}`))
		}
	case n < 12:
		h.do(d.native("r", "handshake/req", h.hello()))
	case n < 14 && d.plan != "":
		d.claim(h)
	default:
		line := d.line()
		line.bits = n == 14
		h.do(line)
	}
}

// begin opens a JSON-RPC session, which also needs the token.
func (d *draw) begin(h *host) {
	method, params := "rpc.handshake", fmt.Sprintf(`{"auth_token":%q}`, d.token)
	if d.mcp {
		method, params = "initialize", fmt.Sprintf(`{"protocolVersion":"2025-06-18","capabilities":{"roots":{},"sampling":{}},"clientInfo":{"name":"sim","version":"1"},"_meta":{"a2e/auth_token":%q}}`, d.token)
	}
	id := d.id("k")
	h.do(step{
		line: fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":%s}`, id, method, params), speak: "rpc",
		key: id,
	})
}

// end ends a host in one of several ways.
func (s *Sim) end(h *host, d *draw, way int) {
	s.note("%s: ends in way %d", h.name, way)
	_, piped := h.to.(pipe)
	switch {
	case way < 4: // at any moment, also right after a line was written
		if way > 0 {
			time.Sleep(time.Duration(d.IntN(20_000)) * time.Microsecond)
		}
		h.kill()
		h.wait("SIGKILL", -1)
		s.mu.Lock()
		s.figures.Kills++
		s.mu.Unlock()
	case way == 4 && piped:
		must.OK(s.t, h.to.close())
		h.wait("the end of its input", 0)
		if due := h.judge.due(); len(due) > 0 {
			h.fail("ended without an answer to:\n%s", strings.Join(due, "\n"))
		}
	case way == 5:
		h.settle()
		_ = h.cmd.Process.Signal(syscall.SIGQUIT)
		h.wait("SIGQUIT", quitCode)
		h.routines()
	case way == 6 && piped:
		h.settle()
		h.do(step{line: `{"type":"shutdown","id":"s","timeout":1}`, speak: "a2e"})
		h.wait("shutdown", 0)
	default:
		sig := []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}[d.IntN(3)]
		_ = h.cmd.Process.Signal(sig)
		h.wait(sig.String(), 0)
	}
	_ = h.to.close() // may be closed already
}

// note adds a line to the transcript.
func (s *Sim) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(&s.transcript, "%s %.2000s\n", time.Now().Format("05.000000"), text)
}

// fail records a violation.
func (s *Sim) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.note("VIOLATION %s", text)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.violations++; s.violations <= 5 {
		s.t.Errorf("seed %d, life %d: %s", s.Seed, s.life, text)
	}
}

// broken reports whether there was a violation.
func (s *Sim) broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.violations > 0
}

// keep writes the transcript of a seed that failed, and says how to play it again.
func (s *Sim) keep() {
	if s.violations == 0 && !s.t.Failed() {
		return
	}
	file := filepath.Join(os.TempDir(), fmt.Sprintf("a2e-sim-%d.log", s.Seed))
	s.mu.Lock()
	defer s.mu.Unlock()
	err := os.WriteFile(file, []byte(s.transcript.String()), 0o600)
	s.t.Logf("play it again: A2E_SIM_SEED=%d go test ./host/hosttest/e2e -run TestSimulation -count=1; its "+
		"transcript: %s %v", s.Seed, file, err)
}
