#!/usr/bin/env bash
# Checks the GPU path on a machine with a GPU, in under 8 minutes: looks at the driver, builds,
# holds the machine code to its table, checks every kernel against the CPU's reference, measures,
# runs models, ranks and NCCL, runs PyTorch and FlashInfer beside them, looks for bad accesses and
# races, and prints a table with the bars. The most telling stages come first, and no other stage
# runs while one measures. Each stage has a time limit and reports PASS, FAIL or SKIPPED (with a
# reason); the next stage runs either way, but without a GPU, or with a driver that is too old,
# the script ends after the build. The table is rewritten every few seconds, so that a run that is
# cut short leaves the results so far. Needs CUDA 13 with nvcc, CMake, gcc, g++ and Python; where
# jansson, pcre2, utf8proc, jemalloc, libyaml, libedit, cmocka or pkg-config are missing, also
# build/deps from tools/make_gpu_deps.sh. Uses PyTorch, transformers, FlashInfer, NCCL and
# compute-sanitizer where they are installed.
# usage: tools/gpu_check.sh [--built FOLDER] [--small] [BUILD_FOLDER]
#   --built  takes octavo, liboctavo_cuda.so, kernels_cuda_check and cuda_nccl_check from there, and
#            their libraries from FOLDER/lib, if they run here; else builds
#   --small  small shapes and long time limits, for an emulated GPU (tests/e2e/gpu_check.py)
#        OUT: folder of table.txt, logs.txt and *.json; ARCH: 80 for an A100 (90);
#        GPU_CHECK_SECONDS: all stages together (470)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

built='' small=false slower=1
while [[ ${1:-} == --* ]]; do
    case $1 in
    --built) built=$(realpath "${2:?FOLDER}") && shift || exit 1 ;;
    --small) small=true slower=20 ;;
    *) echo "gpu_check.sh: no flag $1" >&2 && exit 2 ;;
    esac
    shift
done
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
[[ -d $cuda/lib64 ]] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cuda/lib64
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
reported=0
report() {
    local name
    reported=$SECONDS
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
    local name=$1 limit=$(($2 * slower)) left=$((budget - SECONDS))
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
    ((SECONDS - reported < 3)) || report
    printf '== %-18s %s\n' "$last" "$(verdict "$last")"
    tail -n 5 "$logs/$last.log"
    [[ $(verdict "$last") == PASS* ]]
}

stage() { start "$@" && settle; }

# Whether the programs that were built elsewhere run here, and the plugin finds its libraries.
check_built() { # FOLDER
    local program
    python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$1/liboctavo_cuda.so" || return 77
    "$1/octavo" --help >/dev/null || return 77
    for program in kernels_cuda_check cuda_nccl_check; do # which tell their usage
        "$1/$program" 2>&1 | tee /dev/stderr | grep -q usage || return 77
    done
}
export -f check_built

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
        grep -q '^"[0-9]' "$logs/ncu" || echo "no launch of $kernel $flags"
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
grouped_(wide_)?kernel 2 --dtype fp8
few_kernel 2 --dtype int8
few_kernel 2 --dtype int4"
}
export -f counters
export logs

# Times attention of single rows and of short chunks with several lengths of the parts that blocks
# read, by one binary.
sweep_parts() { # OCTAVO
    local slots
    for slots in 64 128 256 512 1024 2048; do
        echo "part-slots $slots"
        "$1" bench kernels --device cuda --rows 1 --part-slots "$slots" >"$logs/sweep" || return
        grep -E '^(decode|chunks of)' "$logs/sweep"
    done
}
export -f sweep_parts

# Times products of up to 256 rows, and experts, twice: where our kernel for few rows multiplies one
# row at most, and where it multiplies them all. Between them lies the border.
sweep_few() { # OCTAVO
    local type few
    for type in bf16 fp8 int8 int4; do
        for few in 1 512; do
            echo "few $few $type"
            "$1" bench kernels --device cuda --dtype "$type" --rows 512 --few-rows "$few" \
                --few-quant-rows "$few" --few-of-expert "$few" >"$logs/sweep" || return
            grep -E '^(  the products of|experts of)' "$logs/sweep" | grep -v 'fp8 x fp8'
        done
    done
}
export -f sweep_few

# ---- models: a folder with a config.json gives the shape; weights are random ---------------------

# Makes a folder with Llama-3-8B's config.json, in which CHANGES replace fields.
make_model() { # FOLDER CHANGES
    mkdir -p "$1"
    python3 -c 'import json, sys
with open("tests/data/plan/llama-3-8b.json", encoding="utf-8") as f:
    config = json.load(f)
config.update(json.loads(sys.argv[2]))
with open(f"{sys.argv[1]}/config.json", "w", encoding="utf-8") as f:
    json.dump(config, f)' "$1" "{$2}"
}

# The wide model: two layers of that shape with the demo's vocabulary, so that the CPU can run it,
# too.
two='"num_hidden_layers": 2, "vocab_size": 1024, "bos_token_id": 1021, "eos_token_id": 1023'
few='"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2'
long_context='"max_position_embeddings": 65536'
kv=36G fp8_kv=72G rounds=5 fewer=3 groups=() kernels=()
if $small; then
    make_model "$build/llama-3-8b" "$two, $few, $long_context"
    make_model "$build/wide" "$two, $few"
    kv=320M fp8_kv=320M rounds=1 fewer=1 groups=(--small) kernels=(--rows 256)
    export OCTAVO_TESTS_LIGHT=1
else
    make_model "$build/llama-3-8b" "$long_context"
    make_model "$build/wide" "$two"
fi
cp models/demo/tokenizer*.json models/demo/generation_config.json "$build/wide"

eight=(--model "$build/llama-3-8b" --load-format dummy --device cuda --swap-memory 0)
bf16=("${eight[@]}" --kv-memory "$kv" --prefill-chunk 16384)
speeds=("${bf16[@]}" --max-model-len 8192 --prefill 2048 --prompts "8,1" --batch "1,32,256"
    --context 1024 --rounds "$rounds")
long=("${bf16[@]}" --prefill 32768 --batch "1,8" --context 32768 --rounds "$fewer")
measured=("${bf16[@]}" --max-model-len 8192 --prefill 512 --batch 64 --context 1024 --retention h2o
    --retention tova --rounds "$fewer")
# In bf16, 32 sequences of 32768 tokens do not fit beside the weights.
deep=("${eight[@]}" --kv-memory "$fp8_kv" --kv-dtype fp8 --prefill-chunk 2048 --prefill 512 --batch 32
    --context 32768 --rounds "$fewer")

# ---- the run -------------------------------------------------------------------------------------

stage driver 20 bash -c driver
has_driver=$?
octavo=$build/octavo plugin=$build/liboctavo_cuda.so
check=$build/tests/kernels_cuda_check nccl_check=$build/tests/cuda_nccl_check
if [[ -n $built ]]; then
    elsewhere=$built/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    stage built 20 env LD_LIBRARY_PATH="$elsewhere" bash -c 'check_built "$1"' check_built "$built" || built=''
fi
if [[ -n $built ]]; then
    export LD_LIBRARY_PATH=$elsewhere
    octavo=$built/octavo plugin=$built/liboctavo_cuda.so
    check=$built/kernels_cuda_check nccl_check=$built/cuda_nccl_check
else
    generator=(-G Ninja)
    command -v ninja >/dev/null || generator=(-G "Unix Makefiles")
    stage configure 40 cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DOCTAVO_RPC=OFF \
        -DOCTAVO_CUDA=ON -DOCTAVO_WERROR=OFF "-DOCTAVO_CUDA_ARCHITECTURES=${ARCH:-90}" || finish
    stage build 150 cmake --build "$build" -j "$(nproc)" --target octavo octavo_cuda kernels_cuda_check \
        cuda_nccl_check || finish
fi
compare=(python3 tests/e2e/cuda_device.py --compare "$octavo")
((has_driver == 0)) || finish

start sass_facts 60 python3 tools/sass_facts.py "$plugin"
# A lost device ends its process, so each group has one of its own.
for group in rows products narrow experts pages wide sample retrieve ranks early; do
    start "kernels_$group" 45 "$check" "$plugin" "${groups[@]}" "$group"
done
settle
stage bench_kernels 40 "$octavo" bench kernels --device cuda "${kernels[@]}"
stage counters 60 bash -c 'counters "$1"' counters "$octavo"
stage sweep_parts 40 bash -c 'sweep_parts "$1"' sweep_parts "$octavo"

stage bench_engine 170 "$octavo" bench engine "${speeds[@]}" --launches --out "$logs/engine.json"
stage bench_long 90 "$octavo" bench engine "${long[@]}" --out "$logs/engine_long.json"
stage bench_measured 60 "$octavo" bench engine "${measured[@]}" --out "$logs/measured.json"
if (($(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1) >= 120000)); then
    stage bench_deep 60 "$octavo" bench engine "${deep[@]}" --out "$logs/engine_deep.json"
else
    stage bench_deep 5 echo "SKIPPED: 32 sequences of 32768 tokens need 88 GB"
fi

start nccl_one_rank 60 "$nccl_check" "$plugin" ${nccl:+"$nccl"}
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
    stage bench_tp2 90 "$octavo" bench engine "${speeds[@]}" --tp 2 --out "$logs/tp2.json"
else
    for name in tp2_gpus tp2_gpus_wide bench_tp2; do start "$name" 5 echo "SKIPPED: one GPU"; done
    settle
fi

stage bench_retention 90 "$octavo" bench retention "${eight[@]}" --kv-memory "$kv" --max-model-len 8192 \
    --prefill-chunk 2048 --tokens 2048 --context 0 --rounds "$fewer" --out "$logs/retention.json"
stage peer 150 python3 tools/gpu_peer.py "$logs/peer.json" "$octavo" bench engine "${speeds[@]}" \
    --out "$logs/engine_again.json"
stage bench_fp8 40 "$octavo" bench kernels --device cuda --dtype fp8 --kv-dtype fp8 "${kernels[@]}"
stage bench_int8 40 "$octavo" bench kernels --device cuda --dtype int8 --kv-dtype int8 "${kernels[@]}"
stage bench_int4 40 "$octavo" bench kernels --device cuda --dtype int4 "${kernels[@]}"
stage sweep_few 60 bash -c 'sweep_few "$1"' sweep_few "$octavo"
# Its kernels are compiled first, in one to two minutes, unless a package has them.
stage flashinfer 150 python3 tools/gpu_flashinfer.py "$logs/flashinfer.json" "$octavo" bench kernels \
    --device cuda --rows 1

for tool in memcheck racecheck synccheck; do
    if command -v compute-sanitizer >/dev/null; then
        start "$tool" 75 compute-sanitizer --tool "$tool" --error-exitcode 9 "$check" "$plugin" --small
    else
        start "$tool" 5 echo "SKIPPED: no compute-sanitizer"
    fi
done
settle
finish
