// Package host is the engine: it reads requests as lines, runs them in plugins and answers each one once. It knows no
// plugin and no protocol but A2E; it defines the contracts for both.
//
//	stdin ─ lines ─ loop ─ scan ─┬─ dialect: JSON-RPC, MCP, fleet, A2A (each a Dialect)
//	        (leader reads)       ├─ control: ping, cancel, shutdown, answers
//	                             └─ route ─ gate ─┬─ slot free: runs on the reading goroutine ──────┐
//	                                              └─ queue: another goroutine runs it later ────────┤
//	stdout ─ writer ◄─ reply, events, streams ◄─ plugin.serve(ctx, request, emitter) ◄──────────────┘
//
// # Folders
//
// The folders beside the engine form levels. A folder imports only folders below it, and protocol:
//
//	hosttest    what tests use: peers, the simulator, attacks, benchmarks (imported by tests alone)
//	cli         the commands; record and inspect show sessions, dist makes the release packages
//	plugins     the capabilities, in the folder plugins beside host
//	dialect     the other protocols: mcp, jsonrpc, fleet, a2a; httpd serves them over HTTP, fleetdb over PostgreSQL
//	middleware  steps around each request
//	agent       the loop of a model and its tools; openai is the client of its endpoint
//	child       programs that plugins start and talk to; spill keeps output that is too long for an answer
//	host        the engine
//	config      the config file; trust lists the files that the user trusts, yamltree reads YAML with line numbers
//	state       durable data: store (SQLite or PostgreSQL), checkpoint, git
//	sandbox     starts programs, which reach only what they may use
//	observe     what a host reports about itself: event, audit, metrics, trace
//	guard       what keeps secrets, files and addresses safe: auth, private, redact, swap, wall, webguard
//	schema      JSON Schema of tools; pattern matches names
//
// imports_test.go has the list of allowed imports, and fails where a package imports another one. Imports of tests, and
// of files for other systems than the tested one, do not count. The plugins mcp, toolkits and exec build on tools.
//
// # Files of the engine
//
// In the order in which a line passes them:
//
//	lines.go      splits the input into lines
//	loop.go       read is the loop; take decides what happens with a line; route finds its row in the table
//	leader.go     one goroutine reads at a time; another one takes over when a request runs long
//	route.go      the routing table, and Route, which a plugin declares
//	refusal.go    the answer of a plugin that does not own what a request names
//	session.go    the handshake and the end of a session
//	dispatch.go   admit begins or queues a request; the gate, which each one passes; run; release
//	order.go      which requests wait for which, by the keys of protocol/order.go
//	middleware.go the list of steps around each request; the steps are in the folder middleware
//	group.go      calls of one of several tools that serve the same purpose
//	queue.go      requests without a slot; Slots says how many run at once
//	work.go       requests of dialects, which wait and run like those of A2E
//	call.go       one request: its context, its time limit, how it is stopped
//	nested.go     requests that plugins make of each other
//	reply.go      one answer for each call; errors in the form of the wire
//	event.go      events before the answer; stream.go: messages after it
//	writer.go     the output: one goroutine flushes it, and its size is bounded
//	trail.go      the event of each answered request, for the log, the audit and others
//	control.go    the types that the host answers itself; pending.go: questions to the agent
//	drain.go      the end, with two deadlines: finish, cancel, close, write the rest
//
// Not on that way: host.go (Options, New, Serve); plugin.go, env.go and needs.go (the contract of plugins);
// services.go, tools.go and components.go (what plugins may use of the host and of each other); dialect.go (the
// contract of other protocols); limits.go. The contract of workers and of their conversations is in the folder agent,
// that of programs in child.
package host
