package sandbox

// launcherTarget names the launcher, or outside the process that takes its place.
const launcherTarget = `
import resource
target = os.getppid() if os.getppid() != G["host"] else G["pid"]
thread = max(map(int, os.listdir("/proc/%d/task" % target)))
def hit():
    if target != 1: # the kernel keeps signals from that
        ok()
`

// launcherEscapes go for the launcher, which watches them. Outside, the process
// beside them takes its place; what would reach further runs isolated there, as
// the pid 1 that it is after.
func launcherEscapes() []escape {
	const target = launcherTarget
	return []escape{
		{name: "limits of the launcher", act: target + `resource.prlimit(target, resource.RLIMIT_NOFILE, (0, 0)); ok()`},
		{name: "limits of the launcher by a thread", act: target + `resource.prlimit(thread, resource.RLIMIT_NOFILE, (0, 0)); ok()`},
		{name: "limits of the launcher by a round address", act: target + `
import mmap
address = 5 << 32 # its lower half is 0
libc.mmap.restype = ctypes.c_void_p
m = libc.mmap(ctypes.c_void_p(address), ctypes.c_size_t(4096), 3, 0x100000 | 0x22, -1, ctypes.c_long(0))
if m == address:
    ctypes.memset(ctypes.c_void_p(m), 0, 16)
    call("prlimit64", target, resource.RLIMIT_NOFILE, ctypes.c_void_p(m), ctypes.c_void_p(0))
    ok()`},
		{name: "scheduling of the launcher", act: target + `os.sched_setscheduler(target, os.SCHED_IDLE, os.sched_param(0)); ok()`},
		{name: "scheduling attributes of the launcher", act: target + `
call("sched_setattr", target, struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0), 0) # IDLE
ok()`},
		{name: "scheduling parameters of the launcher", act: target + `os.sched_setparam(target, os.sched_param(0)); ok()`},
		{name: "processors of the launcher", act: target + `os.sched_setaffinity(target, {min(os.sched_getaffinity(0))}); ok()`},
		{name: "priority of the launcher", act: target + `os.setpriority(os.PRIO_PROCESS, target, 19); ok()`},
		{name: "disk priority of the launcher", act: target + `call("ioprio_set", 1, target, 3 << 13); ok()`},
		{name: "priority of the launcher's group", isolated: true, act: `
if os.getpid() == 1:
    os.setsid()
os.setpriority(os.PRIO_PGRP, 1, 19)
ok()`},
		{name: "priority of the launcher's user", isolated: true, act: `os.setpriority(os.PRIO_USER, 0, 19); ok()`},
		{name: "disk priority of the launcher's user", isolated: true, act: `
try:
    call("ioprio_set", 3, os.getuid(), 3 << 13)
except OSError:
    pass
if call("ioprio_get", 1, 1) >> 13 == 3:
    ok()`},
	}
}

// hiddenBombs take memory that the resident size of no process shows: 220 MB
// where 150 are allowed. Some show as growth of the whole machine's alone, which
// others may hide by giving back as much just then: inside they get several tries.
func hiddenBombs() []escape {
	limits := Limits{MemoryBytes: 150 << 20}
	const lib = `
import mmap
MB = 1 << 20
inside = os.getppid() != G["host"]
def fill(f, n=220):
    for i in range(n):
        os.write(f, b"x" * MB)
def wait():
    if inside:
        time.sleep(5) # the launcher watches
    else:
        ok()
if inside:
    for i in range(4):
        pid = os.fork()
        if pid == 0:
            break
        done = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        time.sleep(1)
    else:
        if done:
            ok()
        sys.exit()
`
	bombs := []escape{
		{name: "memory bomb by files in memory", act: `
files = [os.memfd_create("x") for i in range(11)]
for f in files:
    fill(f, 20)
wait()`},
		{name: "memory bomb by a file that only a socket holds", act: `
a, b = socket.socketpair()
f = os.memfd_create("x")
fill(f)
socket.send_fds(a, [b"x"], [f])
os.close(f)
wait()`},
		{name: "memory bomb by a file that only a mapping holds", act: `
f = os.memfd_create("x")
fill(f)
m = mmap.mmap(f, 4096)
os.close(f)
wait()`},
		{name: "memory bomb by a file of a process that hides", act: `
libc.prctl(4, 0, 0, 0, 0) # SET_DUMPABLE
f = os.memfd_create("x")
fill(f)
wait()`},
		{name: "memory bomb by a shared mapping that is let go", act: `
m = mmap.mmap(-1, 220 * MB)
for i in range(220):
    m[i * MB:(i + 1) * MB] = b"x" * MB
    m.madvise(mmap.MADV_DONTNEED, i * MB, MB)
wait()`},
		{name: "memory bomb by a mapping that is cut", act: `
libc.mmap.restype = ctypes.c_void_p
for i in range(22):
    m = libc.mmap(None, ctypes.c_size_t(10 * MB), 3, 0x21, -1, ctypes.c_long(0))
    ctypes.memset(ctypes.c_void_p(m), 1, 10 * MB)
    libc.munmap(ctypes.c_void_p(m + 4096), ctypes.c_size_t(10 * MB - 4096))
wait()`},
		{name: "memory bomb by System V memory", act: `
libc.shmat.restype = ctypes.c_void_p
ids = []
try:
    for i in range(11):
        ids.append(libc.shmget(0, ctypes.c_size_t(20 * MB), 0o1600))
        m = libc.shmat(ids[-1], None, 0)
        ctypes.memset(ctypes.c_void_p(m), 1, 20 * MB)
        libc.shmdt(ctypes.c_void_p(m))
    wait()
finally:
    for i in ids:
        libc.shmctl(i, 0, None)`},
		{name: "memory bomb by System V semaphores", act: `
ids = []
try:
    for i in range(110):
        ids.append(libc.semget(0, 32000, 0o1600))
    assert -1 not in ids
    wait()
finally:
    for i in ids:
        libc.semctl(i, 0, 0)`},
		{name: "memory bomb by System V messages", act: `
ids = []
text = struct.pack("l", 1) + b"x" * 8000
try:
    for i in range(13750):
        ids.append(libc.msgget(0, 0o1600))
        for j in range(2):
            if libc.msgsnd(ids[-1], text, ctypes.c_size_t(8000), 0o4000):
                raise OSError(ctypes.get_errno(), "msgsnd")
    wait()
finally:
    for i in ids:
        libc.msgctl(i, 0, None)`},
		{name: "memory bomb by page tables", act: `
n = 110 << 30
m = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000) # NORESERVE
m.madvise(15) # NOHUGEPAGE
for i in range(0, n, 2 * MB):
    m[i] # the page of zeros
wait()`},
		{name: "memory bomb after the end of the first thread", act: `
import threading
def bomb():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    b = bytearray(os.urandom(MB) * 220)
    wait()
    os._exit(0)
threading.Thread(target=bomb).start()
call("exit", 0)`},
	}
	for i := range bombs {
		bombs[i].act = lib + bombs[i].act
		bombs[i].limits, bombs[i].alone = limits, true
	}
	return bombs
}
