"""Real nodes for the cluster of e2e.cluster: kubelet, containerd, kube-proxy, and pods that run.

    up ──┬── packages                         what Debian has to bring
         ├── images ── builder, store         built by buildah, brought into containerd without a registry
         ├── machine ── network, cgroups      a node: namespaces of this machine, with a wire to a bridge
         ├── agents ── configuration          containerd, kubelet and kube-proxy in it
         └── addons                           name server, volumes

A node holds all that it has made, so that nothing is left when its first process ends: mounts, interfaces, iptables'
rules, containers. What is removed besides are one bridge, cgroups and the settings of the kernel that kubelets change.
"""
