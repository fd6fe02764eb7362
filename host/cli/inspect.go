package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"a2e/host/inspect"
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
		return fail(exitUsage, errors.New("--follow: name the record to watch, as in a2e inspect --follow session.ndjson"))
	case i.Port > 65535:
		return fail(exitUsage, fmt.Errorf("--port=%d is out of range: it must be 1 to 65535", i.Port))
	}
	ctx, stop := interruptible()
	defer stop()
	opts := inspect.Options{Port: i.Port, Ready: func(url string) { i.ready(sys, url) }}
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
	if err := tryPlugins(cfg); err != nil { // which tells what in it is secret, too
		return fail(exitConfig, err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	live := inspect.NewLive(inspect.LiveOptions{
		Command: func() *exec.Cmd { return cmd.host(sys, self) },
		Info:    inspect.Info{Mode: inspect.ModeLive, Version: version(), Workspace: absolute(cfg.Workspace), CanSend: true},
		MaxLine: cfg.Limits.MaxLineBytes, Secrets: cfg.Secrets, Environ: sys.Environ,
	})
	if err := live.Start(); err != nil {
		return fail(exitFailed, err)
	}
	defer live.Stop()
	opts.Source, opts.MaxLine = live, cfg.Limits.MaxLineBytes
	return fail(exitTransport, inspect.Serve(ctx, opts))
}

// host is this program serving, with the same config.
func (c *commands) host(sys *System, self string) *exec.Cmd {
	args := []string{"--log-level", c.LogLevel}
	if c.Config != "" {
		args = append(args, "--config="+c.Config)
	}
	host := exec.Command(self, append(args, "serve")...)
	host.Env = sys.Environ
	return host
}

// ready tells the address. A second signal, or a browser that cannot be started, is none of the page's.
func (i inspectCmd) ready(sys *System, url string) {
	fmt.Fprintf(sys.Out, "%s (Ctrl+C ends it)\n", url)
	if !i.Open {
		return
	}
	name, args := browser()
	if err := exec.CommandContext(context.Background(), name, append(args, url)...).Start(); err != nil {
		sys.warn("the page cannot be opened: " + err.Error())
	}
}

// browser is the command that opens an address.
func browser() (name string, args []string) {
	switch runtime.GOOS {
	case "darwin":
		return "open", nil
	case "windows":
		return "rundll32", []string{"url.dll,FileProtocolHandler"}
	}
	return "xdg-open", nil
}
