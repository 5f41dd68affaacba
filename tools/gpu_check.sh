#!/usr/bin/env bash
# Checks the GPU path on a machine with a GPU, in under 8 minutes: looks at the driver, builds,
# holds the machine code to its table, checks every kernel against the CPU's reference, measures,
# runs models, ranks and NCCL, runs PyTorch beside them, looks for bad accesses and races, and
# prints a table with the bars. The most telling stages come first, and no other stage runs while
# one measures. Each stage has a time limit and reports PASS, FAIL or SKIPPED (with a reason); the
# next stage runs either way, but without a GPU, or with a driver that is too old, the script ends
# after the build. The table is rewritten after every stage, so that a run that is cut short leaves
# the results so far. Needs CUDA 13 with nvcc, CMake, gcc, g++ and Python; where jansson, pcre2,
# utf8proc, jemalloc, libyaml, libedit, cmocka or pkg-config are missing, also build/deps from
# tools/make_gpu_deps.sh. Uses PyTorch, transformers, NCCL and compute-sanitizer where they are
# installed.
# usage: tools/gpu_check.sh [BUILD_FOLDER]     OUT: folder of table.txt, logs.txt and *.json;
#        ARCH: 80 for an A100 (90); GPU_CHECK_SECONDS: all stages together (470)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

build=${1:-build/gpu}
out=${OUT:-$build/report}
logs=$build/logs
deps=$PWD/build/deps
budget=${GPU_CHECK_SECONDS:-470}
names=()
mkdir -p "$build" "$out" "$logs"
rm -f "$logs"/*

# ---- where things are ----------------------------------------------------------------------------

cuda=${CUDA_HOME:-/usr/local}
[[ -d $cuda/cuda ]] && cuda=$cuda/cuda
for dir in "$cuda/bin" "$cuda/compute-sanitizer"; do
    [[ -d $dir ]] && PATH=$PATH:$dir
done
if [[ -d $deps ]]; then
    libs=$deps/usr/lib/x86_64-linux-gnu
    PATH=$PATH:$deps/usr/bin
    export LD_LIBRARY_PATH=$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LIBRARY_PATH=$libs${LIBRARY_PATH:+:$LIBRARY_PATH}
    export PKG_CONFIG_PATH=$libs/pkgconfig PKG_CONFIG_SYSROOT_DIR=$deps
    command -v pkg-config >/dev/null || { ln -sf pkgconf "$deps/usr/bin/pkg-config"; hash -r; }
fi
export PATH PYTHONUNBUFFERED=1

# Finds a file in NVIDIA's Python packages, which PyTorch installs.
wheel_file() { # PATTERN
    python3 -c 'import glob, importlib.util, sys
spec = importlib.util.find_spec("nvidia")
for base in spec.submodule_search_locations if spec else []:
    for path in sorted(glob.glob(f"{base}/**/{sys.argv[1]}", recursive=True))[:1]:
        print(path)' "$1" 2>/dev/null | head -n 1
}

# Links cublasLt from the Python packages where the toolkit lacks it: the library's name there is
# not one that a linker finds.
toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /none/bin/nvcc)")")")
if [[ ! -e $toolkit/include/cublasLt.h ]]; then
    header=$(wheel_file cublasLt.h) library=$(wheel_file 'libcublasLt.so.*')
    if [[ -n $header && -n $library ]]; then
        mkdir -p "$build/cublas"
        ln -sf "$library" "$build/cublas/libcublasLt.so"
        CPATH=$(dirname "$header")${CPATH:+:$CPATH}
        LIBRARY_PATH=$(realpath "$build")/cublas${LIBRARY_PATH:+:$LIBRARY_PATH}
        LD_LIBRARY_PATH=$(dirname "$library")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export CPATH LIBRARY_PATH LD_LIBRARY_PATH
    fi
fi
nccl=$(wheel_file libnccl.so.2)

# ---- stages --------------------------------------------------------------------------------------

verdict() { # NAME
    local code seconds
    if [[ ! -f $logs/$1.end ]]; then
        echo "cut short"
        return
    fi
    read -r code seconds <"$logs/$1.end"
    case $code in
    0) if grep -q '^SKIPPED' "$logs/$1.log"; then code=SKIPPED; else code=PASS; fi ;;
    77) code=SKIPPED ;;
    124 | 137) code="FAIL (time)" ;;
    *) if grep -q 'Device not supported' "$logs/$1.log"; then code="SKIPPED (device)"; else code="FAIL ($code)"; fi ;;
    esac
    printf '%-18s %4d s' "$code" "$seconds"
}

# Rewrites both files of $out.
report() {
    local name
    for name in "${names[@]}"; do
        printf '%-18s %s\n' "$name" "$(verdict "$name")"
    done >"$logs/stages"
    { cat "$logs/stages"; python3 tools/gpu_table.py "$logs"; } >"$out/table.new" 2>&1
    mv "$out/table.new" "$out/table.txt"
    for name in "${names[@]}"; do
        printf '==== %s\n' "$name"
        tail -c 400000 "$logs/$name.log"
    done >"$out/logs.txt"
    cp "$logs"/*.json "$out" 2>/dev/null
}

finish() {
    report
    echo
    cat "$out/table.txt"
    echo "$SECONDS s in all"
    ! grep -qE 'FAIL|cut short| missed' "$out/table.txt"
    exit
}
trap 'kill $(jobs -p) 2>/dev/null; finish' TERM INT

# Starts a stage in the background, for at most SECONDS, and no longer than all stages together may
# take.
start() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 left=$((budget - SECONDS))
    shift 2
    names+=("$name")
    if ((left < 5)); then
        echo "SKIPPED: no time left" >"$logs/$name.log"
        echo "0 0" >"$logs/$name.end"
        return
    fi
    (
        from=$SECONDS
        timeout -k 5 $((limit < left ? limit : left)) "$@" >"$logs/$name.log" 2>&1
        echo "$? $((SECONDS - from))" >"$logs/$name.end"
    ) &
}

# Waits for all stages that were started; true when the last one passed.
settle() {
    local last=${names[-1]}
    wait
    report
    printf '== %-18s %s\n' "$last" "$(verdict "$last")"
    tail -n 5 "$logs/$last.log"
    [[ $(verdict "$last") == PASS* ]]
}

stage() { start "$@" && settle; }

# Prints the device, its driver and nvcc; false where there is none, or where the driver is older
# than the runtime in the plugin needs: its first call would fail, with a message that says less.
driver() {
    local release driver needs=525
    release=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader || return
    echo "nvcc of CUDA ${release:-?}"
    ((${release:-0} < 13)) || needs=580
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
    ((${driver%%.*} >= needs)) && return
    echo "driver $driver is too old: the runtime of CUDA $release needs $needs or newer"
    return 1
}
export -f driver

# Reads a launch's counters of each kernel that a step spends its time in, where the driver lets
# this user read them: shares of the memory's and the issue's peaks, conflicts, what warps wait for.
# Attention's last argument is whether it decodes.
counters() { # OCTAVO
    local stall='regex:smsp__average_warps_issue_stalled_[a-z_]+_per_issue_active[.]ratio' kernel skip flags
    local metrics=dram__throughput.avg.pct_of_peak_sustained_elapsed
    metrics+=,sm__inst_issued.avg.pct_of_peak_sustained_active,l1tex__data_bank_conflicts_pipe_lsu.sum
    command -v ncu >/dev/null || { echo "SKIPPED: no ncu"; return; }
    while read -r kernel skip flags; do
        # shellcheck disable=SC2086 # several flags
        ncu --csv --kernel-name-base demangled --kernel-name "regex:$kernel" --launch-skip "$skip" \
            --launch-count 1 --kill yes --metrics "$metrics,$stall" \
            "$1" bench kernels --device cuda --rows 2048 $flags </dev/null >"$logs/ncu" 2>&1
        if grep ERR_NVGPUCTRPERM "$logs/ncu"; then
            echo "SKIPPED: this user may not read the GPU's counters"
            return
        fi
        cat "$logs/ncu"
    done <<<"few_kernel 2
attention_kernel<.*([)]1|true)> 2
attention_kernel<.*([)]0|false)> 2
wide_kernel 2
mass_kernel 2
draw_kernel 2
dequant_kernel 2 --dtype fp8
narrow_group_kernel 2 --dtype fp8
rows_kernel 2 --dtype fp8
grouped_(wide_)?kernel 2
grouped_(wide_)?kernel 2 --dtype fp8"
}
export -f counters
export logs

# Times attention of single rows and of short chunks with several lengths of the parts that blocks
# read, by one binary.
sweep_parts() { # OCTAVO
    local slots
    for slots in 64 128 256 512 1024 2048; do
        echo "part-slots $slots"
        "$1" bench kernels --device cuda --rows 1 --part-slots "$slots" | grep -E '^(decode|chunks of)'
    done
}
export -f sweep_parts

# ---- models: a folder with a config.json gives the shape; weights are random ---------------------

mkdir -p "$build/llama-3-8b" "$build/wide"
cp tests/data/plan/llama-3-8b.json "$build/llama-3-8b/config.json"
# The wide model: two layers of that shape with the demo's vocabulary, so that the CPU can run it,
# too.
cp models/demo/tokenizer*.json models/demo/generation_config.json "$build/wide"
python3 -c 'import json, sys
with open(sys.argv[1], encoding="utf-8") as f:
    config = json.load(f)
config.update(num_hidden_layers=2, vocab_size=1024, bos_token_id=1021, eos_token_id=1023)
with open(sys.argv[2], "w", encoding="utf-8") as f:
    json.dump(config, f)' tests/data/plan/llama-3-8b.json "$build/wide/config.json"

octavo=$build/octavo plugin=$build/liboctavo_cuda.so check=$build/tests/kernels_cuda_check
compare=(python3 tests/e2e/cuda_device.py --compare "$octavo")
eight=(--model "$build/llama-3-8b" --load-format dummy --device cuda --kv-memory 36G --swap-memory 0)
speeds=("${eight[@]}" --prefill-chunk 16384 --prefill 2048 --prompts "8,1" --batch "1,32,256"
    --context 1024 --rounds 5)
long=("${eight[@]}" --prefill-chunk 16384 --prefill 32768 --batch "1,8" --context 32768 --rounds 3)

# ---- the run -------------------------------------------------------------------------------------

generator=(-G Ninja)
command -v ninja >/dev/null || generator=(-G "Unix Makefiles")
stage driver 20 bash -c driver
has_driver=$?
stage configure 40 cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DOCTAVO_RPC=OFF \
    -DOCTAVO_CUDA=ON -DOCTAVO_WERROR=OFF "-DOCTAVO_CUDA_ARCHITECTURES=${ARCH:-90}" || finish
stage build 150 cmake --build "$build" -j "$(nproc)" --target octavo octavo_cuda kernels_cuda_check \
    cuda_nccl_check || finish
((has_driver == 0)) || finish

start sass_facts 60 python3 tools/sass_facts.py "$plugin"
# A lost device ends its process, so each group has one of its own.
for group in rows products narrow experts pages wide sample retrieve ranks; do start "kernels_$group" 45 "$check" "$plugin" "$group"; done
settle
stage bench_kernels 40 "$octavo" bench kernels --device cuda
stage bench_engine 170 "$octavo" bench engine "${speeds[@]}" --out "$logs/engine.json"
stage bench_long 90 "$octavo" bench engine "${long[@]}" --out "$logs/engine_long.json"

start nccl_one_rank 60 "$build/tests/cuda_nccl_check" "$plugin" ${nccl:+"$nccl"}
start tp2_one_gpu 75 env CUDA_VISIBLE_DEVICES=0 "${compare[@]}" --tp 2 --workers threads
start wide 75 "${compare[@]}" --model "$build/wide" --load-format dummy
start demo 75 "${compare[@]}"
settle

# Ranks with a GPU each: NCCL, sums over memory that the other GPU reaches, graphs with both.
ranks=(--tp 2 --workers threads)
[[ -n $nccl ]] && LD_LIBRARY_PATH=$(dirname "$nccl")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if (($(nvidia-smi -L | wc -l) >= 2)); then
    start tp2_gpus 75 "${compare[@]}" "${ranks[@]}"
    start tp2_gpus_wide 75 "${compare[@]}" --model "$build/wide" --load-format dummy "${ranks[@]}"
    settle
    stage bench_tp2 90 "$octavo" bench engine "${speeds[@]}" "${ranks[@]}" --out "$logs/tp2.json"
else
    for name in tp2_gpus tp2_gpus_wide bench_tp2; do start "$name" 5 echo "SKIPPED: one GPU"; done
    settle
fi

stage bench_retention 90 "$octavo" bench retention "${eight[@]}" --prefill-chunk 2048 --tokens 2048 \
    --context 0 --rounds 3 --out "$logs/retention.json"
stage peer 150 python3 tools/gpu_peer.py "$logs/peer.json" "$octavo" bench engine "${speeds[@]}" \
    --out "$logs/engine_again.json"
stage bench_fp8 40 "$octavo" bench kernels --device cuda --dtype fp8 --kv-dtype fp8
stage bench_int8 40 "$octavo" bench kernels --device cuda --dtype int8 --kv-dtype int8
stage bench_int4 40 "$octavo" bench kernels --device cuda --dtype int4

stage sweep_parts 40 bash -c 'sweep_parts "$1"' sweep_parts "$octavo"
stage counters 60 bash -c 'counters "$1"' counters "$octavo"

for tool in memcheck racecheck synccheck; do
    if command -v compute-sanitizer >/dev/null; then
        start "$tool" 75 compute-sanitizer --tool "$tool" --error-exitcode 9 "$check" "$plugin" --small
    else
        start "$tool" 5 echo "SKIPPED: no compute-sanitizer"
    fi
done
settle
finish
