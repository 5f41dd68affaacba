#!/usr/bin/env bash
# What tools/gpu_check.sh needs on a machine without Debian packages: headers, libraries and
# pkg-config, out of the packages' files, into build/deps (about 10 MB, ignored by git, to be carried
# along). Run it where apt can download. Nothing of it enters a commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(libjansson-dev libjansson4 libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2
    libjemalloc-dev libjemalloc2 libcmocka-dev libcmocka0 pkgconf-bin libpkgconf3)
mkdir -p build/deps/debs
(cd build/deps/debs && apt-get download -q "${packages[@]}")
for deb in build/deps/debs/*.deb; do dpkg -x "$deb" build/deps; done
rm -r build/deps/debs build/deps/usr/share
du -sh build/deps
