package child

import (
	"a2e/host"
	"a2e/protocol"
)

// Emit passes on what a child says while it works, if it is of a kind that every protocol
// of the host knows. known is false for other kinds; the error says that the data is not
// what its kind has.
func Emit(to host.Emitter, kind protocol.EventKind, data protocol.Value) (known bool, err error) {
	read := func(dst any) bool {
		var obj protocol.Object
		if obj, err = protocol.ParseObject(data); err == nil {
			err = obj.Decode(dst)
		}
		return err == nil
	}
	switch kind {
	case protocol.EventProgress:
		if e := new(protocol.Progress); read(e) {
			to.Progress(e.Pct, e.Message)
		}
	case protocol.EventStatus:
		if e := new(protocol.Status); read(e) {
			to.Status(e.Message)
		}
	case protocol.EventLog:
		if e := new(protocol.Log); read(e) {
			to.Log(e.Level, e.Message, e.Stream)
		}
	case protocol.EventArtifact:
		if e := new(protocol.Artifact); read(e) {
			to.Artifact(e.Name, e.Mime, e.Chunk, e.Final)
		}
	default:
		return false, nil
	}
	return true, err
}
