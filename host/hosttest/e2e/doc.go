// Package e2e has the tests that run the built binary as a user or a client does: over pipes, terminals, HTTP and
// signals. It has no other code. Tests of one package's functions are beside that package.
//
// The files are named by what a user does:
//
//	main, serve, http            start the binary, talk to it and wait for it: the helpers of all files, and the tests
//	                             of the ways to serve, of stdin, stdout and signals
//	tools, call, words           tools and requests at the shell: arguments, errors, exit statuses
//	files, output, undo          many calls on the same files; answers that are cut, kept or not read; checkpoints
//	mcp                          be an MCP server and use others: add, try, install, relay
//	chat, model, rpc, golden     talk to a model; the tools that it has; sessions of JSON-RPC and the golden sessions
//	dispatch, worker, fleet      do the tasks of a fleet, here and over a server
//	a2a                          be an agent of A2A, and use others
//	memory, plan, learn, chain   what is kept of the work, and the commands that show it
//	skills                       list, check and run skills
//	state, postgres, folders     the store: moved, damaged, shared by hosts, on a server, used from several folders
//	migration                    the files of the version before: checked, used, moved
//	init, doctor, schema, help   set up, look for mistakes, complete words, read the manual
//	trust, secret, mistakes      files that nobody trusts, secrets that are shown nowhere, messages that are wrong
//	wall                         attacks; host/hosttest/attacks runs those of all packages
//	record, inspect, log, trace  what a host reports
//	embed, pages, newcomer       the examples of the pages, and clients in other languages
//	sim                          the simulator: random lines and faults in all protocols
//	bench                        benchmarks of the binary
package e2e
