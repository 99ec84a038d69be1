"""Whether an object still is as it was applied. So a reconcile that changes nothing writes nothing."""

from collections.abc import Mapping
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from rljob_operator.kube.kinds import DEPLOYMENT, VOLUME_CLAIM, Manifest
from rljob_operator.names import DIGEST_ANNOTATION, MAKER_ANNOTATION, SPEC_ANNOTATION, TEMPLATE_ANNOTATION
from rljob_operator.render.digest import digest
from rljob_operator.render.merge import LIST_KEYS, identity


def stamped(manifest: Manifest) -> Manifest:
    """With a digest of itself, which shows what an older operator rendered differently, or what left the manifest."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), DIGEST_ANNOTATION: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def adapted(wanted: Manifest, found: Manifest | None) -> Manifest:
    """With the parts of the existing object that have to stay."""
    if found is not None and wanted["kind"] == VOLUME_CLAIM.name:
        return _kept_claim(wanted, found)
    if found is not None and wanted["kind"] == DEPLOYMENT.name:
        return _kept_servers(wanted, found)
    return wanted


def _kept_claim(wanted: Manifest, found: Manifest) -> Manifest:
    """A grown claim stays so, because it cannot shrink. One that an earlier job of the name created gets no owner."""
    largest = max((found, wanted), key=lambda claim: parse_quantity(_storage(claim)))
    spec = wanted["spec"] | {"resources": {"requests": {"storage": _storage(largest)}}}
    metadata = wanted["metadata"]
    maker = found["metadata"].get("annotations", {}).get(MAKER_ANNOTATION, "")
    if maker != metadata["annotations"][MAKER_ANNOTATION]:
        metadata = {key: value for key, value in metadata.items() if key != "ownerReferences"}
        metadata |= {"annotations": metadata["annotations"] | {MAKER_ANNOTATION: maker}}
    return wanted | {"spec": spec, "metadata": metadata}


def _kept_servers(wanted: Manifest, found: Manifest) -> Manifest:
    """A newer operator, its chart or spec.recovery may render other pods. Those are for later: these hold a model, and
    a driver calls them. So the existing template stays, with what the API server has filled in.
    """
    annotations, made = found["metadata"].get("annotations", {}), wanted["metadata"]["annotations"]
    template = annotations.get(TEMPLATE_ANNOTATION)
    if template in (None, made[TEMPLATE_ANNOTATION]) or annotations.get(SPEC_ANNOTATION) != made[SPEC_ANNOTATION]:
        return wanted
    metadata = wanted["metadata"] | {"annotations": made | {TEMPLATE_ANNOTATION: template}}
    return wanted | {"spec": wanted["spec"] | {"template": found["spec"]["template"]}, "metadata": metadata}


def _storage(claim: Manifest) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def has_drifted(found: Manifest | None, wanted: Manifest) -> bool:
    """Whether `found` lacks something of `wanted`, which is stamped."""
    return found is None or not _holds(found, wanted)


# Kubernetes omits fields whose value is empty: "", 0, false, {} and [] mean the same as no field.
def _holds(found: Any, wanted: Any, field: str = "", shared: bool = True) -> bool:
    """field: whose value it is. shared: other managers may own entries beside, but not within a list without keys."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _holds(found.get(name), value, name, shared)
            for name, value in wanted.items()
            if value not in ({}, []) and (value or found.get(name))
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and _holds_each(found, wanted, field if shared else "")
    return bool(found == wanted) or _same_quantity(found, wanted)


def _holds_each(found: list[Any], wanted: list[Any], field: str) -> bool:
    """Server-side apply keeps the entries that other managers own."""
    if field not in LIST_KEYS:
        return len(found) == len(wanted) and all(
            _holds(*pair, shared=False) for pair in zip(found, wanted, strict=True)
        )
    entries = {_identity(field, each): each for each in found}
    return all(_holds(entries.get(_identity(field, each)), each) for each in wanted)


def _identity(field: str, entry: Any) -> Any:
    """An entry of a user's template may be no object, which the API server reports."""
    return identity(field, entry) if isinstance(entry, Mapping) else f"{entry}"


def _same_quantity(found: Any, wanted: Any) -> bool:
    """The API server writes 1000m as 1."""
    if not (isinstance(found, str) and isinstance(wanted, str)):
        return False
    try:
        return bool(parse_quantity(found) == parse_quantity(wanted))
    except ValueError:
        return False
