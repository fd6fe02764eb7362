package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestInitPlugin: `a2e init plugin` writes a plugin that works at once and has at most 15 lines. It replaces a file
// only with --force.
func TestInitPlugin(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--python", "--typescript"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			dir := workDir(t)
			run(t, dir, nil, "init", "plugin", flag, "mine").want(t, 0, "which is trusted as it is")
			run(t, dir, nil, "tools", "call", "word_count", "text=one two three").want(t, 0, "")
			made := must.Get(filepath.Glob(filepath.Join(dir, "mine.*")))(t)
			text := textOf(t, dir, filepath.Base(made[0]))
			writeFile(t, dir, filepath.Base(made[0]), strings.NewReplacer("\nserve()\n", "", "\nserve();\n",
				"").Replace(text))
			run(t, dir, nil, "tools", "call", "word_count", "text=x").want(t, 1, "this plugin ends without serve()")
			writeFile(t, dir, filepath.Base(made[0]), text)
			must.Equal(t, len(made), 1, "plugins")
			lines := strings.Count(string(must.Get(os.ReadFile(made[0]))(t)), "\n")
			assert.That(t, lines <= 15, "the example has %d lines", lines)
			run(t, dir, nil, "init", "plugin", flag, "mine").want(t, 1, "already exists")
			run(t, dir, nil, "init", "plugin", flag, "mine", "--force").want(t, 0, "a2e.yaml has it; try: ")
			again := run(t, dir, nil, "init", "plugin", flag, "other").want(t, 0, "add this to a2e.yaml")
			assert.Contains(t, again.stdout, "plugins:\n  other: {type: exec, command: [")
			run(t, dir, nil, "init", "plugin", flag, "a-b").want(t, 2, "lower case letters")
		})
	}
	dir := workDir(t)
	run(t, dir, nil, "init", "plugin").want(t, 2, "--python or --typescript")
	run(t, dir, nil, "init", "plugin", "--python", "--typescript").want(t, 2, "")
}

// oddTools are the same tools in both languages: they work, fail, print to stdout, are slow, or report progress.
var oddTools = map[string]string{
	"--python": `
print("printed before it serves", end="")
import os, asyncio, time
from typing import Literal, Optional
from a2e_plugin import Call, serve, tool

@tool(name="greet", tags=["text"])
def hello(name: str, how: Literal["hi", "bye"] = "hi", times: int = 1, loud: Optional[bool] = None):
    """Greet somebody.

    It is friendly.

    :param name: Who it is.
    """
    return " ".join([f"{how} {name}"] * times)

@tool
def fails(): raise ValueError("no luck")

@tool
def exits(): raise SystemExit(3)

@tool
def odd(): return {"x": float("nan")}

@tool
def prints():
    print("printed, and no end of a line", end="")
    os.system("echo from a program; printf half")
    os.write(1, b'{"a2e":"1.0","type":"tool/call/resp","req_id":"1"}')
    return {"ok": True}

@tool
def slow(call: Call):
    call.progress(50, "half"); call.log("working")
    while not call.cancelled.wait(0.01): pass
    raise RuntimeError("stopped")

@tool
async def sleeps(call: Call) -> dict:
    call.progress(50, "half"); call.log("working")
    await asyncio.sleep(1000)

serve()
`,
	"--typescript": `
import { spawnSync } from "node:child_process";
import { serve, tool } from "./a2e_plugin.mjs";

process.stdout.write("printed before it serves");
tool({
  name: "greet", description: "Greet somebody.", tags: ["text"],
  input: {
    name: { type: "string", description: "Who it is." }, how: { type: "string", enum: ["hi", "bye"], optional: true },
    times: { type: "integer", optional: true }, loud: { type: "boolean", optional: true },
  },
  run: ({ name, how = "hi", times = 1 }) => Array(times).fill(how + " " + name).join(" "),
});
tool({ name: "fails", description: "x", run: () => { throw new Error("no luck"); } });
tool({ name: "odd", description: "x", run: () => ({ x: 1n }) });
tool({ name: "exits", description: "x", run: async () => { throw 3; } });
tool({
  name: "prints", description: "x", run: () => {
    console.log("printed"); process.stdout.write("and no end of a line");
    spawnSync("sh", ["-c", "echo from a program; printf half"], { stdio: "inherit" });
    return { ok: true };
  },
});
const stopped = (signal) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("stopped"))));
for (const name of ["slow", "sleeps"]) {
  tool({
    name, description: "x", run: async (_, call) => {
      call.progress(50, "half"); call.log("working");
      await stopped(call.signal);
    },
  });
}
serve();
`,
}

// TestPluginHelpers: a mistake of a tool fails its own call only. The protocol on stdout stays intact, and the other
// tools work.
func TestPluginHelpers(t *testing.T) {
	t.Parallel()
	for flag, text := range oddTools {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			dir := workDir(t)
			run(t, dir, nil, "init", "plugin", flag, "mine").want(t, 0, "")
			writeFile(t, dir, filepath.Base(must.Get(filepath.Glob(filepath.Join(dir, "mine.*")))(t)[0]), text)
			l := start(t, dir, "--log-level=info")
			l.send(hello, call("1", "greet", `{"name":"ann","times":2}`), call("2", "fails", `{}`),
				call("3", "exits", `{}`),
				call("4", "odd", `{}`), call("5", "prints", `{}`), call("6", "greet", `{"nme":"ann"}`),
				call("7", "greet", `{"name":"ann","how":"hey"}`),
				`{"type":"tool/list/req","id":"8","query":""}`)
			for id, want := range map[string]string{
				"1": "map[result:hi ann hi ann]", "2": "tool_error no luck", "3": "tool_error 3", "4": "tool_error ",
				"5": "map[ok:true]",
				"6": "schema_violation nme", "7": "schema_violation must be one of",
			} {
				m := l.answer(id)
				code, says, _ := strings.Cut(want, " ")
				if m["type"] == "error" {
					assert.That(t, m["code"] == code && strings.Contains(fmt.Sprint(m), says), "%s: %v, want %s", id, m,
						want)
					continue
				}
				assert.Equal(t, fmt.Sprint(m["data"].(map[string]any)["data"]), want)
			}
			list := fmt.Sprint(l.answer("8"))
			for _, want := range []string{
				"Greet somebody.", "description:Who it is.", "enum:[hi bye]", "name:times",
				"type:integer", "type:boolean", "tags:[text]",
			} {
				assert.Contains(t, list, want)
			}
			for _, name := range []string{"slow", "sleeps"} {
				l.send(fmt.Sprintf(`{"type":"tool/call/req","id":%q,"tool_name":%q,"arguments":{},"streaming":true}`,
					name, name))
				first, second := l.next(), l.next()
				assert.That(t, first["kind"] == "progress" && fmt.Sprint(first["data"]) == "map[message:half pct:50]" &&
					second["kind"] == "log", "%v %v", first, second)
				l.send(fmt.Sprintf(`{"type":"cancel","req_id":%q}`, name))
				assert.Equal(t, fmt.Sprint(l.answer(name)["code"]), "cancelled")
			}
			l.send(call("9", "greet", `{"name":"bob"}`))
			assert.Equal(t, fmt.Sprint(l.answer("9")["data"].(map[string]any)["data"]), "map[result:hi bob]")
			must.OK(t, l.stdin.Close())
			assert.Equal(t, l.exit(), 0, "%s", &l.stderr)
		})
	}
}

// TestPluginHelperTypes: the types of the helper accept the example, and refuse a wrong use of an input.
func TestPluginHelperTypes(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for from, to := range map[string]string{
		"a2e_plugin.mjs": "a2e_plugin.mjs", "a2e_plugin.d.mts": "a2e_plugin.d.mts",
		"example.ts": "example.ts",
	} {
		writeFile(t, dir, to, string(must.Get(os.ReadFile(filepath.Join(root, "plugins/exec/starter", from)))(t)))
	}
	writeFile(t, dir, "wrong.ts", "import { tool } from \"./a2e_plugin.mjs\";\n"+
		"tool({ name: \"x\", description: \"x\", input: { n: { type: \"integer\" } }, run: ({ n }) => "+
		"n.toUpperCase() });\n")
	tsc := filepath.Join(tools(t, "readme/node_modules"), ".bin/tsc")
	flags := []string{"--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom", "--module", "nodenext"}
	out, err := command(t, dir, tsc, append(flags, "example.ts")...).CombinedOutput()
	assert.That(t, err == nil, "tsc: %v\n%s", err, out)
	out, err = command(t, dir, tsc, append(flags, "wrong.ts")...).CombinedOutput()
	assert.That(t, err != nil && strings.Contains(string(out), "toUpperCase"), "tsc took a wrong type: %v\n%s", err,
		out)
}
