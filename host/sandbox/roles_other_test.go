//go:build !linux

package sandbox

// Roles are only played on Linux, where the tests of whole trees run.
const roleVar = "SANDBOX_TEST_ROLE"

func play(string, []string) int { return 2 }
