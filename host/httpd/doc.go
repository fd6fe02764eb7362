// Package httpd serves clients that cannot spawn a child process: each of them has a session of
// its own, which is a whole host whose input and output are HTTP requests in place of a pipe.
//
//	POST /session ──────────────────────────────► session: a host of its own
//	POST /send    ─ guard ─ feed (bounded) ─────► its input
//	GET  /stream  ◄─ events, kept for a while ◄── its output
//	     /mcp     ─ guard ─ streamable HTTP of the MCP SDK ─ a session that speaks MCP alone
//	GET  /health
//
//	httpd.go    Options, routes, the end of all sessions
//	guard.go    who is let in: tokens, Host, Origin
//	session.go  one session, its time limit, the feed
//	events.go   the output as numbered events that a client can ask for again
//	stream.go   server-sent events
//	mcp.go      MCP's streamable HTTP
package httpd
