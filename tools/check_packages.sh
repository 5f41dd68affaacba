#!/usr/bin/env bash
# Makes the Debian packages and tries them where nothing else is: apt installs them, with what they
# depend on, into copies of a bare Debian. In one the example is compiled against liboctavo-dev, by
# pkg-config and by CMake, shared and static. In the other, which has no compiler, these programs
# and the Python package, installed by pip, answer alike, the package passes its tests, and `octavo
# serve` answers a chat; then all is purged. Needs root, debootstrap, the network for Debian's
# packages, and the release build. BARE is a root folder that `debootstrap --variant=minbase` made
# before, of which copies are used; without it debootstrap makes one of this machine's release.
# usage: tools/check_packages.sh [BUILD_FOLDER [BARE]]   (from the root)
set -euo pipefail
build=${1:-build} bare=${2-}
work=$(mktemp -d)
end() {
    umount "$work"/{developing,running}/proc 2>/dev/null
    rm -rf --one-file-system "$work"
}
trap end EXIT

# quietly COMMAND...: its output is shown where it fails.
quietly() { "$@" >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2 && exit 1; }; }
# within ROOT COMMAND...: runs in /tree of that root.
within() {
    chroot "$work/$1" env -i -C /tree PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive "${@:2}"
}
install() { quietly within "$1" apt-get install -y --no-install-recommends "${@:2}"; }
sizes() {
    within "$1" dpkg-query -W -f '${Installed-Size}\n' |
        awk '{ n++; kib += $1 } END { print n " packages, " kib " KiB" }'
}

quietly cpack -B "$work/packages" --config "$build/CPackConfig.cmake"
for package in "$work"/packages/*.deb; do
    dpkg-deb -f "$package" Package Version Architecture Installed-Size Depends Recommends
done
if [[ ! $bare ]]; then
    bare=$work/bare
    quietly debootstrap --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$bare"
fi
for root in developing running; do
    cp -a "$bare" "$work/$root"
    mkdir "$work/$root/tree"
    # Writing each file through to the disk took dpkg minutes, and nothing there is kept.
    echo force-unsafe-io >"$work/$root/etc/dpkg/dpkg.cfg.d/here"
    mount -t proc proc "$work/$root/proc"
    cp "$work"/packages/*.deb "$work/$root/tree/"
    quietly within "$root" apt-get update
done
echo "bare Debian $(cat "$work/running/etc/debian_version"): $(sizes running)"

# ---- programs are compiled -----------------------------------------------------------------------

install developing gcc libc6-dev make cmake pkg-config
# With what it recommends: a static program needs that.
quietly within developing sh -c 'apt-get install -y ./liboctavo0_*.deb ./liboctavo-dev_*.deb'
cp -r lib/example "$work/developing/tree/"
quietly within developing sh -eux -c 'cd example
    cc -std=c99 -Wall -Wextra -Werror example.c $(pkg-config --cflags --libs octavo) -o by_pkg_config
    cc -static example.c $(pkg-config --static --cflags --libs octavo) -o by_pkg_config_static
    cmake -S . -B by_cmake
    cmake --build by_cmake'
programs=(by_pkg_config by_pkg_config_static by_cmake/example by_cmake/example_static)

# ---- programs run --------------------------------------------------------------------------------

tree=$work/running/tree
before=$(within running dpkg-query -W)
install running "$(cd "$tree" && echo ./liboctavo0_*.deb)"
echo "with liboctavo0: $(sizes running)"
mkdir -p "$tree/models" "$tree/tools" "$tree/tests/e2e/serve"
cp -r models/demo "$tree/models/"
cp tools/needle_4000.txt "$tree/tools/"
text=$(head -c 2000 tools/needle_4000.txt)
for program in "${programs[@]}"; do
    name=$(basename "$program")
    cp "$work/developing/tree/example/$program" "$tree/$name"
    within running "./$name" models/demo "$text" >"$work/output"
    head -n -1 "$work/output" >"$work/$name.txt" # the last line has times
    cmp "$work/by_pkg_config.txt" "$work/$name.txt"
done
cat "$work/output"

install running python3-venv
cp -r lib/python "$tree/"
quietly within running sh -eux -c 'python3 -m venv python_packages
    python_packages/bin/pip install --no-index ./python'
cat >"$tree/answer.py" <<'PYTHON'
import asyncio, octavo, sys
fields = {"max_tokens": 24, "temperature": 0.7, "seed": 1, "retention": {"method": "chunkkv", "ratio": 0.25}}
with octavo.Engine("models/demo", kv_memory="64M", max_batch=4) as engine:
    answer = engine.generate(sys.argv[1], **fields)
    assert asyncio.run(engine.agenerate(sys.argv[1], **fields)).tokens == answer.tokens
    print(answer.text)
PYTHON
within running python_packages/bin/python answer.py "$text" | cmp "$work/by_pkg_config.txt" -
echo "the example and the Python package answered alike"
cp tests/e2e/library.py "$tree/tests/e2e/"
within running OCTAVO_INSTALLED=1 python_packages/bin/python tests/e2e/library.py /usr/bin/octavo Package

# ---- a server runs -------------------------------------------------------------------------------

install running "$(cd "$tree" && echo ./octavo_*.deb)"
echo "with octavo and python3-venv: $(sizes running)"
within running octavo --version
within running bash -c '. /usr/share/bash-completion/completions/octavo && complete -p octavo'
for file in man/man1/octavo.1 man/man1/octavo-serve.1 zsh/vendor-completions/_octavo \
    fish/vendor_completions.d/octavo.fish doc/octavo/copyright doc/liboctavo0/copyright; do
    [[ -s $work/running/usr/share/$file ]] || { echo "not installed: $file" >&2 && exit 1; }
done
cp tests/e2e/serve/harness.py "$tree/tests/e2e/serve/"
cat >"$tree/tests/e2e/serve/chat.py" <<'PYTHON'
from harness import Server
with Server("--served-model-name", "demo") as server:
    answer = server.post("/v1/chat/completions", {"model": "demo", "max_tokens": 16, "temperature": 0, "messages": [
        {"role": "user", "content": "What is the special magic number for Paris?"}]})
    assert answer["usage"]["completion_tokens"] > 0, answer
    print("chat:", answer["choices"][0]["message"]["content"])
PYTHON
within running python3 tests/e2e/serve/chat.py /usr/bin/octavo

# ---- all is purged -------------------------------------------------------------------------------

# apt keeps what a package that stays suggests; here that came with ours.
quietly within running apt-get purge -y --autoremove -o APT::AutoRemove::RecommendsImportant=false \
    -o APT::AutoRemove::SuggestsImportant=false octavo liboctavo0 python3-venv
diff <(echo "$before") <(within running dpkg-query -W)
left=$(find "$work/running" \( -path "$tree" -o -path "$work/running/proc" \) -prune \
    -o -iname '*octavo*' -print)
[[ ! $left ]] || { echo "left behind: $left" >&2 && exit 1; }
echo "purged: the packages are those of before, and no file of these is left"
