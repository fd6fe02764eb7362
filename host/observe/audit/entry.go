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
	// maxText bounds each string of an entry, so that a line has a bound too:
	// seven strings, six bytes per escaped byte, some numbers: below maxLine.
	maxText = 1024
	maxLine = 64 << 10

	hashLen     = 2 * sha256.Size
	linkStart   = `,"prev":"`
	linkEnd     = `"}`
	numberStart = `,"seq":`
	macStart    = `,"mac":"`
	macEnd      = `"`
)

// link is a SHA-256 in lower-case hex.
type link [hashLen]byte

func (k link) String() string { return string(k[:]) }

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

// appendEntry appends the entry of e, or of the loss of lost ones, without its link and closing brace,
// ended by a newline. Escaped JSON holds no raw newline, so the newline parts entries.
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

// plain reports whether s is its own JSON string: nearly every id and type is.
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
	dst = append(append(append(dst, linkStart...), prev[:]...), linkEnd...)
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

// vouches reports whether the key signed the line.
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

// chainFile is one open file of a chain, up to the size it had when the walk began.
type chainFile struct {
	path string
	h    *os.File
	size int64
}

type lineForm int

const (
	lineWhole lineForm = iota
	lineHalf           // at the end of the file, without a newline
	lineLong           // cut, being longer than any entry
)

// each calls fn for every line until it returns false. The line is valid
// during the call only.
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

// openChain opens the files of a chain, oldest first, all of one moment: under
// the writers' lock where there is one. Open files stay the same when they are moved during the walk.
func openChain(path string) (files []chainFile, err error) {
	if _, err := os.Lstat(path + lockFileName); err == nil {
		// A lock that cannot be had only means that a file moved now may look like a break.
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
			continue // it was moved, and no entry has come since
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
	if !fi.Mode().IsRegular() { // opening a pipe would wait for its other end
		return chainFile{}, errors.New("it is not a regular file")
	}
	h, err := os.Open(path)
	if err != nil {
		return chainFile{}, err
	}
	return chainFile{path: path, h: h, size: fi.Size()}, nil
}

// chainNames lists path.N … path.1 as far as they exist, and path.
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
