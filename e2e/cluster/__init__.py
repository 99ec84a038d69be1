"""A Kubernetes control plane on this machine, from real components: make cluster-up, make cluster-down.

    sharing ── plane ──┬── build ── binaries, progress    programs from pinned Go modules, built once
    (tests) (up, down) ├── layout ── certificates    its folder: ports, certificates, kubeconfigs, logs
                       ├── components, health    command lines, and when each is ready
                       ├── processes, locks    started, found and stopped by any process
                       └── objects ── access    CRDs and fake nodes, by kubectl

proxy.py stands before an API server and injects faults.
"""
