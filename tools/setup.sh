#!/usr/bin/env bash
# Make .venv: the locked requirements and this workspace's three packages, editable.
#
# Asks for a Debian or Ubuntu on x86-64, Python 3.11 to 3.13, root or sudo, and package registries.
# Repeating it is safe and, when nothing is missing, takes two seconds. Which mirror, which certificates, which proxy:
# whatever uv and pip are configured to use, and else the system's certificates.
# PYTHON=/path/to/python3.12 chooses the interpreter of a new .venv. REQUIREMENTS=cuda takes vLLM for NVIDIA's GPUs instead
# of CPUs, for training alone: without the tests and their tools, and with copies of the three. The .venv keeps to it.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1
CHOSEN=.venv/.requirements

main() {
    exec 9<"$0"
    flock 9  # two makes at once: the second waits, and finds the work done
    REQUIREMENTS=${REQUIREMENTS:-$(cat "$CHOSEN" 2>/dev/null || echo cpu)}
    [[ $REQUIREMENTS =~ ^(cpu|cuda)$ ]] || fail "REQUIREMENTS is cpu or cuda, not $REQUIREMENTS"
    [[ $(uname -sm) == "Linux x86_64" ]] || fail "the locked packages are for Linux on x86-64, not $(uname -sm)"
    works .venv/bin/python || make_venv
    installed_uv || .venv/bin/python -m pip install --quiet --require-hashes -r requirements/setup.txt
    configure_uv
    install_packages
    has_libnuma || apt_install libnuma1  # vLLM on CPUs loads it
    say "ready: $(.venv/bin/python --version) in .venv"
}

make_venv() {
    local python
    python=${PYTHON:-$(find_python)} || fail "no Python 3.11 to 3.13 found; install one (apt-get install python3)" \
        "or name it: make setup PYTHON=/path/to/python3.12"
    works "$python" || fail "$python is not Python 3.11 to 3.13"
    "$python" -c "import ensurepip" 2>/dev/null || apt_install "$("$python" -c "$VENV_PACKAGE")"
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
}

configure_uv() {  # it reads its own settings only
    export UV_COMPILE_BYTECODE=1  # else each process of a run compiles its imports again, where Python may not write them
    local index cert
    index=$(pip_setting index-url)
    cert=$(pip_setting cert)
    if [[ -n $index ]]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; fi
    if [[ -n $cert ]]; then export SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}; fi
    if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}; fi
}

pip_setting() {  # NAME: from pip's environment, or from its files
    local variable=PIP_${1^^}
    variable=${variable//-/_}
    echo "${!variable:-$(.venv/bin/python -m pip config get "global.$1" 2>/dev/null)}"
}

install_packages() {
    local files=("$REQUIREMENTS.txt")
    local members=(-e crds -e operator -e trainer)
    if [[ $REQUIREMENTS == cuda ]]; then  # which lacks what makes them editable: after a change of the code, repeat this
        files+=(setup.txt build.txt)
        members=(./crds ./operator ./trainer)
    elif can_compile; then
        files+=(reasoning-gym.txt)
    else
        say "without reasoning-gym, which needs a C compiler and Python's headers (apt-get install gcc python3-dev)"
    fi
    local count
    count=$(cat "${files[@]/#/requirements/}" | grep -c '^[a-z]')
    say "installing $count locked packages (8 GB; minutes the first time, then seconds)"
    # From requirements/, so that none of the project's own uv settings apply.
    .venv/bin/uv --directory requirements pip sync --python ../.venv/bin/python --require-hashes "${files[@]}" 2> >(without_list)
    .venv/bin/uv pip install --python .venv/bin/python --no-deps --no-build-isolation "${members[@]}" \
        2> >(without_list)
    echo "$REQUIREMENTS" >"$CHOSEN"
}

without_list() { grep -v '^ [-+~] ' >&2; }

works() { "$1" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))" 2>/dev/null; }

find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3; do
        if works "$name"; then command -v "$name" && return; fi
    done
    return 1
}

installed_uv() { grep -q "^uv==$(.venv/bin/uv --version 2>/dev/null | cut -d ' ' -f 2) " requirements/setup.txt; }
can_compile() { command -v cc >/dev/null && .venv/bin/python -c "$HEADERS"; }
has_libnuma() { .venv/bin/python -c "import ctypes; ctypes.CDLL('libnuma.so.1')" 2>/dev/null; }
HEADERS='import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
VENV_PACKAGE='import sys; print("python%d.%d-venv" % sys.version_info[:2])'

apt_install() {
    local sudo=()
    [[ $EUID -eq 0 ]] || sudo=(sudo)
    command -v apt-get >/dev/null || fail "$* is missing; install it with your system's package manager"
    say "installing $* with apt-get"
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        fail "apt-get could not install $*; install it by hand and repeat"
}

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

main
