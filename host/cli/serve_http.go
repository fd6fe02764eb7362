package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/a2a"
	"a2e/host/dialect/httpd"
	"a2e/host/dialect/mcp"
	"a2e/host/guard/auth"
	"a2e/host/observe/event"
	"a2e/host/observe/metrics"
	"a2e/plugins"
)

// serveHTTP serves clients over HTTP until a signal: clients of sessions, or if worker is set only
// clients of A2A. The functions of adapt change the config after it was read.
func (cmd *commands) serveHTTP(sys *System, address string, worker bool,
	adapt ...func(*config.Config) error,
) (err error) {
	log, closeLog, err := cmd.openLog(sys)
	if err != nil {
		return err
	}
	defer closeLog()
	cfg, err := cmd.load(sys, func(w string) { log.Warn().Msg(w) })
	if err != nil {
		return err
	}
	for _, change := range adapt {
		if err := change(cfg); err != nil {
			return fail(exitConfig, err)
		}
	}
	listener, scheme, err := listen(cfg.HTTP, address)
	if err != nil {
		return fail(listenCode(err), err)
	}
	defer listener.Close()
	opts := hostOptions(cfg, log)
	shared, closeShared, err := equip(&opts, cfg, sys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeShared()) }()
	made, err := plugins.New(cfg, plugins.Deps{
		Log:    log,
		Shared: shared,
	}) // errors of the plugins are reported now, not by each session
	if err != nil {
		return fail(exitConfig, err)
	}
	closePlugins(made)
	served := sessionOptions(cfg, opts, shared, httpd.Loopback(listener.Addr().String()))
	endAgent := func(context.Context) {}
	if worker || cfg.Fleet.Given() {
		agent := a2a.New(agentOptions(cfg, opts, shared))
		served.Agent, endAgent = agent, agent.Close
	}
	if worker {
		served.Serve = nil
	}
	sessions := httpd.New(served)
	say(sys.Err, "a2e listens on %s://%s", scheme, listener.Addr())
	return serveSessions(sys, listener, sessions, func(ctx context.Context) {
		endAgent(ctx)
		sessions.Close(ctx)
	})
}

// listen opens the address, with TLS if the config has a certificate.
func listen(cfg config.HTTP, address string) (listener net.Listener, scheme string, err error) {
	if (cfg.TLSCert == "") != (cfg.TLSKey == "") {
		return nil, "", errors.New("http.tls_cert and http.tls_key go together: one is the certificate, the other " +
			"its key")
	}
	listener, err = net.Listen("tcp", address)
	if err != nil {
		err = fmt.Errorf("--http %s: %w", address, err)
		if listenCode(err) == exitUsage {
			err = fmt.Errorf("%w; an address is HOST:PORT, such as 127.0.0.1:8765", err)
		}
		return nil, "", err
	}
	if at := listener.Addr().String(); cfg.Token.Reveal() == "" && !httpd.Loopback(at) {
		listener.Close()
		return nil, "", fmt.Errorf("%s can be reached by other machines, so it needs a token: set http: {token: "+
			"${A2E_HTTP_TOKEN}} in the config, or listen on 127.0.0.1", at)
	}
	if cfg.TLSCert == "" {
		return listener, "http", nil
	}
	cert, err := tls.LoadX509KeyPair(cfg.TLSCert, cfg.TLSKey)
	if err != nil {
		listener.Close()
		return nil, "", fmt.Errorf("http.tls_cert, http.tls_key: %w", err)
	}
	return tls.NewListener(listener, &tls.Config{
		Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
	}), "https", nil
}

// closingAtOnce is how many sessions may close their plugins at the same time.
const closingAtOnce = 32

// hosts are the hosts of the sessions.
type hosts struct {
	mu  sync.Mutex
	all map[*host.Host]struct{} // guarded by mu
}

// enter adds a host until leave is called.
func (s *hosts) enter(h *host.Host) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[h] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, h)
	}
}

// load returns the sum of the Load of all hosts.
func (s *hosts) load() (open, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.all {
		o, w := h.Load()
		open, waiting = open+o, waiting+w
	}
	return open, waiting
}

// agentOptions returns the options of the A2A endpoint, which has one host for all tasks. A client
// that had to send http.token needs no other token; otherwise it sends one of the host's.
func agentOptions(cfg *config.Config, opts host.Options, shared *plugins.Shared) a2a.Options {
	if cfg.HTTP.Token.Reveal() != "" {
		opts.Tokens = nil
	}
	cfg.Fleet.Announce = config.AnnounceStartup
	made := a2a.Options{
		Serve: func(ctx context.Context, in io.Reader, out io.Writer) error {
			h, err := newHost(cfg, opts, speakFleet, shared)
			if err != nil {
				return err
			}
			defer context.AfterFunc(ctx, h.Interrupt)()
			return h.Serve(in, out)
		},
		Version: version(), MaxBytes: cfg.Limits.MaxLineBytes, Log: opts.Log,
		Secured:  cfg.HTTP.Token.Reveal() != "" || len(opts.Tokens) > 0,
		Patience: time.Duration(cfg.Fleet.AnswerWithin * float64(time.Second)),
		ReplyURL: cfg.Fleet.ReplyURL, ReplyKey: cfg.Fleet.ReplyToken.Reveal(),
	}
	if tokens := opts.Tokens; len(tokens) > 0 {
		made.Admit = func(token string) (string, bool) { return tokens.Admit(token, "") }
	}
	return made
}

// sessionOptions says how to serve sessions. Each session has a host with its own plugins; these
// share the store and the launcher of child processes.
func sessionOptions(cfg *config.Config, opts host.Options, shared *plugins.Shared, loopback bool) httpd.Options {
	opts.Closing, opts.Buffers = make(chan struct{}, closingAtOnce), new(sync.Pool)
	web := speakWebMCP(new(mcp.Tables))
	live, open := &hosts{all: make(map[*host.Host]struct{})}, new(atomic.Int64)
	var page http.Handler
	if cfg.HTTP.Metrics {
		counts := metrics.New(metrics.Options{
			Version: version(), Processes: shared.Processes, Load: live.load,
			Sessions: func() int { return int(open.Load()) },
		})
		opts.Events, page = opts.Events.With(counts, event.Request), counts
	}
	served := httpd.Options{
		Serve: func(ctx context.Context, speaks httpd.Protocol, in io.Reader, out io.Writer) error {
			open.Add(1)
			defer open.Add(-1)
			speak := speakAll
			switch speaks {
			case httpd.MCP:
				speak = web
			case httpd.Call:
				speak = speakCall
			}
			h, err := newHost(cfg, opts, speak, shared)
			if err != nil {
				return err
			}
			defer live.enter(h)()
			defer context.AfterFunc(ctx, h.Interrupt)()
			if err := h.Serve(in, out); !errors.Is(err, host.ErrOutputClosed) {
				return err
			}
			return nil
		},
		Loopback: loopback, Origins: cfg.HTTP.Origins, MaxSessions: cfg.HTTP.MaxSessions,
		MaxLine: cfg.Limits.MaxLineBytes,
		Idle:    time.Duration(cfg.HTTP.IdleSeconds) * time.Second, Metrics: page, Log: opts.Log,
	}
	if token := cfg.HTTP.Token.Reveal(); token != "" {
		served.Tokens = auth.Tokens{auth.New(token, "")}
	}
	return served
}

const (
	headerTimeout = 10 * time.Second // for the head of a request
	lastAnswers   = 2 * time.Second  // for streams to deliver the last messages
)

// serveSessions serves until a signal. Then the sessions end like a host on a pipe.
func serveSessions(sys *System, listener net.Listener, sessions http.Handler, end func(context.Context)) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	defer handleSignals(stop, sys.Exit)()
	server := &http.Server{
		Handler: sessions, ReadHeaderTimeout: headerTimeout, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	hasty, cancel := context.WithCancel(context.Background())
	cancel()
	end(hasty)
	last, done := context.WithTimeout(context.Background(), lastAnswers)
	defer done()
	ended := server.Shutdown(last)
	if errors.Is(ended, context.DeadlineExceeded) { // some client had not read everything
		ended = nil
	}
	return fail(exitTransport, cmp.Or(err, ended, server.Close()))
}
