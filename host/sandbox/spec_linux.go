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

// The descriptors that a launcher starts with: its own streams.
const (
	// a socket: the frame, the spec with the command's files, then one byte per signal; its end means: kill
	fdControl = 0
	fdReport  = 1 // reports; 2 is the same pipe, for a panic's text
	fdFirst   = 3 // of those that are not the launcher's own
)

// The files that come with a spec, by their place.
const (
	stdioFiles = 3 // standard input, output and error of the command
	dirFile    = 3 // the working directory, where the host has it open
	maxFiles   = 4
)

// The largest messages. The kernel's own bound on arguments and environment is far below
// that of a spec.
const (
	maxSpecBytes   = 64 << 20
	maxReportBytes = 64 << 10
	maxLastWords   = 4 << 10 // of a launcher that panicked
)

// frame is what a launcher makes around a command: the first thing it is told,
// maybe long before the command.
type frame struct {
	Namespace     bool // it is pid 1 of its own PID namespace
	UserNamespace bool
	HostIsRoot    bool
	Firm          bool // nothing runs where the walls among the grants cannot be held
	Mode          Mode
	Network       Network
	Processes     int64 // bound on their number
	Grants        []grant
	Home          string
	Console       string            // path of the command's terminal; "" = none
	Missing       map[string]string // why a mechanism cannot be had, by its name

	// The host's concern only.
	alone bool // its home is that of one command
	lost  int  // as that of homeDir: a launcher has the folders mounted that there were

	// What the launcher finds out.
	ownRoot     bool
	wholeEtc    bool  // Landlock must hide a part of /etc
	pidsLimited bool  // something bounds the number of processes
	tree        *tree // nil until enclose
}

// fits reports whether a launcher with this frame does for a command that wants
// another.
func (f *frame) fits(want *frame) bool {
	sameView := len(f.Grants) == len(want.Grants) && (len(f.Grants) == 0 || &f.Grants[0] == &want.Grants[0])
	return sameView && f.lost == want.lost && f.Mode == want.Mode && f.Network == want.Network &&
		f.Processes == want.Processes && f.Console == want.Console
}

// hold notes what holds the tree, and why it is not the strongest.
func (f *frame) hold(by Mechanism, refused error) {
	f.Namespace, f.UserNamespace = by != MechanismSubreaper, by == MechanismUserPIDNamespace
	if f.Mode != Off && !f.UserNamespace {
		f.miss(findUser, refused)
	}
	if f.Mode != Off && !f.Namespace {
		f.miss(findPID, refused)
	}
}

// miss notes that a mechanism cannot be had.
func (f *frame) miss(name string, reason error) {
	if f.Missing == nil {
		f.Missing = make(map[string]string)
	}
	f.Missing[name] = strings.ReplaceAll(reason.Error(), "\n", "; ")
}

// misses reports whether a mechanism was missed.
func (f *frame) misses(name string) bool {
	_, missed := f.Missing[name]
	return missed
}

// spec is the command that a launcher is told to run within its frame.
type spec struct {
	*frame   `json:"-"`
	Probe    bool // set everything up, and run nothing
	Terminal bool // file 0 becomes the controlling terminal
	Grouped  bool // a cgroup bounds the tree
	Limits   Limits
	Dir      string
	Path     string
	Argv     []string
	Env      []string

	files []int // what the launcher gets along with it
}

// rehearse has JSON learn the types of what comes next, which takes its time once.
func rehearse() {
	if data, err := encode(&spec{Argv: []string{""}, Env: []string{""}}); err == nil {
		_ = decode(bytes.NewReader(data), maxSpecBytes, &spec{})
	}
	_, _ = encode(report{Missing: map[string]string{"": ""}})
}

// encode returns a message: four bytes of length, then JSON. Paths, arguments and variables
// may hold any byte: each goes as one character, that of its number.
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

// decode reads what one encode wrote, and no byte more. It returns io.EOF where there is
// nothing to read.
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

// cutOff is the error for anything else than a message: the last words of a launcher that
// panicked.
func cutOff(begun []byte, r io.Reader, err error) error {
	if len(begun) == 0 {
		return err
	}
	words := make([]byte, maxLastWords)
	n, _ := io.ReadFull(r, words)
	return fmt.Errorf("launcher: %s", append(begun, words[:n]...))
}

// receiveSpec reads a spec and the files that came with it, which are closed on
// exec.
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

// descriptor reads from a file descriptor as it is.
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

// The kinds of report a launcher sends.
const (
	// the command runs, without the Missing, as a child of the first thread, or of another: Value is 1
	reportStarted = "started"
	reportRefused = "refused"   // it does not, for want of the Missing
	reportFailed  = "failed"    // it could not be started: Value is an errno, Text what failed
	reportExit    = "exit"      // it ended: Value is its wait status
	reportCrowd   = "processes" // the tree had more processes than it may, and is ended: Value is their bound
	reportMemory  = "memory"    // the tree took more memory than it may, and is ended: Value is how much, in MiB
)

// report is one message of a launcher.
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
