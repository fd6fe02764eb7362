package tools

import (
	"context"
	"path"
	"slices"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// parameters are those of a tool, or the members of its data.
type parameters = []protocol.ToolParameter

// need is a parameter that each call sets, or a member that is always there.
func need(name, typ, description string) protocol.ToolParameter {
	return protocol.ToolParameter{Name: name, Type: typ, Description: description, Required: true}
}

// may is a parameter or member that may be missing.
func may(name, typ, description string) protocol.ToolParameter {
	return protocol.ToolParameter{Name: name, Type: typ, Description: description}
}

// builtin returns the tools that every plugin has.
func builtin(f *files, w *Web, c *children) []Tool {
	return append(f.tools(), echoTool(), w.tool(), c.tool())
}

// BuiltinNames lists the tools that every plugin has, and those that the config can add.
func BuiltinNames() []string {
	var names []string
	for _, t := range append(builtin(new(files), new(Web), new(children)), new(checkpoints).tools(true)...) {
		names = append(names, t.Def.Name)
	}
	return names
}

// tool makes a built-in tool of a typed function.
func tool[A any](def protocol.ToolDefinition, detail host.ToolDetail, fn func(context.Context, *A, host.Emitter) (*Outcome, error)) Tool {
	def.Version = "1.0.0"
	return Tool{Def: def, Kind: KindBuiltin, Detail: detail, Call: func(ctx context.Context, args protocol.Object, emit host.Emitter) (*Outcome, error) {
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
func fileTool[A any](use host.FileUse, def protocol.ToolDefinition, fn func(context.Context, *A) (*Outcome, error)) Tool {
	def.Tags = append([]string{"file"}, def.Tags...)
	t := tool(def, host.ToolDetail{ReadOnly: use == host.ReadsFiles, Destructive: use != host.ReadsFiles},
		func(ctx context.Context, a *A, _ host.Emitter) (*Outcome, error) { return fn(ctx, a) })
	t.Files = func(args protocol.Object) host.Files { return host.Files{Path: pathIn(args), Use: use} }
	t.quick, t.short = true, !slices.Contains(def.Tags, "search") // a search walks over all that there is
	return t
}

// pathIn returns the path that a call of a file tool names; of a pattern, the folder that it
// names in plain words, and of a URI, whose files may be in the workspace too, all of it.
func pathIn(args protocol.Object) string {
	val, ok := args.Get("path")
	name, _ := val.Str()
	if !ok {
		val, _ = args.Get("pattern")
		pattern, _ := val.Str()
		name, _ = splitPattern(path.Clean(pattern))
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
		fileTool(host.ReadsFiles, protocol.ToolDefinition{
			Name: "read_file", Idempotent: true, Tags: []string{"read"},
			Description: "Read a text file of the workspace, whole or some of its lines. The content comes exactly as it is in the file, line ends included. " +
				"A long file is cut after a whole line: go on with offset = next_offset. Files that are not UTF-8 text are refused.",
			InputParameters: parameters{
				need("path", "string", "File to read, relative to the workspace, such as src/main.go; skill://NAME/FILE is a file that comes with a skill."),
				may("offset", "integer", "First line to read, counted from 1 (default 1)."),
				may("limit", "integer", "How many lines to read at most (default: as many as fit into an answer)."),
			},
			OutputParameters: parameters{
				need("content", "string", "The text of the lines read."),
				need("lines", "integer", "How many lines content has."),
				need("size", "integer", "Size of the whole file in bytes."),
				may("next_offset", "integer", "The line to go on with; missing when content reaches the end of the file."),
			},
		}, f.readFile),
		fileTool(host.ChangesFiles, protocol.ToolDefinition{
			Name: "write_file", Idempotent: true, Tags: []string{"write"},
			Description: "Write a text file of the workspace, replacing what it held. Missing folders are made. The file changes in one step or not at all, " +
				"and keeps its permissions. To change a part of a file use edit_file.",
			InputParameters: parameters{
				need("path", "string", "File to write, relative to the workspace, under its real path: links are not followed."),
				need("content", "string", "The whole new text of the file."),
			},
			OutputParameters: parameters{
				need("path", "string", "The file written, relative to the workspace."),
				need("size", "integer", "Bytes written."),
				need("created", "boolean", "Whether the file is new."),
			},
		}, f.writeFile),
		fileTool(host.ChangesFiles, protocol.ToolDefinition{
			Name: "edit_file", Tags: []string{"write"},
			Description: "Replace a piece of text in a file of the workspace. old must be in the file exactly once, spaces and line breaks included: " +
				"give enough of the lines around it, or set all to replace every occurrence. In a file with CRLF line ends, line breaks in old and new count as CRLF.",
			InputParameters: parameters{
				need("path", "string", "File to edit, relative to the workspace, under its real path: links are not followed."),
				need("old", "string", "The text to be replaced, exactly as it is in the file; not empty."),
				need("new", "string", "The text to put in its place; empty to delete."),
				may("all", "boolean", "Replace every occurrence instead of exactly one (default false)."),
			},
			OutputParameters: parameters{
				need("path", "string", "The file edited, relative to the workspace."),
				need("replacements", "integer", "How many occurrences were replaced."),
				need("size", "integer", "Size of the file afterwards, in bytes."),
			},
		}, f.editFile),
	}
}

// manyFiles returns the tools that list and search.
func (f *files) manyFiles() []Tool {
	return []Tool{
		fileTool(host.ReadsFiles, protocol.ToolDefinition{
			Name: "list_dir", Idempotent: true, Tags: []string{"read"},
			Description: "List what is in one folder of the workspace, sorted by name, hidden entries included. Links are listed, not followed. " +
				"Use glob to find files in the folders below.",
			InputParameters: parameters{
				may("path", "string", "Folder to list, relative to the workspace (default: the workspace itself); skill://NAME is the folder of a skill."),
			},
			OutputParameters: parameters{
				need("entries", "array", "One {name, type, size} for each entry: type is file, dir, link or other (pipe, socket, device), size is in bytes and 0 for anything but a file."),
			},
		}, f.listDir),
		fileTool(host.ReadsFiles, protocol.ToolDefinition{
			Name: "glob", Idempotent: true, Tags: []string{"search"},
			Description: "Find files and folders of the workspace by a pattern of their path, sorted by path. * and ? stay within one name, ** spans folders, " +
				"[a-z] and {one,two} work: **/*.go finds all Go files, src/*.c those right in src. Links are listed, not followed; .git is left out unless the pattern names it.",
			InputParameters: parameters{
				need("pattern", "string", "Pattern for the path relative to the workspace, such as **/*_test.go."),
				may("limit", "integer", "How many paths to give at most (default 1000, at most 100000)."),
			},
			OutputParameters: parameters{need("matches", "array", "The paths that match, relative to the workspace.")},
		}, f.glob),
		fileTool(host.ReadsFiles, protocol.ToolDefinition{
			Name: "grep", Idempotent: true, Tags: []string{"search"},
			Description: "Search the text files of the workspace, or of one folder or file in it, for lines that match a regular expression (RE2 syntax, as in Go). " +
				"Matches come sorted by path. Binary files and .git are left out, links are not followed, and a long line is cut to the part around the match.",
			InputParameters: parameters{
				need("pattern", "string", `Regular expression to find within a line, such as func \w+Handler. Escape ( [ { . * + ? to find them as they are.`),
				may("path", "string", "File or folder to search, relative to the workspace (default: all of it)."),
				may("ignore_case", "boolean", "Take upper and lower case as the same (default false)."),
				may("limit", "integer", "How many lines to give at most (default 200, at most 10000)."),
			},
			OutputParameters: parameters{
				need("matches", "array", "One {path, line, text} for each line that matches; lines count from 1."),
				need("skipped", "integer", "Files and folders that were not searched: binary, hard-linked, special, or not readable."),
			},
		}, f.grep),
	}
}

// echoTool returns the text that it is given: the way to try a connection, and to measure
// one.
func echoTool() Tool {
	t := tool[struct{}](protocol.ToolDefinition{
		Name: "echo", Idempotent: true, Tags: []string{"test"}, Description: "Return the text that was sent.",
		InputParameters:  parameters{need("text", "string", "Any text.")},
		OutputParameters: parameters{need("text", "string", "The same text.")},
	}, host.ToolDetail{ReadOnly: true}, nil)
	t.quick, t.short = true, true
	t.Call = func(_ context.Context, args protocol.Object, _ host.Emitter) (*Outcome, error) {
		text, _ := args.Get("text") // required, so it is there
		return &Outcome{Data: echoed(text)}, nil
	}
	return t
}

// echoed is the text as it came, quotes and escapes included. It needs no bound of its own:
// it cannot be longer than the line it came in.
type echoed protocol.Value

// AppendJSON implements protocol.Appender.
func (e echoed) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"text":`...)
	return append(append(dst, e...), '}'), nil
}

// tool is http_get.
func (w *Web) tool() Tool {
	t := tool(protocol.ToolDefinition{
		Name: "http_get", Idempotent: true, Tags: []string{"web", "http", "fetch", "read"},
		Description: "Fetch a web page or API answer with HTTP GET and return it as text. HTML comes back as Markdown with absolute links, without scripts and styles; " +
			"JSON, XML and plain text come back as they are, in UTF-8. Follows up to 5 redirects. Only public addresses can be reached, not localhost or a private network, " +
			"unless the host's config allows it. No JavaScript runs, no cookies or credentials are sent. Images and other binary content are refused.",
		InputParameters: parameters{
			need("url", "string", "Absolute http:// or https:// URL, such as https://example.com/docs?page=2. Percent-encode spaces."),
		},
		OutputParameters: parameters{
			need("status", "integer", "HTTP status of the last answer, such as 200. From 400 up the call counts as failed."),
			need("content_type", "string", "Content-Type as the server sent it (text/html even though content is Markdown)."),
			need("content", "string", "The text, cut at the host's output limit."),
		},
	}, host.ToolDetail{ReadOnly: true, OpenWorld: true}, w.get)
	t.Timeout = w.timeout
	return t
}

// tool is run_command.
func (c *children) tool() Tool {
	t := tool(protocol.ToolDefinition{
		Name: "run_command", Streaming: true, Tags: []string{"process", "shell"},
		Description: "Run a program in the workspace and wait for it to end. The first word of command is the bare name of an allowed program, the " +
			"others are its arguments as they are: there is no shell, so pipes, globs and variables need [\"sh\",\"-c\",\"…\"]. " +
			"The program gets a clean environment, the workspace, and a home and /tmp of its own, which later calls find again; it has no " +
			"network unless the config says so. It ends, with all that it started, when the call ends.",
		InputParameters: parameters{
			need("command", "array", "The program and its arguments, such as [\"git\",\"status\"]."),
			may("cwd", "string", "Folder to run in, relative to the workspace; default: the workspace."),
			may("env", "object", "Further environment variables, name to text."),
			may("stdin", "string", "Text for the program's standard input; default: none."),
		},
		OutputParameters: append(printed(), may("spilled", "string", "File with the output that did not fit into the answer.")),
	}, host.ToolDetail{Destructive: true, OpenWorld: c.network == sandbox.NetworkHost}, c.runCommand)
	t.Files = seesAll
	return t
}

// printed describes the data of a program that ran.
func printed() parameters {
	return parameters{need("stdout", "string", "What it printed."), need("stderr", "string", "What it printed as errors.")}
}

// seesAll is the Tool.Files of a program: it finds what was written before it. What it writes
// itself, and when, nobody knows before it ends, so nothing waits for it.
func seesAll(protocol.Object) host.Files { return host.Files{Path: ".", Use: host.SeesFiles} }
