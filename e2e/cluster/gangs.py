"""Schedulers of gangs in the local cluster, by their names in spec.gang.scheduler; a cluster has at most one.

volcano         its scheduler and controllers, with the configuration of its chart
coscheduling    a second scheduler with the profile of scheduler-plugins' manifests, and the controller of PodGroups
native          Kubernetes' own scheduler, with feature gates that are alpha in 1.36
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.cluster.components import Component, server
from e2e.cluster.layout import GANG_SCHEDULER, HOST, Layout
from e2e.cluster.objects import apply, wait_until_served

COSCHEDULING_NAME = "scheduler-plugins-scheduler"
"""schedulerName of pods, as its chart names it."""


def _vc_scheduler(layout: Layout) -> dict[str, object]:
    files = BINARIES["vc-scheduler"].share("installer/helm/chart/volcano/config")
    return {
        **_volcano(layout, "vc-scheduler"),
        "scheduler-conf": files / "volcano-scheduler.conf",
        "cache-dumper": "false",  # it writes to /tmp
    }


def _vc_controllers(layout: Layout) -> dict[str, object]:
    return _volcano(layout, "vc-controller-manager")


def _volcano(layout: Layout, name: str) -> dict[str, object]:
    return {
        "kubeconfig": layout.kubeconfig_of(GANG_SCHEDULER),
        "leader-elect": "false",
        "enable-healthz": "true",
        "healthz-address": f"{HOST}:{layout.ports[name]}",
    }


def _coscheduling(layout: Layout) -> dict[str, object]:
    return {
        "config": _profile(layout),
        **server(layout, "coscheduling-scheduler"),
        # 5 minutes by default, and the plugin misses that a pod outside of any gang leaves its GPUs.
        "pod-max-in-unschedulable-pods-duration": "30s",
    }


def _coscheduling_controller(layout: Layout) -> dict[str, object]:
    return {
        "kubeconfig": layout.kubeconfig_of(GANG_SCHEDULER),
        "metricsAddr": "0",
        "probeAddr": f"{HOST}:{layout.ports['coscheduling-controller']}",
    }


COMPONENTS: Mapping[str, tuple[Component, ...]] = {
    "volcano": (
        Component("vc-scheduler", _vc_scheduler, "/healthz", ("vc-scheduler",), scheme="http"),
        Component("vc-controller-manager", _vc_controllers, "/healthz", ("vc-controller-manager",), scheme="http"),
    ),
    "coscheduling": (
        Component("coscheduling-scheduler", _coscheduling, "/readyz", ("coscheduling-scheduler",)),
        Component(
            "coscheduling-controller", _coscheduling_controller, "/readyz", ("coscheduling-controller",), scheme="http"
        ),
    ),
    "native": (),
}
"""By scheduler."""

EVERY = tuple(component for components in COMPONENTS.values() for component in components)


def components(layout: Layout) -> tuple[Component, ...]:
    """Those of the cluster's scheduler."""
    return COMPONENTS.get(layout.gang, ())


def install(access: Access, layout: Layout) -> None:
    """The CRDs and the configuration that the cluster's scheduler needs to start."""
    match layout.gang:
        case "volcano":
            folder = BINARIES["vc-scheduler"].share("config/crd")
            files = sorted(folder.glob("*/bases/*.yaml"))
            served = {"scheduling.volcano.sh/v1beta1": {"PodGroup", "Queue"}}
        case "coscheduling":
            folder = BINARIES["coscheduling-scheduler"].share("manifests")
            files = [folder / kind / "crd.yaml" for kind in ("coscheduling", "capacityscheduling")]
            served = {"scheduling.x-k8s.io/v1alpha1": {"PodGroup", "ElasticQuota"}}
            _write_profile(layout, folder / "coscheduling/scheduler-config.yaml")
        case _:
            return
    apply(access, *files)
    for version, kinds in served.items():
        wait_until_served(access, version, kinds)


def _profile(layout: Layout) -> Path:
    return layout.folder / "coscheduling.yaml"


def _write_profile(layout: Layout, theirs: Path) -> None:
    """As a second scheduler: the pods of Kubernetes' own are none of its."""
    profile = yaml.safe_load(theirs.read_text())
    profile["clientConnection"]["kubeconfig"] = str(layout.kubeconfig_of(GANG_SCHEDULER))
    (only,) = profile["profiles"]
    only["schedulerName"] = COSCHEDULING_NAME
    _profile(layout).write_text(yaml.safe_dump(profile))
