package tools

import (
	"context"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// Members describes the fields of the struct T that have a tag need or may, as parameters of a
// tool or members of its data. The tag is the description; need marks a field that each call has
// to set, or that the data always has.
func Members[T any]() (all []protocol.ToolParameter) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		text, required := f.Tag.Lookup("need")
		if !required {
			text = f.Tag.Get("may")
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); text != "" {
			all = append(all, protocol.ToolParameter{
				Name: name, Type: string(typeOf(f.Type)), Description: text,
				Required: required,
			})
		}
	}
	return all
}

// typeOf returns the parameter type for a field of the Go type t.
func typeOf(t reflect.Type) valueType {
	switch t.Kind() {
	case reflect.Pointer:
		return typeOf(t.Elem())
	case reflect.String:
		return typeString
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return typeInteger
	case reflect.Bool:
		return typeBoolean
	case reflect.Map, reflect.Struct:
		return typeObject
	case reflect.Slice:
		if t != reflect.TypeFor[jsontext.Value]() {
			return typeArray
		}
	}
	return typeAny
}

// builtin returns the tools that every plugin has.
func builtin(f *files, w *Web, c *children) []Tool {
	return append(f.tools(), echoTool(), w.tool(), c.tool())
}

// BuiltinNames returns the names of the tools that every plugin has and of the checkpoint tools.
func BuiltinNames() []string {
	var names []string
	for _, t := range append(builtin(new(files), new(Web), new(children)), new(checkpoints).tools(true)...) {
		names = append(names, t.Def.Name)
	}
	return names
}

// Typed makes a tool from a function. Its arguments are an A, its data is an R; the tags of both
// describe their fields (see Members).
func Typed[A, R any](def protocol.ToolDefinition, detail host.ToolDetail, fn func(context.Context, *A) (*Outcome,
	error),
) Tool {
	return typed[A, R](def, detail, func(ctx context.Context, a *A, _ host.Emitter) (*Outcome, error) {
		return fn(ctx, a)
	})
}

// typed is Typed for a function that reports its progress.
func typed[A, R any](def protocol.ToolDefinition, detail host.ToolDetail, fn func(context.Context, *A,
	host.Emitter) (*Outcome, error),
) Tool {
	def.Version, def.InputParameters, def.OutputParameters = "1.0.0", Members[A](), Members[R]()
	return Tool{Def: def, Kind: KindBuiltin, Detail: detail, Call: func(ctx context.Context, args protocol.Object,
		emit host.Emitter,
	) (*Outcome, error) {
		var a A
		if err := args.Decode(&a); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return fn(ctx, &a, emit)
	}}
}

// fileTool makes one of the file tools.
func fileTool[A, R any](use protocol.Access, def protocol.ToolDefinition, fn func(context.Context, *A) (*Outcome,
	error),
) Tool {
	def.Tags = append([]string{"file"}, def.Tags...)
	t := Typed[A, R](def, host.ToolDetail{ReadOnly: use == protocol.Shared, Destructive: use != protocol.Shared}, fn)
	t.Files = func(args protocol.Object) []File { return []File{{pathIn(args), use}} }
	t.quick, t.short = true, !slices.Contains(def.Tags, "search") // a search may walk over the whole workspace
	return t
}

// pathIn returns the path that a call of a file tool names. For a pattern it returns the folder before
// the first wildcard. For a URI it returns the whole workspace, which may hold the URI's files.
func pathIn(args protocol.Object) string {
	val, ok := args.Get("path")
	name, _ := val.Str()
	if !ok {
		name, _ = splitPattern(path.Clean(args.Text("pattern")))
	}
	if _, ok := splitURI(name); ok {
		return "."
	}
	return name
}

// tools returns the file tools.
func (f *files) tools() []Tool { return append(f.oneFile(), f.manyFiles()...) }

// oneFile returns the tools that read or change one file.
func (f *files) oneFile() []Tool {
	return []Tool{
		fileTool[readArgs, readData](protocol.Shared, protocol.ToolDefinition{
			Name: "read_file", Idempotent: true, Tags: []string{"read"},
			Description: "Read a text file of the workspace, whole or some of its lines. The content comes exactly " +
				"as it is in the file, line ends included. " +
				"A long file is cut after a whole line: go on with offset = next_offset. Files that are not UTF-8 " +
				"text are refused.",
		}, f.readFile),
		fileTool[writeArgs, writeData](protocol.Exclusive, protocol.ToolDefinition{
			Name: "write_file", Idempotent: true, Tags: []string{"write"},
			Description: "Write a text file of the workspace, replacing what it held. Missing folders are made. The " +
				"file changes in one step or not at all, " +
				"and keeps its permissions. To change a part of a file use edit_file.",
		}, f.writeFile),
		fileTool[editArgs, editData](protocol.Exclusive, protocol.ToolDefinition{
			Name: "edit_file", Tags: []string{"write"},
			Description: "Replace a piece of text in a file of the workspace. old must be in the file exactly once, " +
				"spaces and line breaks included: " +
				"give enough of the lines around it, or set all to replace every occurrence. In a file with CRLF " +
				"line ends, line breaks in old and new count as CRLF.",
		}, f.editFile),
	}
}

// manyFiles returns the tools that list and search.
func (f *files) manyFiles() []Tool {
	return []Tool{
		fileTool[listArgs, listData](protocol.Shared, protocol.ToolDefinition{
			Name: "list_dir", Idempotent: true, Tags: []string{"read"},
			Description: "List what is in one folder of the workspace, sorted by name, hidden entries included. " +
				"Links are listed, not followed. Use glob to find files in the folders below.",
		}, f.listDir),
		fileTool[globArgs, globData](protocol.Shared, protocol.ToolDefinition{
			Name: "glob", Idempotent: true, Tags: []string{"search"},
			Description: "Find files and folders of the workspace by a pattern of their path, sorted by path. * and " +
				"? stay within one name, ** spans folders, " +
				"[a-z] and {one,two} work: **/*.go finds all Go files, src/*.c those right in src. Links are " +
				"listed, not followed; .git is left out unless the pattern names it.",
		}, f.glob),
		fileTool[grepArgs, grepData](protocol.Shared, protocol.ToolDefinition{
			Name: "grep", Idempotent: true, Tags: []string{"search"},
			Description: "Search the text files of the workspace, or of one folder or file in it, for lines that " +
				"match a regular expression (RE2 syntax, as in Go). " +
				"Matches come sorted by path. Binary files and .git are left out, links are not followed, and a " +
				"long line is cut to the part around the match.",
		}, f.grep),
	}
}

type echoArgs struct {
	Text string `json:"text" need:"Any text."`
}

type echoData struct {
	Text string `json:"text" need:"The same text."`
}

// echoTool makes the tool echo, which returns its text. It serves to try and to measure a
// connection.
func echoTool() Tool {
	t := typed[echoArgs, echoData](protocol.ToolDefinition{
		Name: "echo", Idempotent: true, Tags: []string{"test"}, Description: "Return the text that was sent.",
	}, host.ToolDetail{ReadOnly: true}, nil)
	t.quick, t.short = true, true
	t.Call = func(_ context.Context, args protocol.Object, _ host.Emitter) (*Outcome, error) {
		text, _ := args.Get("text") // required, so it is there
		return &Outcome{Data: echoed(text)}, nil
	}
	return t
}

// echoed is the text as it was received, quotes and escapes included. It needs no bound of its own:
// it cannot be longer than the line of the request.
type echoed protocol.Value

// AppendJSON implements protocol.Appender.
func (e echoed) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"text":`...)
	return append(append(dst, e...), '}'), nil
}

// tool makes the tool http_get.
func (w *Web) tool() Tool {
	t := Typed[httpArgs, WebAnswer](protocol.ToolDefinition{
		Name: "http_get", Idempotent: true, Tags: []string{"web", "http", "fetch", "read"},
		Description: "Fetch a web page or API answer with HTTP GET and return it as text. HTML comes back as " +
			"Markdown with absolute links, without scripts and styles; " +
			"JSON, XML and plain text come back as they are, in UTF-8. Follows up to 5 redirects. Only public " +
			"addresses can be reached, not localhost or a private network, " +
			"unless the host's config allows it. No JavaScript runs, no cookies or credentials are sent. Images and " +
			"other binary content are refused.",
	}, host.ToolDetail{ReadOnly: true, OpenWorld: true}, w.get)
	t.Timeout = w.timeout
	return t
}

// tool makes the tool run_command.
func (c *children) tool() Tool {
	t := typed[runCommandArgs, commandResult](protocol.ToolDefinition{
		Name: runCommand, Streaming: true, Tags: []string{"process", "shell"},
		Description: "Run a program in the workspace and wait for it to end. The first word of command is the bare " +
			"name of an allowed program, the " +
			"others are its arguments as they are: there is no shell, so pipes, globs and variables need " +
			"[\"sh\",\"-c\",\"…\"]. " +
			"The program gets a clean environment, the workspace, and a home and /tmp of its own, which later calls " +
			"find again; it has no " +
			"network unless the config says so. It ends, with all that it started, when the call ends.",
	}, host.ToolDetail{Destructive: true, OpenWorld: c.network == sandbox.NetworkHost}, c.runCommand)
	t.Files = seesAll
	return t
}

// seesAll is the Tool.Files of a program: it waits for earlier writes. Nothing waits for the program,
// because nobody knows what it writes, and when, before it ends.
func seesAll(protocol.Object) []File { return []File{{".", protocol.Follows}} }
