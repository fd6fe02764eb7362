#!/usr/bin/env node
// Starts the a2e binary of this system in place of itself. Nothing passes through this program:
// the host has its streams.
"use strict";
const name = `a2e-${process.platform}-${process.arch}`;
let binary;
try {
  binary = require.resolve(`${name}/bin/a2e${process.platform === "win32" ? ".exe" : ""}`);
} catch {
  console.error(`a2e: the package ${name} is not installed. It carries the binary for this system, and npm installs it with a2e unless ` +
    "optional dependencies are left out (--omit=optional, --no-optional), or there is none for this system.");
  process.exit(1);
}
const args = process.argv.slice(2);
if (process.execve && process.platform !== "win32") {
  process.removeAllListeners("warning"); // that execve is new to Node
  process.execve(binary, [binary, ...args], process.env);
}

// An older Node stays as its parent. The host ends when the fourth stream does: also when this
// program is killed, which no signal tells. On Windows Node has the system do that.
const watched = process.platform !== "win32";
const env = watched ? { ...process.env, A2E_LAUNCHER_FD: "3" } : process.env;
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  // Before the host is there: it may answer, and be told to end, before this program comes to its next line. What a
  // terminal sends goes to the host as well.
  process.on(signal, () => signal === "SIGINT" && require("node:tty").isatty(0) || host.kill(signal));
}
const host = require("node:child_process").spawn(binary, args, { env, stdio: ["inherit", "inherit", "inherit", ...(watched ? ["pipe"] : [])] });
host.on("error", (err) => {
  console.error(`a2e: ${binary}: ${err.message}`);
  process.exit(1);
});
host.on("exit", (code, signal) => {
  if (!signal) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
