"""Strategic merge of pod templates: lists of named things are merged by name, other lists are replaced.

What Kubernetes' patch strategy says of a pod's fields, as far as templates need it:
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
"""

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists of a pod, and what tells their entries apart."""


class CannotMerge(ValueError):
    """The patch has another form than what it patches."""


def merged(base: Any, patch: Any, path: str = "") -> Any:
    """`base` with `patch` on top; a field that the patch sets to null is removed. Raises CannotMerge.

    path: of both, for messages.
    """
    if isinstance(base, Mapping):
        return _merged_objects(base, _as(dict, patch, path, "an object"), path)
    if isinstance(base, list):
        entries = _as(list, patch, path, "a list")
        key = MERGE_KEYS.get(path.rpartition(".")[2])
        return _merged_by(key, base, entries, path) if key else entries
    return patch


def _merged_objects(base: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    kept = {key: value for key, value in base.items() if key not in patch}
    written = {key: value for key, value in patch.items() if value is not None}
    return kept | {key: merged(base.get(key), value, f"{path}.{key}".lstrip(".")) for key, value in written.items()}


def _merged_by(key: str, base: list[Any], patch: list[Any], path: str) -> list[Any]:
    patches = {str(_as(dict, entry, path, "a list of objects").get(key)): entry for entry in patch}
    names = [str(entry.get(key)) for entry in base]
    first = [
        merged(entry, patches.pop(name), path) if name in patches else entry
        for name, entry in zip(names, base, strict=True)
    ]
    return [*first, *patches.values()]


def _as(form: type[T], value: Any, path: str, words: str) -> T:
    if not isinstance(value, form):
        raise CannotMerge(f"{path or 'it'} must be {words}")
    return value
