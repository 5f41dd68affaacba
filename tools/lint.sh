#!/usr/bin/env bash
# Runs every check of the tree's rules; needs the release build in build/. Each check prints what is
# wrong and where. All checks run, and the exit status is 0 only when all are clean.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

failed=()
check() { # NAME COMMAND...
    local name=$1
    shift
    printf '%-12s ' "$name"
    local output
    if output=$("$@" 2>&1); then
        echo "ok"
    else
        echo "FAILED"
        printf '%s\n' "$output"
        failed+=("$name")
    fi
}

# Prints one line for each file that clang-format would change: the first place.
format() {
    local problems
    problems=$(find . -path './build*' -prune -o -path ./.git -prune -o \
        \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print0 |
        xargs -0 -n 64 -P "$(nproc)" clang-format --dry-run -Werror 2>&1 |
        awk -F: '/: (error|warning): / && !seen[$1]++ { print $1 ":" $2 ": run clang-format -i on it" }') && return 0
    echo "${problems:-clang-format did not run}"
    return 1
}

check format format
check layers python3 tools/check_layers.py .
check headers tools/check_headers.sh build
check globals tools/check_globals.sh build
check symbols tools/check_symbols.sh build
check text python3 tools/check_text.py .
check comments python3 tools/check_comments.py .
check api python3 tools/make_api_page.py --check .
check figure python3 tools/draw_kept.py --check .

if ((${#failed[@]})); then
    echo "lint: FAILED: ${failed[*]}"
    exit 1
fi
echo "lint: clean"
