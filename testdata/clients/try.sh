# Tests a2e.sh: bash try.sh A2E
set -u
. ./a2e.sh
fail() { echo "$1: ${A2E_ERROR-} $(head -c 300 <<<"${A2E_ANSWER-}")" >&2; exit 1; }
echo_args() { printf '"tool_name":"echo","arguments":{"text":%s}' "$(a2e_text "$1")"; }
same() { [[ $A2E_ANSWER == *"\"data\":{\"text\":$(a2e_text "$1")}"* ]] || fail "not $1"; }
sh_args() { printf '"tool_name":"run_command","arguments":{"command":["sh","-c","%s"]}' "$1"; }

a2e_start "$@" || fail start
for i in {1..1000}; do a2e_send tool/call/req "\"tool_name\":\"echo\",\"arguments\":{\"text\":\"$i\"}"; done
for i in {1000..1}; do a2e_wait $((i + 1)) && [[ $A2E_ANSWER == *"\"text\":\"$i\""* ]] || fail "$i"; done
printf -v big %5000000s
a2e_request tool/call/req "$(echo_args "$big")" || fail big
[[ ${#A2E_ANSWER} -gt 5000000 ]] || fail "cut"
text=$'äß 日本 \u2028 \U1f600 "\\'
a2e_request tool/call/req "$(echo_args "$text")" && same "$text" || fail unicode
events=0
a2e_event() { events=$((events + 1)); }
a2e_request tool/call/req "$(sh_args 'echo out'),\"streaming\":true" || fail events
((events > 0)) || fail "no events"
a2e_call nothing >/dev/null && fail "an unknown tool"
[[ $A2E_ERROR == unknown_tool:* ]] || fail "unknown tool"
[[ $(a2e_call echo '{"text":"hi"}') == *'{"text":"hi"}'* ]] || fail call
a2e_call run_command '{"command":["sh","-c","exit 3"]}' >/dev/null && fail "exit 3"
a2e_send tool/call/req "$(sh_args 'sleep 600')" && one=$A2E_ID
a2e_cancel "$one"
a2e_wait "$one" && fail "cancelled"
[[ $A2E_ERROR == cancelled:* ]] || fail cancel
A2E_TIMEOUT=0.2 a2e_request tool/call/req "$(sh_args 'sleep 600')"
[[ $? == 3 ]] || fail timeout
a2e_end || fail "end: $?"
a2e_request ping 2>/dev/null
[[ $? == 2 ]] || fail "a host that has ended"

a2e_start "$@" || fail start
a2e_send tool/call/req "$(sh_args 'sleep 600')"
kill -9 "$A2E_CHILD"
a2e_wait "$A2E_ID"
[[ $? == 2 ]] || fail killed
a2e_end 2>/dev/null
[[ $? == 137 ]] || fail "status of a host that was killed"
a2e_start "$@" --config asks.yaml || fail start
[[ $(a2e_call asks__ask) == *'does not answer'* ]] || fail "what the host asks"
a2e_end || fail "end: $?"
A2E_TOKEN=wrong a2e_start "$@" --config token.yaml && fail "wrong token"
[[ $A2E_ERROR == *auth_failed* ]] || fail token
echo "hello from bash"
