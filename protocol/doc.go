// Package protocol is what a line of the wire means: the message types and their
// Go structs, the envelope, the error codes, and the strict scan that every line
// passes before anything else looks at it. It knows nothing but JSON.
//
// A line travels through it like this:
//
//	bytes ─ Line.Scan ─ Line.Envelope fields ─ Decode ─ request struct
//	response struct ─ AppendMessage ─ bytes
//
// The wire is described in the project's WIRE page; testdata/wire/messages.json
// has one JSON Schema per type, and the tests hold the structs against it.
package protocol
