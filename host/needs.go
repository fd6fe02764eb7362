package host

import (
	"context"
	"errors"
	"os"
	"time"
)

// Needer is a plugin whose options name things of the machine, which `a2e doctor` looks for.
type Needer interface {
	// Needs lists these things in the order of the config. It looks for nothing and starts nothing; only the
	// functions of a Need do. The plugin need not be started.
	Needs() []Need
}

// Need is one thing that options name: a program, a folder, an address. Its texts hold no secret.
type Need struct {
	Of     string // what needs it, such as "worker coder"
	Option string // the option that names it, such as workers[0].command
	// Look returns what there is, such as the path of the program, without starting or reaching anything.
	Look func() (found string, err error)
	// Live tries the thing out, within Wait (0 = 10 s). nil = Look is enough.
	Live func(ctx context.Context) (found string, err error)
	Wait time.Duration
}

// Lack is an error of Need.Look and Need.Live that tells more than its text.
type Lack struct {
	Err   error
	Fix   string // the command, or the line of the config, that fixes it; "" = not known
	Minor bool   // it is not needed in every case
}

// Error implements error.
func (l *Lack) Error() string { return l.Err.Error() }

// Unwrap returns the cause of the lack.
func (l *Lack) Unwrap() error { return l.Err }

// TryWriting makes a file in a folder and removes it.
func TryWriting(dir string) error {
	file, err := os.CreateTemp(dir, ".a2e-doctor-")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}
