package e2e_test

import (
	"net"
	"regexp"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// wire matches words of the wire: message types, members of a JSON object, codes of errors, and JSON pointers.
var wire = regexp.MustCompile(`\w/re(q|sp)\b|\b(planning|multi_agent)/|"[a-z_]+": ?(true|false|[0-9{])|` +
	`\b(schema_violation|unknown_[a-z]+|tool_error|runtime_error|episode_done): |(^|\s)/[a-z_]+:|all the same`)

// TestWords: errors of commands name commands and flags, not message types and fields. Each is one plain sentence,
// with the exit status that the page lists.
func TestWords(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	do := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(run(t, dir, nil, args...).want(t, 0, "").stdout)
	}
	do("plan", "add", "p")
	first := do("plan", "task", "add", "p", "one")
	second := do("plan", "task", "add", "p", "two", "--after", first)
	do("plan", "task", "claim", "p", first, "--owner", "bob")
	writeFile(t, dir, "late.yaml", "nodes:\n  - {node_id: a, kind: wait, seconds: 60}\n")
	late := run(t, dir, nil, "chain", "run", "late.yaml", "--id", "late", "--timeout", "1").want(t, 1,
		"a longer --timeout")
	assert.That(t, !strings.Contains(late.stderr, `"timeout"`), "the wire's words in\n  %s", late.stderr)
	busy := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer busy.Close()
	for _, c := range []struct {
		line string
		code int
		want string // all of stderr after "a2e: ", or its beginning if want ends in …
	}{
		{"plan task add p two --after zzz", 1, `--after: is "zzz", which is not a task of the plan …`},
		{"plan task add p x --status nope", 1, `--status: is "nope", which is not a column of the plan …`},
		{"plan add q --done-column x", 1, `--done-column: is "x", which is not one of the columns: backlog, todo, in_progress, done`},
		{"plan task set p zzz --title x", 1, `there is no task "zzz"; a2e plan show lists those of the plan …`},
		{"plan task set p " + second + " --status done", 1, "the task cannot be done before those that it waits for: " +
			first + "; --force does it anyway"},
		{"plan task claim p " + second, 1, "the task " + second + " waits for others: " + first +
			"; --force claims it anyway"},
		{"plan task claim p " + first + " --owner al", 1, "the task " + first + " is taken: bob has claimed it " +
			"until …"},
		{"plan task delete p " + first, 1, "the task " + first + " is not a2e plan's to change: bob …"},
		{"plan task set p " + second + " --title x --if-version 9", 1, "the task " + second +
			" has version 1 by now, not 9; …"},
		{"plan delete p", 1, "the plan …"},
		{"env step nix up", 1, `up: unknown episode "nix"; a2e env reset NAME starts one and prints its id`},
		{"env close nix", 1, `unknown episode "nix"; a2e env reset NAME starts one and prints its id`},
		{"chain run late.yaml --id late", 1, `late.yaml: --id: is "late", a chain that has started and not ended; a2e chain resume continues it, another --id …`},
		{"tools call echo text:=3", 1, "--args text: must be of type string, is a number"},
		{"memory list --cursor zz", 1, "--cursor: is not one that this command printed; leave it out to start from " +
			"the first entry"},
		{"tools call nix", 1, `unknown tool "nix"; …`},
		{"skills run nix", 1, `unknown skill "nix"`},
		{"chain run nix.yaml", 2, "nix.yaml: no such file or directory; see a2e chain run --help"},
		{"state import nix", 2, "nix: no such file or directory; see a2e state import --help"},
		{"tools call echo --args @nix", 2, "nix: no such file or directory; see a2e tools call --help"},
		{"replay nix", 2, "nix: no such file or directory; see a2e replay --help"},
		{"inspect nix", 2, "nix: no such file or directory; see a2e inspect --help"},
		{"serve --http nix", 2, "--http nix: …"},
		{"serve --http " + busy.Addr().String(), 4, "--http " + busy.Addr().String() + ": …"},
		{"memory add a b c", 2, "memory add takes [KEY] TEXT, and these are 3 words; quote the text; see a2e memory " +
			"add --help"},
		{"chat --continue x", 2, "--continue: is for the last conversation; leave it out, or the name of another " +
			"one; see a2e chat --help"},
		{"plan", 2, `expected one of "list", "board", "show", "add", "task", ...; see a2e plan --help`},
		{"plan task add", 2, `expected "<plan> <title>"; see a2e plan task add --help`},
		{"plan task set p x --nix", 2, "unknown flag --nix; see a2e plan task set --help"},
		{"nix", 2, `unexpected argument nix, did you mean "init"?; see a2e --help`},
	} {
		out := run(t, dir, nil, strings.Fields(c.line)...)
		said := strings.TrimSuffix(strings.TrimPrefix(out.stderr, "a2e: "), "\n")
		want, begins := strings.CutSuffix(c.want, "…")
		assert.That(t, out.code == c.code && (said == want || begins && strings.HasPrefix(said, want)),
			"a2e %s: exit status %d, want %d and\n  %s\ngot\n  %s", c.line, out.code, c.code, c.want, said)
		assert.That(t, c.code != 2 || strings.HasSuffix(said, " --help"), "a2e %s: a usage error ends with its "+
			"help; got\n  %s", c.line, said)
		assert.That(t, !wire.MatchString(said), "a2e %s: the wire's words %q in\n  %s", c.line, wire.FindString(said),
			said)
	}
	for _, line := range []string{"chain list", "learn export", "env list"} { // their notes on an empty list
		said := run(t, dir, nil, strings.Fields(line)...).stderr
		assert.That(t, !wire.MatchString(said), "a2e %s: the wire's words %q in\n  %s", line, wire.FindString(said),
			said)
	}
}
