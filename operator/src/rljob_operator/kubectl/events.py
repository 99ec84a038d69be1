"""`kubectl rljob events`: of the job and of what was made for it, in one order."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated

import typer

from rljob_operator import names
from rljob_operator.kubectl.calls import Context, Kubectl, Manifest, Namespace
from rljob_operator.kubectl.jobs import Deleted, Job, job_named, moment, newest, read

_TIMES = ("lastTimestamp", "eventTime", "firstTimestamp")
"""Which of them an event has depends on who wrote it."""

_HASH = "[bcdfghjklmnpqrstvwxz2456789]"
"""What Kubernetes makes names' ends of, so that they are no words."""

_LONGEST_STEM = 58
"""The API server cuts what stands before the five letters that it draws for a pod."""


def events(
    name: str,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """What happened to the job, its pods, its RayCluster, its reward models and its volume's claim."""
    kubectl = Kubectl(namespace, context)
    job = job_named(kubectl, name)
    found = events_about(job, kubectl.get("events")["items"])
    for event in chain(found, _later(kubectl, job, found) if follow else ()):
        kind, reason, about, message = cells(event)
        typer.echo(f"{time_of(event):%Y-%m-%dT%H:%M:%SZ}  {kind:<7}  {reason:<18}  {about}  {message}")


def cells(event: Manifest) -> tuple[str, str, str, str]:
    """Type, reason, object and message. The API server asks for none of them."""
    about, times = event["involvedObject"], event.get("count") or 1
    again = f" ({times} times)" if times > 1 else ""
    thing = f"{about.get('kind', '-')}/{about.get('name', '-')}"
    return event.get("type", "-"), event.get("reason", "-"), thing, f"{event.get('message', '')}{again}"


def events_about(job: Job, found: Iterable[Manifest]) -> list[Manifest]:
    """Oldest first. Events outlive what they are about: those of an earlier job of the name are left out."""
    born = moment(job.manifest["metadata"]["creationTimestamp"])
    return sorted((event for event in found if _is_about(job, event) and time_of(event) >= born), key=_order)


def _is_about(job: Job, event: Manifest) -> bool:
    about = event["involvedObject"]
    kind, name = about.get("kind"), about.get("name", "")
    if kind == "RLJob":
        return bool(about.get("uid") == job.uid)
    return any(re.fullmatch(pattern, name) for pattern in _children(job).get(kind, ()))


def _children(job: Job) -> Mapping[str, Sequence[str]]:
    """Patterns of their names by kind, for what is gone has no labels any more. Another job's names may begin alike."""
    cluster = names.ray_cluster(job.name)
    models = (job.spec.get("rewards") or {}).get("models") or ()
    servers = [names.reward_model(job.name, model["name"]) for model in models]
    return {
        "RayCluster": [cluster],
        "PersistentVolumeClaim": [names.claim(job.name)],
        "Deployment": servers,
        "Service": servers,
        "ReplicaSet": [f"{server}-{_HASH}+" for server in servers],
        "Pod": [
            rf"{cluster}-(head|\w+-worker)-\w{{5}}",
            *(rf"{f'{server}-'[:_LONGEST_STEM]}{_HASH}*-?\w{{5}}" for server in servers),
        ],
    }


def time_of(event: Manifest) -> datetime:
    told = next((event[each] for each in _TIMES if event.get(each)), event["metadata"]["creationTimestamp"])
    return moment((event.get("series") or {}).get("lastObservedTime") or told).astimezone(UTC)


def _order(event: Manifest) -> tuple[datetime, int]:
    """Times have whole seconds, versions count."""
    return time_of(event).replace(microsecond=0), int(event["metadata"]["resourceVersion"])


def _later(kubectl: Kubectl, job: Job, known: Iterable[Manifest]) -> Iterator[Manifest]:
    """For ever. Raises Deleted."""
    seen = {_version(event) for event in known}
    while True:
        for change, found in kubectl.watch_events(job.manifest):
            if found.get("kind") == "RLJob":
                if change == "DELETED":
                    raise Deleted(job)
                job = read(found)
            elif change != "DELETED" and _version(found) not in seen and events_about(job, [found]):
                seen.add(_version(found))
                yield found
        job = newest(kubectl, job)


def _version(event: Manifest) -> tuple[str, str]:
    return event["metadata"]["uid"], event["metadata"]["resourceVersion"]
