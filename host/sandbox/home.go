package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Home says whose home and temporary folder a child has. What one child leaves there
// another one runs: .bashrc, .npmrc, usercustomize.py. So nothing that a child left is
// found by one that may do more.
type Home string

// The values of Home.
const (
	// HomeByRights is HomeShared for a child without any right beyond those of all:
	// neither network, nor HostEnv, nor Read, nor Write. For others it is HomeOwn.
	HomeByRights Home = ""
	// HomeShared is one folder for all children without network, and another one for
	// those with it. It is for what an agent starts as it likes, and holds no secrets.
	HomeShared Home = "shared"
	// HomeOwn is empty at the start of the child, seen by no other, and goes with it.
	HomeOwn Home = "own"
)

// ownsHome tells whether no other child may have the home of this one.
func (p *Policy) ownsHome() bool {
	more := p.Network != NetworkNone || len(p.HostEnv)+len(p.Read)+len(p.Write) > 0
	return p.Scratch == "" && (p.HomeDir != "" || p.Home == HomeOwn || p.Home == HomeByRights && more)
}

// checkHome tells what is wrong with what the policy says of its home.
func (p *Policy) checkHome() error {
	switch {
	case p.Scratch != "" && p.Home == HomeShared:
		return errors.New("sandbox: a child with a scratch folder has no shared home")
	case p.HomeDir != "" && (p.Scratch != "" || p.Home == HomeShared):
		return errors.New("sandbox: a child with a home that is kept has no other one")
	case p.Home == HomeShared && p.Network != NetworkNone && len(p.HostEnv) > 0:
		return errors.New("sandbox: a child with network and variables of the host shares no home")
	case p.Home != HomeByRights && p.Home != HomeShared && p.Home != HomeOwn:
		return fmt.Errorf("sandbox: unknown home %q", p.Home)
	}
	return nil
}

// ownHome makes the home of a child that has one to itself: its Scratch, which goes with
// the child, and is its temporary folder alone if it has a HomeDir. done is to be called once, after its end.
func (l *Launcher) ownHome(policy *Policy) (done func(), err error) {
	if !policy.ownsHome() {
		return func() {}, nil
	}
	dir, err := l.MakeScratch()
	if err != nil {
		return nil, err
	}
	policy.Scratch = dir
	return func() { l.Discard(dir) }, nil
}

// netFolder holds, in the private folder, what children with network share.
const netFolder = "net"

// of gives HOME and TMPDIR of the children that share them.
func (h *homeDir) of(network Network) (home, tmp string, err error) {
	home, tmp, err = h.get()
	if err != nil || network == NetworkNone {
		return home, tmp, err
	}
	dir := filepath.Join(filepath.Dir(tmp), netFolder)
	home, tmp = filepath.Join(dir, "home"), filepath.Join(dir, "tmp")
	if err := errors.Join(os.MkdirAll(home, 0o700), os.MkdirAll(tmp, 0o700)); err != nil {
		return "", "", fmt.Errorf("sandbox: private folder: %w", err)
	}
	return home, tmp, nil
}
