package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxText bounds each string of an entry, so that a line has a bound too:
	// six strings, six bytes per escaped byte, some numbers: below maxLine.
	maxText = 1024
	maxLine = 64 << 10

	hashLen     = 2 * sha256.Size
	linkStart   = `,"prev":"`
	linkEnd     = `"}`
	numberStart = `,"seq":`
	macStart    = `,"mac":"`
	macEnd      = `"`
	maxNumber   = 20 // digits
	// lineEnd is what a line has behind the entry at most.
	lineEnd = len(numberStart) + maxNumber + len(macStart) + hashLen + len(macEnd) + len(linkStart) + hashLen + len(linkEnd) + 1
)

// link is a SHA-256 in lower-case hex.
type link [hashLen]byte

// noLink is the `prev` of the very first entry.
func noLink() (k link) {
	for i := range k {
		k[i] = '0'
	}
	return k
}

// linkOf hashes a whole line without its newline.
func linkOf(line []byte) (k link) {
	sum := sha256.Sum256(line)
	hex.Encode(k[:], sum[:])
	return k
}

// appendEntry appends e without its link and closing brace, ended by a newline.
// Escaped JSON holds no raw newline, so the newline parts entries.
func appendEntry(dst []byte, e *Entry) []byte {
	dst = appendTime(append(dst, `{"ts":`...), e.Time)
	dst = appendText(append(dst, `,"session_id":`...), e.SessionID)
	dst = appendText(append(dst, `,"req_id":`...), e.ReqID)
	dst = appendText(append(dst, `,"correlation_id":`...), e.CorrelationID)
	dst = strconv.AppendBool(append(dst, `,"success":`...), e.Success)
	dst = strconv.AppendInt(append(dst, `,"duration_ms":`...), max(0, e.Duration.Milliseconds()), 10)
	dst = append(dst, `,"error_code":`...)
	if e.Success || e.ErrorCode == "" {
		dst = append(dst, `null`...)
	} else {
		dst = appendText(dst, e.ErrorCode)
	}
	dst = strconv.AppendInt(append(dst, `,"input_bytes":`...), int64(e.InputBytes), 10)
	dst = strconv.AppendInt(append(dst, `,"output_bytes":`...), int64(e.OutputBytes), 10)
	dst = appendText(append(dst, `,"type":`...), e.Type)
	dst = appendText(append(dst, `,"capability":`...), e.Capability)
	return append(dst, '\n')
}

// appendDropped appends the entry that stands for n entries that were not kept.
func appendDropped(dst []byte, at time.Time, n int) []byte {
	dst = appendEntry(dst, &Entry{Time: at, Type: droppedType})
	dst = append(dst[:len(dst)-1], `,"dropped":`...)
	return append(strconv.AppendInt(dst, int64(n), 10), '\n')
}

// droppedType is the `type` of an entry that counts dropped ones.
const droppedType = "audit/dropped"

// appendTime appends seconds since 1970 with microseconds.
func appendTime(dst []byte, t time.Time) []byte {
	us := t.UnixMicro()
	if us < 1e6 {
		return append(dst, '0') // no clock of a host shows 1970
	}
	dst = append(strconv.AppendInt(dst, us, 10), 0)
	point := len(dst) - 7
	copy(dst[point+1:], dst[point:])
	dst[point] = '.'
	return dst
}

// appendText appends s as a JSON string. Bytes that are no UTF-8 become U+FFFD.
func appendText(dst []byte, s string) []byte {
	if plain(s) {
		return append(append(append(dst, '"'), s...), '"')
	}
	cut := len(s) > maxText
	if cut {
		at := maxText
		for at > maxText-utf8.UTFMax && !utf8.RuneStart(s[at]) {
			at--
		}
		s = s[:at]
	}
	// The only error there is says that bytes were replaced, which is what is wanted.
	dst, _ = jsontext.AppendQuote(dst, s)
	if cut {
		dst = append(dst[:len(dst)-1], `…"`...)
	}
	return dst
}

// plain tells whether s is its own JSON string: nearly every id and type is.
func plain(s string) bool {
	if len(s) > maxText {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// appendLinked appends the line of an encoded entry (without its newline),
// linked to prev, and gives the link of the new line. With a signer the entry gets a number
// and a MAC, which is of all that stands before it and of prev.
func appendLinked(dst, entry []byte, prev link, by *signer, number int64) ([]byte, link) {
	start := len(dst)
	dst = append(dst, entry...)
	if by != nil {
		dst = strconv.AppendInt(append(dst, numberStart...), number, 10)
		mac := by.sign(dst[start:], prev[:])
		dst = append(append(append(dst, macStart...), mac[:]...), macEnd...)
	}
	dst = append(dst, linkStart...)
	dst = append(dst, prev[:]...)
	dst = append(dst, linkEnd...)
	next := linkOf(dst[start:])
	return append(dst, '\n'), next
}

// signature is what a signed line says of itself.
type signature struct {
	number int64
	mac    link
	prev   link
	text   int // length of what the MAC is of, beside prev
}

// signatureIn reads the signature of a line; ok is false when it has none.
func signatureIn(line []byte) (s signature, ok bool) {
	tail := len(macStart) + hashLen + len(macEnd) + len(linkStart) + hashLen + len(linkEnd)
	s.text = len(line) - tail
	if s.text < 1 || !bytes.HasPrefix(line[s.text:], []byte(macStart)) {
		return s, false
	}
	prev, linked := linkIn(line)
	number := bytes.LastIndex(line[:s.text], []byte(numberStart))
	if !linked || number < 0 {
		return s, false
	}
	n, err := strconv.ParseInt(string(line[number+len(numberStart):s.text]), 10, 64)
	copy(s.mac[:], line[s.text+len(macStart):])
	s.number, s.prev = n, prev
	return s, err == nil && n > 0
}

// vouches tells whether the key signed the line.
func (s *signer) vouches(line []byte, at signature) bool {
	return s.signed(at.mac, line[:at.text], at.prev[:])
}

// linkIn reads the `prev` of a line; ok is false when the line is no entry:
// not JSON, or without a link at its end.
func linkIn(line []byte) (k link, ok bool) {
	tail := len(linkStart) + hashLen + len(linkEnd)
	at := len(line) - tail
	if at < 1 || line[0] != '{' || len(line) > maxLine {
		return k, false
	}
	end := line[at:]
	if !bytes.HasPrefix(end, []byte(linkStart)) || !bytes.HasSuffix(end, []byte(linkEnd)) {
		return k, false
	}
	copy(k[:], end[len(linkStart):])
	for _, c := range k {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return k, false
		}
	}
	return k, jsontext.Value(line).IsValid()
}
