#!/usr/bin/env bash
# usage: tools/make_client_venv.sh [agents | evals | dynamo | cuda]
# Installs the Python clients of tests/e2e/serve in build/clients-venv, the agent libraries in
# build/agents-venv, the evaluation tools in build/evals-venv, NVIDIA Dynamo's services in
# build/dynamo-venv, or NVIDIA's disassemblers in build/cuda-venv, again only when the requirements
# or Python change. Where the packages are not available it prints why and leaves nothing behind:
# the suites that need them are then skipped, and named.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case ${1-} in
"") venv=clients requirements=e2e/serve/requirements.txt ;;
agents | evals | dynamo) venv=$1 requirements=e2e/serve/requirements-$1.txt ;;
cuda) venv=cuda requirements=cuda/requirements.txt ;;
*) echo "usage: $0 [agents | evals | dynamo | cuda]" >&2 && exit 2 ;;
esac
venv=$root/build/$venv-venv
requirements=$root/tests/$requirements

stamp=$({ cat "$requirements" && python3 --version; } | sha256sum)
[[ $(cat "$venv/stamp" 2>/dev/null) == "$stamp" ]] && exit 0

give_up() {
    rm -rf "$venv"
    echo "make_client_venv: $1: suites with these packages will be skipped" >&2
    exit 1
}

echo "== installing the packages of ${requirements#"$root"/} into ${venv#"$root"/}"
mkdir -p "$root/build"
python3 -m venv --clear "$venv" || give_up "python3 -m venv failed (package python3-venv)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: \
    --retries 1 --timeout 15 --requirement "$requirements" || give_up "pip could not get the packages"
printf '%s\n' "$stamp" >"$venv/stamp"
