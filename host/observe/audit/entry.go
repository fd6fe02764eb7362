package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/observe/event"
)

const (
	// maxText is the maximum length of each string of an entry, so that the length of a line is bounded
	// too: seven strings, six bytes per escaped byte, and some numbers are less than maxLine.
	maxText = 1024
	maxLine = 64 << 10

	hashLen     = 2 * sha256.Size
	linkStart   = `,"prev":"`
	linkEnd     = `"}`
	numberStart = `,"seq":`
	macStart    = `,"mac":"`
	macEnd      = `"`
)

// link is a SHA-256 in lower case hex.
type link [hashLen]byte

func (k link) String() string { return string(k[:]) }

// noLink is the `prev` of the very first entry.
func noLink() (k link) {
	copy(k[:], strings.Repeat("0", hashLen))
	return k
}

// linkOf returns the hash of a whole line without its newline.
func linkOf(line []byte) (k link) {
	sum := sha256.Sum256(line)
	hex.Encode(k[:], sum[:])
	return k
}

// appendEntry appends the entry of e, without its link and closing brace, and a newline. If lost > 0, the entry says
// that so many were lost. Escaped JSON contains no newline, so the newline separates entries.
func appendEntry(dst []byte, e event.Event, lost int) []byte {
	if lost > 0 {
		e.Type = droppedType
	}
	dst = appendTime(append(dst, `{"ts":`...), e.Time)
	dst = appendText(append(dst, `,"session_id":`...), e.SessionID)
	dst = appendText(append(dst, `,"req_id":`...), e.ReqID)
	dst = appendText(append(dst, `,"correlation_id":`...), e.CorrelationID)
	dst = strconv.AppendBool(append(dst, `,"success":`...), e.ErrorCode == "" && lost == 0)
	dst = strconv.AppendInt(append(dst, `,"duration_ms":`...), max(0, e.Duration.Milliseconds()), 10)
	dst = append(dst, `,"error_code":`...)
	if e.ErrorCode == "" {
		dst = append(dst, `null`...)
	} else {
		dst = appendText(dst, e.ErrorCode)
	}
	dst = strconv.AppendInt(append(dst, `,"input_bytes":`...), int64(e.InputBytes), 10)
	dst = strconv.AppendInt(append(dst, `,"output_bytes":`...), int64(e.OutputBytes), 10)
	dst = appendText(append(dst, `,"type":`...), e.Type)
	dst = appendText(append(dst, `,"capability":`...), e.Capability)
	if e.Name != "" {
		dst = appendText(append(dst, `,"name":`...), e.Name)
	}
	if lost > 0 {
		dst = strconv.AppendInt(append(dst, `,"dropped":`...), int64(lost), 10)
	}
	return append(dst, '\n')
}

// droppedType is the `type` of an entry that counts lost ones.
const droppedType = "audit/dropped"

// appendTime appends the time in seconds since 1970, with microseconds.
func appendTime(dst []byte, t time.Time) []byte {
	us := t.UnixMicro()
	if us < 1e6 {
		return append(dst, '0') // no host's clock shows 1970
	}
	dst = append(strconv.AppendInt(dst, us, 10), 0)
	point := len(dst) - 7
	copy(dst[point+1:], dst[point:])
	dst[point] = '.'
	return dst
}

// appendText appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
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
	// The only possible error says that bytes were replaced, as intended.
	dst, _ = jsontext.AppendQuote(dst, s)
	if cut {
		dst = append(dst[:len(dst)-1], `…"`...)
	}
	return dst
}

// plain reports whether s needs no escaping in a JSON string, as nearly all ids and types.
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

// appendLinked appends the line of an encoded entry (without its newline), linked to prev, and returns the link of the
// new line. With a signer the entry gets a number and a MAC over prev and over all text before the MAC.
func appendLinked(dst, entry []byte, prev link, by *signer, number int64) ([]byte, link) {
	start := len(dst)
	dst = append(dst, entry...)
	if by != nil {
		dst = strconv.AppendInt(append(dst, numberStart...), number, 10)
		mac := by.sign(dst[start:], prev[:])
		dst = append(append(append(dst, macStart...), mac[:]...), macEnd...)
	}
	dst = append(append(append(dst, linkStart...), prev[:]...), linkEnd...)
	next := linkOf(dst[start:])
	return append(dst, '\n'), next
}

// signature is the signature data of a signed line.
type signature struct {
	number int64
	mac    link
	prev   link
	text   int // length of the text that the MAC covers, without prev
}

// signatureIn reads the signature of a line; ok is false if the line has none.
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

// vouches reports whether the key has signed the line.
func (s *signer) vouches(line []byte, at signature) bool {
	return s.signed(at.mac, line[:at.text], at.prev[:])
}

// linkIn reads the `prev` of a line; ok is false if the line is not an entry: not JSON, or without a link at its end.
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

// chainFile is one open file of a chain, up to its size when the walk began.
type chainFile struct {
	path string
	h    *os.File
	size int64
}

type lineForm int

const (
	lineWhole lineForm = iota
	lineHalf           // the end of the file, without a newline
	lineLong           // truncated, because it is longer than any entry
)

// each calls fn for every line until fn returns false. The line is valid only during the call.
func (f chainFile) each(fn func(line []byte, n int, form lineForm) bool) error {
	r := bufio.NewReaderSize(io.NewSectionReader(f.h, 0, f.size), maxLine+1)
	for n := 1; ; n++ {
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if !fn(line, n, lineLong) {
				return nil
			}
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.ReadSlice('\n')
			}
		case err == nil:
			if !fn(line[:len(line)-1], n, lineWhole) {
				return nil
			}
		case errors.Is(err, io.EOF) && len(line) > 0:
			fn(line, n, lineHalf)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("audit: read %s: %w", f.path, err)
		}
	}
}

// openChain opens the files of a chain, oldest first. If there is a lock file it holds the writers' lock, so that all
// files are of the same moment. Open files stay the same if they are moved during the walk.
func openChain(path string) (files []chainFile, err error) {
	if _, err := os.Lstat(path + lockFileName); err == nil {
		// Without the lock, a file that is moved now may look like a break.
		if unlock, err := (&file{path: path}).lock(nil, 2*time.Second); err == nil {
			defer unlock()
		}
	}
	names, err := chainNames(path)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		f, err := openPart(name)
		if errors.Is(err, fs.ErrNotExist) && name == path && len(names) > 1 {
			continue // it was moved, and no entry was written since
		}
		if err != nil {
			for _, f := range files {
				_ = f.h.Close()
			}
			return nil, fmt.Errorf("audit: cannot read %s: %w", name, err)
		}
		files = append(files, f)
	}
	return files, nil
}

func openPart(path string) (chainFile, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return chainFile{}, err
	}
	if !fi.Mode().IsRegular() { // opening a pipe would block
		return chainFile{}, errors.New("it is not a regular file")
	}
	h, err := os.Open(path)
	if err != nil {
		return chainFile{}, err
	}
	return chainFile{path: path, h: h, size: fi.Size()}, nil
}

// chainNames returns path.N … path.1, as far as they exist, and path.
func chainNames(path string) ([]string, error) {
	base := filepath.Base(path)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("audit: cannot read the folder of %s: %w", path, err)
	}
	var numbers []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), base+".")
		if n, err := strconv.Atoi(digits); ok && err == nil && n > 0 && strconv.Itoa(n) == digits {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	names := make([]string, 0, len(numbers)+1)
	for _, n := range numbers {
		names = append(names, path+"."+strconv.Itoa(n))
	}
	return append(names, path), nil
}
