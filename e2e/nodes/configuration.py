"""Settings of a node's programs. Paths are those that the node sees, so most are the programs' own defaults."""

import json
from typing import Any

from e2e.nodes.network import PODS, pod_network

SOCKET = "/run/containerd/containerd.sock"

PAUSE = "localhost/rljob/pause:1"
"""The image that holds a pod's namespaces."""

NAME_SERVER = "10.96.0.10"

KUBELET_HEALTH, PROXY_HEALTH = 10248, 10256

_CNI_PROGRAMS, CNI_FOLDER = "/usr/lib/cni", "/var/lib/cni/net.d"

CONTAINERD = f"""\
version = 2

# The first would make /opt/containerd; the others are for file systems that are not used here.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # A machine without CAP_SYS_RESOURCE cannot lower a process's OOM score, and each sandbox would fail for that.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_CNI_PROGRAMS}"
    conf_dir = "{CNI_FOLDER}"
"""


def cni(number: int) -> str:
    """Each pod has a wire of its own to the node, not to a bridge, so all that it sends passes by iptables."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": pod_network(number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/var/lib/cni/networks",
    }
    plugins = [{"type": "ptp", "ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins})


def kubelet(address: str, cgroup: str, authority: str, pki: str) -> dict[str, Any]:
    """authority: the file of the cluster's certificates' authority. pki: folder of the node's own."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "healthzBindAddress": address,
        "healthzPort": KUBELET_HEALTH,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": authority},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "clusterDNS": [NAME_SERVER],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{pki}/resolv.conf",
        "volumePluginDir": "/var/lib/kubelet/plugins",
        # The disk is shared with all else on this machine, and no registry would give a removed image back.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "nodeStatusUpdateFrequency": "5s",
        "serializeImagePulls": False,
        # Kubernetes' own first pause, which doubles up to five minutes: chaos kills one container again and again.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
        "failSwapOn": False,
    }


def kube_proxy(kubeconfig: str, name: str, address: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "hostnameOverride": name,
        "bindAddress": address,
        "healthzBindAddress": f"{address}:{PROXY_HEALTH}",
        "metricsBindAddress": f"{address}:10249",
        "mode": "iptables",
        "clusterCIDR": PODS,
        # The table of connections is the whole machine's: its size is not a node's to choose.
        "conntrack": {"maxPerCore": 0, "min": 0},
    }
