"""Strategic merge of pod templates: lists of named things are merged by name, other lists are replaced.

Kubernetes' patch strategy of a pod's fields, as far as templates need it:
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
"""

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "port", "protocol"),  # a container has one of them, a Service the other
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "schedulingGates": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}
"""Lists by field, and the keys of their entries: x-kubernetes-list-map-keys. An entry may have an owner."""

_DEFAULTS = {"protocol": "TCP"}


class CannotMerge(ValueError):
    """The patch has another form than what it patches, or has one entry twice."""


def merged(base: Any, patch: Any, path: str = "") -> Any:
    """`base` with `patch` on top; a field that the patch sets to null is removed. Raises CannotMerge.

    path: of both, for messages.
    """
    if isinstance(base, Mapping):
        return _merged_objects(base, _as(dict, patch, path, "an object"), path)
    if isinstance(base, list):
        entries = _as(list, patch, path, "a list")
        name = path.rpartition(".")[2]
        return _merged_by_keys(name, base, entries, path) if name in LIST_KEYS else entries
    return patch


def _merged_objects(base: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    kept = {key: value for key, value in base.items() if key not in patch}
    written = {key: value for key, value in patch.items() if value is not None}
    return kept | {key: merged(base.get(key), value, f"{path}.{key}".lstrip(".")) for key, value in written.items()}


def _merged_by_keys(name: str, base: list[Any], patch: list[Any], path: str) -> list[Any]:
    patches, others = dict[tuple[str, ...], tuple[Any, str]](), list[Any]()
    for index, entry in enumerate(patch):
        _as(dict, entry, path, "a list of objects")
        key = identity(name, entry)
        if key is None:  # the API server reports what it lacks
            others.append(entry)
        elif key in patches:
            same = ", ".join(f"{field} {value}" for field, value in zip(LIST_KEYS[name], key, strict=True) if value)
            raise CannotMerge(f"{path}[{index}] has the same {same} as {patches[key][1]}; change or remove one")
        else:
            patches[key] = entry, f"{path}[{index}]"
    first = [
        _merged_entry(name, entry, *patches.pop(key)) if (key := identity(name, entry)) in patches else entry
        for entry in base
    ]
    return [*first, *(entry for entry, _ in patches.values()), *others]


def _merged_entry(name: str, base: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> Any:
    """A volume has one source: another one takes its place, which Kubernetes calls retainKeys."""
    written = {field: value for field, value in patch.items() if value is not None}
    return written if name == "volumes" and not written.keys() <= base.keys() else merged(base, patch, path)


def identity(name: str, entry: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The key of an entry of the list `name`; None if the entry lacks it."""
    values = [entry.get(field, _DEFAULTS.get(field, "")) for field in LIST_KEYS[name]]
    return tuple(map(str, values)) if any(field in entry for field in LIST_KEYS[name]) else None


def _as(form: type[T], value: Any, path: str, words: str) -> T:
    if not isinstance(value, form):
        raise CannotMerge(f"{path or 'it'} must be {words}")
    return value
