// Package state contains the packages that keep data on disk. All durable data of a host is in one of
// three places: the store, the event log (host/observe/event) and git.
//
//	store       tables in SQLite or PostgreSQL; each plugin has its own part
//	checkpoint  copies of the workspace before it changes, as commits of a git repository
//	git         runs the real git without hooks, configs and prompts
package state
