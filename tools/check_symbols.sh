#!/usr/bin/env bash
# Checks liboctavo's binary interface: the functions that octavo.h declares, those that octavo.map
# lists, those that the shared library exports and those that the static library defines for others
# are the same.
# usage: tools/check_symbols.sh BUILD_FOLDER   (from the root; reads the release build)
set -euo pipefail
folder=${1:?usage: check_symbols.sh BUILD_FOLDER}
listed=$(grep -oE '^ +octavo_\w+;' lib/octavo.map | tr -d ' ;' | sort)

result=0
compare() { # WHAT SYMBOLS
    local differences
    differences=$(diff <(echo "$listed") <(sort <<<"$2") | sed -n 's/^< /lacks /p; s/^> /has also /p') || true
    [[ -z $differences ]] || { sed "s|^|$1: beside octavo.map |" <<<"$differences"; result=1; }
}
compare lib/octavo.h "$(tr '\n' ' ' <lib/octavo.h | grep -oP 'OCTAVO_API [^;(]*?\Koctavo_\w+(?= ?\()')"
for library in "$folder/liboctavo.so" "$folder/liboctavo.a"; do
    [[ -e $library ]] || { echo "$library: is not there: build first"; exit 1; }
done
compare liboctavo.so "$(nm -D --defined-only "$folder/liboctavo.so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')"
compare liboctavo.a "$(nm -g --defined-only "$folder/liboctavo.a" | awk 'NF == 3 { print $3 }')"
exit $result
