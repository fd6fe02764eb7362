package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"a2e/host/child"
	"a2e/host/sandbox"
)

// maxStderr is how much of a line of stderr is shown, in bytes.
const maxStderr = 2 << 10

// endWait is how long to wait for the end of a process after its stdout ended: the process tells more about
// the cause.
const endWait = 2 * time.Second

// process is a server that is a process of this machine. It is the carrier, and the SDK's
// connection.
type process struct {
	*child.Process
	conn *conn
	home *sandbox.KeptHome // nil = a temporary home

	in     chan jsonrpc.Message // the messages of the server
	silent chan struct{}        // closed when the server can send nothing more
	closed chan struct{}        // closed when nobody reads any more
	long   envelope             // of the current line, if it is too long
	quiet  sync.Once            // closes silent
	shut   sync.Once            // closes closed
}

// startProcess starts a server.
func startProcess(c *conn) (carrier, error) {
	p := &process{conn: c, in: make(chan jsonrpc.Message, 64), silent: make(chan struct{}), closed: make(chan struct{})}
	l := c.link
	l.words.Store("")
	p.Process = child.New(c.life, child.Options{
		Name: "the MCP server", Line: p.receive, MaxLine: maxLine, Over: &p.long, Long: p.tooLong, Silent: p.ended,
		Stderr: func(line []byte) { l.words.Store(string(line)) }, MaxStderr: maxStderr, Level: zerolog.InfoLevel,
		Ended: func(*child.Ended) { p.ended() }, Go: c.goes.Go, Grace: CloseGrace, Log: l.log, Secrets: l.secrets,
		Now: l.env.Now,
	})
	policy, err := l.policy()
	if err == nil {
		if p.home = l.home(); p.home != nil {
			policy.HomeDir = p.home.Dir()
		}
		err = p.Start(l.env.Launcher, policy)
	}
	if err != nil {
		if p.home != nil {
			p.home.Close()
		}
		return nil, fmt.Errorf("it was not started: %w%s", err, p.whyNot(err))
	}
	if l.cfg.Installs() && (p.home == nil || !p.home.Ready()) {
		l.log.Info().Stringer("limit", l.cfg.ConnectTimeout).Msg("the MCP server is being installed")
		l.set(func(s *State) { s.Installing = true })
	}
	return p, nil
}

// home opens the server's kept home, or returns nil if there is none.
func (l *Link) home() *sandbox.KeptHome {
	if l.cfg.Home == "" || l.env.Homes == "" {
		return nil
	}
	home, err := sandbox.KeepHome(l.env.Homes, l.cfg.Home)
	if err != nil {
		l.log.Warn().Err(err).Msg("the MCP server gets a home that does not stay")
		return nil
	}
	return home
}

// policy returns the sandbox policy that the server is started with.
func (l *Link) policy() (sandbox.Policy, error) {
	launcher, err := l.env.Launcher()
	if err != nil {
		return sandbox.Policy{}, err
	}
	program := l.cfg.Program(l.env.Workspace, l.env.Launcher)
	program.Dirs = launcher.Path()
	return program.Policy()
}

// Program returns the program that starts a stdio server.
func (c *Config) Program(workspace string, launcher func() (*sandbox.Launcher, error)) child.Program {
	return child.Program{
		Command: append([]string{c.Command}, c.Args...), Workspace: workspace, Cwd: c.Dir, Env: c.Env, Read: c.Read,
		Network:  c.Network,
		Launcher: launcher,
	}
}

// Connect implements mcp.Transport.
func (p *process) Connect(context.Context) (mcp.Connection, error) { return p, nil }

// SessionID implements mcp.Connection.
func (p *process) SessionID() string { return "" }

// receive handles a line of the server's stdout. It waits while the server is too far ahead.
func (p *process) receive(line []byte) {
	if len(bytes.TrimSpace(line)) > 0 {
		p.pass(p.conn.read(line, jsonrpc.ID{}))
	}
}

// tooLong handles the end of a line that was too long. The requests that the line answers fail.
func (p *process) tooLong(start []byte) {
	p.conn.skip(start, errLong)
	p.pass(p.long.failed(jsonrpc.ID{}, errLong))
	p.long = envelope{}
}

// pass hands messages to the SDK.
func (p *process) pass(all []message) {
	for _, m := range all {
		for _, m := range p.conn.admit(m) {
			select {
			case p.in <- m.Message:
			case <-p.closed:
			case <-p.conn.life.Done():
			}
		}
	}
}

// ended notes that the server can send nothing more.
func (p *process) ended() { p.quiet.Do(func() { close(p.silent) }) }

// Read implements mcp.Connection: the next message.
func (p *process) Read(context.Context) (jsonrpc.Message, error) {
	select {
	case msg := <-p.in:
		return msg, nil
	default:
	}
	select {
	case msg := <-p.in:
		return msg, nil
	case <-p.closed:
	case <-p.silent:
		select {
		case msg := <-p.in:
			return msg, nil
		default:
		}
	}
	return nil, broken("the server closed its stdout")
}

// Write implements mcp.Connection. It returns when the line is on its way.
func (p *process) Write(_ context.Context, msg jsonrpc.Message) error {
	if resp, ok := msg.(*jsonrpc.Response); ok && p.conn.gate.answer(resp.ID.Raw()) {
		return nil
	}
	p.conn.sends(msg)
	line, err := encode(msg)
	if err != nil {
		return err
	}
	if err := p.Send(append(line, '\n'), false); err != nil {
		return broken("%w", err)
	}
	return nil
}

// Close implements mcp.Connection. The SDK holds a lock while it calls it, so it only
// wakes a Read; the rest is the carrier's part.
func (p *process) Close() error {
	p.shut.Do(func() { close(p.closed) })
	return nil
}

// finish implements carrier: the end of its input, then SIGTERM, as MCP has it.
func (p *process) finish(ctx context.Context, _ *mcp.ClientSession) {
	p.Process.Close()
	p.Await(ctx, termAfter)
	if ctx.Err() == nil {
		_ = p.Signal(syscall.SIGTERM) // where there is no such signal it is killed soon
		p.Await(ctx, CloseGrace)
	}
}

// release implements carrier.
func (p *process) release() {
	<-p.Done()
	if p.home == nil {
		return
	}
	if p.End().State.Code > 0 && !p.conn.up.Load() && p.conn.link.ctx.Err() == nil {
		_ = p.home.SetReady(false) // the installation may be broken; the next start handles it as new
	}
	p.home.Close()
}

// settled notes that the server works with what is installed in its home.
func (p *process) settled() {
	if p.home != nil && !p.home.Ready() {
		_ = p.home.SetReady(true) // after an error, the next start counts as an installation again
	}
}

// filled implements installer: it returns the size of the home, or 0 without an installation.
func (p *process) filled() int64 {
	if p.home == nil || !p.conn.link.cfg.Installs() {
		return 0
	}
	return p.home.Size()
}

// why implements carrier: if the process has ended, its end is the error.
func (p *process) why(err error) error {
	if answer := new(jsonrpc.Error); errors.As(err, &answer) {
		return err // the server answered with an error
	}
	timer := time.NewTimer(endWait)
	defer timer.Stop()
	select {
	case <-p.Done():
	case <-timer.C:
		return err // it runs on
	}
	if p.conn.life.Err() != nil {
		return err // it was killed
	}
	return p.ending()
}

// pid implements carrier.
func (p *process) pid() int { return p.PID() }

// Installs reports whether the program of a stdio server is one that may install the server
// before it runs it.
func (c *Config) Installs() bool {
	if c.Kind() != Stdio {
		return false
	}
	words := append([]string{strings.TrimSuffix(filepath.Base(c.Command), ".exe")}, c.Args...)
	for _, installer := range []string{
		"npx", "npm exec", "npm x", "uvx", "uv tool run", "uv run", "pipx run", "bunx", "bun x", "pnpx", "pnpm dlx",
		"pnpm exec", "yarn dlx",
		"docker run", "podman run", "deno run",
	} {
		if startsWith(words, strings.Fields(installer)) {
			return true
		}
	}
	return false
}

// startsWith reports whether a command line begins with a program and its subcommands. Options, also with a
// value, may stand between them.
func startsWith(words, installer []string) bool {
	if words[0] != installer[0] {
		return false
	}
	rest := words[1:]
	for _, want := range installer[1:] {
		i := slices.Index(rest, want)
		if i < 0 || i > 0 && !strings.HasPrefix(rest[0], "-") {
			return false
		}
		rest = rest[i+1:]
	}
	return true
}

// installer is a carrier that may install the server first. filled returns the bytes that it has installed
// so far, or 0 if it installs nothing.
type installer interface{ filled() int64 }

// expire stops a handshake that takes too long. An installer that still fills its home gets more time.
func (c *conn) expire(done <-chan struct{}, stop func(error)) {
	limit := c.link.cfg.ConnectTimeout
	const parts, most = 4, 5
	tick := time.NewTicker(max(limit/parts, time.Millisecond))
	defer tick.Stop()
	before := int64(0)
	for n := 1; ; n++ {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if n < parts-1 {
			continue
		}
		size := int64(0)
		if i, ok := c.carrier.(installer); ok {
			size = i.filled()
		}
		if n >= parts && (size <= before || n >= most*parts) {
			words := ""
			if p, ok := c.carrier.(*process); ok {
				last, _ := c.link.words.Load().(string)
				words = p.hints(last)
			}
			stop(fmt.Errorf("it did not complete the MCP handshake within %s; start_timeout in its config sets that%s",
				limit*time.Duration(n)/parts, words))
			return
		}
		before = size
	}
}
