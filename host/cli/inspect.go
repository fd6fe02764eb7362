package cli

import (
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"a2e/host/cli/inspect"
	"a2e/host/cli/record"
	"a2e/protocol"
)

type inspectCmd struct {
	File   string `arg:"" optional:"" help:"A record, as serve --record writes it. Default: a host is started for the page."`
	Follow bool   `help:"Watch a record that a host writes right now, or will."`
	Port   int    `placeholder:"N" help:"Port on 127.0.0.1. Default: one that is free."`
	Open   bool   `help:"Open the page in the browser."`
}

// Run serves the page until a signal.
func (i inspectCmd) Run(cmd *commands, sys *System) error {
	switch {
	case i.Follow && i.File == "":
		return fail(exitUsage, errors.New("--follow: name the record to watch, as in a2e inspect --follow "+
			"session.ndjson"))
	case i.Port > 65535:
		return fail(exitUsage, fmt.Errorf("--port=%d is out of range: it must be 1 to 65535", i.Port))
	}
	ctx, stop := interruptible()
	defer stop()
	var page redirect
	defer page.remove()
	opts := inspect.Options{Port: i.Port, Ready: func(url string) { i.ready(sys, &page, url) }, Seen: page.remove}
	if i.File != "" {
		file, err := inspect.OpenFile(i.File, i.Follow)
		if err != nil {
			return fail(exitFailed, err)
		}
		opts.Source = file
		return fail(exitTransport, inspect.Serve(ctx, opts))
	}
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return err
	}
	if err := tryPlugins(cfg); err != nil { // this also finds the secrets of the config
		return fail(exitConfig, err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	live := inspect.NewLive(inspect.LiveOptions{
		Command: func() *exec.Cmd { return cmd.host(sys, self) },
		Info: inspect.Info{
			Mode: inspect.ModeLive, Version: version(), Workspace: absolute(cfg.Workspace),
			CanSend: true,
		},
		MaxLine: cfg.Limits.MaxLineBytes, Secrets: cfg.Secrets, Environ: sys.Environ,
	})
	if err := live.Start(); err != nil {
		return fail(exitFailed, err)
	}
	defer live.Stop()
	saved, err := cmd.chainPlugin(sys, func(string) {})
	if err != nil {
		return err
	}
	opts.Source, opts.MaxLine, opts.Chains = live, cfg.Limits.MaxLineBytes, saved
	return fail(exitTransport, inspect.Serve(ctx, opts))
}

// host returns a command that runs this program as a host with the same config.
func (c *commands) host(sys *System, self string) *exec.Cmd {
	args := []string{"--log-level", c.logLevel()}
	if c.Config != "" {
		args = append(args, "--config="+c.Config)
	}
	host := exec.Command(self, append(args, "serve")...)
	host.Env = sys.Environ
	return host
}

// ready prints the address of the page, and opens the page if asked to. A browser that cannot be started is only a
// warning, and a running browser does not end with the page.
func (i inspectCmd) ready(sys *System, page *redirect, url string) {
	fmt.Fprintf(sys.Out, "%s (Ctrl+C ends it)\n", url)
	if !i.Open {
		return
	}
	name, args := browser()
	file, err := page.write(url)
	if err == nil {
		err = exec.CommandContext(context.Background(), name, append(args, file)...).Start()
	}
	if err != nil {
		page.remove()
		sys.warn("the page cannot be opened: " + err.Error())
	}
}

// redirect is a file that sends a browser to an address with a secret in it: every user of the
// machine can read the arguments of a program, but only the owner can read this file. It is safe
// for concurrent use.
type redirect struct {
	mu  sync.Mutex
	dir string // the folder of the file; "" = there is none; guarded by mu
}

// write creates the file in a folder of its own and returns the path of the file.
func (r *redirect) write(url string) (file string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir, err = os.MkdirTemp("", "a2e-inspect-*"); err != nil { // mode 0700
		return "", err
	}
	file = filepath.Join(r.dir, "open.html")
	text := `<!doctype html><meta charset="utf-8"><title>a2e inspect</title>` +
		`<meta http-equiv="refresh" content="0; url=%[1]s"><a href="%[1]s">a2e inspect</a>` + "\n"
	return file, os.WriteFile(file, fmt.Appendf(nil, text, html.EscapeString(url)), 0o600)
}

// remove removes the file and its folder.
func (r *redirect) remove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir != "" {
		_ = os.RemoveAll(r.dir) // if it cannot be removed, still only its owner can read it
		r.dir = ""
	}
}

// browser returns the command that opens an address.
func browser() (name string, args []string) {
	switch runtime.GOOS {
	case "darwin":
		return "open", nil
	case "windows":
		return "rundll32", []string{"url.dll,FileProtocolHandler"}
	}
	return "xdg-open", nil
}

type replayCmd struct {
	File    string   `arg:"" help:"The record, as serve --record writes it."`
	Timeout float64  `default:"30" placeholder:"SECONDS" help:"Seconds to wait for each answer. Default: ${default}."`
	Ignore  []string `sep:"none" placeholder:"PATH" help:"Do not compare what is there, such as data.text, components[].score or score for all of that name; may be given several times."`
	JSON    bool     `name:"json" help:"Print the report as JSON."`
	Command []string `arg:"" optional:"" passthrough:"partial" help:"The host to play it against, behind --. Default: this program serves."`
}

// Run plays the record and prints where the answers differ.
func (r replayCmd) Run(cmd *commands, sys *System) error {
	if len(r.Command) > 0 && r.Command[0] == "--" { // kong leaves the -- in
		r.Command = r.Command[1:]
	}
	opts := record.PlayOptions{
		Timeout: time.Duration(r.Timeout * float64(time.Second)), Ignore: r.Ignore, Workspace: absolute("."),
	}
	if len(r.Command) > 0 {
		opts.Command = exec.Command(r.Command[0], r.Command[1:]...)
	} else {
		cfg, err := cmd.loadAloud(sys)
		if err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		opts.Command, opts.Workspace, opts.Token = cmd.host(sys, self), absolute(cfg.Workspace), cfg.AuthToken.Reveal()
	}
	ctx, stop := interruptible()
	defer stop()
	report, err := record.Play(ctx, r.File, opts)
	if err != nil {
		return fail(exitFailed, err)
	}
	if r.JSON {
		err = printJSON(sys.Out, report)
	} else {
		err = printReport(sys, report)
	}
	if err == nil && len(report.Different) > 0 {
		err = fail(exitFailed, fmt.Errorf("%d of %s answered differently than recorded", len(report.Different),
			protocol.Count(report.Requests, "request")))
	}
	return err
}

// printReport prints the differences, with a line for each place.
func printReport(sys *System, report *record.Report) error {
	var b strings.Builder
	for _, r := range report.Different {
		fmt.Fprintf(&b, "entry %d, %s\n", r.Entry, oneLine(r.Request))
		if r.Problem != "" {
			fmt.Fprintf(&b, "  %s\n", r.Problem)
		}
		for _, d := range r.Differences {
			fmt.Fprintf(&b, "  %s\n", escapeUnseen([]byte(d.String())))
		}
	}
	for _, note := range report.Notes {
		say(sys.Err, "note: %s", note)
	}
	if len(report.Different) == 0 {
		fmt.Fprintf(&b, "%s, all answered as recorded\n", protocol.Count(report.Requests, "request"))
	}
	_, err := sys.Out.WriteString(b.String())
	return err
}
