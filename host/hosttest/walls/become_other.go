//go:build !unix

package main

import (
	"errors"
	"os/exec"
)

func become(*exec.Cmd, int) error { return errors.ErrUnsupported }
