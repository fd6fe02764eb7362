package cli

import (
	"cmp"
	"errors"
	"io/fs"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/alecthomas/kong"

	"a2e/protocol"
)

// wirePhrases maps the words that plugins use for agents (message types and fields) to words for a
// person (commands and flags). Earlier pairs win.
var wirePhrases = sync.OnceValue(func() *strings.Replacer {
	return strings.NewReplacer(
		"planning/task/list names", "a2e plan show lists",
		"planning/plan/list names", "a2e plan list --all shows",
		"planning/plan/create", "a2e plan add",
		"its owner extends the claim with the action renew", "its owner extends the claim with a2e plan task renew",
		"send the change with if_version ", "repeat the change with --if-version ",
		`"force": true`, "--force",
		`a longer "timeout"`, "a longer --timeout",
		"another chain_id starts another one", "another --id starts another one",
		"start with another chain_id", "start with another --id", "choose another chain_id", "choose another --id",
		"leave nodes out to resume with those of the journal", "a2e chain resume goes on with those of the journal",
		"leave nodes and initial_input out to resume with those of the journal",
		"a2e chain resume goes on with those of the journal",
		`/chain_id: is "`, `--id: is "`, `it needs "resume": true`, "it needs --resume",
		`"resume": true resumes it`, "a2e chain resume continues it",
		"env/reset/req starts one and gives its episode_id", "a2e env reset NAME starts one and prints its id",
		"start another with env/reset/req", "start another with a2e env reset NAME",
		"env/close/req", "a2e env close",
		"learn/stats/req", "a2e learn stats",
		"learn/refinement/history/req", "a2e learn history",
		"memory/forget/req", "a2e memory forget",
		"memory/init/req gives that of another namespace", "--namespace names another",
		"is not a cursor of this host: send next_cursor of an answer to the same request as it is, "+
			"or none to start over",
		"is not one that this command printed; leave it out to start from the first entry",
		"belongs to another request: send next_cursor of an answer to the same request as it is, "+
			"or none to start over. Only limit and refresh_ttl may change between pages",
		"belongs to other flags; give those that it was printed for, or leave it out to start from the first entry",
		"next_cursor goes on with", "--cursor goes on with",
		"ask for the rest with next_cursor, or by keys, tags or a smaller limit",
		"ask for the rest with --cursor, or for less with --tag or --limit",
		`with a chain_id and "journal": true a person can, by "a2e chain approve"`,
		"with --id NAME a person can, with a2e chain approve",
	)
})

var (
	// wireResolve tells an agent how to decide about nodes that were under way.
	wireResolve = lazily(`decide with "resume": true, "resolve": \{"([^"]*)": .*`)
	// wireMember is a member of a chain; a person writes it into a YAML file.
	wireMember = lazily(`"([a-z_]+)": (true|false)`)
	// wireField is a wrong field of the request, as a JSON pointer.
	wireField = lazily(`(^|[\s(])/([a-z_]+)(?:/\d+\b|/([^\s:;,)]+))?`)
)

// lazily returns a regular expression that is compiled at its first use, as few commands need it.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// wordedError is an error with a text for the command line.
type wordedError struct {
	text string
	err  error
}

func (e wordedError) Error() string { return e.text }
func (e wordedError) Unwrap() error { return e.err }

// inWords rewrites a command's error for a person: it removes the error codes, types and fields of
// the protocol. node is the command, or nil if there is none. A missing file that the command line
// names becomes a usage error. A usage error ends with a hint to the help of the command, like the
// errors of the parser.
func inWords(err error, node *kong.Node) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if node != nil && node.Path() == "call" {
		// this command takes the names of the protocol, so they stay
	} else if wire, ok := errors.AsType[*protocol.Error](err); ok {
		plain := wire.Message
		if wire.Code == protocol.CodeSchemaViolation {
			plain = wireField().ReplaceAllStringFunc(plain, func(field string) string { return flagOf(node, field) })
		}
		plain = wireResolve().ReplaceAllString(wirePhrases().Replace(plain),
			"decide with a2e chain resume --resolve $1=WHAT, where WHAT is "+
				"run (once more), done, fail or its output as JSON")
		text = strings.Replace(text, wire.Error(), wireMember().ReplaceAllString(plain, "$1: $2"), 1)
	} else {
		text = wireMember().ReplaceAllString(wirePhrases().Replace(text), "$1: $2")
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok { // the path appears once, and without the system call
		text = strings.Replace(text, path.Error(), path.Path+": "+path.Err.Error(), 1)
		text = strings.Replace(text, path.Path+": "+path.Path+": ", path.Path+": ", 1)
	}
	coded, ok := errors.AsType[exitError](err)
	missing := (!ok || coded.code == exitFailed) && missingFile(err, node)
	if node != nil && (missing || coded.code == exitUsage) {
		between := "; "
		if strings.Contains(text, "\n") {
			between = "\n"
		}
		return fail(exitUsage, wordedError{text + between + "see " + node.FullPath() + " --help", err})
	}
	return wordedError{text, err}
}

// fieldOf returns the protocol's name for a flag or an argument.
func fieldOf(name string) string {
	other := map[string]string{
		"after": "deps", "plan": "plan_id", "task": "task_id", "id": "chain_id", "episode": "episode_id",
		"args": "arguments",
		"tag":  "tags", "all-tag": "all_tags", "column": "columns", "key": "keys", "depth": "max_depth",
		"yes": "confirm", "option": "options",
	}[name]
	return cmp.Or(other, strings.ReplaceAll(name, "-", "_"))
}

// flagOf returns the command line's name for a field of a request. field is a JSON pointer after a
// separator. A field that the command does not have is returned unchanged.
func flagOf(node *kong.Node, field string) string {
	parts := wireField().FindStringSubmatch(field)
	if node == nil {
		return field
	}
	inner := ""
	if parts[3] != "" {
		inner = " " + parts[3]
	}
	for _, f := range node.Flags {
		if fieldOf(f.Name) == parts[2] {
			return parts[1] + "--" + f.Name + inner
		}
	}
	for _, p := range node.Positional {
		if fieldOf(p.Name) == parts[2] {
			return parts[1] + "<" + p.Name + ">" + inner
		}
	}
	return field
}

// missingFile reports whether the error is about a missing file that the command line names.
func missingFile(err error, node *kong.Node) bool {
	path, ok := errors.AsType[*fs.PathError](err)
	if !ok || !errors.Is(err, fs.ErrNotExist) || node == nil {
		return false
	}
	names := func(v *kong.Value) bool {
		value, ok := v.Target.Interface().(string)
		return ok && v.Set && strings.TrimPrefix(value, "@") == path.Path
	}
	return slices.ContainsFunc(node.Positional, names) ||
		slices.ContainsFunc(node.Flags, func(f *kong.Flag) bool { return names(f.Value) })
}

// listenCode returns the exit code for an error of listen: a malformed address is a usage error, an
// address that is taken or forbidden is a failure of the transport, and everything else is an error
// of the config.
func listenCode(err error) int {
	var refused *net.OpError
	var address *net.AddrError
	var name *net.DNSError
	switch {
	case errors.As(err, &address), errors.As(err, &name):
		return exitUsage
	case errors.As(err, &refused):
		return exitTransport
	}
	return exitConfig
}
