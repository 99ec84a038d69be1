#!/usr/bin/env bash
# Say at once who must run a target, before minutes of other work: real nodes need root. A cluster of yours, which
# --context names among the arguments, make's ARGS, does not, nor does one of fake nodes, without --kubelets.
#
#   tools/root.sh TARGET [ARGUMENT...]
set -euo pipefail

if [[ $EUID -eq 0 || "$*" == *--context* ]]; then exit; fi
if [[ " $* " == *" cluster-up "* && "$*" != *--kubelets* ]]; then exit; fi
# sudo has a PATH of its own, which leaves out /usr/local/go/bin.
echo "root: real nodes need root, for namespaces, mounts and cgroups: sudo env \"PATH=\$PATH\" make $1${2:+ ARGS=\"${*:2}\"}" >&2
exit 1
