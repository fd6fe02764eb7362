package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"a2e/host/replay"
)

type replayCmd struct {
	File    string   `arg:"" help:"The record, as serve --record writes it."`
	Timeout float64  `default:"30" placeholder:"SECONDS" help:"Seconds to wait for each answer. Default: ${default}."`
	Ignore  []string `sep:"none" placeholder:"PATH" help:"Do not compare what is there, such as data.text, components[].score or score for all of that name; may be given several times."`
	JSON    bool     `name:"json" help:"Print the report as JSON."`
	Command []string `arg:"" optional:"" passthrough:"partial" help:"The host to play it against, behind --. Default: this program serves."`
}

// Run plays the record and prints where the answers differ.
func (r replayCmd) Run(cmd *commands, sys *System) error {
	if len(r.Command) > 0 && r.Command[0] == "--" { // kong leaves it in
		r.Command = r.Command[1:]
	}
	opts := replay.Options{Timeout: time.Duration(r.Timeout * float64(time.Second)), Ignore: r.Ignore, Workspace: absolute(".")}
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
	report, err := replay.Play(ctx, r.File, opts)
	if err != nil {
		return fail(exitFailed, err)
	}
	if r.JSON {
		err = printJSON(sys.Out, report)
	} else {
		err = printReport(sys, report)
	}
	if err == nil && len(report.Different) > 0 {
		err = fail(exitFailed, fmt.Errorf("%d of %d requests are answered otherwise than they were", len(report.Different), report.Requests))
	}
	return err
}

// printReport says what differs, a line for each place.
func printReport(sys *System, report *replay.Report) error {
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
		fmt.Fprintf(&b, "%d requests, all answered as they were\n", report.Requests)
	}
	_, err := sys.Out.WriteString(b.String())
	return err
}
