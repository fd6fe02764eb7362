package sandbox

// escapes returns all escapes, grouped by target.
func escapes() []escape {
	var all []escape
	for _, some := range [][]escape{
		readEscapes(), writeEscapes(), processEscapes(), networkEscapes(), kernelEscapes(),
		namespaceEscapes(), bombs(), launcherEscapes(), attributeEscapes(), sharedEscapes(), hiddenBombs(),
	} {
		all = append(all, some...)
	}
	return all
}

func readEscapes() []escape {
	return []escape{
		{name: "read by absolute path", act: `secret(G["secret"])`},
		{name: "read by dot dot", act: `secret("../out/secret")`},
		{name: "read through a symbolic link", act: `os.symlink(G["secret"], "link"); secret("link")`},
		{name: "read through a linked folder", act: `os.symlink(G["out"], "dir"); secret("dir/secret")`},
		{name: "read through a hard link", act: `os.link(G["secret"], "hard"); secret("hard")`},
		{name: "read through the root in proc", act: `secret("/proc/self/root" + G["secret"])`},
		{name: "read through the cwd in proc", act: `secret("/proc/self/cwd/../out/secret")`},
		{name: "read through the root of another process", act: `secret("/proc/%d/root%s" % (G["pid"], G["secret"]))`},
		{name: "read through the cwd of another process", act: `secret("/proc/%d/cwd/secret" % G["pid"])`},
		{name: "read the temporary folder of the machine", act: `secret(G["temp"])`},
		{name: "read a private file of etc", act: `
open(G["etc"]).read()
ok()`},
		{name: "read after a swap of folder and link", act: `
os.mkdir("real"); open("real/secret", "w").write("mine")
os.symlink(G["out"], "fake")
for i in range(500):
    os.rename("real", "a"); os.rename("fake", "real"); os.rename("a", "fake")
    try:
        if "mine" not in open("real/secret").read():
            secret("real/secret"); break
    except OSError:
        pass`},
		{name: "read by a descriptor of the parent folder", act: `
d = os.open("..", os.O_PATH | os.O_DIRECTORY)
f = os.open("out/secret", os.O_RDONLY, dir_fd=d)
secret(f)`},
		{name: "climb from a folder that is moved away", act: `
os.makedirs("deep/er"); d = os.open("deep/er", os.O_RDONLY)
os.rename("deep/er", "er"); os.fchdir(d)
secret("../../out/secret")`},
		{name: "run a program that was not granted", act: `
import subprocess
subprocess.run([G["prog"]], check=True)
ok()`},
		{name: "run a program through the loader", act: `
import glob, subprocess
loader = (glob.glob("/lib64/ld-linux*") + glob.glob("/lib/ld-*"))[0]
subprocess.run([loader, G["prog"]], check=True)
ok()`},
		{name: "list the machine's devices", act: `
os.listdir("/sys/class")
ok()`},
		{name: "file handle", act: `
buf = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + b"\0" * 128)
call("name_to_handle_at", -100, b".", buf, ctypes.byref(ctypes.c_int()), 0)
ok()`},
	}
}

func writeEscapes() []escape {
	return []escape{
		{name: "write a file", mark: "w", act: `open(G["out"] + "/w", "w").write("MARK")`},
		{name: "write by dot dot", mark: "w", act: `open("../out/w", "w").write("MARK")`},
		{name: "write through a link", mark: "w", act: `os.symlink(G["out"] + "/w", "link"); open("link", "w").write("MARK")`},
		{
			name: "write through a linked folder", mark: "w",
			act: `os.symlink(G["out"], "dir"); open("dir/w", "w").write("MARK")`,
		},
		{name: "append", mark: "program", act: `open(G["prog"], "a").write("MARK")`},
		{name: "truncate", act: `os.truncate(G["prog"], 0); ok()`},
		{name: "remove", act: `os.unlink(G["prog"]); ok()`},
		{name: "rename into", mark: "w", act: `open("mine", "w").write("MARK"); os.rename("mine", G["out"] + "/w")`},
		{name: "rename out of", act: `os.rename(G["prog"], "stolen"); ok()`},
		{name: "hard link into", mark: "w", act: `open("mine", "w").write("MARK"); os.link("mine", G["out"] + "/w")`},
		{name: "symbolic link into", act: `os.symlink("x", G["out"] + "/l"); ok()`},
		{name: "make a folder", act: `os.mkdir(G["out"] + "/d"); ok()`},
		{name: "change the mode", act: `os.chmod(G["prog"], 0o777); ok()`},
		{name: "change the times", act: `os.utime(G["prog"], (1, 1)); ok()`},
		{name: "write to the machine's temporary folder", mark: "temp", act: `open(G["temp"], "a").write("MARK")`},
		{name: "write to a folder granted for reading", act: `open(G["ro"], "w").write("x"); ok()`},
		{name: "make a file in a folder granted for reading", act: `open(G["ro"] + "2", "w"); ok()`},
		{name: "write to a mapping of a file granted for reading", act: `
import mmap
f = os.open(G["ro"], os.O_RDWR)
m = mmap.mmap(f, 4); m[:4] = b"GONE"
ok()`},
		{name: "open for writing through proc", act: `
f = os.open(G["ro"], os.O_RDONLY)
os.open("/proc/self/fd/%d" % f, os.O_WRONLY)
ok()`},
		{
			name: "write to the system's programs", root: true,
			act: `os.open("/usr/bin", os.O_TMPFILE | os.O_WRONLY, 0o600); ok()`,
		},
		{name: "kernel settings", root: true, act: `os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY); ok()`},
		{name: "drop the machine's caches", root: true, act: `os.open("/proc/sys/vm/drop_caches", os.O_WRONLY); ok()`},
		{name: "device node", root: true, act: `
import stat
os.mknod("node", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
os.open("node", os.O_RDWR)
ok()`},
		{name: "block device", root: true, act: `
import stat
os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(7, 0))
ok()`},
		{name: "the kernel's log", root: true, act: `os.open("/dev/kmsg", os.O_WRONLY); ok()`},
	}
}

func processEscapes() []escape {
	return []escape{
		{name: "environ of another process", act: `secret("/proc/%d/environ" % G["pid"])`},
		{name: "environ of the host", act: `open("/proc/%d/environ" % G["host"], "rb").read(); ok()`},
		{name: "command line of the host", open: true, act: `open("/proc/%d/cmdline" % G["host"]).read(); ok()`},
		{name: "maps of another process", act: `open("/proc/%d/maps" % G["pid"]).read(); ok()`},
		{name: "memory of another process", act: `
line = open("/proc/%d/maps" % G["pid"]).readline()
m = open("/proc/%d/mem" % G["pid"], "rb", 0); m.seek(int(line.split("-")[0], 16)); m.read(16)
ok()`},
		{name: "descriptors of the host", open: true, act: `os.listdir("/proc/%d/fd" % G["host"]); ok()`},
		{name: "environ of the parent", act: `open("/proc/%d/environ" % os.getppid(), "rb").read(); ok()`},
		{name: "memory of the parent", act: `open("/proc/%d/mem" % os.getppid(), "rb"); ok()`},
		{name: "root of the parent", act: `secret("/proc/%d/root%s" % (os.getppid(), G["secret"]))`},
		{name: "signal another process", act: `os.kill(G["pid"], 0); ok()`},
		{name: "signal by pidfd", act: `signal.pidfd_send_signal(os.pidfd_open(G["pid"]), 0); ok()`},
		{name: "limits of another process", open: true, act: `
import resource
resource.prlimit(G["pid"], resource.RLIMIT_NOFILE); ok()`},
		{name: "processors of another process", open: true, act: `os.sched_getaffinity(G["pid"]); ok()`},
		{name: "trace another process", act: `
call("ptrace", 0x4206, G["pid"], 0, 0) # SEIZE
ok()`},
		{name: "trace a child", act: `
pid = os.fork()
if pid == 0:
    try:
        call("ptrace", 0, 0, 0, 0) # TRACEME
    except OSError:
        os._exit(1)
    os._exit(0)
if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
    ok()`},
		{name: "read another process's memory", act: `
start = int(open("/proc/%d/maps" % G["pid"]).readline().split("-")[0], 16)
buf = ctypes.create_string_buffer(16)
local = struct.pack("PN", ctypes.addressof(buf), 16); remote = struct.pack("PN", start, 16)
call("process_vm_readv", G["pid"], local, 1, remote, 1, 0)
ok()`},
		{name: "take another process's descriptor", act: `
call("pidfd_getfd", os.pidfd_open(G["pid"]), 0, 0)
ok()`},
		{name: "compare with another process", act: `
call("kcmp", os.getpid(), os.getpid(), 0, 0, 0) # FILE
ok()`},
		{name: "rights by a set-user-id program", spaces: true, act: `
if libc.prctl(39, 0, 0, 0, 0) == 0: # GET_NO_NEW_PRIVS
    ok()`},
		{name: "rights that are held", root: true, act: `
status = open("/proc/self/status").read()
held = ("CapInh", "CapPrm", "CapEff", "CapAmb") + (("CapBnd",) if G["uid"] == 0 else ()) # a user gets nothing from that
if any(int(l.split()[1], 16) for l in status.splitlines() if l.startswith(held)):
    ok()`},
	}
}

func networkEscapes() []escape {
	return []escape{
		{name: "tcp", act: `socket.create_connection(("127.0.0.1", G["tcp"])); ok()`},
		{name: "tcp over ipv6", act: `socket.create_connection(("::1", G["tcp6"])); ok()`},
		{name: "tcp listen", act: `s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); ok()`},
		{name: "mptcp", act: `s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.connect(("127.0.0.1", G["tcp"])); ok()`},
		{name: "udp", act: `
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(30)
s.sendto(b"x", ("127.0.0.1", G["udp"])); s.recv(9); ok()`},
		{name: "name server", act: `
query = struct.pack("!6H", 1, 256, 1, 0, 0, 0) + b"\x01a\x00" + struct.pack("!2H", 1, 1)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(30); s.connect(("127.0.0.1", G["udp"]))
s.send(query)
if s.recv(512)[:2] == query[:2]:
    ok()`},
		{name: "raw socket", isolated: true, act: `socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP); ok()`},
		{name: "packet socket", isolated: true, act: `socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0); ok()`},
		{name: "netlink", act: `socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); ok()`},
		{name: "interfaces", open: true, act: `
if len(open("/proc/self/net/dev").read().splitlines()) > 3 or "127.0.0.1" in open("/proc/self/net/fib_trie").read():
    ok()`},
		{name: "abstract socket", act: `s = socket.socket(socket.AF_UNIX); s.connect("\0" + G["abs"]); ok()`},
		{name: "socket in a folder outside", act: `s = socket.socket(socket.AF_UNIX); s.connect(G["unix"]); ok()`},
		{name: "socket through a link", act: `os.symlink(G["unix"], "s"); s = socket.socket(socket.AF_UNIX); s.connect("s"); ok()`},
		{name: "names of the machine's sockets", open: true, act: `
if G["abs"] in open("/proc/self/net/unix").read():
    ok()`},
	}
}

func kernelEscapes() []escape {
	return []escape{
		{name: "io_uring", act: `call("io_uring_setup", 4, ctypes.create_string_buffer(256)); ok()`},
		{name: "bpf", root: true, act: `call("bpf", 0, struct.pack("5I", 2, 4, 4, 1, 0) + b"\0" * 100, 120); ok()`},
		{name: "keyring", act: `call("add_key", b"user", b"a2e", b"x", 1, -2); ok()`},
		{name: "list keys", act: `call("keyctl", 0, -2, 1); ok()`},
		{name: "userfaultfd", act: `call("userfaultfd", 1); ok()`},
		{name: "perf events", root: true, act: `
call("perf_event_open", struct.pack("2I", 1, 112) + b"\0" * 104, 0, -1, -1, 0)
ok()`},
		{name: "kernel module", root: true, act: `reaches("init_module", 0, 0, b""); ok()`},
		{name: "another kernel", root: true, act: `reaches("kexec_load", 0, 99, 0, 0); ok()`},
		{name: "kernel log", root: true, act: `call("syslog", 10, 0, 0); ok()`},
		{name: "swap", root: true, act: `reaches("swapon", b"/nonexistent", 0); ok()`},
		{name: "process accounting", root: true, act: `reaches("acct", b"/nonexistent"); ok()`},
		{name: "file events of the whole machine", root: true, act: `call("fanotify_init", 0, 0); ok()`},
		{name: "type into the terminal", root: true, act: `
import pty, fcntl, termios
pid, fd = pty.fork()
if pid == 0:
    try:
        fcntl.ioctl(0, termios.TIOCSTI, b"x")
    except OSError:
        os._exit(1)
    os._exit(0)
if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
    ok()`},
		{name: "32-bit system call", arch: "amd64", act: `
import mmap
code = bytes([0x53, 0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0x5b, 0xc3]) # getpid by int 0x80
m = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC); m.write(code)
f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
if f() == os.getpid():
    ok()`},
	}
}

func namespaceEscapes() []escape {
	return []escape{
		{name: "user namespace by unshare", spaces: true, act: `call("unshare", 0x10000000); ok()`},
		{name: "user namespace by clone", spaces: true, act: `
pid = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
ok()`},
		{name: "user namespace by clone3", spaces: true, act: `
pid = call("clone3", struct.pack("11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0), 88)
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
ok()`},
		{name: "user namespace by a program", spaces: true, act: `
import subprocess
subprocess.run(["unshare", "--user", "true"], check=True)
ok()`},
		{name: "network namespace", isolated: true, act: `call("unshare", 0x40000000); ok()`},
		{name: "mount namespace", isolated: true, act: `call("unshare", 0x20000); ok()`},
		{
			name: "enter a namespace", isolated: true,
			act: `call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0); ok()`,
		},
		{name: "mount memory", isolated: true, act: `os.mkdir("m"); call("mount", b"x", b"m", b"tmpfs", 0, 0); ok()`},
		{name: "mount a folder", isolated: true, act: `os.mkdir("m"); call("mount", b"/usr", b"m", 0, 0x5000, 0); ok()`},
		{name: "mount proc", isolated: true, act: `os.mkdir("m"); call("mount", b"proc", b"m", b"proc", 0, 0); ok()`},
		{name: "remount", isolated: true, act: `call("mount", 0, b"/", 0, 0x1000 | 32 | 1, 0); ok()`},
		{name: "unmount", isolated: true, act: `
os.mkdir("m")
try:
    call("mount", b"x", b"m", b"tmpfs", 0, 0)
except OSError:
    pass
try:
    call("umount2", b"m" if os.path.ismount("m") else b"/tmp", 2)
    ok()
except OSError as e:
    if e.errno != errno.EPERM:
        ok()`},
		{name: "change the root", isolated: true, act: `call("chroot", b"/"); ok()`},
		{name: "swap the root", isolated: true, act: `reaches("pivot_root", b"/", b"/"); ok()`},
		{name: "new file system", isolated: true, act: `call("fsopen", b"tmpfs", 0); ok()`},
		{name: "copy a mount", isolated: true, act: `call("open_tree", -100, b"/", 0x8001); ok()`},
		{name: "name of the machine", isolated: true, act: `call("sethostname", b"x", 1); ok()`},
		{name: "become root", isolated: true, act: `os.setuid(0); ok()`},
		{name: "become another user", root: true, act: `os.setgid(54321); os.setuid(54321); ok()`},
	}
}

// awaitBound waits for the bound of the address space, which is set shortly after the start.
const awaitBound = `
import resource
for _ in range(200):
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        break
    time.sleep(0.01)
`

// bombs use up the machine's resources. Outside of the sandbox they stay small.
func bombs() []escape {
	return []escape{
		{name: "fork bomb", limits: Limits{Processes: 60}, act: `
pids = []
try:
    while len(pids) < 600:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        pids.append(pid)
    meanwhile(30) # where the tree is watched, it may have more for a moment
    ok()
finally:
    for pid in pids:
        os.kill(pid, 9)
    for pid in pids:
        os.waitpid(pid, 0)`},
		{name: "thread bomb", limits: Limits{Processes: 60}, act: `
import threading
stop = threading.Event()
try:
    for i in range(600):
        threading.Thread(target=stop.wait).start()
    meanwhile(30)
    ok()
finally:
    stop.set()`},
		{name: "memory bomb", limits: Limits{AddressBytes: 300 << 20}, act: awaitBound +
			`b = bytearray(500 << 20); ok()`},
		{name: "memory bomb by mapping", limits: Limits{AddressBytes: 300 << 20}, act: awaitBound + `
import mmap
m = mmap.mmap(-1, 500 << 20); ok()`},
		{name: "memory bomb by many processes", limits: Limits{MemoryBytes: 300 << 20}, act: `
pids = []
try:
    for i in range(6):
        pid = os.fork()
        if pid == 0:
            b = bytearray(os.urandom(1 << 20) * 100)
            signal.pause()
        pids.append(pid)
    meanwhile(30)
    ok()
finally:
    for pid in pids:
        os.kill(pid, 9)
    for pid in pids:
        os.waitpid(pid, 0)`},
		{name: "memory bomb by shared mapping", limits: Limits{MemoryBytes: 300 << 20}, act: `
import mmap
m = mmap.mmap(-1, 500 << 20)
for i in range(500):
    m[i << 20:(i << 20) + (1 << 20)] = b"x" * (1 << 20)
meanwhile(30)
ok()`},
		{name: "memory bomb by a file in memory", limits: Limits{FileBytes: 16 << 20}, act: `
f = os.memfd_create("x")
for i in range(40):
    os.write(f, b"x" * (1 << 20))
ok()`},
		{name: "memory bomb by shared memory", act: `
made = []
try:
    for i in range(100):
        name = "/dev/shm/a2e-escape-%d-%d" % (os.getpid(), i)
        made.append(name)
        open(name, "wb").write(b"x" * (1 << 20))
    ok()
finally:
    for name in made:
        os.path.exists(name) and os.unlink(name)`},
		{name: "disk bomb", limits: Limits{FileBytes: 16 << 20}, act: `
f = open("big", "wb")
for i in range(40):
    f.write(b"x" * (1 << 20))
f.flush()
ok()`},
		{
			name: "disk bomb by a hole", limits: Limits{FileBytes: 16 << 20},
			act: `os.truncate(os.open("big", os.O_CREAT | os.O_RDWR), 1 << 40); ok()`,
		},
		{name: "descriptor bomb", limits: Limits{OpenFiles: 100}, act: `
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
fds = [os.open("/dev/null", os.O_RDONLY) for i in range(300)]
ok()`},
		{name: "processor bomb", limits: Limits{CPUSeconds: 1}, act: `
while time.process_time() < 1.2:
    pass
ok()`},
		{name: "core dump", act: `
import resource
if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
    ok()`},
	}
}
