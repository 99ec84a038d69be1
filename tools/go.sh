#!/usr/bin/env bash
# Say at once where Go is missing or too old, before minutes of other work: the tests' Kubernetes cluster is built with
# it. Where one was built before, Go is not needed; e2e/cluster/build.py says so if some other program is missing.
# For another cluster than ours, which E2E_KUBECONTEXT names, or --context among the arguments, nothing is built but the
# tests' kubectl and Helm.
#
#   tools/go.sh TARGET [ARGUMENT...]    as make has them
set -euo pipefail
cd "$(dirname "$0")/.."

case "${E2E_KUBECONTEXT:+elsewhere:}$*" in
    elsewhere:test*) last=helm ;;
    elsewhere:* | *--context*) exit ;;
    *) last=kube-apiserver ;;
esac
if compgen -G "${XDG_CACHE_HOME:-$HOME/.cache}/rljob/$last-*" >/dev/null; then exit; fi
oldest=$(sed -n 's/^GO = (\(.*\), \(.*\))$/\1.\2/p' e2e/cluster/build.py)
found=$(go version 2>/dev/null | sed 's/^go version go\([0-9.]*\).*/\1/') || true
if ! printf '%s\n' "$oldest" "${found:-0}" | sort --version-sort --check=quiet; then
    echo "go: Kubernetes' programs are built with Go $oldest or newer, and PATH has ${found:-none}:" \
        "install it from https://go.dev/dl (tar -C /usr/local -xzf go*.tar.gz; export PATH=/usr/local/go/bin:\$PATH)" >&2
    exit 1
fi
