#!/usr/bin/env bash
# Installs the Python clients of tests/e2e/serve in build/clients-venv, again only when the
# requirements or Python change. Where the packages are not available it prints why and leaves
# nothing behind: the suites that need them are then skipped, and named.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/build/clients-venv
requirements=$root/tests/e2e/serve/requirements.txt

stamp=$({ cat "$requirements" && python3 --version; } | sha256sum)
[[ $(cat "$venv/stamp" 2>/dev/null) == "$stamp" ]] && exit 0

give_up() {
    rm -rf "$venv"
    echo "make_client_venv: $1: suites with these clients will be skipped" >&2
    exit 1
}

echo "== installing the clients of the e2e suites into build/clients-venv"
mkdir -p "$root/build"
python3 -m venv --clear "$venv" || give_up "python3 -m venv failed (package python3-venv)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: \
    --retries 1 --timeout 15 --requirement "$requirements" || give_up "pip could not get the packages"
printf '%s\n' "$stamp" >"$venv/stamp"
