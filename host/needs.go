package host

import (
	"context"
	"errors"
	"os"
	"time"
)

// Needer is a plugin whose options name things of the machine, which `a2e doctor` looks for.
type Needer interface {
	// Needs lists them in the order of the config. Nothing is looked for, started or reached
	// before their functions are called. The plugin need not be started.
	Needs() []Need
}

// Need is one thing that options name: a program, a folder, an address. Its texts hold no secret.
type Need struct {
	Of     string // what needs it, such as "worker coder"
	Option string // the option that names it, such as workers[0].command
	// Look tells what there is, such as the path of the program, without starting or reaching
	// anything.
	Look func() (found string, err error)
	// Live tries it out, within Wait (0 = 10 s). nil = Look says all.
	Live func(ctx context.Context) (found string, err error)
	Wait time.Duration
}

// Lack is an error of Need.Look and Need.Live that tells more than its text.
type Lack struct {
	Err   error
	Fix   string // the command, or the line of the config, that fixes it; "" = nobody knows one
	Minor bool   // it may do without
}

// Error implements error.
func (l *Lack) Error() string { return l.Err.Error() }

// Unwrap returns what the lack comes from.
func (l *Lack) Unwrap() error { return l.Err }

// TryWriting makes a file in a folder and removes it.
func TryWriting(dir string) error {
	file, err := os.CreateTemp(dir, ".a2e-doctor-")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}
