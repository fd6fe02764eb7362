package sandbox

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"
)

// The descriptors of a launcher's own streams.
const (
	// a socket: it carries the frame, the spec with the command's files, then one byte per signal; its end means kill
	fdControl = 0
	fdReport  = 1 // reports; 2 is the same pipe, for the text of a panic
	fdFirst   = 3 // the first descriptor that is not the launcher's own
)

// The files that come with a spec, by their index.
const (
	stdioFiles = 3 // standard input, output and error of the command
	dirFile    = 3 // the working directory, if the host has it open
	maxFiles   = 4
)

// The maximum sizes of messages, in bytes. The kernel's own limit on arguments and environment is far
// below maxSpecBytes.
const (
	maxSpecBytes   = 64 << 20
	maxReportBytes = 64 << 10
	maxLastWords   = 4 << 10 // of the text of a launcher that panicked
)

// frame describes what a launcher sets up around a command. It is the first message to the launcher,
// possibly long before the command.
type frame struct {
	Namespace     bool // the launcher is pid 1 of its own PID namespace
	UserNamespace bool
	HostIsRoot    bool
	Firm          bool // nothing runs if the walls among the grants cannot be enforced
	Mode          Mode
	Network       Network
	Processes     int64 // limit on their number
	Grants        []grant
	Home          string
	Console       string            // path of the command's terminal; "" = none
	Missing       map[string]string // why a mechanism is missing, by its name

	// Only for the host.
	alone bool // its home belongs to one command
	lost  int  // homeDir.lost at that time: a launcher keeps the folders mounted that existed then

	// What the launcher finds out.
	ownRoot     bool
	wholeEtc    bool  // Landlock must hide parts of /etc
	pidsLimited bool  // the number of processes is limited
	tree        *tree // nil until enclose
}

// fits reports whether a launcher with this frame can run a command that needs the frame want.
func (f *frame) fits(want *frame) bool {
	sameView := len(f.Grants) == len(want.Grants) && (len(f.Grants) == 0 || &f.Grants[0] == &want.Grants[0])
	return sameView && f.lost == want.lost && f.Mode == want.Mode && f.Network == want.Network &&
		f.Processes == want.Processes && f.Console == want.Console
}

// hold records what holds the tree, and why no stronger mechanism does.
func (f *frame) hold(by Mechanism, refused error) {
	f.Namespace, f.UserNamespace = by != MechanismSubreaper, by == MechanismUserPIDNamespace
	if f.Mode != Off && !f.UserNamespace {
		f.miss(findUser, refused)
	}
	if f.Mode != Off && !f.Namespace {
		f.miss(findPID, refused)
	}
}

// miss records that a mechanism is missing.
func (f *frame) miss(name string, reason error) {
	if f.Missing == nil {
		f.Missing = make(map[string]string)
	}
	f.Missing[name] = strings.ReplaceAll(reason.Error(), "\n", "; ")
}

// misses reports whether a mechanism is missing.
func (f *frame) misses(name string) bool {
	_, missed := f.Missing[name]
	return missed
}

// spec is the command that a launcher runs within its frame.
type spec struct {
	*frame   `json:"-"`
	Probe    bool // set everything up, but run nothing
	Terminal bool // file 0 becomes the controlling terminal
	Grouped  bool // a cgroup limits the tree
	Limits   Limits
	Dir      string
	Path     string
	Argv     []string
	Env      []string

	files []int // the files that the launcher receives with it
}

// rehearse lets the JSON package learn the types of the next messages, which takes time only once.
func rehearse() {
	if data, err := encode(&spec{Argv: []string{""}, Env: []string{""}}); err == nil {
		_ = decode(bytes.NewReader(data), maxSpecBytes, &spec{})
	}
	_, _ = encode(report{Missing: map[string]string{"": ""}})
}

// encode returns a message: four bytes of length, then JSON. Paths, arguments and variables may hold
// any byte, so each byte becomes the character with that number.
func encode(message any) ([]byte, error) {
	buf := bytes.NewBuffer(make([]byte, 4, copyBytes))
	err := json.MarshalWrite(buf, message, json.WithMarshalers(json.MarshalToFunc(func(e *jsontext.Encoder,
		text string,
	) error {
		chars := make([]rune, len(text))
		for i := range len(text) {
			chars[i] = rune(text[i])
		}
		return e.WriteToken(jsontext.String(string(chars)))
	})))
	binary.LittleEndian.PutUint32(buf.Bytes(), uint32(buf.Len()-4))
	return buf.Bytes(), err
}

// decode reads exactly one message of encode. It returns io.EOF if there is nothing to read.
func decode(r io.Reader, most uint32, message any) error {
	var head [4]byte
	if n, err := io.ReadFull(r, head[:]); err != nil {
		return cutOff(head[:n], r, err)
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > most {
		return cutOff(head[:], r, nil)
	}
	data := make([]byte, size)
	if n, err := io.ReadFull(r, data); err != nil {
		return cutOff(append(head[:], data[:n]...), r, io.ErrUnexpectedEOF)
	}
	return json.Unmarshal(data, message, json.WithUnmarshalers(json.UnmarshalFromFunc(func(d *jsontext.Decoder,
		text *string,
	) error {
		token, err := d.ReadToken()
		chars := []rune(token.String())
		raw := make([]byte, len(chars))
		for i, c := range chars {
			raw[i] = byte(c)
		}
		*text = string(raw)
		return err
	})))
}

// cutOff returns the error for input that is not a message, such as the text of a launcher that panicked.
func cutOff(begun []byte, r io.Reader, err error) error {
	if len(begun) == 0 {
		return err
	}
	words := make([]byte, maxLastWords)
	n, _ := io.ReadFull(r, words)
	return fmt.Errorf("launcher: %s", append(begun, words[:n]...))
}

// receiveSpec reads a spec and the files that came with it. These are closed on exec.
func receiveSpec(socket int) (*spec, error) {
	head := make([]byte, copyBytes)
	rights := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, m, err := 0, 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, m, _, _, err = unix.Recvmsg(socket, head, rights, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		return nil, err
	}
	s := &spec{}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, fds...)
	}
	if err := decode(io.MultiReader(bytes.NewReader(head[:n]), descriptor(socket)), maxSpecBytes, s); err != nil {
		return nil, err
	}
	if len(s.files) != stdioFiles && len(s.files) != maxFiles {
		return nil, fmt.Errorf("%d files came with the spec", len(s.files))
	}
	return s, nil
}

// descriptor reads directly from a file descriptor.
type descriptor int

func (d descriptor) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(d), p)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// The kinds of reports.
const (
	// the command runs, without the mechanisms in Missing; Value is 1 if it is not a child of the
	// launcher's first thread
	reportStarted = "started"
	reportRefused = "refused"   // it does not start because of Missing
	reportFailed  = "failed"    // it could not be started: Value is an errno, Text says what failed
	reportExit    = "exit"      // it ended: Value is its wait status
	reportCrowd   = "processes" // the tree had too many processes and is ended: Value is their limit
	reportMemory  = "memory"    // the tree used too much memory and is ended: Value is how much, in MiB
)

// report is a message from a launcher to the host.
type report struct {
	Kind    string
	Value   uint32
	Text    string
	Missing map[string]string
}

func readReport(r io.Reader) (got report, err error) {
	err = decode(r, maxReportBytes, &got)
	return got, err
}
