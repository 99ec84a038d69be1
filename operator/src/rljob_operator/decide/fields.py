"""Which field of a job it is that the API server finds wrong in an object that was made for it.

    spec.headGroupSpec.template.spec.volumes[3].name    in its words, of the RayCluster
    spec.volumes[0].name                                what the job's author wrote

Entries of lists are found again by the keys that they are merged by. A path that leads to nothing of the author's
stays as it is.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rljob_api import RLJobSpec
from rljob_api.conditions import Note
from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.kube.kinds import DEPLOYMENT, RAY_CLUSTER, Manifest
from rljob_operator.observe.words import told_once
from rljob_operator.plan import Event
from rljob_operator.render.merge import identity

_PATH = re.compile(r"(?:(?<!\S)\.)?\b(?:spec|metadata)(?:\.\w+|\[[^\]\s]*\])+(?:\.(?=:))?")
"""A key that is the empty text leaves its dot."""

_OF_METADATA = re.compile(r"^(labels|annotations)\b")
"""As the API server calls a template's, leaving out where they are."""

_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?\.?")
_OURS: Mapping[str, tuple[str, ...]] = {
    names.HEAD: (names.HEAD_CONTAINER, names.AGENT_CONTAINER),
    names.WORKER: (names.WORKER_CONTAINER,),
    names.REWARD_MODEL: (names.SERVER_CONTAINER,),
}
"""The operator's containers, by the role of a pod. In a pod of another role such a name is anybody's."""


_FRACTION = "cannot convert float64 to int64"
"""Of server-side apply, which names no field there. No number of a pod has a fraction but quantities."""

_ALL_TOO_LONG = "[]: Too long"
"""Of a ConfigMap, for the sum of what it holds."""

_QUANTITIES = ("resources", "sizeLimit", "divisor")


@dataclass(frozen=True, slots=True)
class _Source:
    """One pod template of an object. root: where. made: as it is there. written: the job's own, which is at `path`.

    ours: the names of the operator's containers in it.
    """

    spec: RLJobSpec
    root: str
    made: Manifest
    written: Manifest
    path: str
    ours: tuple[str, ...]


def by_fields(job: Job, message: str, made: Iterable[Manifest]) -> str:
    """The API server's words of one of the objects that were made, with the job's fields."""
    sources = [source for each in made if _names(message, each) for source in _sources(job.spec, each)]
    told = _told(message, sources)
    if _ALL_TOO_LONG in message:
        return f"{told}; {_largest(job.spec.model_dump(mode='json', by_alias=True), 'spec')}"
    return "; ".join((told, *_fractions_in(job.spec, sources))) if _FRACTION in message else told


def by_fields_of_pod(job: Job, message: str, cluster: Manifest, role: str) -> str:
    """The API server's words of a pod that KubeRay would make. role: names.HEAD or WORKER."""
    sources = [each for each in _sources(job.spec, cluster) if each.path == f"spec.cluster.{role}.template"]
    return _told(message, [replace(each, root="") for each in sources])


def ignored(job: Job, made: Manifest, unknown: Iterable[str]) -> Event:
    """What to tell of fields that were sent and that `made` lacks. unknown: the API server's words of each."""
    sources = list(_sources(job.spec, made))
    words = "; ".join(dict.fromkeys(_told(each, sources) for each in unknown))
    name = f"{made['kind']} {made['metadata']['name']}"
    return Event(Note.FIELD_IGNORED, f"{name} is made without what the API server does not know: {words}", warning=True)


def _names(message: str, manifest: Manifest) -> bool:
    """Whether it is of that object: in the words of validation, or of server-side apply that knows no such field."""
    metadata, kind = manifest["metadata"], manifest["kind"]
    if f"({metadata['namespace']}/{metadata['name']}; {manifest['apiVersion']}, Kind={kind})" in message:
        return True
    return message.startswith(f"{kind}.") and f'"{metadata["name"]}"' in message


def _sources(spec: RLJobSpec, manifest: Manifest) -> Iterator[_Source]:
    made, cluster = manifest.get("spec", {}), spec.cluster
    if manifest["kind"] == RAY_CLUSTER.name and made:
        groups = (("headGroupSpec", made["headGroupSpec"]), ("workerGroupSpecs[0]", made["workerGroupSpecs"][0]))
        for role, (place, group) in zip((names.HEAD, names.WORKER), groups, strict=True):
            written = (cluster.head if role == names.HEAD else cluster.worker).template.written()
            root, path = f"spec.{place}.template.", f"spec.cluster.{role}.template"
            yield _Source(spec, root, group["template"], written, path, _OURS[role])
    if manifest["kind"] == DEPLOYMENT.name:
        label = made["template"]["metadata"]["labels"][names.REWARD_MODEL_LABEL]
        for index, model in enumerate(spec.rewards.models):
            if model.name == label:
                path, ours = f"spec.rewards.models[{index}].template", _OURS[names.REWARD_MODEL]
                yield _Source(spec, "spec.template.", made["template"], model.template.written(), path, ours)


def _told(message: str, sources: Iterable[_Source]) -> str:
    def field(found: re.Match[str]) -> str:
        whole = found[0].removeprefix(".")
        for source in sources:
            if whole.startswith(source.root):
                path = _OF_METADATA.sub(r"metadata.\1", whole.removeprefix(source.root))
                named = _field(source, path, source.made, source.written, source.path)
                if named and whole.endswith("."):
                    return f'{named.removesuffix(".")}.""'
                return named or (found[0] if source.root else f"the pod's {whole}")  # which looks like the job's
        return found[0]

    return told_once(message, partial(_PATH.sub, field))


def _field(pod: _Source, path: str, made: Any, written: Any, at: str) -> str | None:
    """made, written: what is in the object, and what its author wrote, at the path `at` of the job."""
    step = _STEP.match(path)
    if step is None:  # the end, or a map's key
        return f"{at}{path}" if written is not None else None
    name, index, rest = step[1], step[2], path[step.end() :]
    there, own = _part(made, name), _part(written, name)
    if index is None:
        return _field(pod, rest, there, own, f"{at}.{name}")
    if not isinstance(there, list) or int(index) >= len(there):
        return None
    return _field_of_entry(pod, (name, int(index), rest), there[int(index)], own, at)


def _field_of_entry(pod: _Source, step: tuple[str, int, str], entry: Any, own: Any, at: str) -> str | None:
    """step: the list's name, the entry's index in the object, and the path below. own: what its author wrote there."""
    name, index, rest = step
    position = _position(name, own, entry, index)
    place = f"{at}.{name}[{position}]"
    if name in ("containers", "initContainers"):
        inside = None if position is None else own[position]
        if inside is None or (name == "containers" and entry.get("name") in pod.ours):
            return _field(pod, rest, entry, inside, place)
    if position is None:
        position = _position(name, _shared(pod.spec).get(name), entry, index)
        place = f"spec.{name}[{position}]"
    return None if position is None else ".".join(filter(None, (place, rest)))


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _shared(spec: RLJobSpec) -> Mapping[str, list[Any]]:
    """What all pods of the job have, by the names of a pod's fields."""
    return {
        "volumes": [each.written() for each in spec.volumes],
        "volumeMounts": [each.written() for each in spec.volume_mounts],
        "env": [{"name": each.name} for each in spec.env],
        "envFrom": [each.written() for each in spec.env_from],
        "imagePullSecrets": [{"name": each.name} for each in spec.image_pull_secrets],
    }


def _position(name: str, entries: Any, entry: Any, index: int) -> int | None:
    """Where the entry of the object, at `index` there, is among those that somebody wrote. Ours come first, so of two
    it is the last.
    """
    if not isinstance(entries, list):
        return None
    key = identity(name, entry) if isinstance(entry, Mapping) else None
    if key is None:
        same = [i for i, each in enumerate(entries) if _stored(each) == _stored(entry)]
        return index if index in same else next(iter(same), None)
    same = [i for i, each in enumerate(entries) if isinstance(each, Mapping) and identity(name, each) == key]
    return same[-1] if same else None


def _fractions_in(spec: RLJobSpec, sources: Iterable[_Source]) -> Iterator[str]:
    for source in sources:
        yield from _fractions(source.written, source.path)
    yield from _fractions(_shared(spec), "spec")


def _fractions(value: Any, at: str) -> Iterator[str]:
    """Where somebody wrote one. at: the value's place in the job."""
    if isinstance(value, float):
        yield f"{at} is {value!r}: write a whole number"
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if key not in _QUANTITIES:
                yield from _fractions(each, f"{at}.{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _fractions(each, f"{at}[{index}]")


def _largest(value: Any, at: str) -> str:
    """Where most of it is. at: the value's place in the job."""
    parts: dict[str, Any] = {}
    if isinstance(value, Mapping):
        parts = {f"{at}.{key}": each for key, each in value.items()}
    elif isinstance(value, list):
        parts = {f"{at}[{index}]": each for index, each in enumerate(value)}
    most = max(parts, key=lambda each: _size(parts[each]), default=None)
    if most is not None and 2 * _size(parts[most]) > _size(value):
        return _largest(parts[most], most)
    return f"most of it is {at}, of {_size(value)} characters"


def _size(value: Any) -> int:
    return len(json.dumps(value))


def _stored(value: Any) -> Any:
    """As the API server keeps it: without what is null."""
    if isinstance(value, Mapping):
        return {key: _stored(each) for key, each in value.items() if each is not None}
    return [_stored(each) for each in value] if isinstance(value, list) else value
