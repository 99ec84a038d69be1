"""Whether an object still is what we made of it. So a reconcile that changes nothing writes nothing."""

from collections.abc import Mapping
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from rljob_operator.kube.kinds import DEPLOYMENT, VOLUME_CLAIM, Manifest
from rljob_operator.names import DIGEST_ANNOTATION, MAKER_ANNOTATION, SPEC_ANNOTATION, TEMPLATE_ANNOTATION
from rljob_operator.render.digest import digest


def stamped(manifest: Manifest) -> Manifest:
    """With a digest of itself: what an older operator made differently, or what has left the manifest, shows."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), DIGEST_ANNOTATION: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def adapted(wanted: Manifest, found: Manifest | None) -> Manifest:
    """To what of it is there already and has to stay."""
    if found is not None and wanted["kind"] == VOLUME_CLAIM.name:
        return _kept_claim(wanted, found)
    if found is not None and wanted["kind"] == DEPLOYMENT.name:
        return _kept_servers(wanted, found)
    return wanted


def _kept_claim(wanted: Manifest, found: Manifest) -> Manifest:
    """One that somebody has grown stays so: the API server refuses to shrink it. One that was made for an earlier job
    of the name goes with neither.
    """
    largest = max((found, wanted), key=lambda claim: parse_quantity(_storage(claim)))
    spec = wanted["spec"] | {"resources": {"requests": {"storage": _storage(largest)}}}
    metadata = wanted["metadata"]
    if not _was_made_for(metadata["annotations"][MAKER_ANNOTATION], found["metadata"]):
        maker = found["metadata"].get("annotations", {}).get(MAKER_ANNOTATION, "")
        metadata = {key: value for key, value in metadata.items() if key != "ownerReferences"}
        metadata |= {"annotations": metadata["annotations"] | {MAKER_ANNOTATION: maker}}
    return wanted | {"spec": spec, "metadata": metadata}


def _kept_servers(wanted: Manifest, found: Manifest) -> Manifest:
    """What a newer operator, its chart or spec.recovery makes of their pods is for the next ones: these hold a model,
    and a driver asks them. So the template stays as it is there, with what the API server has filled in.
    """
    annotations, made = found["metadata"].get("annotations", {}), wanted["metadata"]["annotations"]
    template = annotations.get(TEMPLATE_ANNOTATION)
    if template in (None, made[TEMPLATE_ANNOTATION]) or annotations.get(SPEC_ANNOTATION) != made[SPEC_ANNOTATION]:
        return wanted
    metadata = wanted["metadata"] | {"annotations": made | {TEMPLATE_ANNOTATION: template}}
    return wanted | {"spec": wanted["spec"] | {"template": found["spec"]["template"]}, "metadata": metadata}


def _was_made_for(uid: str, metadata: Manifest) -> bool:
    """The owner speaks for claims of before the annotation."""
    owners = [each["uid"] for each in metadata.get("ownerReferences", ())]
    return uid in (metadata.get("annotations", {}).get(MAKER_ANNOTATION), *owners)


def _storage(claim: Manifest) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def has_drifted(found: Manifest | None, wanted: Manifest) -> bool:
    """Whether `found` lacks something that `wanted`, which is stamped, says."""
    return found is None or not _holds(found, wanted)


_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "port", "protocol"),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "schedulingGates": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}
"""What tells the entries of a list apart, so that several may own some each: x-kubernetes-list-map-keys of what we
apply. Server-side apply leaves there what others have put into such a list.
"""

_DEFAULTS = {"protocol": "TCP"}


# Kubernetes leaves fields out whose value is empty: "", 0, false, {} and [] are the same to it as nothing.
def _holds(found: Any, wanted: Any, field: str = "", shared: bool = True) -> bool:
    """field: whose value it is. shared: others may own what is beside ours; not within a list without keys, which has
    one owner.
    """
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _holds(found.get(name), value, name, shared)
            for name, value in wanted.items()
            if value not in ({}, []) and (value or found.get(name))
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and _holds_each(found, wanted, _KEYS.get(field, ()) if shared else ())
    return bool(found == wanted) or _same_quantity(found, wanted)


def _holds_each(found: list[Any], wanted: list[Any], keys: tuple[str, ...]) -> bool:
    if not keys:
        return len(found) == len(wanted) and all(
            _holds(*pair, shared=False) for pair in zip(found, wanted, strict=True)
        )
    entries = {_identity(each, keys): each for each in found}
    return all(_holds(entries.get(_identity(each, keys)), each) for each in wanted)


def _identity(entry: Any, keys: tuple[str, ...]) -> Any:
    """What somebody's template has there may be no object: then the API server has said so."""
    return tuple(entry.get(key, _DEFAULTS.get(key)) for key in keys) if isinstance(entry, Mapping) else f"{entry}"


def _same_quantity(found: Any, wanted: Any) -> bool:
    """The API server writes 1000m as 1."""
    if not (isinstance(found, str) and isinstance(wanted, str)):
        return False
    try:
        return bool(parse_quantity(found) == parse_quantity(wanted))
    except ValueError:
        return False
