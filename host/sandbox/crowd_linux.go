package sandbox

import (
	"bytes"
	"time"
)

// crowd bounds the processes and threads of a tree where the kernel cannot: nothing binds
// root but the numbers of a PID namespace and a cgroup. A tree that has more is ended; for
// a moment it may. To have seccomp ask before each fork is no way: a signal would interrupt
// that, and no program awaits such a thing of fork.
type crowd struct {
	load    int   // /proc/loadavg
	limit   int64 // 0 = the kernel's concern, or no bound
	room    int64 // how many more the tree may have had when it was counted
	machine int64 // all tasks of the machine then
}

// crowdWatch is how often the tasks of the machine are looked at. It costs one short read.
const crowdWatch = 10 * time.Millisecond

// pause waits, and looks at the number of processes meanwhile. It tells whether the tree
// has more than it may.
func (t *tree) pause(d time.Duration) (crowded bool) {
	if t.crowd.limit <= 0 {
		pause(d)
		return false
	}
	for ; d > 0; d -= crowdWatch {
		pause(min(d, crowdWatch))
		if t.crowd.machineTasks()-t.crowd.machine > t.crowd.room && t.count() {
			return true
		}
	}
	return t.count() // others may have ended meanwhile
}

// count tells whether the tree has more tasks than it may.
func (t *tree) count() (crowded bool) {
	c := &t.crowd
	c.machine = c.machineTasks()
	n, err := t.tasks()
	c.room = c.limit - n
	return err == nil && c.room < 0 // what cannot be seen ends it soon: watchMemory
}

// tasks counts the processes and threads of the tree.
func (t *tree) tasks() (n int64, err error) {
	err = t.each(func(pid string) error {
		threads, err := t.names(pid + "/task")
		n += int64(len(threads))
		return ifThere(err)
	})
	return n, err
}

// machineTasks is the number of all tasks that /proc tells of.
func (c *crowd) machineTasks() int64 {
	fields, err := words(c.load)
	const tasks = 3 // "running/all"
	if err != nil || len(fields) <= tasks {
		return 0
	}
	_, all, _ := bytes.Cut(fields[tasks], []byte("/"))
	return number(all)
}
