package link

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/sandbox"
	"a2e/protocol"
)

const (
	maxCause = 400 // bytes of the line that says why a server did not start
	maxWhole = 100 // bytes of a stderr that is shown as a whole
	maxOdd   = 120 // bytes of a line of stdout that an error shows
)

// ending returns an error that says how a process ended, with the line of its output that tells why, if
// there is one.
func (p *process) ending() error {
	e := *p.End()
	e.Words = ""
	return broken("%w%s", &e, p.hints(p.End().Words))
}

// whyNot explains why a server could not be started: where its program is, or what its sandbox hides. An
// agent is not told which files there are.
func (p *process) whyNot(err error) string {
	l := p.conn.link
	if !l.cfg.Foreign && errors.As(err, new(*sandbox.NotFoundError)) {
		if _, why := child.Elsewhere(l.cfg.Command); why != "" {
			return "; " + why
		}
		return ""
	}
	if hidden := l.Unseen(""); hidden != nil {
		return "; " + hidden.Error()
	}
	return ""
}

// Unseen returns a *host.Lack for files that a server of the config needs, or that the text said names, if
// the sandbox hides them; nil = it hides none. The server's own home does not count.
func (l *Link) Unseen(said string) error {
	if l.cfg.Foreign || l.cfg.Kind() != Stdio {
		return nil
	}
	if l.env.Homes != "" {
		said = strings.ReplaceAll(said, l.env.Homes, "")
	}
	program := l.cfg.Program(l.env.Workspace, l.env.Launcher)
	return program.ReportHidden(said)
}

// Look returns which program starts a stdio server, or an error that says what is wrong with it. It starts
// nothing. The error may be a *host.Lack.
func (c *Config) Look(workspace string, launcher func() (*sandbox.Launcher, error)) (string, error) {
	program := c.Program(workspace, launcher)
	found, err := program.Look()
	if errors.As(err, new(*sandbox.NotFoundError)) {
		if at, _ := child.Elsewhere(c.Command); at != "" {
			return "", &host.Lack{Err: err, Fix: "command: " + child.Scalar(at)} // the arguments are in args
		}
	}
	if err != nil || strings.ContainsAny(c.Command, `/\\`) {
		return found, err
	}
	if _, missing := sandbox.LookPath(c.Command, sandbox.SafePath("", workspace), workspace); missing != nil {
		if path, err := exec.LookPath(c.Command); err == nil {
			found += fmt.Sprintf("; a graphical client whose PATH lacks %s needs: command: %s",
				filepath.Dir(path), child.Scalar(path))
		}
	}
	return found, nil
}

// hints returns what the output of a server tells about why it does not work, and what its sandbox hides.
// words is the end of its stderr.
func (p *process) hints(words string) (text string) {
	l := p.conn.link
	if line := cause(words); line != "" {
		text += "; its stderr says: " + line
	}
	if p.conn.up.Load() {
		return text
	}
	if line := p.conn.odd.Load(); line != nil {
		text += fmt.Sprintf("; its stdout has a line that is not an MCP message: %q", *line)
	}
	if hidden := l.Unseen(text); hidden != nil {
		text += fmt.Sprintf("; %v", hidden)
	}
	return text
}

// cause picks the line of a stderr that says why a program ended: for Python the last exception of a
// traceback, for Node.js the first error above the stack, for npm the first line that is more than a code.
// Otherwise it is a short text as a whole, or the last line that speaks of a failure, or the last line.
func cause(words string) string {
	var last, failed, named string
	python := false
	for line := range strings.Lines(words) {
		switch line = strings.Trim(line, " \t\r\n|"); {
		case line == "" || noise().MatchString(line):
			continue
		case strings.HasPrefix(line, "Traceback (most recent call last)"):
			python = true
		case namedError().MatchString(line) && (named == "" || python):
			named = line
		case failure().MatchString(line):
			failed = line
		}
		last = line
	}
	if named == "" && len(words) <= maxWhole {
		return strings.Join(strings.Fields(words), " ")
	}
	return protocol.Clip(cmp.Or(named, failed, last), maxCause)
}

// namedError matches a line that names an error, as interpreters and installers print it.
var namedError = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z_][\w.]*)?(Error|Exception|Interrupt|SystemExit)( \[\w+\])?(:|$)` +
		`|^npm (error|ERR!) |^╰─▶ `)
})

// failure matches a line that speaks of a failure.
var failure = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)error|fail|required|missing|not found|no module|no such|not set|cannot|can't` +
		`|could not|unable|denied|refused|invalid|must`)
})

// noise matches a line of an interpreter or installer that says nothing about the cause.
var noise = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^npm notice|^npm (error|ERR!)( (code|syscall|errno|path|dest|A complete log)\b.*)?$` +
		`|^Node\.js v|^at |^node:internal|^throw |^Require stack:|^- /|^(code|requireStack): |^[\^{}\[\],~]+$`)
})
