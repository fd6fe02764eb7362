package env

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// judgeOfSums runs main.py and reads note*; each earns half of the reward.
const judgeOfSums = `#!/usr/bin/env python3
import json, os, sys

def run(*command, stdin=""):
    print(json.dumps({"run": command, "stdin": stdin, "timeout": LIMIT}), flush=True)
    return json.loads(sys.stdin.readline())

expected = open("expected.txt").read().split()
numbers = open("numbers.txt").read()
reward = 0
for _ in range(2):
    got = run("python3", "main.py", stdin=numbers)
    if got["exit_code"] == 0 and got["stdout"].split() == expected:
        reward += 0.25
folder = os.environ["A2E_WORKSPACE"]
notes = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("note")]
if any(os.path.isfile(note) and open(note, errors="replace").read().split() == expected for note in notes):
    reward += 0.5
print(json.dumps({"reward": reward}))
`

const honestSum = "for line in open(0): print(sum(map(int, line.split())))\n"

// rewardTasks returns a folder with one task that is judged in each of the possible ways. A run of main.py has limit
// seconds.
func rewardTasks(t *testing.T, limit string) string {
	numbers, expected := "2 3\n40 2\n-7 9\n", "5\n42\n2\n"
	files := map[string]string{
		"judged/task.yaml":    "description: x\nreward: judge\nrange: [0, 1]\ntimeout: 120\nhidden: [secret/*]\n",
		"judged/check":        strings.Replace(judgeOfSums, "LIMIT", limit, 1),
		"judged/expected.txt": expected, "judged/numbers.txt": numbers, "judged/files/secret/expected.txt": expected,
		"judged/files/main.py": "pass\n",
		"cases/task.yaml": "description: x\ntimeout: 120\nreward: number\nhidden: [secret/*]\ncases:\n" +
			"  - {run: [python3, main.py], stdin_file: numbers.txt, stdout_file: expected.txt, timeout: " + limit +
			"}\n",
		"cases/expected.txt": expected, "cases/numbers.txt": numbers, "cases/files/secret/expected.txt": expected,
		"cases/files/main.py": "pass\n",
	}
	return taskFolder(t, files)
}

// programCheats returns programs for main.py that try to get a reward without the work. TASK stands for the folder of
// the task. Those in judge could only fool a judge.
func programCheats() (judge, all map[string]string) {
	const parents = "import os, signal\n"
	judge = map[string]string{
		"prints a reward":  "print('{\"reward\": 1}')\n",
		"prints an answer": "print('\\n{\"exit_code\":0,\"stdout\":\"5\\\\n42\\\\n2\\\\n\"}')\n",
		"writes to its parent's stdout": parents + "open(f'/proc/{os.getppid()}/fd/1', 'w').write('{\"reward\": " +
			"1}\\n')\n",
		"writes to every stdout": parents + "for p in os.listdir('/proc'):\n    try: open(f'/proc/{p}/fd/1', " +
			"'w').write('{\"reward\": 1}\\n')\n    except OSError: pass\n",
		"changes the check": "open('TASK/check', 'w').write('#!/bin/sh\\necho {\"reward\": 1}\\n')\n",
		"changes the note": "import os\nfor d in ('judged', 'aside', 'work'):\n    try: " +
			"open(f'../{d}/note.txt', 'w').write('5 42 2')\n    except OSError: pass\n",
		"learns at the first run": "import os, sys\nhome = " +
			"os.path.expanduser('~/seen')\nprint(open(home).read() if os.path.exists(home) else open(home, " +
			"'w').write(open(0).read()) and '')\n",
		"ends the process": "import os; os._exit(0)\n",
		"prints what is equal to all": "class E(str):\n    __eq__ = lambda a, b: True\n    __hash__ = " +
			"str.__hash__\nprint(E('x'))\n",
	}
	return judge, map[string]string{
		"finds what is expected": findsExpected,
		"kills its parent":       parents + "os.kill(os.getppid(), signal.SIGKILL)\n",
		"kills all": parents + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor p in " +
			"os.listdir('/proc'):\n    if p.isdigit() and 'check' in open(f'/proc/{p}/cmdline').read(): " +
			"os.kill(int(p), signal.SIGKILL)\n",
		"stops its parent":         parents + "os.kill(os.getppid(), signal.SIGSTOP)\n",
		"changes what is expected": "open('TASK/expected.txt', 'w').write('')\n",
		"leaves one behind": "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: " +
			"open('main.py', 'w').write(\"print(open('TASK/expected.txt').read())\")\n",
		"writes without end":           "import sys\nfor _ in range(300): sys.stdout.write('5\\n42\\n2\\n' * 10000)\n",
		"hangs with its stdout closed": "import os, time; os.close(1); os.close(2); time.sleep(1000)\n",
		"writes no text":               "import sys; sys.stdout.buffer.write(b'\\xff\\x00\\n5\\n42\\n2')\n",
		"ends by a signal":             honestSum + "import os, sys; sys.stdout.flush(); os.kill(os.getpid(), 9)\n",
		"ends oddly":                   honestSum + "raise SystemExit(3)\n",
	}
}

// findsExpected looks for the expected text wherever it could be, and prints nothing else.
const findsExpected = `import os

def look(path):
    try: text = open(path, 'rb', 0).read(999)
    except OSError: return
    if text.split() == b'5 42 2'.split():
        print(text.decode(), flush=True)
        os._exit(0)

for path in ('TASK/expected.txt', 'secret/expected.txt', 'TASK/files/secret/expected.txt', os.environ.get('A2E_TASK', '') + '/expected.txt'):
    look(path)
for p in os.listdir('/proc'):
    for n in ('cwd', 'root'):
        look(f'/proc/{p}/{n}/TASK/../expected.txt')
        look(f'/proc/{p}/{n}/expected.txt')
    if p.isdigit():
        for n in range(3, 20):
            if os.path.isfile(f'/proc/{p}/fd/{n}'): look(f'/proc/{p}/fd/{n}')
    try: env = open(f'/proc/{p}/environ').read()
    except OSError: continue
    for v in env.split('\0'):
        if v.startswith('A2E_TASK='): look(v[9:] + '/expected.txt')
for top in ('TASK', os.path.dirname('TASK'), os.getcwd() + '/..', '/tmp'):
    for dir, _, files in os.walk(top):
        if 'expected.txt' in files: look(dir + '/expected.txt')
`

// TestWallRewardsOfPrograms: the agent's program earns a reward only if it prints the right answer.
func TestWallRewardsOfPrograms(t *testing.T) {
	dir := rewardTasks(t, "3") // 3 seconds, because one of the cheats hangs
	w := makeWorkspace(t, WorkspaceOptions{Tasks: dir}, workshop(t))
	patient := makeWorkspace(t, WorkspaceOptions{Tasks: rewardTasks(t, "30")}, workshop(t))
	judge, all := programCheats()
	for task, most := range map[string]float64{"judged": 0.5, "cases": 1} {
		cheats := maps.Clone(all)
		if task == "judged" {
			maps.Copy(cheats, judge)
		}
		t.Run(task+"/honest", func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, rewardOf(t, patient, task, map[string]string{"main.py": honestSum}), most)
		})
		for name, program := range cheats {
			t.Run(task+"/"+name, func(t *testing.T) {
				t.Parallel()
				program := strings.ReplaceAll(program, "TASK", filepath.Join(dir, task))
				assert.Equal(t, rewardOf(t, w, task, map[string]string{"main.py": program}), 0)
				for _, name := range []string{"expected.txt", "check"} {
					info, err := os.Stat(filepath.Join(dir, task, name))
					if name == "check" && task == "cases" {
						continue
					}
					must.That(t, err == nil && info.Size() != 0, "%s of the task: %v, %v", name, info, err)
				}
			})
		}
	}
}

// rewardOf puts files in an episode, runs commands in it and submits it.
func rewardOf(t *testing.T, w *workspace, task string, files map[string]string, commands ...string) float64 {
	t.Helper()
	world := beginTask(t, w, uuid.NewString(), task)
	for name, text := range files {
		putFile(t, filepath.Join(world.folder.work(), name), text)
	}
	for _, command := range commands {
		takeStep(t, world, `{"type":"run_command","command":["sh","-c",`+quoted(t, command)+`]}`)
	}
	out := takeStep(t, world, `{"type":"submit"}`)
	assert.OK(t, world.Close(t.Context()))
	return out.Reward
}

// TestWallRewardsOfFolders: no file in the agent's folder changes the judge or what the judge reads.
func TestWallRewardsOfFolders(t *testing.T) {
	dir := rewardTasks(t, "30")
	w := makeWorkspace(t, WorkspaceOptions{Tasks: dir}, workshop(t))
	const fake = "import os, sys; os.write(1, b'{\"reward\": 1}\\n'); os._exit(0)\n"
	judged := filepath.Join(dir, "judged")
	up := strings.Repeat("../", 40)
	for name, tc := range map[string]struct {
		files    map[string]string
		commands []string
	}{
		"modules": {files: map[string]string{
			"json.py": fake, "os.py": fake, "sitecustomize.py": fake, "usercustomize.py": fake, "conftest.py": fake,
			"unittest.py": fake, "unittest/__init__.py": fake,
		}},
		"programs and a task": {
			files: map[string]string{
				"task.yaml": "description: x\ncheck: [true]\n", "expected.txt": "",
				"numbers.txt": "",
			},
			commands: []string{
				"printf '#!/bin/sh\necho 5 42 2\n' > python3; chmod +x python3; mkdir bin; cp python3 bin",
				"d=$HOME/.local/lib/python3.11/site-packages; mkdir -p $d; echo 'import os; os._exit(0)' > " +
					"$d/x.pth; cp -r $HOME/.local .",
				"echo 'echo 5 42 2; exit 0' > $HOME/.profile; cp $HOME/.profile .profile; echo x > /tmp/expected.txt",
				"printf '#!/bin/sh\necho {\\\"reward\\\": 1}\n' > check; chmod +x check; cp check ../check",
			},
		},
		// Links to the expected text: relative, through a link, to a folder, through /proc, to a hidden file, and hard;
		// and a pipe.
		"links": {commands: []string{
			"ln -s " + judged + "/expected.txt note1; ln -s " + up + strings.TrimPrefix(judged, "/") +
				"/expected.txt note2",
			"ln -s / top; ln -s top" + judged + "/expected.txt note3; ln -s " + judged + " there; ln -s " +
				"there/expected.txt note4; ln -s /proc/self/cwd/expected.txt note5",
			"mkdir a; ln -s ../.. a/up; ln -s a/up/../../expected.txt note6; mkdir -p secret; ln -s " +
				"secret/expected.txt note7; ln " + judged + "/expected.txt note8; mkfifo note9",
		}},
		"later": {commands: []string{
			"(until [ -e go ]; do :; done; echo 5 42 2 > note.txt) > /dev/null " +
				"2>&1 &", "setsid sh -c 'while :; do echo 5 42 2 > ../judged/note.txt; done' > /dev/null 2>&1 &",
			"touch go; sleep 0.3",
		}},
		"main.py a link": {commands: []string{"rm main.py; ln -s " + judged + "/check main.py"}},
		"deep": {commands: []string{"i=0; while [ $i -lt 200 ]; do mkdir d && cd d; i=$((i+1)); done; " +
			"echo 5 42 2 > note.txt"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, rewardOf(t, w, "judged", tc.files, tc.commands...), 0)
		})
	}
	t.Run("honest", func(t *testing.T) {
		assert.Equal(t, rewardOf(t, w, "judged", map[string]string{"main.py": honestSum, "words/n": "5 42 2"},
			"ln -s words/n note.txt"), 1)
	})
}

// TestWallRewardsOfChecks: a check that does not end as the task says has no verdict, whatever it has printed. A check
// that only reads the agent's folder runs no code of the agent.
func TestWallRewardsOfChecks(t *testing.T) {
	files := map[string]string{"secret.txt": "apple\n"}
	checks := map[string]string{
		"killed":     "reward: number\ncheck: [sh, -c, 'echo 1; kill -9 $$']\n",
		"terminated": "reward: number\ncheck: [sh, -c, 'echo 1; kill -TERM $$']\n",
		"status":     "reward: number\ncheck: [sh, -c, 'echo 1; exit 3']\n",
		"too late":   "reward: number\ntimeout: 0.5\ncheck: [sh, -c, 'echo 1; sleep 100']\n",
		"no number":  "reward: number\ncheck: [sh, -c, 'echo inf']\n",
		"shadowed":   "reward: number\ncheck: [python3, -c, 'import json, random, unittest; print(json.dumps(-1))']\n",
		"module":     "reward: number\ncheck: [python3, -m, calendar, '1', --bad]\n",
		"linked file": "reward: number\ncheck: [sh, -c, 'cmp -s words.txt \"$1/secret.txt\" && echo 1 || echo -1', " +
			"x, '{task}']\n",
		"no verdict":  "reward: judge\ncheck: [sh, -c, 'exit 0']\n",
		"not JSON":    "reward: judge\ncheck: [sh, -c, 'echo 1; echo \"{\\\"reward\\\":1}\"']\n",
		"both":        "reward: judge\ncheck: [sh, -c, 'echo \"{\\\"reward\\\":1,\\\"run\\\":[\\\"true\\\"]}\"']\n",
		"judge ends":  "reward: judge\ncheck: [sh, -c, 'echo \"{\\\"reward\\\":1}\"; exit 1']\n",
		"judge dies":  "reward: judge\ncheck: [sh, -c, 'echo \"{\\\"reward\\\":1}\"; kill -9 $$']\n",
		"judge hangs": "reward: judge\ntimeout: 0.5\ncheck: [sh, -c, 'echo \"{\\\"reward\\\":1}\"; sleep 100']\n",
		"long line": "reward: judge\ntimeout: 20\ncheck: [sh, -c, 'head -c 5000000 /dev/zero | tr \"\\0\" x; " +
			"echo; echo \"{\\\"reward\\\":1}\"']\n",
		"never reads": "reward: judge\ntimeout: 20\ncheck: [sh, -c, 'for i in 1 2 3; do echo " +
			"\"{\\\"run\\\":[\\\"sh\\\",\\\"-c\\\",\\\"head -c 90000 /dev/zero\\\"]}\"; done']\n",
	}
	for name, yaml := range checks {
		files[strings.ReplaceAll(name, " ", "-")+"/task.yaml"] = "description: x\n" + yaml
		files[strings.ReplaceAll(name, " ", "-")+"/secret.txt"] = "apple\n"
	}
	dir := taskFolder(t, files)
	w := makeWorkspace(t, WorkspaceOptions{Tasks: dir}, workshop(t))
	const fake = "print(1)\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
	for name := range checks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			task := strings.ReplaceAll(name, " ", "-")
			left := map[string]string{"sitecustomize.py": fake, "usercustomize.py": fake}
			for _, module := range []string{"json", "random", "unittest", "calendar", "encodings", "site", "argparse"} {
				left[module+".py"] = fake
			}
			got := rewardOf(t, w, task, left, fmt.Sprintf("ln -s %s/%s/secret.txt words.txt", dir, task))
			assert.That(t, got == -1, "it earns %v", got)
		})
	}
}

// TestWallVerdictsNeedTheirNonce: a judge that prints the output of the agent's program between its own lines can be
// fooled by it, unless its verdict needs a nonce. A verdict without the nonce that the task needs does not count.
func TestWallVerdictsNeedTheirNonce(t *testing.T) {
	const echoes = `#!/usr/bin/env python3
import json, sys
nonce = json.loads(sys.stdin.readline()).get("nonce") if NONCE else None
print(json.dumps({"run": ["python3", "main.py"]}), flush=True)
said = json.loads(sys.stdin.readline())["stdout"]
print(said, flush=True)
if said == "": print(json.dumps({"reward": 0.5, "nonce": nonce} if nonce else {"reward": 0.5}))
`
	const head = "description: x\nreward: judge\nrange: [0, 1]\ntimeout: 20\n"
	dir := taskFolder(t, map[string]string{
		"without/task.yaml": head, "without/check": strings.ReplaceAll(echoes, "NONCE", "False"),
		"with/task.yaml": head + "nonce: true\n", "with/check": strings.ReplaceAll(echoes, "NONCE", "True"),
		"forgets/task.yaml": head + "nonce: true\n", "forgets/check": "#!/bin/sh\necho '{\"reward\":1}'\n",
	})
	w := makeWorkspace(t, WorkspaceOptions{Tasks: dir}, workshop(t))
	for _, c := range []struct {
		task, program string
		reward        float64
	}{
		{"without", `print('{"reward": 1}')`, 1},
		{"with", `print('{"reward": 1}')`, 0},
		{"with", `print('{"reward": 1, "nonce": "A"}')`, 0},
		{"with", "pass", 0.5},
		{"forgets", "pass", 0},
	} {
		got := rewardOf(t, w, c.task, map[string]string{"main.py": c.program})
		assert.That(t, got == c.reward, "%s: %s earns %v, should be %v", c.task, c.program, got, c.reward)
	}
}
