package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/jsonrpc"
	"a2e/plugins"
	"a2e/protocol"
	wire "a2e/protocol/jsonrpc"
)

// chatClient is what the host knows `a2e chat` as.
const chatClient = "a2e chat"

type chatCmd struct {
	Session  string   `arg:"" optional:"" help:"The chat to continue, by its id or its beginning; see /history."`
	Continue bool     `help:"Continue the last conversation of this folder."`
	Image    []string `sep:"none" placeholder:"FILE" help:"An image for the first message; may be given several times."`
	llmFlags
}

// Run talks to the host's worker until the person ends it, or hands it one message.
func (c chatCmd) Run(cmd *commands, sys *System) (err error) {
	if c.Session != "" && c.Continue {
		return fail(exitUsage, errors.New("--continue: is for the last conversation; leave it out, or the name of another one"))
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
	cfg.AuthToken, cfg.Auth = config.Secret{}, nil // they are any agent's
	log, closeLog, err := cmd.openLog(sys)
	if err != nil {
		return err
	}
	defer closeLog()
	if c.onTerminal(sys) && cmd.LogFile == "" {
		log = zerolog.Nop() // its lines would run through what is written
	}
	fromChat, toHost := io.Pipe()
	fromHost, toChat := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := serveWith(cfg, hostOptions(cfg, log), speakSessions, sys, fromChat, toChat)
		toChat.CloseWithError(io.EOF)
		fromChat.CloseWithError(io.ErrClosedPipe) // a host that did not begin reads no request
		served <- err
	}()
	talk := &chat{sys: sys, over: make(chan struct{}, 1), calls: make(map[string]chatCall)}
	talk.host = &rpcConn{to: toHost, event: talk.event, gone: make(chan struct{})}
	go talk.host.read(fromHost)
	err = talk.run(ctx, &c)
	_ = toHost.Close()
	if wrong := <-served; wrong != nil {
		return wrong // why a host that did not begin ended
	}
	return err
}

// onTerminal reports whether a person types at a terminal and reads there.
func (c *chatCmd) onTerminal(sys *System) bool {
	return isatty.IsTerminal(sys.In.Fd()) && isatty.IsTerminal(sys.Out.Fd()) && sys.getenv("TERM") != "dumb"
}

// speakSessions has a host speak JSON-RPC and nothing else, to whoever started it.
func speakSessions(cfg *config.Config, opts *host.Options, deps *plugins.Deps) {
	opts.Dialects, opts.Only = []host.Dialect{jsonrpc.New(rpcOptions(cfg, opts, deps.Shared))}, true
}

// chat is a conversation with a worker by a session of the host.
type chat struct {
	sys     *System
	host    *rpcConn
	session string
	screen  *chatScreen // nil = one message is sent, and its answer printed
	images  []string    // files that go with the next message

	over chan struct{} // told of the end of each turn

	mu    sync.Mutex // guards the fields below
	busy  bool       // a message is on its way, or a worker at work
	begun bool       // of that: the worker is at work
	runs  bool       // a command
	turn  chatTurn
	calls map[string]chatCall // under way
	asked int                 // how often Ctrl-C was pressed for nothing
}

// run goes on with a conversation or begins one, and has it out.
func (t *chat) run(ctx context.Context, c *chatCmd) error {
	for _, file := range c.Image {
		if err := t.attach(file); err != nil {
			return fail(exitUsage, err)
		}
	}
	var made struct {
		ID string `json:"session_id"`
	}
	err := t.host.call(ctx, wire.Handshake, map[string]any{"client_name": chatClient, "client_version": version(), "protocol_version": wire.Protocol, "strict": true}, nil)
	if err == nil {
		err = t.host.call(ctx, wire.SessionCreate, map[string]any{}, &made)
	}
	t.mu.Lock()
	t.session = made.ID
	t.mu.Unlock()
	if err == nil && (c.Session != "" || c.Continue) {
		which := c.Session
		if c.Continue {
			which = "last"
		}
		_, err = t.command(ctx, "/history "+which)
	}
	if err != nil {
		return fail(exitFailed, err)
	}
	if !c.onTerminal(t.sys) {
		return t.once(ctx)
	}
	return t.interact(ctx, c)
}

// once sends all of stdin as one message and prints the answer.
func (t *chat) once(ctx context.Context) error {
	if isatty.IsTerminal(t.sys.In.Fd()) {
		say(t.sys.Err, "a2e chat sends all that is typed here as one message, once Ctrl-D has ended it; --help tells more.")
	}
	var text []byte
	read := make(chan error, 1)
	go func() { // a read that nobody ends ends with the process
		all, err := io.ReadAll(t.sys.In)
		text = all
		read <- err
	}()
	select {
	case err := <-read:
		if err != nil {
			return fail(exitFailed, err)
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if strings.TrimSpace(string(text)) == "" && len(t.images) == 0 {
		return fail(exitUsage, errors.New("stdin holds no message; a2e chat sends what it reads there, all of it, as one"))
	}
	if err := t.send(ctx, string(text), nil); err != nil {
		return fail(exitFailed, err)
	}
	select {
	case <-t.over:
	case <-t.host.gone:
		return fail(exitFailed, errors.New("the host has ended"))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.mu.Lock()
	turn := t.turn
	t.mu.Unlock()
	if turn.answer != "" {
		answer := turn.answer
		if isatty.IsTerminal(t.sys.Out.Fd()) {
			answer = seen(answer)
		}
		fmt.Fprintln(t.sys.Out, strings.TrimSuffix(answer, "\n"))
	}
	if turn.failed != "" {
		return fail(exitFailed, errors.New(turn.failed))
	}
	return nil
}

// interact takes what is typed until the end of the input.
func (t *chat) interact(ctx context.Context, c *chatCmd) error {
	screen, err := newChatScreen(t.sys.In, t.sys.Out.File, t.sys.getenv("NO_COLOR") == "")
	if err != nil {
		return fail(exitTransport, err)
	}
	defer screen.restore()
	screen.interrupt = func(typed bool) bool { return t.interrupted(ctx, typed) }
	t.screen = screen
	t.greet(ctx, c)
	typed := make(chan string, 256)
	screen.idle = true
	screen.term.SetPrompt(chatPrompt)
	go screen.lines(typed)
	for {
		select {
		case line, ok := <-typed:
			if !ok || t.input(ctx, line) {
				t.leave(ctx)
				return nil
			}
		case <-t.host.gone:
			return fail(exitFailed, errors.New("the host has ended"))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave stops a worker at work: nobody waits for it any more.
func (t *chat) leave(ctx context.Context) {
	t.mu.Lock()
	busy := t.busy
	t.mu.Unlock()
	if busy {
		_ = t.host.call(ctx, wire.SessionInterrupt, t.of(nil), nil) // it may just have ended
	}
}

// of returns parameters of a method on the session.
func (t *chat) of(params map[string]any) map[string]any {
	if params == nil {
		params = make(map[string]any)
	}
	params["session_id"] = t.session
	return params
}

// interrupted is Ctrl-C: it interrupts the worker, or takes back what is typed; twice for nothing
// ends the chat.
func (t *chat) interrupted(ctx context.Context, typed bool) (end bool) {
	t.mu.Lock()
	busy := t.busy || t.runs
	if t.asked++; busy || typed {
		t.asked = 0
	}
	asked := t.asked
	t.mu.Unlock()
	switch {
	case busy:
		go func() { _ = t.host.call(ctx, wire.SessionInterrupt, t.of(nil), nil) }()
	case asked == 1:
		t.screen.line(styleDim, "Ctrl-C once more, or Ctrl-D, ends the chat")
	}
	return asked > 1
}

// input does what is typed; true = the chat is over.
func (t *chat) input(ctx context.Context, text string) (end bool) {
	t.mu.Lock()
	t.asked = 0
	busy := t.busy
	t.mu.Unlock()
	name, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	var err error
	switch {
	case name == "/quit" || name == "/exit":
		return true
	case name == "/image":
		if err = t.attach(strings.TrimSpace(rest)); err == nil {
			t.screen.line(styleDim, protocol.Count(len(t.images), "image")+" for the next message")
		}
	case strings.HasPrefix(name, "/"):
		err = t.slash(ctx, name, strings.TrimSpace(rest), text)
	case busy:
		err = t.steer(ctx, text)
	default:
		if err = t.send(ctx, text, nil); err == nil {
			return false
		}
	}
	if err != nil {
		t.screen.line(styleBad, err.Error())
	}
	t.mu.Lock()
	busy = t.busy
	t.mu.Unlock()
	if !busy {
		t.screen.ready()
	}
	return false
}

// steer gives a text to the worker at work; one that ended meanwhile gets it as the next message.
func (t *chat) steer(ctx context.Context, text string) error {
	var told struct {
		Accepted bool `json:"accepted"`
	}
	if len(t.images) == 0 {
		if err := t.host.call(ctx, wire.SessionSteer, t.of(map[string]any{"text": text}), &told); err != nil || told.Accepted {
			return err
		}
	}
	return t.send(ctx, text, map[string]any{"enqueue": true})
}

// send sends a message with the images that go with it.
func (t *chat) send(ctx context.Context, text string, params map[string]any) error {
	images := []map[string]any{}
	for _, file := range append(t.images, mentioned(text)...) {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		kind := imageKind(file)
		images = append(images, map[string]any{"path": file, "mime_type": kind, "data_url": "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(data)})
	}
	if params = t.of(params); len(images) > 0 {
		params["images"] = images
	}
	params["text"] = text
	t.mu.Lock()
	was := t.busy
	if t.busy = true; !was {
		t.begun, t.turn = false, chatTurn{}
	}
	t.mu.Unlock()
	err := t.host.call(ctx, wire.SessionSend, params, nil)
	if err != nil && !was {
		t.mu.Lock()
		t.busy = false
		t.mu.Unlock()
	}
	if err == nil {
		t.images = nil
	}
	return err
}

// attach has an image go with the next message.
func (t *chat) attach(file string) error {
	if imageKind(file) == "" {
		return fmt.Errorf("%q is not an image that a model takes: its name should end in .png, .jpg, .jpeg, .webp "+
			"or .gif", file)
	}
	path, err := imageFile(file)
	if err == nil {
		t.images = append(t.images, path)
	}
	return err
}

// imageKind returns the type of an image by the ending of its file; "" = it is none.
func imageKind(file string) string { return jsonrpc.ImageTypes()[strings.ToLower(filepath.Ext(file))] }

// imageFile returns the absolute path of a file that can be read to its end.
func imageFile(file string) (string, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%q is not a regular file", file)
	}
	return path, err
}

// mentioned returns the images that a text names as @FILE.
func mentioned(text string) (files []string) {
	for word := range strings.FieldsSeq(text) {
		if file, ok := strings.CutPrefix(word, "@"); ok && imageKind(file) != "" {
			if path, err := imageFile(file); err == nil {
				files = append(files, path)
			}
		}
	}
	return files
}
