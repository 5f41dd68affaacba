#!/usr/bin/env bash
# Makes the Debian packages and tries them where nothing else is: in a root folder with liboctavo0,
# what it depends on, and Python. There the example, built with liboctavo-dev, and the Python
# package answer the same question. Needs root, the network for Debian's packages, and the release
# build.
# usage: tools/check_packages.sh [BUILD_FOLDER]   (from the root)
set -euo pipefail
build=${1:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root developing=$work/developing
mkdir -p "$root/models" "$developing" "$work/debian"

cpack -B "$work/packages" --config "$build/CPackConfig.cmake" >/dev/null
library=("$work"/packages/liboctavo0_*.deb) development=("$work"/packages/liboctavo-dev_*.deb)
dpkg-deb -f "${library[0]}" Package Version Architecture Depends Installed-Size
dpkg-deb -f "${development[0]}" Package Version Depends Recommends

# Every package that these need, by Debian's own list.
read -ra needed < <(dpkg-deb -f "${library[0]}" Depends | sed 's/([^)]*)//g; s/|[^,]*//g' | tr -d , )
mapfile -t needed < <(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
    --no-replaces --no-enhances "${needed[@]}" python3-minimal libpython3-stdlib | grep -E '^[a-z0-9]' |
    grep -vE ':|^(debconf|cdebconf|dpkg|perl-base|tar)' | sort -u)
(cd "$work/debian" && apt-get download -q "${needed[@]}" >/dev/null 2>&1)
for package in "$work"/debian/*.deb "${library[0]}"; do dpkg-deb -x "$package" "$root"; done
dpkg-deb -x "${development[0]}" "$developing"
echo "the bare root has ${#needed[@]} packages of Debian"

cc lib/example/example.c -I"$developing/usr/include" -L"$root/usr/lib" -l:liboctavo.so.0 \
    -Wl,--unresolved-symbols=ignore-in-shared-libs -o "$root/example"
cp -r models/demo "$root/models/"
(cd lib/python && python3 -c 'import build_wheel, sys; build_wheel.build_wheel(sys.argv[1])' "$root")
cat >"$root/answer.py" <<'PYTHON'
import asyncio, octavo, sys
fields = {"max_tokens": 24, "temperature": 0.7, "seed": 1, "retention": {"method": "chunkkv", "ratio": 0.25}}
with octavo.Engine("models/demo", kv_memory="64M", max_batch=4) as engine:
    answer = engine.generate(sys.argv[1], **fields)
    assert asyncio.run(engine.agenerate(sys.argv[1], **fields)).tokens == answer.tokens
    print(answer.text)
PYTHON
text=$(head -c 2000 tools/needle_4000.txt)
chroot "$root" /example models/demo "$text" | tee "$work/example.txt"
PYTHONPATH=$(basename "$root"/octavo-*.whl) chroot "$root" /usr/bin/python3 answer.py "$text" >"$work/python.txt"
cmp <(head -n -1 "$work/example.txt") "$work/python.txt"
echo "the example and the Python package answered alike"
