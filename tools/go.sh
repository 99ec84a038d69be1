#!/usr/bin/env bash
# Say at once where Go is missing or too old, before minutes of other work: the tests' Kubernetes cluster is built with
# it. Where one was built before, Go is not needed; e2e/cluster/build.py says so if some other program is missing.
# Nor is it for another cluster than ours: E2E_KUBECONTEXT, or --context among the arguments, which are make's ARGS.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -n ${E2E_KUBECONTEXT:-} || "$*" == *--context* ]]; then exit; fi
if compgen -G "${XDG_CACHE_HOME:-$HOME/.cache}/rljob/kube-apiserver-*" >/dev/null; then exit; fi
oldest=$(sed -n 's/^GO = (\(.*\), \(.*\))$/\1.\2/p' e2e/cluster/build.py)
found=$(go version 2>/dev/null | sed 's/^go version go\([0-9.]*\).*/\1/') || true
if ! printf '%s\n' "$oldest" "${found:-0}" | sort --version-sort --check=quiet; then
    echo "go: the local Kubernetes cluster is built with Go $oldest or newer, and PATH has ${found:-none}:" \
        "install it from https://go.dev/dl (tar -C /usr/local -xzf go*.tar.gz; export PATH=/usr/local/go/bin:\$PATH)" >&2
    exit 1
fi
