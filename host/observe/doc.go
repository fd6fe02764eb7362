// Package observe is the door of the packages that tell people what a host does. They are below the engine, which calls
// them:
//
//	event    one event for each request that was answered, and the log of these events
//	audit    the event log as an audit file, with a hash chain
//	metrics  counters and durations, for /metrics
//	trace    spans for OpenTelemetry collectors
//
// A record of a session, its replay and its page are commands: see host/cli/record and host/cli/inspect.
package observe
