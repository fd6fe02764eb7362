#!/usr/bin/env bash
# Plays a newcomer in an empty folder with an empty home, and shows each command with its output and its
# time. It exits with 1 at the first command without the expected output.
#   newcomer.sh REPOSITORY [BINARY]   with BINARY, uses this program instead of a build
#   CHECK=1                           runs the project's tests as well
set -u
repository=$1 binary=${2:-}
work=$(mktemp -d)
page=
trap '[ -z "$page" ] || kill "$page"; chmod -R u+w "$work"; rm -rf "$work"' EXIT
mkdir "$work/home" "$work/project"
export HOME=$work/home
unset XDG_STATE_HOME XDG_CONFIG_HOME XDG_CACHE_HOME A2E_CONFIG
cd "$work" || exit 1
began=$(date +%s%N)
commands=0

# try COMMAND TEXT shows the command and runs it. The output must contain the text.
try() {
  commands=$((commands + 1))
  printf '\n$ %s\n' "$1"
  local start ms
  start=$(date +%s%N)
  eval "$1" >"$work/output" 2>&1 # in this shell, so that cd and export have effect later
  local code=$?
  ms=$((($(date +%s%N) - start) / 1000000))
  cut -c1-300 "$work/output" | head -20
  printf -- '-- %d ms\n' "$ms"
  if [ $code != 0 ] || [ -n "$2" ] && ! grep -qF -- "$2" "$work/output"; then
    printf 'newcomer: exit code %d, and the output should hold: %s\n' "$code" "$2"
    exit 1
  fi
}

step() { printf '\n== %s\n' "$1"; }

handshake='{"type":"handshake/req","id":"1","agent_id":"me","agent_caps":["tools"]}'
call='{"type":"tool/call/req","id":"2","tool_name":"echo","arguments":{"text":"hi"}}'

step 'The first answer'
if [ -n "$binary" ]; then
  try "git -c advice.detachedHead=false clone --quiet --depth 1 'file://$repository' a2e && cd a2e && ln -s '$binary' a2e" ''
  try "printf '%s\n' '$handshake' '$call' | ./a2e" '"success":true'
else
  try "git clone --quiet 'file://$repository' a2e && cd a2e" ''
  try "printf '%s\n' '$handshake' '$call' | go run ." '"success":true'
  try "$(sed -n 's/^\(CGO_ENABLED=0 go build .*\)$/\1/p' README.md | head -1)" ''
fi
printf '== answered after %d commands and %d ms\n' $commands $((($(date +%s%N) - began) / 1000000))
[ -z "${CHECK:-}" ] || try 'make check' '== fuzz took'
clone=$PWD
try "export PATH=$PWD:\$PATH && cd $work/project && a2e version" 'a2e '

step 'What works here'
try 'a2e tools list' 'read_file'
try 'a2e doctor || true' 'sandbox' # its exit code depends on the machine

step 'A tool of my own'
cat >a2e.yaml <<'YAML'
plugins:
  tools:
    commands:
      - name: greet
        description: Greets somebody.
        command: [echo, "Hello, {name}!"]
        parameters:
          - {name: name, type: string, required: true, description: Who is greeted.}
YAML
try 'cat a2e.yaml' 'greet'
try 'a2e trust' 'trusted'
try 'a2e tools call greet name=World' 'Hello, World!'

step 'A skill of my own'
try 'a2e skills new notes' 'SKILL.md'
try 'a2e skills check' ''
try 'a2e skills run notes' ''

step 'An MCP server'
printf 'mcpServers:\n  files: {command: a2e, args: [mcp, serve]}\n' >>a2e.yaml
try 'tail -2 a2e.yaml && a2e trust' 'trusted'
try 'a2e mcp list' 'files'
try 'a2e tools call files__list_dir path=.' 'a2e.yaml'

step 'My own agent'
try "cp $clone/testdata/clients/a2e_client.py ." ''
cat >agent.py <<'PYTHON'
from a2e_client import Host

with Host(["a2e"]) as host:
    print(host.call("greet", {"name": "agent"})["stdout"], end="")
PYTHON
try 'cat agent.py' 'Host'
try 'python3 agent.py' 'Hello, agent!'

step 'See it'
try "printf '%s\\n' '$handshake' '$call' | a2e serve --record session.ndjson" '"success":true'
a2e inspect session.ndjson >address 2>&1 &
page=$!
try 'until grep -q http address; do kill -0 $page || break; sleep 0.05; done; cat address' 'http://127.0.0.1:'
try "python3 -c \"import urllib.request; print(urllib.request.urlopen('$(sed 's/ .*//' "$work/project/address")').read().decode())\"" '<html'
kill "$page" && wait "$page"
page=
try 'a2e replay session.ndjson' 'all answered as recorded'

printf '\n== done after %d commands and %d ms\n' $commands $((($(date +%s%N) - began) / 1000000))
