package sandbox

// launcherTarget sets target to the launcher. Outside of the sandbox it is the victim process.
const launcherTarget = `
import resource
target = os.getppid() if os.getppid() != G["host"] else G["pid"]
thread = max(map(int, os.listdir("/proc/%d/task" % target)))
def hit():
    if target != 1: # the kernel keeps signals from that
        ok()
`

// launcherEscapes attack the launcher that watches them. Outside of the sandbox the victim takes its place; attacks
// that could reach further run in namespaces of their own there, with themselves as their target, pid 1.
func launcherEscapes() []escape {
	const target = launcherTarget
	return []escape{
		{name: "limits of the launcher", act: target +
			`resource.prlimit(target, resource.RLIMIT_NOFILE, (0, 0)); ok()`},
		{name: "limits of the launcher by a thread", act: target +
			`resource.prlimit(thread, resource.RLIMIT_NOFILE, (0, 0)); ok()`},
		{name: "limits of the launcher by a round address", act: target + `
import mmap
address = 5 << 32 # its lower half is 0
libc.mmap.restype = ctypes.c_void_p
m = libc.mmap(ctypes.c_void_p(address), ctypes.c_size_t(4096), 3, 0x100000 | 0x22, -1, ctypes.c_long(0))
if m == address:
    ctypes.memset(ctypes.c_void_p(m), 0, 16)
    call("prlimit64", target, resource.RLIMIT_NOFILE, ctypes.c_void_p(m), ctypes.c_void_p(0))
    ok()`},
		{name: "scheduling of the launcher", act: target +
			`os.sched_setscheduler(target, os.SCHED_IDLE, os.sched_param(0)); ok()`},
		{name: "scheduling attributes of the launcher", act: target + `
call("sched_setattr", target, struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0), 0) # IDLE
ok()`},
		{name: "scheduling parameters of the launcher", act: target +
			`os.sched_setparam(target, os.sched_param(0)); ok()`},
		{name: "processors of the launcher", act: target +
			`os.sched_setaffinity(target, {min(os.sched_getaffinity(0))}); ok()`},
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

// hiddenBombs take memory that the resident size of no process shows: 220 MB where 150 are allowed. Some can only be
// seen in the growth of the whole machine's memory, which other programs may hide by giving back as much at the same
// time, so these bombs get several tries inside.
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

// attributeEscapes change attributes of files outside, which Landlock does not check: without a mount namespace only
// the filter and the warden prevent this.
func attributeEscapes() []escape {
	const raced = `
import threading
sys.setswitchinterval(1e-5)
tries = 1000 if os.getppid() != G["host"] else 10**7 # outside, it wins in the end
before = os.stat(G["secret"])
def changed():
    now = os.stat(G["secret"])
    return (now.st_mode, now.st_mtime) != (before.st_mode, before.st_mtime)
`
	return []escape{
		{name: "mode by the parent folder", act: `os.chmod("../out/secret", 0o666); ok()`},
		{name: "mode through a link", act: `os.symlink(G["secret"], "link"); os.chmod("link", 0o666); ok()`},
		{name: "mode through a linked folder", act: `os.symlink(G["out"], "dir"); os.chmod("dir/secret", 0o666); ok()`},
		{name: "mode of a folder outside", act: `os.chmod(G["out"], 0o777); ok()`},
		{name: "mode from a folder outside", act: `os.chdir(G["out"]); os.chmod("secret", 0o666); ok()`},
		{
			name: "mode by a descriptor of a folder",
			act:  `os.chmod("secret", 0o666, dir_fd=os.open(G["out"], os.O_PATH)); ok()`,
		},
		{name: "mode by a descriptor that reads", act: `os.fchmod(os.open(G["ro"], os.O_RDONLY), 0o666); ok()`},
		{name: "mode by a descriptor in proc", act: `
f = os.open(G["secret"], os.O_PATH)
os.chmod("/proc/self/fd/%d" % f, 0o666); ok()`},
		{name: "mode by a descriptor without a path", act: `
f = os.open(G["secret"], os.O_PATH)
call("fchmodat2", f, b"", 0o666, 0x1000); ok()`},
		{name: "mode by the root in proc", act: `os.chmod("/proc/self/root" + G["secret"], 0o666); ok()`},
		{
			name: "mode through the working folder of another process",
			act:  `os.chmod("/proc/%d/cwd/secret" % G["pid"], 0o666); ok()`,
		},
		{name: "mode by a link to a descriptor in proc", act: `
f = os.open(G["secret"], os.O_PATH)
os.symlink("/proc/self/fd/%d" % f, "link")
os.chmod("link", 0o666); ok()`},
		{name: "owner", act: `os.chown(G["secret"], os.getuid(), os.getgid()); ok()`},
		{name: "owner of a link outside", act: `
os.chown(G["out"] + "/dangling", os.getuid(), os.getgid(), follow_symlinks=False); ok()`},
		{name: "owner by a descriptor", act: `os.fchown(os.open(G["ro"], os.O_RDONLY), os.getuid(), os.getgid()); ok()`},
		{name: "times by a descriptor", act: `os.utime(os.open(G["ro"], os.O_RDONLY), (1, 1)); ok()`},
		{name: "times set to now", act: `os.utime("../out/secret"); ok()`},
		{name: "times of a link outside", act: `os.utime(G["out"] + "/dangling", (1, 1), follow_symlinks=False); ok()`},
		{name: "times by the old calls", arch: "amd64", act: `
for name, args in ("utime", (struct.pack("2q", 1, 1),)), ("utimes", (struct.pack("4q", 1, 0, 1, 0),)):
    call(name, G["secret"].encode(), *args)
ok()`},
		{name: "extended attribute", act: `os.setxattr(G["secret"], "user.x", b"x"); ok()`},
		{
			name: "extended attribute by a descriptor",
			act:  `os.setxattr(os.open(G["ro"], os.O_RDONLY), "user.x", b"x"); ok()`,
		},
		{name: "extended attribute taken away", act: `os.removexattr(G["marked"], "user.a2e"); ok()`},
		{name: "flags of a file", act: `
import fcntl
f = os.open(G["ro"], os.O_RDONLY)
flags = bytearray(8); fcntl.ioctl(f, 0x80086601, flags)
fcntl.ioctl(f, 0x40086602, struct.pack("l", struct.unpack("l", flags)[0] | 0x40)) # NODUMP
ok()`},
		{name: "mode while a folder is swapped for a link", act: raced + `
os.mkdir("real"); open("real/secret", "w").close(); os.symlink(G["out"], "fake")
stop = False
def swap():
    while not stop:
        os.rename("real", "a"); os.rename("fake", "real"); os.rename("a", "fake")
        os.rename("real", "a"); os.rename("fake", "real"); os.rename("a", "fake")
thread = threading.Thread(target=swap); thread.start()
for i in range(tries):
    try:
        os.chmod("real/secret", 0o666)
    except OSError:
        pass
    if changed():
        ok(); break
stop = True; thread.join()`},
		{name: "mode while the path is changed in memory", act: raced + `
open("secret", "w").close()
good, bad = b"./secret\0" + b"\0" * 200, G["secret"].encode() + b"\0"
buf = ctypes.create_string_buffer(good, 256)
stop = False
def swap():
    while not stop:
        ctypes.memmove(buf, bad, len(bad)); ctypes.memmove(buf, good, 200)
thread = threading.Thread(target=swap); thread.start()
for i in range(tries):
    try:
        call("fchmodat", -100, buf, 0o666)
    except OSError:
        pass
    if changed():
        ok(); break
stop = True; thread.join()`},
	}
}

// sharedEscapes attack things that the programs of a user share without a file of their own.
func sharedEscapes() []escape {
	return []escape{
		{name: "datagram to a socket outside", act: `
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b"x", G["gram"]); ok()`},
		{name: "datagram of a pair to a socket outside", act: `
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b"x", G["gram"]); ok()`},
		{name: "pair that is connected to a socket outside", act: `
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.connect(G["gram"]); ok()`},
		{name: "pair of raw sockets", act: `
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW); a.sendto(b"x", G["gram"]); ok()`},
		{name: "System V memory of others", act: `
libc.shmat.restype = ctypes.c_void_p
m = libc.shmat(G["shm"], None, 0)
if m != ctypes.c_void_p(-1).value:
    ok()`},
		{name: "System V memory of others removed", act: `
if libc.shmctl(G["shm"], 0, None) == 0:
    ok()`},
		{name: "System V queue of others", act: `
if libc.msgsnd(G["msg"], struct.pack("l", 1) + b"x", ctypes.c_size_t(1), 0o4000) == 0:
    ok()`},
		{name: "message queue of others", act: `
f = libc.syscall(G["nr"]["mq_open"], b"a2e-escape-queue", os.O_RDWR | os.O_CREAT, 0o600, None)
if f >= 0 and "a2e-escape-queue" in os.readlink("/proc/self/fd/%d" % f):
    if os.getppid() != 1:
        libc.syscall(G["nr"]["mq_unlink"], b"a2e-escape-queue")
        ok()`},
		{name: "stop another process", act: `os.kill(G["pid"], signal.SIGSTOP); os.kill(G["pid"], signal.SIGCONT); ok()`},
		{name: "signal the host", act: `os.kill(G["host"], 0); ok()`},
		{name: "signal the launcher", act: launcherTarget + `os.kill(target, signal.SIGCONT); hit()`},
		{name: "signal the launcher's thread", act: launcherTarget + `call("tkill", thread, 0); hit()`},
		{name: "signal the launcher's thread in its group", act: launcherTarget +
			`call("tgkill", target, thread, 0); hit()`},
		{name: "queue a signal for the launcher", act: launcherTarget + `
call("rt_sigqueueinfo", target, signal.SIGCONT, struct.pack("4i", signal.SIGCONT, 0, -1, 0) + b"\0" * 112); hit()`},
		{name: "signal the launcher by its folder in proc", act: launcherTarget + `
signal.pidfd_send_signal(os.open("/proc/%d" % target, os.O_RDONLY | os.O_DIRECTORY), signal.SIGCONT); hit()`},
		{name: "signal of a pipe for the launcher", act: launcherTarget + `
import fcntl
r, w = os.pipe()
fcntl.fcntl(r, fcntl.F_SETOWN, target)
hit()`},
		{name: "priority of another process", act: `os.setpriority(os.PRIO_PROCESS, G["pid"], 19); ok()`},
		{name: "scheduling of another process", act: `os.sched_setscheduler(G["pid"], os.SCHED_IDLE, os.sched_param(0)); ok()`},
		{
			name: "processors of another process set",
			act:  `os.sched_setaffinity(G["pid"], {min(os.sched_getaffinity(0))}); ok()`,
		},
		{name: "limits of another process set", act: `
import resource
resource.prlimit(G["pid"], resource.RLIMIT_NOFILE, (10, 10)); ok()`},
	}
}
