#!/usr/bin/env bash
# Unpacks the Debian packages that tools/gpu_check.sh needs on a machine without them: headers,
# libraries and pkg-config, into build/deps (about 10 MB, ignored by git). Run it where apt can
# download, and copy build/deps along with the tree. Nothing of it enters a commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(libjansson-dev libjansson4 libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2
    libjemalloc-dev libjemalloc2 libyaml-dev libyaml-0-2 libedit-dev libedit2 libbsd0
    libmd0 libcmocka-dev libcmocka0 pkgconf-bin libpkgconf3)
mkdir -p build/deps/debs
(cd build/deps/debs && apt-get download -q "${packages[@]}")
for deb in build/deps/debs/*.deb; do dpkg -x "$deb" build/deps; done
rm -r build/deps/debs build/deps/usr/share
du -sh build/deps
