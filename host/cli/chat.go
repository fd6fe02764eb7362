package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/jsonrpc"
	"a2e/plugins"
	wire "a2e/protocol/jsonrpc"
)

type chatCmd struct {
	Session  string `arg:"" optional:"" help:"The chat to continue, by its id or its beginning; see /history."`
	Continue bool   `help:"Continue the last conversation of this folder."`
	Yes      bool   `short:"y" help:"Do not ask before a tool changes something."`
	llmFlags
}

// Run talks to the host's worker until the person ends the chat, or sends one message if there is no terminal.
func (c chatCmd) Run(cmd *commands, sys *System) (err error) {
	if c.Session != "" && c.Continue {
		return fail(exitUsage, errors.New("--continue: is for the last conversation; leave it out, or the name of "+
			"another one"))
	}
	if err := c.check(); err != nil {
		return fail(exitUsage, err)
	}
	if c.Model != "" && c.LLM == "" {
		return fail(exitUsage, errors.New("--model: is for --llm; /model selects one of the config's"))
	}
	if thrownAway(sys.Out.File) {
		sys.warn(unreadNote)
	}
	ctx, stop := interruptible()
	defer stop()
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return err
	}
	if err := c.equip(cfg, sys, ""); err != nil {
		return fail(exitConfig, err)
	}
	cfg.AuthToken, cfg.Auth = config.Secret{}, nil // the tokens are for agents
	log, closeLog, err := cmd.openLog(sys)
	if err != nil {
		return err
	}
	defer closeLog()
	talk := &chat{
		chatCmd: &c, sys: sys, cfg: cfg, screen: &chatScreen{out: sys.Out.File}, over: make(chan struct{}, 1),
		calls: make(map[string]*chatCall), asked: make(map[string]context.CancelFunc), always: make(map[string]bool),
	}
	talk.live = isatty.IsTerminal(sys.In.Fd()) && isatty.IsTerminal(sys.Out.Fd()) && sys.getenv("TERM") != "dumb"
	if talk.live && cmd.LogFile == "" {
		log = zerolog.Nop() // its lines would mix with the text on the screen
	}
	fromChat, toHost := io.Pipe()
	fromHost, toChat := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := serveWith(cfg, hostOptions(cfg, log), speakSessions, sys, fromChat, toChat)
		toChat.CloseWithError(io.EOF)
		fromChat.CloseWithError(io.ErrClosedPipe) // a host that did not start reads no request
		served <- err
	}()
	talk.host = newRPC(toHost, fromHost, func(kind wire.EventType, payload jsontext.Value) {
		talk.event(ctx, kind, payload)
	})
	err = talk.run(ctx)
	_ = toHost.Close()
	if wrong := <-served; wrong != nil {
		return wrong // the reason why a host did not start
	}
	return err
}

// speakSessions makes a host speak only JSON-RPC. The client is the process that started the host,
// so it needs no token.
func speakSessions(cfg *config.Config, opts *host.Options, deps *plugins.Deps) {
	opts.Dialects, opts.Only = []host.Dialect{jsonrpc.New(rpcOptions(cfg, opts, deps.Shared))}, true
}

// chat is a conversation with a worker in a session of the host.
type chat struct {
	*chatCmd
	sys     *System
	cfg     *config.Config
	host    *rpcConn
	session string
	live    bool        // a person types and reads at a terminal; false = one message is sent and its answer printed
	screen  *chatScreen // shows nothing unless live is set
	person  *person     // the person at the screen

	over chan struct{} // receives a value at the end of each turn
	runs atomic.Bool   // a command is running

	mu      sync.Mutex // guards the fields below; locked before the mutex of screen
	busy    bool       // a message was sent, or a worker is working
	begun   bool       // the worker has started on that message
	turn    chatTurn
	calls   map[string]*chatCall          // running calls
	asked   map[string]context.CancelFunc // questions without an answer
	always  map[string]bool               // calls that the person always allows
	pressed int                           // how often Ctrl-C was pressed without effect
}

// call sends a request about the session.
func (t *chat) call(ctx context.Context, method string, params map[string]any, result any) error {
	all := map[string]any{"session_id": t.session}
	maps.Copy(all, params)
	return t.host.call(ctx, method, all, result)
}

// run continues a conversation or starts one, and leads it to its end.
func (t *chat) run(ctx context.Context) error {
	var made struct {
		ID string `json:"session_id"`
	}
	hello := map[string]any{
		"client_name": "a2e chat", "client_version": version(), "protocol_version": wire.Protocol, "strict": true,
	}
	if t.live {
		hello["questions"] = []string{jsonrpc.QuestionTool, jsonrpc.QuestionForm}
	}
	err := t.host.call(ctx, wire.Handshake, hello, nil)
	if err == nil {
		err = t.host.call(ctx, wire.SessionCreate, map[string]any{}, &made)
	}
	t.mu.Lock()
	t.session = made.ID
	t.mu.Unlock()
	which := t.Session
	if t.Continue {
		which = "last"
	}
	if err == nil && which != "" {
		_, err = t.command(ctx, "/history "+which)
	}
	switch {
	case err != nil:
		return fail(exitFailed, err)
	case t.live:
		return t.interact(ctx)
	}
	return t.once(ctx)
}

// once sends all of stdin as one message and prints the answer.
func (t *chat) once(ctx context.Context) error {
	if isatty.IsTerminal(t.sys.In.Fd()) {
		say(t.sys.Err, "a2e chat sends all that is typed here as one message, once Ctrl-D has ended it; --help "+
			"tells more.")
	}
	read := make(chan string, 1)
	failed := make(chan error, 1)
	go func() { // a read that does not end is ended by the process
		if text, err := io.ReadAll(t.sys.In); err != nil {
			failed <- err
		} else {
			read <- string(text)
		}
	}()
	for {
		select {
		case text := <-read:
			if strings.TrimSpace(text) == "" {
				return fail(exitUsage, errors.New("stdin holds no message; a2e chat sends all of it as one"))
			}
			if err := t.send(ctx, text); err != nil {
				return fail(exitFailed, err)
			}
		case <-t.over:
			return t.answer()
		case err := <-failed:
			return fail(exitFailed, err)
		case <-t.host.gone:
			return fail(exitFailed, errHostEnded)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// answer prints the answer of the turn that has ended. It returns an error if the turn failed.
func (t *chat) answer() error {
	t.mu.Lock()
	answer, failed := t.turn.answer, t.turn.failed
	t.mu.Unlock()
	if isatty.IsTerminal(t.sys.Out.Fd()) {
		answer = seen(answer)
	}
	if answer != "" {
		fmt.Fprintln(t.sys.Out, strings.TrimSuffix(answer, "\n"))
	}
	if failed != "" {
		return fail(exitFailed, errors.New(failed))
	}
	return nil
}

// interact handles the typed messages until the end of the input.
func (t *chat) interact(ctx context.Context) error {
	past := openChatLines(t.cfg)
	defer past.close()
	err := t.screen.open(t.sys.In, t.sys.getenv("NO_COLOR") == "", past)
	if err != nil {
		return fail(exitTransport, err)
	}
	defer t.screen.close()
	t.screen.interrupt = func(typed bool) bool { return t.interrupted(ctx, typed) }
	t.screen.words = func(before string) (string, []string) { return t.words(ctx, before) }
	t.person = newPerson(t.sys)
	t.person.out, t.person.prompt = t.screen, t.screen.ask
	t.greet(ctx)
	typed := make(chan string, 256)
	t.screen.prompt(true)
	go t.screen.lines(t.sys.In, typed)
	for {
		select {
		case line, ok := <-typed:
			if ok && !t.input(ctx, line) {
				continue
			}
			if t.isBusy() { // nobody waits for the worker any longer
				_ = t.call(ctx, wire.SessionInterrupt, nil, nil) // it may just have ended
			}
			return nil
		case <-t.host.gone:
			return fail(exitFailed, errHostEnded)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *chat) isBusy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.busy
}

// interrupted handles Ctrl-C: it interrupts the worker, dismisses a question, or discards the typed
// text. The second Ctrl-C in a row without effect ends the chat.
func (t *chat) interrupted(ctx context.Context, typed bool) (end bool) {
	busy := t.isBusy() || t.runs.Load()
	dismissed := !busy && t.screen.dismiss()
	t.mu.Lock()
	if t.pressed++; busy || typed || dismissed {
		t.pressed = 0
	}
	pressed := t.pressed
	t.mu.Unlock()
	switch {
	case busy:
		go func() { _ = t.call(ctx, wire.SessionInterrupt, nil, nil) }()
	case pressed == 1:
		t.screen.line(styleDim, "Ctrl-C once more, or Ctrl-D, ends the chat")
	}
	return pressed > 1
}

// input executes a typed line. It reports whether the chat is over.
func (t *chat) input(ctx context.Context, text string) (end bool) {
	t.mu.Lock()
	t.pressed = 0
	t.mu.Unlock()
	var err error
	switch name, rest, _ := strings.Cut(strings.TrimSpace(text), " "); {
	case slices.Contains([]string{"/quit", "/exit"}, strings.ToLower(name)):
		return true
	case strings.HasPrefix(name, "/"):
		err = t.slash(ctx, name, strings.TrimSpace(rest), text)
	default:
		err = t.send(ctx, text)
	}
	if err != nil {
		t.screen.say(styleBad, err.Error())
	}
	if !t.isBusy() {
		t.screen.prompt(true)
	}
	return false
}

// send sends a message with the files that it names. A worker that is working gets it at once. If
// the worker does not accept it, or if there are images, it becomes the next message.
func (t *chat) send(ctx context.Context, text string) error {
	text, images, err := t.include(text)
	if err != nil {
		return err
	}
	t.mu.Lock()
	was := t.busy
	if t.busy = true; !was {
		t.begun, t.turn = false, chatTurn{}
	}
	t.mu.Unlock()
	params := map[string]any{"text": text}
	if len(images) > 0 {
		params["images"] = images
	} else if was {
		var told struct {
			Accepted bool `json:"accepted"`
		}
		if err := t.call(ctx, wire.SessionSteer, params, &told); err != nil || told.Accepted {
			return err
		}
	}
	if was {
		params["enqueue"] = true
	}
	err = t.call(ctx, wire.SessionSend, params, nil)
	if err != nil && !was {
		t.mu.Lock()
		t.busy = false
		t.mu.Unlock()
	}
	return err
}
