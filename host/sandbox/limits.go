package sandbox

// The bounds of a tree where neither its policy nor Options say otherwise.
const (
	defaultFileBytes = 2 << 30
	defaultOpenFiles = 16384
	defaultProcesses = 1024
	leastMemoryBytes = 4 << 30
)

// DefaultLimits are the bounds of a tree where nothing else is said: half of the
// machine's memory, but at least 4 GiB; 2 GiB for a file, 16,384 open files and
// 1,024 processes. Address space and CPU time have no bound: a timeout is the
// means for the latter.
func DefaultLimits() Limits {
	return Limits{
		MemoryBytes: max(machineMemory()/2, leastMemoryBytes), FileBytes: defaultFileBytes,
		OpenFiles: defaultOpenFiles, Processes: defaultProcesses,
	}
}

// or takes the fields that l leaves open from other.
func (l Limits) or(other Limits) Limits {
	for _, f := range []struct{ mine, others *int64 }{
		{&l.MemoryBytes, &other.MemoryBytes}, {&l.AddressBytes, &other.AddressBytes}, {&l.FileBytes, &other.FileBytes}, {&l.OpenFiles, &other.OpenFiles},
		{&l.Processes, &other.Processes}, {&l.CPUSeconds, &other.CPUSeconds},
	} {
		if *f.mine == 0 {
			*f.mine = *f.others
		}
	}
	return l
}
