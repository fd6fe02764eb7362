package trace

import (
	"encoding/binary"
	"strings"
)

// maxText bounds a text of a span, in bytes.
const maxText = 256

// The wire types of protobuf.
const (
	varint  = 0
	fixed64 = 1
	lengthy = 2
	fixed32 = 5
)

func appendTag(dst []byte, field, wire int) []byte {
	return binary.AppendUvarint(dst, uint64(field<<3|wire))
}

func appendBytes[T []byte | string](dst []byte, field int, data T) []byte {
	dst = binary.AppendUvarint(appendTag(dst, field, lengthy), uint64(len(data)))
	return append(dst, data...)
}

func appendInt(dst []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(appendTag(dst, field, varint), v)
}

// encode makes an ExportTraceServiceRequest: the resource, then the spans of one scope.
func (t *Tracer) encode(spans []*Span) []byte {
	var of []byte // ResourceSpans
	var about []byte
	for _, a := range t.resource {
		about = t.appendAttr(about, 1, a)
	}
	of = appendBytes(of, 1, about)
	scope := appendBytes(nil, 1, appendBytes(appendBytes(nil, 1, "a2e"), 2, t.opts.Version)) // ScopeSpans
	for _, s := range spans {
		scope = appendBytes(scope, 2, t.appendSpan(nil, s))
	}
	return appendBytes(nil, 1, appendBytes(of, 2, scope))
}

func (t *Tracer) appendSpan(dst []byte, s *Span) []byte {
	dst = appendBytes(appendBytes(dst, 1, s.trace[:]), 2, s.id[:])
	flags := uint32(0x101) // sampled, and it is known whether the parent is of another process
	if s.parent != [8]byte{} {
		dst = appendBytes(dst, 4, s.parent[:])
	}
	if s.remotelyBegun {
		flags |= 0x200
	}
	dst = appendInt(appendBytes(dst, 5, t.text(s.name)), 6, uint64(s.kind))
	dst = binary.LittleEndian.AppendUint64(appendTag(dst, 7, fixed64), uint64(s.begin.UnixNano()))
	dst = binary.LittleEndian.AppendUint64(appendTag(dst, 8, fixed64), uint64(s.begin.Add(s.end.Sub(s.begin)).UnixNano()))
	for _, a := range s.attrs {
		dst = t.appendAttr(dst, 9, a)
	}
	if s.failed {
		dst = appendBytes(dst, 15, appendInt(nil, 3, 2)) // STATUS_CODE_ERROR
	}
	return binary.LittleEndian.AppendUint32(appendTag(dst, 16, fixed32), flags)
}

func (t *Tracer) appendAttr(dst []byte, field int, a Attr) []byte {
	var value []byte
	switch v := a.Value.(type) {
	case string:
		value = appendBytes(nil, 1, t.text(v))
	case int:
		value = appendInt(nil, 3, uint64(v))
	}
	return appendBytes(dst, field, appendBytes(appendBytes(nil, 1, a.Key), 2, value))
}

// text makes a text fit to be sent.
func (t *Tracer) text(s string) string {
	s = strings.ToValidUTF8(t.opts.Secrets.Text(s), "\uFFFD")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}
