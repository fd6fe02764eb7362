// Package guard contains the packages that keep things safe. They do not depend on the host:
//
//	auth      the tokens that clients bring, and the agent as which each token lets a client in
//	private   opens files of the state that only this user may read
//	redact    removes secrets from texts, by their value and by their look
//	swap      replaces a file by a new one, whole or not at all
//	wall      keeps agents away from the host's own files
//	webguard  refuses addresses that no agent may reach
package guard
