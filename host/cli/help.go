package cli

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

type helpCmd struct {
	Topic string `complete:"topic" arg:"" optional:"" help:"The page. Default: a list of all."`
}

// page is one page of the documentation.
type page struct {
	topic string
	text  string
}

// Run prints the page, or a line for each.
func (h helpCmd) Run(sys *System) error {
	all, err := helpPages(sys.Pages)
	if err != nil {
		return err
	}
	var t table
	t.header("PAGE", "WHAT IT SAYS")
	var known, short, found []string
	for _, p := range all {
		known, short = append(known, p.topic), append(short, path.Base(p.topic))
		t.row(p.topic, p.about())
		if p.topic == h.Topic || path.Base(p.topic) == h.Topic {
			found = append(found, p.text)
		}
	}
	switch {
	case h.Topic == "":
		return t.show(sys)
	case found == nil:
		return fail(exitUsage, unknownAs("page", h.Topic, slices.Compact(slices.Sorted(slices.Values(short))), known))
	}
	_, err = io.WriteString(sys.Out, strings.Join(found, "\n"))
	return err
}

// helpPages reads the pages. One is called as its folder; where several folders have the same
// name, as far up as it takes to tell them apart.
func helpPages(pages fs.FS) ([]page, error) {
	reference, err := configReference()
	if err != nil {
		return nil, err
	}
	all := []page{{"config", reference}}
	if pages == nil {
		return nil, errors.New("this program was built without its pages")
	}
	var files []string
	err = fs.WalkDir(pages, ".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, file)
		}
		return err
	})
	for _, file := range files {
		text, readErr := fs.ReadFile(pages, file)
		err = cmp.Or(err, readErr)
		all = append(all, page{topicOf(file, files), string(text)})
	}
	slices.SortFunc(all, func(a, b page) int { return strings.Compare(a.topic, b.topic) })
	return all, err
}

// topicOf returns what a page is called.
func topicOf(file string, files []string) string {
	dir := path.Dir(file)
	if dir == "." {
		return "a2e"
	}
	topic := path.Base(dir)
	for up := path.Dir(dir); up != "."; up = path.Dir(up) {
		same := func(other string) bool { return other != file && strings.HasSuffix("/"+path.Dir(other), "/"+topic) }
		if topic != "config" && !slices.ContainsFunc(files, same) {
			break
		}
		topic = path.Join(path.Base(up), topic)
	}
	return topic
}

// about returns the first sentence of the page, behind its title.
func (p page) about() string {
	for paragraph := range strings.SplitSeq(p.text, "\n\n") {
		if !strings.HasPrefix(paragraph, "#") {
			sentence, _, _ := strings.Cut(oneLine(paragraph), ". ")
			return strings.TrimSuffix(sentence, ".")
		}
	}
	return ""
}

// details returns what --help says of each command beside its flags, with an example. The keys
// are the words that call it.
func details() map[string]string {
	all := map[string]string{
		"serve": "Reads one JSON request per line from stdin and answers on stdout; logs go to stderr.\n\nExample:\n" +
			`  printf '%s\n' '{"type":"handshake/req","id":"1","agent_caps":["tools"]}' '{"type":"tool/call/req","id":"2","tool_name":"echo","arguments":{"text":"hi"}}' | a2e`,
		"check":  "Examples:\n  a2e check --config a2e.yaml\n  a2e check --audit ~/.local/state/a2e/audit.jsonl\n  a2e check .mcp.json",
		"init":   "It takes over the MCP servers of .mcp.json, .cursor/mcp.json and .vscode/mcp.json, but no secret, finds skills and a git repository, and allows the programs that this folder is worked on with.\n\nExamples:\n  a2e init --print\n  a2e init && a2e trust && a2e doctor",
		"doctor": "Looks for what the config names, and says what fixes what is wrong. Nothing is started without --live, and nothing of an a2e.yaml that is not trusted.\n\nExamples:\n  a2e doctor\n  a2e doctor --live\n  a2e doctor --config a2e.yaml --json\n\nExit status 0 means that everything the config asks for works, 1 that something does not, 3 that the config itself is wrong. Warnings are no failures.",
		"trust": "A folder's own a2e.yaml may have come with the folder, or from an agent. Until it is trusted it can only make things stricter. " +
			"This shows what else it does, and trusts it as it is now: a file that changes is no longer trusted.\n\n" +
			"Examples:\n  a2e trust\n  a2e trust ~/project --dry-run\n  a2e trust --list\n  a2e trust --remove ~/project",
		"mcp add": "The config is that of --config, of A2E_CONFIG, or the a2e.yaml of this folder, which is made if there is none. Its comments and their order stay. An a2e.yaml that was trusted stays so; any other wants `a2e trust` first.\n\n" +
			"Examples:\n  a2e mcp add files -- npx -y @modelcontextprotocol/server-filesystem .\n  a2e mcp add github --env GITHUB_TOKEN -- github-mcp-server stdio\n  a2e mcp add search --url https://mcp.example.org/mcp --header 'Authorization: Bearer ${SEARCH_TOKEN}'",
		"mcp remove": "Example:\n  a2e mcp remove files",
		"tools list": "Example:\n  a2e tools list 'find text in files'\n\nExit status 1 means that the list lacks the tools of an MCP server.",
		"tools call": "Examples:\n  a2e tools call grep pattern=TODO path=src\n  a2e tools call write_file --args @args.json\n\nExit status 1 means that the tool failed.",
		"tools export": "Names and schemas are made to fit the API: names of 1 to 64 letters, digits, _ and -, and the words of JSON Schema that it takes. jsonschema gives the schemas of the arguments as they are, and mcp what `a2e mcp serve` lists.\n\n" +
			"Examples:\n  a2e tools export --format openai > tools.json\n  a2e tools export --format anthropic --map read_file grep\n\nExit status 1 means that the tools of an MCP server are missing.",
		"skills list":     "Example:\n  a2e skills list --tag reporting",
		"skills check":    "Examples:\n  a2e skills check\n  a2e skills check ./skills/my-skill\n\nExit status 1 means that a skill is broken. Hints and blocked skills are not failures.",
		"skills validate": "The verdicts are those of the reference validator, skills-ref. `a2e skills check` shows what has an effect on this host.\n\nExamples:\n  a2e skills validate\n  a2e skills validate my-skill other-skill",
		"skills new":      "Examples:\n  a2e skills new pdf-forms --description \"Fills in PDF forms.\"\n  a2e skills new pdf-forms --user",
		"skills show":     "Example:\n  a2e skills show code-review",
		"skills run":      "Examples:\n  a2e skills run word-count text='one two'\n  a2e skills run code-review --args @args.json\n\nExit status 1 means that the skill failed.",
		"chain run": "On a terminal each node has a line that shows its progress; elsewhere a line is printed when it ends. Both go to stderr, the result to stdout.\n\n" +
			"Examples:\n  a2e chain run chains/report.yaml day=monday\n  a2e chain run - --input @input.json --json < chain.yaml\n\nExit status 1 means that the chain failed, or that a node did whose failure the chain handled.",
		"chain graph": "Both are text: many pages show Mermaid as a picture, Graphviz makes one of DOT. Solid arrows are next_node and the ways of branches, dotted ones show whose output a node reads, thick ones lead to what a map or a loop runs.\n\n" +
			"Examples:\n  a2e chain graph chains/report.yaml >> notes.md\n  a2e chain graph chains/report.yaml --format dot | dot -Tsvg > report.svg",
		"chain check": "A file holds the fields of a chain/req. It finds what the host refuses before anything runs: wrong fields and expressions, unknown nodes, cycles, missing saved chains. Whether the tools exist is found when it runs.\n\n" +
			"Example:\n  a2e chain check chains/*.yaml",
		"chain resume": "Nodes that have ended are not run again. A node that was interrupted and does not say idempotent: true runs again only if --resolve says so; otherwise the error names it.\n\n" +
			"Examples:\n  a2e chain resume deploy-42\n  a2e chain resume deploy-42 --resolve upload=run --resolve notify=done\n\nExit status 1 means that the chain failed, or that it is unknown what a node did.",
		"chain approve": "Examples:\n  a2e chain approve deploy-42\n  a2e chain approve deploy-42 --node go --deny",
		"worker": "Speaks the fleet protocol 2.0 on stdin and stdout, and nothing else: it says what it is (SESSION_ANNOUNCE), takes tasks (TASK_DISPATCH) and answers each with one TASK_RESULT; logs go to stderr. " +
			"The command gets the brief on its stdin. Its stdout is the result: the last JSON object with a status that begins a line, or else all of it as the summary. It runs in the sandbox, in the workspace. With --llm a model does the tasks, with the tools of this host.\n\n" +
			"Examples:\n  a2e worker --llm http://127.0.0.1:11434/v1 --model qwen3\n" + `  printf '%s\n' '{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t1"},"brief":"count me"}' | a2e worker --no-contract -- wc -w`,
		"chat": "On a terminal it is a conversation: Ctrl-C interrupts the worker, Ctrl-D ends the chat, /help lists the commands, and what is typed while a worker is at work goes to it. " +
			"Elsewhere all of stdin is one message, and the answer is printed.\n\n" +
			"Examples:\n  a2e chat --llm http://127.0.0.1:11434/v1 --model qwen3\n  a2e chat --continue\n  git diff | a2e chat --config a2e.yaml > review.md\n\n" +
			"Exit status 1 means that the answer is incomplete.",
		"dispatch": "A task is a TASK_DISPATCH, or {\"brief\":…} with any of task_id, priority, reply_schema, deadline, token_budget, writes, isolation, required_mcp and required_capabilities. " +
			"It may also say who does it: worker (by its name in the config), model, tier, fallback (true: another one may do it), retries. " +
			"Higher priorities start first. A worker is this program again, as `a2e worker` with the same config. Each result is a TASK_RESULT on its own line, as soon as it is there.\n\n" +
			"A task without a task_id has that of its line, such as line-7, and is done each time. One that a worker has done before under its own task_id is not done again: its result is sent again.\n\n" +
			"A file of results is appended to, never overwritten; with --resume only tasks without a result in it are done.\n\n" +
			"Examples:\n  a2e dispatch tasks.ndjson --workers 4 -- my-agent --print\n  a2e dispatch tasks.yaml --out results.ndjson --resume\n\n" +
			"Exit status 1 means that not all tasks are done, 130 that it was interrupted.",
		"mcp list":    "Example:\n  a2e mcp list\n\nExit status 1 means that a server is not connected.",
		"mcp tools":   "Example:\n  a2e mcp tools files\n\nExit status 1 means that the server is not connected.",
		"mcp call":    "Examples:\n  a2e mcp call files__read_text_file path=README.md\n  a2e mcp call files__write_file --args @args.json\n\nExit status 1 means that the tool failed.",
		"mcp approve": "It shows how each tool differs from what was approved before. Example:\n  a2e mcp approve files --tool read_text_file --dry-run",
		"mcp serve": "Serves the tools, files, memories and skills of this host to an MCP client, such as an editor, on stdin and stdout; logs go to stderr.\n\nExample, for the client's config:\n" +
			`  {"mcpServers": {"a2e": {"command": "a2e", "args": ["mcp", "serve"]}}}`,
		"inspect": "The address that it prints works on this machine only, and contains a random token: keep it to yourself.\n\n" +
			"Examples:\n  a2e inspect\n  a2e inspect session.ndjson\n  a2e inspect --follow session.ndjson",
		"replay": "The requests are really done, in this folder. Each is sent when the answers are there that came before it in the record; ids that the host made up are those of now. " +
			"Ids, times and durations do not count, nor does the order of events.\n\n" +
			"Examples:\n  a2e replay session.ndjson\n  a2e replay session.ndjson --ignore score --json -- ./another-host serve\n\nExit status 1 means that an answer differs or did not come.",
		"schema":  "Both are made from the Go types of this build.\n\nExamples:\n  a2e schema protocol\n  a2e schema config > a2e.schema.json\n  a2e schema config --markdown\n  a2e schema protocol --markdown",
		"bench":   "Examples:\n  a2e bench --quick\n  a2e bench --vs 'node server.js' -- ./a2e serve",
		"help":    "The pages are the README.md files of the project, as they were when this program was built. The --help of a command says what it takes.\n\nExamples:\n  a2e help\n  a2e help sandbox\n  a2e help config",
		"version": "Example:\n  a2e version",
		"man":     "SOURCE_DATE_EPOCH is its date, today without it.\n\nExamples:\n  a2e man | man -l -\n  a2e man > ~/.local/share/man/man1/a2e.1",
		"completion": "Commands, flags, values, files and names complete: of tools and their arguments, skills, plans, chains, snapshots, environments, MCP servers, workers, pages. Nothing is started for it: the tools of MCP servers and programs are not among them.\n\n" +
			"Examples:\n  a2e completion bash > ~/.local/share/bash-completion/completions/a2e\n  a2e completion zsh > ~/.zfunc/_a2e\n  a2e completion fish > ~/.config/fish/completions/a2e.fish",
	}
	maps.Copy(all, keptDetails())
	return all
}

// keptDetails are those of the commands about what is kept: memory, plans, files, state.
func keptDetails() map[string]string {
	return map[string]string{
		"memory search": "Examples:\n  a2e memory search 'deploy the web server'\n  a2e memory search --agent w1 --namespace shop --scope user=u7 --min-score 0.3 refund --json",
		"memory list": "What agents keep for good; working memory ends with its session and is not listed.\n\nExamples:\n  a2e memory list --limit 5 --since 24h\n" +
			"  a2e memory list --agent w1 --tier episodic --tag error --filter '{\"user.age\":{\"gt\":30}}' --json",
		"memory add": "All agents find semantic entries, each agent in its namespace; an episodic entry belongs to one agent. The key is printed.\n\n" +
			"Examples:\n  a2e memory add deploy 'never on Fridays' --tag ops\n  git log -5 | a2e memory add - --ttl 24h",
		"env list": "Example:\n  a2e env list",
		"env play": "On a terminal /reset starts another episode and /plan shows which actions look good. In a pipe the first refused action ends the command. The episode ends with the command.\n\n" +
			"Examples:\n  a2e env play counter\n  printf 'inc\\ninc\\n' | a2e env play counter --seed 7 --json",
		"env reset":         "The first word printed is the episode's id. It is kept in state_dir for the idle_timeout of the config, one day by default. Episodes of a program (env: exec) end with the command: use env play for those.\n\nExample:\n  a2e env reset counter --seed 7",
		"env step":          "Examples:\n  a2e env step 0c5e8a5e-4d38-4f0d-9a9b-8a3f2f1f7d11 inc inc\n  a2e env step 0c5e8a5e-4d38-4f0d-9a9b-8a3f2f1f7d11 read_file path=notes.txt submit",
		"env close":         "Example:\n  a2e env close 0c5e8a5e-4d38-4f0d-9a9b-8a3f2f1f7d11",
		"agents list":       "Child agents live in the host that made them and end with its session: while it runs, multi_agent/list lists them and a2e inspect shows them.\n\nExample:\n  a2e agents list",
		"memory history":    "Former versions of an entry are kept for a while; forgetting the entry deletes them too.\n\nExample:\n  a2e memory history '{\"topic\":\"deploy\"}'",
		"memory namespaces": "Examples:\n  a2e memory namespaces\n  a2e memory namespaces --depth 1 --json",
		"memory forget":     "Examples:\n  a2e memory forget --key '{\"topic\":\"deploy\"}'\n  a2e memory forget --tier semantic --tag draft --tag old\n  a2e memory forget --namespace users/7 --below --all --yes",
		"plan list":         "Example: a2e plan list",
		"plan show":         "Examples:\n  a2e plan show release\n  a2e plan show release --ready",
		"plan add":          "Examples:\n  a2e plan add release\n  a2e plan add release --column todo --column doing --column done",
		"plan delete":       "Example: a2e plan delete release",
		"plan export":       "Examples:\n  a2e plan export release > PLAN.md\n  a2e plan export release --mermaid",
		"plan task add":     "Example: a2e plan task add release \"write the notes\" --priority high --due 2030-12-31",
		"plan task set":     "Examples:\n  a2e plan task set release 3f2a9c81d0b4 --status done\n  a2e plan task set release 3f2a9c81d0b4 --clear due --comment \"it can wait\"",
		"plan task claim":   "Examples:\n  a2e plan task claim release --owner ada --lease 600\n  a2e plan task claim release 3f2a9c81d0b4",
		"plan task renew":   "Example: a2e plan task renew release 3f2a9c81d0b4 --lease 3600",
		"plan task release": "Example: a2e plan task release release 3f2a9c81d0b4",
		"plan task delete":  "Example: a2e plan task delete release 3f2a9c81d0b4",
		"plan board":        "Examples:\n  a2e plan board\n  a2e plan board release --status todo --status in_progress\n  a2e plan board release --json",
		"learn stats":       "Calls of the last second of a running host may be missing.\n\nExamples:\n  a2e learn stats\n  a2e learn stats run_command --json",
		"learn export": "dpo gives {prompt, chosen, rejected, …}: chosen is the correction, or the response with the correction in its correction_span.\n" +
			"rewards gives {state, action, reward, …}: of a rated turn state holds the prompt, action the response, and reward is the score.\n\n" +
			"Examples:\n  a2e learn export > pairs.jsonl\n  a2e learn export --format rewards -o rewards.jsonl",
		"checkpoints list": "With checkpoints: true in the config the host makes one before each request that may change files, where something changed since the last one.\n\nExample:\n  a2e checkpoints list",
		"checkpoints diff": "Each line says what happened to a path: added, removed, changed, mode, or time where only that differs.\n\nExamples:\n  a2e checkpoints diff\n  a2e checkpoints diff 17 -p\n  a2e checkpoints diff 12 17 --path src --json",
		"checkpoints restore": "The current state becomes a checkpoint first, so that this can be undone too. Files that .gitignore names or that were not kept are left alone. An interrupted restore is completed by the next one.\n\n" +
			"Examples:\n  a2e checkpoints restore 17 --dry-run\n  a2e checkpoints restore 17 src/main.go docs\n\nExit status 1 means that something could not be restored.",
		"undo": "Each undo goes further back, and prints how to undo it. An interrupted undo or restore is completed first.\n\n" +
			"Examples:\n  a2e undo\n  a2e undo 3 --dry-run\n\nExit status 1 means that something could not be restored, or that there is nothing to undo.",
		"snapshot save": "A snapshot holds what plugins keep in state_dir (memory, plans) and what each agent's last session left when it ended; snapshot_mode in the config narrows that. With checkpoints on, a checkpoint of the files goes with it. " +
			"Hosts may be running: a session that goes on keeps its working memory, which is not in the snapshot yet.\n\nExample:\n  a2e snapshot save before-migration",
		"snapshot restore": "The snapshot replaces the current state, completely or, after an error, not at all. " +
			"Hosts may be running: they see restored memory and plans at once. A session that goes on keeps its working memory; the next session of the agent gets the restored one.\n\nExample:\n  a2e snapshot restore before-migration",
		"snapshot list":   "Example:\n  a2e snapshot list",
		"snapshot delete": "Example:\n  a2e snapshot delete before-migration",
		"state export": "The first line names the parts, each other line is one record. Hosts may keep running: the export is the state of one moment.\n\n" +
			"Examples:\n  a2e state export -o state.ndjson\n  a2e state export --part memory | gzip > memory.ndjson.gz",
		"state import":  "It is imported completely or, after an error, not at all.\n\nExamples:\n  a2e state import state.ndjson\n  ssh other a2e state export | a2e state import --replace -",
		"state reembed": "Vectors of different models cannot be compared: after a change of `embeddings` in the config, the host asks for this.\n\nExample:\n  a2e state reembed --config a2e.yaml",
		"state path":    "The file need not exist yet. Do not copy it while a host runs; export does.\n\nExample:\n  a2e state path",
	}
}
