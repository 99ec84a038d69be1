"""Kueue in the local cluster: a process instead of a pod, with all other objects of its chart, and the chart's rights.

The chart's Services become names of this machine's loopback, so the API server finds Kueue's webhooks and its
visibility API there.
"""

import base64
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.cluster.certificates import issue, load, new_authority, new_rsa_key
from e2e.cluster.helm import Helm
from e2e.cluster.layout import HOST, Layout, write_kubeconfig, write_secret
from e2e.cluster.objects import wait_until_served

RLJOB_CHART = Path(__file__).parents[2] / "charts/rljob-operator"

NAMESPACE = "kueue-system"

ACCOUNT = "kueue-controller-manager"

RLJOBS = "RLJob.v1alpha1.rljob.dev"
"""The kind whose Workloads RLJob's operator makes: Kueue makes none for its children."""

WEBHOOKS, VISIBILITY, CERTIFICATE = "kueue-webhook-service", "kueue-visibility-server", "kueue-webhook-server-cert"
"""Names in the chart: two Services and the Secret of the webhooks' certificate."""

_AUTHORITY = "kueue-ca"
"""As Kueue names its own; it replaces a certificate of any other."""

_POD = {"ConfigMap", "Deployment"}

_INSTALLED, _GATES_FILE, _OPEN = "installed.json", "gates.json", "gates-open"
"""Among Kueue's files: what was applied, what is applied once it answers, and whether that is done."""

GONE_SECONDS = 120

_GATES = {"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
"""What has the API server call Kueue, and fail if Kueue does not answer."""


def is_prepared(layout: Layout) -> bool:
    return layout.kueue("config.yaml").exists()


def prepare(layout: Layout) -> None:
    """Kueue's files, unless they are there."""
    if is_prepared(layout):
        return
    layout.kueue("").mkdir(exist_ok=True)
    authority = new_authority(_AUTHORITY, new_rsa_key())
    server = issue(authority, WEBHOOKS, hosts=(f"{WEBHOOKS}.{NAMESPACE}.svc",))
    for name, pair in (("ca", authority), ("tls", server)):
        layout.kueue(f"{name}.crt").write_bytes(pair.certificate_pem)
        write_secret(layout.kueue(f"{name}.key"), pair.key_pem)
    cluster = load(layout.pki("ca.crt").read_bytes(), layout.pki("ca.key").read_bytes())
    user = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
    write_kubeconfig(layout.kueue("kubeconfig"), layout, user, issue(cluster, user, groups))
    configure(layout)


def configure(layout: Layout, **settings: Any) -> None:
    """Write Kueue's configuration: the chart's, with these settings. Kueue reads it when it starts."""
    values = yaml.safe_load((_chart() / "values.yaml").read_text())
    default = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])
    ours = {
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"{HOST}:{layout.ports['kueue']}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": HOST, "port": layout.ports["kueue-webhooks"], "certDir": str(layout.kueue(""))},
        "visibilityServer": {"bindAddress": HOST, "bindPort": layout.ports["kueue-visibility"]},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True, "webhookServiceName": WEBHOOKS, "webhookSecretName": CERTIFICATE,
        },
        "integrations": {**default["integrations"], "externalFrameworks": [RLJOBS]},
    }  # fmt: skip
    layout.kueue("config.yaml").write_text(yaml.safe_dump({**default, **ours, **settings}))


def install(access: Access, layout: Layout) -> None:
    """Apply what Kueue needs to start, and its rights to RLJobs, unless it is done."""
    if layout.kueue(_INSTALLED).exists():
        return
    config = {"controllerManagerConfigYaml": layout.kueue("config.yaml").read_text()}
    chart = _rendered(layout, "kueue", _chart(), {"managerConfig": config})
    rights = "--show-only=templates/kueue.yaml"
    rljob = _rendered(layout, "rljob", RLJOB_CHART, {"kueue": {"enabled": True, "multiKueue": True}}, rights)
    for each in chart:
        _lead_to_loopback(each, layout)
    gates = [each for each in chart if each["kind"] in _GATES]
    others = [each for each in chart if each["kind"] not in _GATES | _POD]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    installed = [namespace, *others, *rljob]
    _apply(access, installed)
    kinds = {each["spec"]["names"]["kind"] for each in others if each["kind"] == "CustomResourceDefinition"}
    wait_until_served(access, "kueue.x-k8s.io/v1beta2", kinds)
    layout.kueue(_GATES_FILE).write_text(json.dumps(gates))
    layout.kueue(_INSTALLED).write_text(json.dumps(installed))


def open_gates(access: Access, layout: Layout) -> None:
    """Apply what has the API server call Kueue, unless it is done."""
    gates, opened = layout.kueue(_GATES_FILE), layout.kueue(_OPEN)
    if not opened.exists():
        _apply(access, json.loads(gates.read_text()))
        opened.touch()


def close_gates(access: Access, layout: Layout) -> None:
    """The API server calls Kueue no more, which may then stop."""
    _delete(access, json.loads(layout.kueue(_GATES_FILE).read_text()))


def uninstall(access: Access, layout: Layout) -> None:
    """Delete what `install` applied, and Kueue's files.

    No queue and no Workload of a job may be left: without Kueue, their finalizers would stay.
    """
    _delete(access, json.loads(layout.kueue(_INSTALLED).read_text()))
    shutil.rmtree(layout.kueue(""))


def _chart() -> Path:
    return BINARIES["kueue"].share("charts/kueue")


def _rendered(layout: Layout, name: str, chart: Path, values: dict[str, Any], *options: str) -> list[dict[str, Any]]:
    arguments = ("template", name, str(chart), f"--namespace={NAMESPACE}", "--values=-", *options)
    text = Helm(layout.kueue("helm"))(*arguments, values=yaml.safe_dump(values))
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def _lead_to_loopback(document: dict[str, Any], layout: Layout) -> None:
    if document["kind"] == "Service":
        document["spec"] = {"type": "ExternalName", "externalName": HOST}
    if document["metadata"]["name"] == CERTIFICATE:
        files = ("ca.crt", "ca.key", "tls.crt", "tls.key")
        document["data"] = {name: _base64(layout.kueue(name)) for name in files}
    for client in _clients(document):
        port = "kueue-visibility" if document["kind"] == "APIService" else "kueue-webhooks"
        client["service"]["port"] = layout.ports[port]
        if document["kind"] != "APIService":  # its certificate is not checked, as the chart has it
            client["caBundle"] = _base64(layout.kueue("ca.crt"))


def _clients(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """How the API server reaches Kueue for this object."""
    match document:
        case {"kind": "APIService", "spec": spec}:
            yield spec
        case {"kind": "CustomResourceDefinition", "spec": {"conversion": {"webhook": {"clientConfig": client}}}}:
            yield client
        case {"webhooks": webhooks}:
            yield from (each["clientConfig"] for each in webhooks)


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _apply(access: Access, documents: Iterable[dict[str, Any]]) -> None:
    access.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", objects=_list(documents))


def _delete(access: Access, documents: Iterable[dict[str, Any]]) -> None:
    """And wait until they are gone."""
    access.kubectl(
        "delete", "--ignore-not-found", f"--timeout={GONE_SECONDS}s", "--filename=-", objects=_list(documents)
    )


def _list(documents: Iterable[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
