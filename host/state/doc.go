// Package state contains the packages that keep data on disk. What plugins and dialects keep of requests is in
// one of three places: the store, the event log (host/observe/event) and git. The page of the store lists these and
// every other file of a host, such as keys and homes.
//
//	store       tables in SQLite or PostgreSQL; each plugin has its own part
//	checkpoint  copies of the workspace before it changes, as commits of a git repository
//	git         runs the real git without hooks, configs and prompts
package state
