// Package host is the engine: it reads requests as lines, runs them by plugins, and answers
// each one once. It knows no plugin and no other protocol; it has the contracts for both.
//
//	stdin ─ lines ─ loop ─ scan ─┬─ dialect: JSON-RPC, MCP, fleet (a Dialect of their own)
//	        (leader reads)       └─ route ─ gate ─┬─ control: ping, cancel, shutdown, answers
//	                                              ├─ slot free: run where it was read ─┐
//	                                              └─ queue: a worker runs it later ────┤
//	stdout ─ writer ◄─ reply, events, streams ◄─ plugin.serve(ctx, request, emitter) ◄─┘
//
// The way of one line, in the order of the files:
//
//	lines.go      bytes become lines, whatever the reads return
//	loop.go       read: the loop; take: what is done with one line; route: its row in the table
//	leader.go     who reads: one goroutine at a time, replaced when a request drags on
//	route.go      the routing table, Route and what a plugin declares with it
//	refusal.go    what a plugin answers that does not own what a request names
//	session.go    handshake, the end of a session
//	dispatch.go   admit, the gate that a request passes once, run, release
//	order.go      which requests wait for which, by the keys of protocol/order.go
//	middleware.go what is done around each request, in one list; package middleware has the parts of it
//	group.go      calls of one of several tools that serve the same purpose
//	queue.go      requests without a slot; Places: how many run at once
//	work.go       requests of dialects, which wait and run like those of A2E
//	call.go       one request: its context, its time limit, how it is stopped
//	nested.go     requests that plugins make of each other
//	reply.go      one answer for each call; errors as the wire has them
//	event.go      events before the answer; stream.go: messages after it
//	writer.go     the output: one flusher, bounded
//	trail.go      the event of each request that was answered, for the log, the audit and others
//	control.go    the types that the host answers itself; pending.go: what it asks the agent
//	drain.go      the end: two deadlines; let finish, cut off, close, write out
//
// Around it: host.go (Options, New, Serve), plugin.go, env.go and needs.go (the contract of plugins),
// services.go, offers.go and override.go (what plugins have of the host and of each other), dialect.go
// (the contract of other protocols), limits.go.
package host
