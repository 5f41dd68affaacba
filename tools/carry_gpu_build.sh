#!/usr/bin/env bash
# Copies to FOLDER what `tools/gpu_check.sh --built FOLDER` takes of a build: stripped, with the
# shared libraries that a machine of the same distribution may lack. Not copied are those of the C
# and C++ compilers and NVIDIA's, which must be there.
# usage: tools/carry_gpu_build.sh BUILD FOLDER
set -euo pipefail

build=${1:?BUILD} folder=${2:?FOLDER}
mkdir -p "$folder/lib"
programs=("$build/octavo" "$build/tests/kernels_cuda_check" "$build/tests/cuda_nccl_check")
for file in "${programs[@]}" "$build/liboctavo_cuda.so"; do
    strip --strip-unneeded -o "$folder/$(basename "$file")" "$file"
done
ldd "${programs[@]}" | sed -nE 's|.* => (/[^ ]+) .*|\1|p' | sort -u |
    grep -vE '/(lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|cu[a-z]*|nv[a-zA-Z]*)|ld-linux.*)[.-]' |
    while read -r library; do
        strip --strip-unneeded -o "$folder/lib/$(basename "$library")" "$library"
    done
du -sh --apparent-size "$folder"
