#!/bin/sh
# The text comes as JSON on stdin: {"text":"…"}
text=$(sed -e 's/^{"text":"//' -e 's/"}$//')
set -f
set -- $text
printf '{"kind":"status","data":{"message":"counted"}}\n'
printf '{"result":{"words":%d},"summary":"%d words"}\n' "$#" "$#"
