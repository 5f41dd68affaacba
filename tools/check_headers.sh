#!/usr/bin/env bash
# Checks that every header compiles alone and twice: it includes all that it needs, and has a guard.
# Without HEADER it checks all headers, on all cores.
# usage: tools/check_headers.sh [BUILD_FOLDER [HEADER...]]   (from the root; the build folder holds
# generated headers)
set -uo pipefail
build=${1:-build}
(($#)) && shift
if (($# == 0)); then
    find . -path './build*' -prune -o -path ./.git -prune -o -name '*.h' -print | sed 's|^\./||' |
        sort | xargs -n 8 -P "$(nproc)" "${BASH_SOURCE[0]}" "$build"
    exit
fi
read -ra outside < <(pkg-config --cflags libprotobuf-c libmicrohttpd) # gRPC's take a second to list
result=0
for header in "$@"; do
    case $header in # the flags that CMake gives to the files of one ISA
    kernels/x86/*bf16*) isa=(-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16) ;;
    kernels/x86/*avx512*) isa=(-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq) ;;
    kernels/x86/*avx2*) isa=(-mavx2 -mfma -mf16c) ;;
    tests/simt/group.h | tests/simt/runtime.h | tests/simt/simt.h | tests/simt/strict.h | \
        tests/simt/strict_test.h) continue ;; # C++
    tests/emulate/*) isa=(-mavx2 -mfma -mf16c -Wno-psabi -Itests/emulate) ;;
    *) isa=() ;;
    esac
    printf '#include "%s"\n#include "%s"\n' "$header" "$header" |
        "${CC:-cc}" -std=gnu17 -D_GNU_SOURCE -Wall -Wextra -Werror -Wstrict-prototypes \
            -Wno-unused-function "${isa[@]}" -I. -I"$build/proto/generated" -I"$build/paged_kv/generated" "${outside[@]}" \
            -fsyntax-only -x c - || {
        echo "$header: does not compile alone"
        result=1
    }
done
exit $result
