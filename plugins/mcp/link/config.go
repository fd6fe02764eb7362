package link

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/http/httpguts"

	"a2e/host/guard/redact"
	"a2e/host/guard/webguard"
	"a2e/protocol"
)

// Transport is how a server is reached.
type Transport string

// The transports.
const (
	Stdio Transport = "stdio" // a process of this machine
	SSE   Transport = "sse"   // HTTP as in MCP 2024-11-05
	HTTP  Transport = "http"  // streamable HTTP
)

// The defaults of a Config.
const (
	DefaultConnectTimeout = 30 * time.Second
	DefaultInstallTimeout = 120 * time.Second
	DefaultCallTimeout    = 60 * time.Second
	DefaultPingEvery      = 30 * time.Second
)

// Config is one MCP server. Its Env, its Headers and its other secrets are never shown
// or logged.
type Config struct {
	ID string // made of 1 to 64 of A-Z a-z 0-9 _ -, without "__"

	Command string            // the program of a stdio server: a bare name of the PATH, or a path
	Args    []string          // its arguments, without its name
	Env     map[string]string // its further environment
	Dir     string            // its working directory, absolute or relative to Env.Workspace; "" = Env.Workspace

	URL     string            // of a server that is reached by HTTP
	Headers map[string]string // of each request to that host

	// Transport is "" to choose by Command or URL: a URL stands for streamable HTTP, or for SSE if the
	// server refuses that.
	Transport Transport

	Network bool            // a stdio server may use the network
	Read    []string        // further paths that it may read, absolute or relative to Env.Workspace
	Guard   *webguard.Guard // bounds the addresses that URL may lead to; nil = all
	Foreign bool            // an agent wrote this, not the machine's owner: errors do not tell which files exist

	// Home is the name of a stdio server's home in Env.Homes, which is kept between its starts; "" = it
	// gets a fresh home at each start.
	Home string

	// ConnectTimeout is how long it may take from the start to the end of the MCP handshake; 0 = 120 s for
	// a program that installs the server first, 30 s for any other. While an installer fills its home, the
	// limit is up to five times as long.
	ConnectTimeout time.Duration
	CallTimeout    time.Duration // how long a Call may go on without Extend; 0 = 60 s
	PingEvery      time.Duration // 0 = 30 s
}

// Format implements fmt.Formatter: it shows the id alone.
func (c Config) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "MCP server %q", c.ID) }

// Kind returns Transport, or its default.
func (c *Config) Kind() Transport {
	switch {
	case c.Transport != "":
		return c.Transport
	case c.URL != "":
		return HTTP
	}
	return Stdio
}

// Patience returns how long the start of the server may take.
func (c *Config) Patience() time.Duration { return c.withDefaults().ConnectTimeout }

// withDefaults returns the config with defaults for the times that are 0.
func (c Config) withDefaults() Config {
	connect := DefaultConnectTimeout
	if c.Installs() {
		connect = DefaultInstallTimeout
	}
	c.ConnectTimeout = cmp.Or(max(c.ConnectTimeout, 0), connect)
	c.CallTimeout = cmp.Or(max(c.CallTimeout, 0), DefaultCallTimeout)
	c.PingEvery = cmp.Or(max(c.PingEvery, 0), DefaultPingEvery)
	return c
}

// Validate returns an error that says what is wrong and what would be right, or nil. It shows no value that
// may be secret.
func (c *Config) Validate() error {
	if err := ValidateID(c.ID); err != nil {
		return err
	}
	if err := c.validate(); err != nil {
		return fmt.Errorf("MCP server %q: %w", c.ID, err)
	}
	return nil
}

// ValidateID returns an error if an id may not name a server: the id is the first part of the names
// SERVER__TOOL.
func ValidateID(id string) error {
	switch ok := regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString(id); {
	case !ok:
		return fmt.Errorf("the id %.80q of an MCP server should be 1 to 64 letters, digits, _ and -", id)
	case strings.Contains(id, protocol.MCPSeparator):
		return fmt.Errorf("the id %q of an MCP server has __ in it, which parts the server from the tool in the "+
			"names of tools; write one _", id)
	}
	return nil
}

func (c *Config) validate() error {
	switch {
	case c.Command == "" && c.URL == "":
		return errors.New("it has neither a command nor a url; give the command that starts it, or the url where it " +
			"is reached")
	case c.Command != "" && c.URL != "":
		return errors.New("it has a command and a url; give one of them: the command of a server to start, or the " +
			"url of one that runs")
	case !slices.Contains([]Transport{"", Stdio, SSE, HTTP}, c.Transport):
		return fmt.Errorf("the transport %.40q is not known; there are stdio, sse and http", c.Transport)
	case c.URL == "" && c.Kind() != Stdio:
		return fmt.Errorf("the transport %s needs a url in place of a command", c.Transport)
	case c.URL != "" && c.Kind() == Stdio:
		return errors.New("the transport stdio needs a command in place of a url")
	case c.ConnectTimeout < 0 || c.CallTimeout < 0 || c.PingEvery < 0:
		return errors.New("its times should be 0 or more seconds")
	}
	if c.URL != "" {
		return errors.Join(c.validateURL(), c.validateHeaders())
	}
	return c.validateProgram()
}

func (c *Config) validateURL() error {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil: // the text of err contains the URL
		return errors.New("its url cannot be read; write one such as https://example.org/mcp")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("its url should begin with https:// or http://, such as https://example.org/mcp")
	case u.Hostname() == "":
		return errors.New("its url names no host; write one such as https://example.org/mcp")
	}
	return nil
}

func (c *Config) validateHeaders() error {
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			return fmt.Errorf("%.40q is not a name of an HTTP header; it should be letters, digits and -", name)
		case slices.Contains(ownHeaders(), strings.ToLower(name)):
			return fmt.Errorf("the header %s cannot be set: HTTP and MCP set it themselves", name)
		case !httpguts.ValidHeaderFieldValue(c.Headers[name]):
			return fmt.Errorf("the value of the header %s has a line break or another control character in it", name)
		}
	}
	return nil
}

// ownHeaders returns the headers that HTTP and MCP set themselves, in lower case.
func ownHeaders() []string {
	return []string{
		"host", "connection", "content-length", "transfer-encoding", "content-type", "accept", "accept-encoding",
		"last-event-id", "mcp-session-id", "mcp-protocol-version",
	}
}

func (c *Config) validateProgram() error {
	texts := append([]string{c.Command, c.Dir}, c.Args...)
	switch nul := func(s string) bool { return strings.ContainsRune(s, 0) }; {
	case slices.ContainsFunc(texts, nul) || slices.ContainsFunc(c.Read, nul):
		return errors.New("its command, arguments or paths contain a NUL character")
	case strings.ContainsFunc(c.Command, unicode.IsSpace) && !strings.ContainsAny(strings.Fields(c.Command + " .")[0],
		`/\`):
		return errors.New("it has spaces; write the program as command and the rest as args, such as command: npx, " +
			"args: [-y, some-server]")
	case len(c.Headers) > 0:
		return errors.New("headers belong to a url; a command takes what it needs from args and env")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name) || strings.ContainsRune(c.Env[name], 0) {
			return fmt.Errorf("the environment variable %.40q should be letters, digits and _, and have no NUL "+
				"character in it", name)
		}
	}
	return nil
}

// AddSecrets adds the environment, the headers and the secrets of the URL to a set.
func (c *Config) AddSecrets(s *redact.Set) {
	for _, values := range []map[string]string{c.Env, c.Headers} {
		for name, v := range values {
			s.Add(name, v)
		}
	}
	s.AddURL(c.URL)
}
