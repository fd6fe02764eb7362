//go:build !unix

package bench

import "os"

// namedPipe gives nil: there is no such thing here.
func namedPipe(string) (*os.File, error) { return nil, nil }
