#!/usr/bin/env bash
# Checks that no module holds writable state: no object in .data, .bss, .tdata or .tbss, and no
# common symbol. Constants with pointers in them (.data.rel.ro) are read-only once loaded. Libraries
# of tests may have both.
# usage: tools/check_globals.sh BUILD_FOLDER   (reads the release build's static libraries)
set -euo pipefail
folder=${1:?usage: check_globals.sh BUILD_FOLDER}

mapfile -t libraries < <(find "$folder" -path '*/asan' -prune -o -path '*/tsan' -prune -o \
    -path '*/fuzz' -prune -o -path '*/debug' -prune -o -path '*/tests' -prune -o \
    -name 'liboctavo_*.a' -print | sort)
((${#libraries[@]})) || { echo "$folder: no liboctavo_*.a: build first"; exit 1; }

result=0
for library in "${libraries[@]}"; do
    name=$(basename "$library" .a)
    # objdump: value, seven flag characters, section, size, symbol.
    while read -r object section symbol; do
        echo "$name: $object: mutable global '$symbol' in $section"
        result=1
    done < <(LC_ALL=C objdump -t "$library" | awk '
        /file format/ { object = $1; sub(/:$/, "", object) }
        $0 ~ /^[0-9a-f]+ .......[ \t]*[^ \t]+\t/ {
            split(substr($0, index($0, " ") + 9), field, /[ \t]+/)
            section = field[1]; symbol = $NF
            if (symbol == section) next
            if (section ~ /^\.(data|bss|tdata|tbss)/ && section !~ /^\.data\.rel\.ro/ ||
                section == "*COM*") print object, section, symbol
        }')
done
exit $result
