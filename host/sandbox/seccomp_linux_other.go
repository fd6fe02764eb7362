//go:build linux && !amd64

package sandbox

import "golang.org/x/net/bpf"

// These architectures have none of the old calls of amd64.

func archDeniedCalls() []uint32    { return nil }
func archChangingCalls() []uint32  { return nil }
func archModernCall(*notice) clock { return clock{1} }

func archSetIDRules(_, _ func(arg uint32) argTest) [][]bpf.Instruction { return nil }
