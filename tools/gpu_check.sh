#!/usr/bin/env bash
# The GPU path on a machine that has one: builds, checks every kernel against the CPU's reference,
# looks for bad accesses and races, runs the demo model, ranks and NCCL, then measures, and prints a
# table last. Each stage says PASS or FAIL and the next one runs; without a GPU it ends after the build.
# Needs CUDA 13 with nvcc, CMake, ninja, gcc, g++ and Python; where jansson, pcre2, utf8proc, jemalloc,
# cmocka or pkg-config are missing, build/deps from tools/make_gpu_deps.sh.
# usage: tools/gpu_check.sh [BUILD_FOLDER]     ARCH=80 for an A100 (90), OUT=folder of the logs
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
    grep -q '^SKIPPED' "$out/$name.log" && verdict=SKIPPED
    tail -n 5 "$out/$name.log"
    table+=("$(printf '%-22s %-12s %4d s' "$name" "$verdict" $((SECONDS - from)))")
    [[ $verdict != FAIL* ]]
}

finish() {
    [[ -f $out/bench_kernels.log ]] && cat "$out/bench_kernels.log"
    printf '%s\n' "" "${table[@]}" | tee "$out/table.txt"
    python3 tools/gpu_table.py "$out" | tee -a "$out/table.txt"
    ! grep -q FAIL "$out/table.txt"
    exit
}

# What a shape of public models needs of a folder: its config.json; weights are made up.
mkdir -p "$out/llama-3-8b"
cp tests/data/plan/llama-3-8b.json "$out/llama-3-8b/config.json"

octavo=$build/octavo plugin=$build/liboctavo_cuda.so check=$build/tests/kernels_cuda_check
eight=(--model "$out/llama-3-8b" --load-format dummy --device cuda --prefill-chunk 2048)

stage configure 60 cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOCTAVO_RPC=OFF \
    -DOCTAVO_CUDA=ON "-DOCTAVO_CUDA_ARCHITECTURES=${ARCH:-90}" || finish
stage build 240 cmake --build "$build" --target octavo octavo_cuda kernels_cuda_check \
    cuda_nccl_check || finish
stage device 20 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || finish

stage kernels 60 "$check" "$plugin"
for tool in memcheck racecheck initcheck synccheck; do
    stage "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 "$check" "$plugin" --small
done
stage demo 60 python3 tests/e2e/cuda_device.py --compare "$octavo"
stage tp2_threads 60 python3 tests/e2e/cuda_device.py --compare "$octavo" --tp 2 --workers threads
stage nccl_one_rank 60 "$build/tests/cuda_nccl_check" "$plugin"
stage bench_kernels 60 "$check" "$plugin" --bench
stage bench_engine 120 "$octavo" bench engine "${eight[@]}" --batch 1,32 --context 1024 --prefill 2048 \
    --rounds 3 --json --out "$out/engine.json"
stage bench_retention 90 "$octavo" bench retention "${eight[@]}" --tokens 2048 --context 0 --rounds 3 \
    --json --out "$out/retention.json"
stage bench_torch 60 python3 tools/gpu_torch.py
finish
