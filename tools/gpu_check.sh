#!/usr/bin/env bash
# The GPU path on a machine that has one: builds, checks every kernel against the CPU's reference,
# looks for bad accesses and races, runs the demo model, prints a table. Each stage says PASS or FAIL and
# the next one runs. Needs CUDA 13 with nvcc, CMake, ninja, gcc and g++; where jansson, pcre2,
# utf8proc, jemalloc, cmocka or pkg-config are missing, build/deps from tools/make_gpu_deps.sh.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

build=${1:-build/gpu}
out=${OUT:-$build/report}
deps=$PWD/build/deps
mkdir -p "$build" "$out"
table=()

if [[ -d $deps ]]; then
    libs=$deps/usr/lib/x86_64-linux-gnu
    export PATH=$PATH:$deps/usr/bin
    export LD_LIBRARY_PATH=$libs:${LD_LIBRARY_PATH:-} LIBRARY_PATH=$libs:${LIBRARY_PATH:-}
    export PKG_CONFIG_PATH=$libs/pkgconfig PKG_CONFIG_SYSROOT_DIR=$deps
    command -v pkg-config >/dev/null || { ln -sf pkgconf "$deps/usr/bin/pkg-config"; hash -r; }
fi

stage() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 from=$SECONDS verdict=PASS
    shift 2
    echo "== $name"
    timeout "$limit" "$@" >"$out/$name.log" 2>&1 || verdict="FAIL ($?)"
    tail -n 5 "$out/$name.log"
    table+=("$(printf '%-22s %-12s %4d s' "$name" "$verdict" $((SECONDS - from)))")
}

stage configure 60 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOCTAVO_RPC=OFF \
    -DOCTAVO_CUDA=ON "-DOCTAVO_CUDA_ARCHITECTURES=90"
stage build 240 cmake --build "$build" --target octavo octavo_cuda kernels_cuda_check
stage kernels 120 "$build/tests/kernels_cuda_check" "$build/liboctavo_cuda.so"
for tool in memcheck racecheck initcheck synccheck; do
    stage "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$build/tests/kernels_cuda_check" "$build/liboctavo_cuda.so" --small
done
stage speeds 120 "$build/tests/kernels_cuda_check" "$build/liboctavo_cuda.so" --bench
stage demo 60 python3 tests/e2e/cuda_device.py --compare "$build/octavo"

cat "$out/speeds.log"
printf '%s\n' "" "${table[@]}" | tee "$out/table.txt"
! grep -q FAIL "$out/table.txt"
