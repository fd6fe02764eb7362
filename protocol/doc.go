// Package protocol has the messages of the wire: the message types and their
// Go structs, the envelope, the error codes, and the strict scan that checks every
// line before other code reads it. It does no input or output.
//
// The path of a line:
//
//	bytes ─ Line.Scan ─ Line.Envelope fields ─ Decode ─ request struct
//	response struct ─ AppendMessage ─ bytes
//
// protocol/README.md describes the wire; testdata/wire/messages.json
// has one JSON Schema per type, and the tests compare the structs with it.
package protocol
