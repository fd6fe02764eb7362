# A client of a2e in one file, to be sourced by bash 4.1 or newer; with jq, a2e_call takes the data
# out of a result. No other program is needed.
#
#   . ./a2e.sh
#   a2e_start ./a2e || exit
#   a2e_call list_dir '{"path":"."}'                  # prints the data of the tool's result
#   a2e_send ping; one=$A2E_ID; a2e_send ping         # side by side
#   a2e_wait "$one" && echo "$A2E_ANSWER"
#   a2e_end                                           # returns the host's exit status
#
# A function returns 1 with the host's error in A2E_ERROR, "code: message", 2 if the host has ended, and 3
# if the host wrote no line for A2E_TIMEOUT seconds (unset: no limit); the request is then cancelled.
# Events, output of processes and pushes are passed to the function a2e_event, if it exists. A subshell such
# as $(a2e_call …) loses answers to other requests: while some wait, use A2E_ANSWER instead.

A2E_HEAD='^\{"a2e":"1\.0","version":"1\.0","type":"([^"]*)","id":"([^"]*)","ts":[0-9.e+]*(,"req_id":"([^"]*)")?'

a2e_start() { # COMMAND…
  trap '' PIPE # the end of the host is an error, and does not end this shell
  declare -gA A2E_ANSWERS=()
  A2E_SENT=0
  coproc A2E { trap - PIPE; exec "$@"; }
  A2E_CHILD=$A2E_PID
  exec {A2E_OUT}<&"${A2E[0]}" {A2E_IN}>&"${A2E[1]}" {A2E[0]}<&- {A2E[1]}>&- || return 2
  a2e_request handshake/req "\"agent_id\":\"bash\",\"agent_caps\":[],\"auth_token\":$(a2e_text "${A2E_TOKEN-}")" || return
  [[ $A2E_ANSWER == *'"ok":true'* ]] || { A2E_ERROR="unauthorized: $A2E_ANSWER"; a2e_end; return 1; }
}

a2e_text() { # prints a text as JSON
  local LC_ALL=C text=$1 i c # bytes, which is faster
  text=${text//\\/\\\\} text=${text//\"/\\\"}
  [[ $text != *[[:cntrl:]]* ]] || for i in {1..31}; do
    printf -v c "\\x$(printf %x "$i")"
    [[ $text != *"$c"* ]] || text=${text//"$c"/$(printf '\\u%04x' "$i")}
  done
  printf '"%s"' "$text"
}

a2e_send() { # TYPE [FIELDS]: sends a request, whose id is in A2E_ID
  A2E_ID=$((++A2E_SENT))
  printf '%s\n' "{\"a2e\":\"1.0\",\"type\":\"$1\",\"id\":\"$A2E_ID\"${2:+,$2}}" 2>/dev/null >&"$A2E_IN" || { A2E_ERROR='the host has ended'; return 2; }
}

a2e_cancel() { # ID: stops a request, which then ends with the error cancelled
  printf '%s\n' "{\"type\":\"cancel\",\"id\":\"\",\"req_id\":\"$1\"}" 2>/dev/null >&"$A2E_IN"
}

a2e_wait() { # ID: waits for the answer, which is in A2E_ANSWER
  local LC_ALL=C line type id of status error='"code":"([^"]*)","message":"(([^"\\]|\\.)*)"'
  until [[ -v A2E_ANSWERS[$1] ]]; do
    IFS= read -r ${A2E_TIMEOUT:+-t "$A2E_TIMEOUT"} -u "$A2E_OUT" line
    status=$?
    if ((status > 128)); then
      a2e_cancel "$1"
      A2E_ERROR="timeout: no answer within $A2E_TIMEOUT s"
      return 3
    elif ((status)) || ! [[ ${line:0:300} =~ $A2E_HEAD ]]; then
      A2E_ERROR='the host has ended'
      return 2
    fi
    type=${BASH_REMATCH[1]} id=${BASH_REMATCH[2]} of=${BASH_REMATCH[4]}
    case $type in
    */event | */push) ! declare -F a2e_event >/dev/null || a2e_event "$line" ;;
    */req) printf '%s\n' "{\"type\":\"${type%req}resp\",\"id\":\"\",\"req_id\":\"$id\",\"error\":\"this client does not answer $type\"}" >&"$A2E_IN" ;;
    *) A2E_ANSWERS[$of]=$line ;;
    esac
  done
  A2E_ANSWER=${A2E_ANSWERS[$1]}
  unset "A2E_ANSWERS[$1]"
  [[ ${A2E_ANSWER:0:60} == *'"type":"error",'* && $A2E_ANSWER =~ $error ]] || return 0
  A2E_ERROR="${BASH_REMATCH[1]}: ${BASH_REMATCH[2]}"
  return 1
}

a2e_request() { a2e_send "$@" && a2e_wait "$A2E_ID"; } # TYPE [FIELDS]

a2e_call() { # TOOL [ARGUMENTS]: prints the data of the result; without jq, the whole answer
  a2e_request tool/call/req "\"tool_name\":$(a2e_text "$1"),\"arguments\":${2:-"{}"}" || return
  if command -v jq >/dev/null; then
    jq -c .data.data <<<"$A2E_ANSWER"
  else
    printf '%s\n' "$A2E_ANSWER"
  fi
  [[ $A2E_ANSWER == *'"data":{"success":true,'* ]] || { A2E_ERROR="tool_error: $1 failed"; return 1; }
}

a2e_end() { # closes the host's stdin and waits for its end
  exec {A2E_IN}>&- {A2E_OUT}<&-
  wait "$A2E_CHILD"
}
