// Package observe contains the packages that tell people what a host does. The engine calls them; they
// do not depend on it:
//
//	event    events such as answered requests and started children, and the log of these events
//	audit    the event log as an audit file, with a hash chain
//	metrics  counters and durations, for /metrics
//	trace    spans for OpenTelemetry collectors
//
// A record of a session, its replay and its page are made by commands: see host/cli/record and host/cli/inspect.
package observe
