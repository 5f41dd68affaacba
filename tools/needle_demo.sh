#!/usr/bin/env bash
# The demonstration of `./dev run`: the demo model finds a pass key in 4,000 tokens of Shakespeare,
# once with the full KV cache and once with a quarter of its pages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
prompt=$(cat tools/needle_4000.txt; printf x)
prompt=${prompt%x} # the last newline is part of the prompt
hidden=$(grep -o 'The pass key is [0-9]*' tools/needle_4000.txt | grep -o '[0-9]*$' | head -n 1)

ask() { # NAME RETENTION
    printf '\n%s\n' "$1"
    answer=$(build/octavo run --model models/demo --prompt "$prompt" --max-tokens 8 --temperature 0 --retention "$2")
    printf '  answer: %s\n' "$answer"
}

printf 'Hidden in %s words of Shakespeare: "The pass key is %s."\n' "$(wc -w <tools/needle_4000.txt)" "$hidden"
ask 'full cache' '{"method": "full"}'
full=$answer
ask 'chunkkv, a quarter of the pages' '{"method": "chunkkv", "ratio": 0.25}'
printf '\n'
[[ $full == "$hidden" && $answer == "$hidden" ]] && echo 'Both found it.' && exit 0
echo 'Not both found it.'
exit 1
