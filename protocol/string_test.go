package protocol_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// AppendString writes what the library writes, invalid UTF-8 included.
func TestAppendString(t *testing.T) {
	for c := range 256 {
		for _, text := range []string{string([]byte{byte(c)}), "abcdefgh" + string([]byte{byte(c)}) + "€", "é" + string([]byte{byte(c)})} {
			want, _ := jsontext.AppendQuote(nil, text)
			assert.Equal(t, string(protocol.AppendString(nil, text)), string(want), "%q", text)
		}
	}
	pieces := rapid.SliceOf(rapid.SampledFrom([]string{"a", "abcdefghi", "\n", "\r\n", "\t", "\"", "\\", "\x00", "\x7f", "é", "€", "😀", "\xff", "\xe2\x82", "\u2028", "\ufffd", "<&>"}))
	rapid.Check(t, func(r *rapid.T) {
		text := strings.Join(pieces.Draw(r, "text"), "")
		want, _ := jsontext.AppendQuote([]byte("before"), text)
		assert.Equal(r, string(protocol.AppendString([]byte("before"), []byte(text))), string(want), "%q", text)
	})
	text := strings.Repeat("0123456789\n", 1000)
	dst := make([]byte, 0, 2*len(text))
	assert.Equal(t, testing.AllocsPerRun(10, func() { protocol.AppendString(dst, text) }), 0, "allocations: …")
}
