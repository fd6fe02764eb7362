package link

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"a2e/host/sandbox"
)

// startProcess starts a server.
func startProcess(c *conn) (carrier, error) {
	launcher, err := c.link.env.Launcher()
	if err != nil {
		return nil, fmt.Errorf("it was not started: %w", err)
	}
	policy, err := c.link.policy(launcher)
	if err != nil {
		return nil, fmt.Errorf("it was not started: %w", err)
	}
	if policy.DirFile != nil {
		defer policy.DirFile.Close()
	}
	home := c.link.home()
	if home != nil {
		policy.HomeDir = home.Dir()
	}
	started := false
	defer func() {
		if !started && home != nil {
			home.Close()
		}
	}()
	theirIn, ourIn, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("it was not started: %w", err)
	}
	defer theirIn.Close()
	ourOut, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("it was not started: %w", err), ourIn.Close())
	}
	defer theirOut.Close()
	p := &process{
		conn: c, home: home, ear: newEar(c.link.log, c.link.secrets, c.link.env.Now), out: ourOut, lines: newLineReader(ourOut),
		in: make(chan []byte, 64), closing: make(chan struct{}), written: make(chan struct{}),
	}
	policy.Stdin, policy.Stdout, policy.Stderr = theirIn, theirOut, p.ear
	if p.proc, err = launcher.Command(c.life, policy); err != nil {
		ourIn.Close()
		ourOut.Close()
		return nil, fmt.Errorf("it was not started: %w", err)
	}
	started = true
	c.link.ear.Store(p.ear)
	if installs := c.link.cfg.Installs() && (home == nil || !home.Ready()); installs {
		c.link.log.Info().Stringer("limit", c.link.cfg.ConnectTimeout).Msg("the MCP server is being installed")
		c.link.set(func(s *State) { s.Installing = true })
	}
	go p.write(ourIn)
	return p, nil
}

// home opens the home that stays; nil = there is none.
func (l *Link) home() *sandbox.KeptHome {
	if l.cfg.Home == "" || l.env.Homes == "" {
		return nil
	}
	home, err := sandbox.KeepHome(l.env.Homes, l.cfg.Home)
	if err != nil {
		l.log.Warn().Err(err).Msg("the MCP server gets a home that does not stay")
		return nil
	}
	return home
}

// policy says what to start. Its DirFile, if any, is the caller's to close.
func (l *Link) policy(launcher *sandbox.Launcher) (sandbox.Policy, error) {
	path, read, err := l.program(launcher)
	if err != nil {
		return sandbox.Policy{}, err
	}
	for _, name := range l.cfg.Read {
		read = append(read, absolute(l.env.Workspace, name))
	}
	policy := sandbox.Policy{Path: path, Args: append([]string{l.cfg.Command}, l.cfg.Args...), HostEnv: l.cfg.Env, Read: read, Home: sandbox.HomeOwn}
	if filepath.Base(l.cfg.Command) != l.cfg.Command {
		policy.Args[0] = path // an interpreter looks for its own folder by this name
	}
	if l.cfg.Network {
		policy.Network = sandbox.NetworkHost
	}
	if filepath.IsAbs(l.cfg.Dir) {
		policy.Dir, policy.Read = filepath.Clean(l.cfg.Dir), append(policy.Read, l.cfg.Dir)
		return policy, nil
	}
	root, err := os.OpenRoot(l.env.Workspace)
	if err != nil {
		return policy, fmt.Errorf("its workspace cannot be opened: %w", err)
	}
	defer root.Close()
	if policy.DirFile, policy.Dir, err = sandbox.OpenWorkdir(root, l.env.Workspace, l.cfg.Dir); err != nil {
		return policy, fmt.Errorf("its working directory: %w", err)
	}
	return policy, nil
}

// program gives the path of the program, and what it needs to read beyond what the
// sandbox finds out: an interpreter of a virtual environment is a link, and knows by the
// file beside its folder where its libraries are.
func (l *Link) program(launcher *sandbox.Launcher) (path string, read []string, err error) {
	name := l.cfg.Command
	if filepath.Base(name) == name {
		path, err = sandbox.LookPath(name, launcher.Path(), l.env.Workspace)
		return path, nil, err
	}
	path = absolute(l.env.Workspace, name)
	if lies(path, l.env.Workspace) {
		return path, nil, nil // the workspace is there as a whole; what the agent puts there opens no more
	}
	home := filepath.Dir(filepath.Dir(path))
	if _, err := os.Stat(filepath.Join(home, "pyvenv.cfg")); err == nil {
		read = append(read, home)
	}
	return path, read, nil
}

// hint names a file that a server was started with and that its sandbox may not show; ""
// = there is none.
func (l *Link) hint() string {
	if l.cfg.Foreign {
		return ""
	}
	seen := []string{l.env.Workspace, absolute(l.env.Workspace, l.cfg.Dir), "/usr", "/bin", "/lib", "/etc", "/dev", "/proc"}
	for _, name := range l.cfg.Read {
		seen = append(seen, absolute(l.env.Workspace, name))
	}
	for _, arg := range l.cfg.Args {
		if !filepath.IsAbs(arg) || slices.ContainsFunc(seen, func(dir string) bool { return lies(arg, dir) }) {
			continue
		}
		if _, err := os.Stat(arg); err == nil {
			return fmt.Sprintf("in its sandbox it may not see %s; if so, name that, or a folder above it, in its read", arg)
		}
	}
	return ""
}

// lies tells whether a path is a folder or lies in it.
func lies(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}
