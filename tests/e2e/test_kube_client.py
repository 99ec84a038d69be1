"""The operator's client against a real API server: what its preconditions, errors and versions rest on."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import CoreV1Api
from kubernetes.watch import Watch

from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unavailable
from rljob_operator.kube.events import Event
from rljob_operator.kube.kinds import CONFIG_MAP, EVENT, SECRET, Key, Kind, Manifest, Ref
from rljob_operator.runtime.store import Store
from tests.rljob_operator.loops import in_loop

EXAMPLE = Path(__file__).parents[2] / "examples" / "reverse-text" / "rljob.yaml"


@asynccontextmanager
async def kube_in(cluster: Any) -> AsyncIterator[Kube]:
    kubeconfig = str(cluster.kubeconfig) if cluster.kubeconfig else None
    async with await Connection.open(kubeconfig, cluster.context) as connection:
        yield Kube(connection, timeout=60)


def config_map(namespace: str, name: str = "a", data: Manifest | None = None, **metadata: Any) -> Manifest:
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name, **metadata}}
    return head | {"data": data or {}}


def rljob(namespace: str, **metadata: Any) -> Manifest:
    job: Manifest = yaml.safe_load(EXAMPLE.read_text())
    return job | {"metadata": {"namespace": namespace, "name": "job", **metadata}}


def version(manifest: Manifest) -> str:
    found: str = manifest["metadata"]["resourceVersion"]
    return found


@in_loop
async def test_apply_owns_the_fields_it_names_takes_them_from_others_and_drops_what_it_names_no_more(
    cluster, namespace
) -> None:
    async with kube_in(cluster) as kube:
        first = await kube.apply(config_map(namespace, data={"a": "1", "b": "1"}))
        await kube.patch(Ref.of(first), version(first), {"data": {"a": "somebody's", "theirs": "1"}})
        second, third = [
            await kube.apply(config_map(namespace, data={"a": "2"}), first["metadata"]["uid"]) for _ in range(2)
        ]
    assert second["data"] == {"a": "2", "theirs": "1"}
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert version(third) == version(second)


@in_loop
async def test_an_apply_with_a_uid_neither_makes_nor_changes_another_object(cluster, namespace) -> None:
    uid = "00000000-0000-0000-0000-000000000000"
    async with kube_in(cluster) as kube:
        with pytest.raises(Conflict):
            await kube.apply(config_map(namespace), uid)
        made = await kube.create(config_map(namespace))
        with pytest.raises(Conflict, match="another object has become"):
            await kube.apply(config_map(namespace, data={"a": "1"}), uid)
        assert version(await kube.get(Ref.of(made))) == version(made)


@in_loop
async def test_an_apply_without_a_uid_takes_over_nobody_s_object(cluster, namespace) -> None:
    async with kube_in(cluster) as kube:
        made = await kube.create(config_map(namespace, data={"a": "somebody's"}))
        with pytest.raises(AlreadyExists, match="exists already"):
            await kube.apply(config_map(namespace, data={"b": "1"}))
        assert version(await kube.get(Ref.of(made))) == version(made)


@in_loop
async def test_of_many_that_create_one_name_one_succeeds(cluster, namespace) -> None:
    async with kube_in(cluster) as kube:
        made = [kube.create(config_map(namespace, data={"by": str(i)})) for i in range(10)]
        results = await asyncio.gather(*made, return_exceptions=True)
    assert sum(isinstance(result, AlreadyExists) for result in results) == 9
    assert sum(isinstance(result, dict) for result in results) == 1


@in_loop
async def test_delete_spares_the_successor_and_takes_what_is_gone_for_deleted(cluster, namespace) -> None:
    async with kube_in(cluster) as kube:
        first = Ref.of(await kube.create(config_map(namespace)))
        await kube.delete(first)
        await kube.delete(first)
        second = Ref.of(await kube.create(config_map(namespace)))
        await kube.delete(first)
        assert await kube.get(second)
        with pytest.raises(NotFound):
            await kube.get(first)


@in_loop
async def test_an_object_with_a_finalizer_is_deleted_when_we_take_it_off_at_the_version_we_read(
    cluster, namespace
) -> None:
    async with kube_in(cluster) as kube:
        read = await kube.create(config_map(namespace, finalizers=["rljob.dev/cleanup"]))
        ref = Ref.of(read)
        await kube.delete(ref, grace_period=0)
        await kube.delete(ref)
        with pytest.raises(Conflict):
            await kube.patch_metadata(ref, version(read), {"finalizers": None})
        deleting = await kube.get(ref)
        assert deleting["metadata"]["deletionTimestamp"]
        await kube.patch_metadata(ref, version(deleting), {"finalizers": None})
        with pytest.raises(NotFound):
            await kube.get(ref)


@in_loop
async def test_of_many_status_patches_at_one_version_one_counts(cluster, namespace) -> None:
    async with kube_in(cluster) as kube:
        read = await kube.create(rljob(namespace))
        ref = Ref.of(read)
        patches = [kube.patch_status(ref, version(read), {"attempt": i}) for i in range(1, 9)]
        results = await asyncio.gather(*patches, return_exceptions=True)
        now = await kube.get(ref)
        assert sum(isinstance(result, Conflict) for result in results) == 7
        assert [result["status"] for result in results if isinstance(result, dict)] == [now["status"]]

        started = await kube.patch_status(ref, version(now), {"startTime": "2026-01-02T03:04:05Z"})
        cleared = await kube.patch_status(ref, version(started), {"startTime": None, "phase": "Running"})
        assert started["status"] == now["status"] | {"startTime": "2026-01-02T03:04:05Z"}
        assert cleared["status"] == now["status"] | {"phase": "Running"}
        assert cleared["spec"] == read["spec"]
        await kube.delete(ref)
        with pytest.raises(NotFound):
            await kube.patch_status(ref, version(cleared), {"attempt": 9})


@in_loop
async def test_a_list_is_one_moment_in_pages_and_named_by_label_and_namespace(cluster, namespace) -> None:
    async with kube_in(cluster) as kube:
        names = [f"c{i:04}" for i in range(1020)]
        await asyncio.gather(*(kube.create(config_map(namespace, n, labels={"n": n[-1]})) for n in names))
        mine = await kube.list(CONFIG_MAP, namespace)
        every = await kube.list(CONFIG_MAP)
        sevens = await kube.list(CONFIG_MAP, namespace, label_selector="n=7")
    listed = {item["metadata"]["name"] for item in mine.items}
    assert listed - {"kube-root-ca.crt"} == set(names)
    assert len(mine.items) == len(listed)
    assert {Key.of(item) for item in every.items} > {Key.of(item) for item in mine.items}
    assert len(sevens.items) == 102
    assert all(int(version(item)) <= int(mine.resource_version) for item in mine.items)
    assert {(item["apiVersion"], item["kind"]) for item in mine.items} == {("v1", "ConfigMap")}


@in_loop
async def test_an_invalid_job_names_its_fields(cluster, namespace) -> None:
    job = rljob(namespace)
    job["spec"]["training"] = {"steps": -1}
    async with kube_in(cluster) as kube:
        with pytest.raises(Invalid, match="steps") as caught:
            await kube.create(job)
        assert "spec.training.steps" in caught.value.fields
        with pytest.raises(Invalid):
            await kube.apply(config_map(namespace, "Not A Name"))


@in_loop
async def test_what_does_not_exist_is_not_found_be_it_a_namespace_or_a_kind(cluster, namespace) -> None:
    async with kube_in(cluster) as kube:
        with pytest.raises(NotFound, match="nowhere"):
            await kube.create(config_map("rljob-nowhere"))
        with pytest.raises(NotFound):
            await kube.list(Kind("example.com/v1", "Nothing", "nothings"))


@in_loop
async def test_what_a_service_account_may_not_is_forbidden_by_name(cluster, namespace, tmp_path) -> None:
    access = cluster.as_service_account(namespace, "default", tmp_path / "config")
    async with kube_in(access) as kube:
        with pytest.raises(Forbidden, match="secrets"):
            await kube.list(SECRET, namespace)
        with pytest.raises(Forbidden):
            await kube.apply(config_map(namespace))


@in_loop
async def test_an_event_is_there_once_and_kubectl_shows_it(cluster, namespace) -> None:
    async with kube_in(cluster) as kube:
        job = Ref.of(await kube.create(rljob(namespace)))
        event = Event(job, "DriverRestarted", "ü" * 2000, "Restart", datetime.now(UTC), "7", warning=True)
        await kube.post_event(event)
        await kube.post_event(event)
        posted = await kube.list(EVENT, namespace)
    assert [(e["reason"], e["type"]) for e in posted.items if e["regarding"]["uid"] == job.uid] == [
        ("DriverRestarted", "Warning")
    ]
    assert "DriverRestarted" in cluster.kubectl("describe", "rljob/job", f"--namespace={namespace}")


@in_loop
async def test_kubectl_shows_events_of_one_second_in_the_order_of_the_writes_that_they_tell_of(
    cluster, namespace
) -> None:
    """More than twelve: Go sorts fewer of them stably."""
    order = [(version, place) for version in range(95, 105) for place in range(2)]
    at, said = datetime.now(UTC).replace(microsecond=0), [f"{version}-{place}" for version, place in order]
    async with kube_in(cluster) as kube:
        job = Ref.of(await kube.create(rljob(namespace)))
        told = [
            Event(job, "Told", words, "Reconcile", at + timedelta(microseconds=number), f"{version}", place)
            for number, (words, (version, place)) in enumerate(zip(said, order, strict=True))
        ]
        for event in random.Random(1).sample(told, len(told)):
            await kube.post_event(event)
    where = f"--namespace={namespace}"
    for command in (["describe", "rljob/job"], ["events"]):
        lines = cluster.kubectl(*command, where).splitlines()
        assert [line.split()[-1] for line in lines if " Told " in line] == said


@in_loop
async def test_a_write_in_a_hurry_is_unavailable(cluster, namespace) -> None:
    async with kube_in(cluster) as kube:
        with pytest.raises(Unavailable):
            await replace(kube, timeout=1e-4).apply(config_map(namespace))


@in_loop
async def test_a_deletion_is_newer_than_what_it_deletes_so_the_store_ends_empty_in_any_order(
    cluster, client, namespace
) -> None:
    async with kube_in(cluster) as kube:
        made = await kube.create(config_map(namespace, labels={"rljob.dev/job": "job"}))
        await kube.delete(Ref.of(made))
        listed = await kube.list(CONFIG_MAP, namespace)
        again = await kube.create(config_map(namespace))
    core = CoreV1Api(client)
    (deleted,) = [
        event["raw_object"]
        for event in Watch().stream(
            core.list_namespaced_config_map, namespace, resource_version=version(made), timeout_seconds=5
        )
        if event["type"] == "DELETED"
    ]
    assert int(version(made)) < int(version(deleted)) <= int(listed.resource_version) < int(version(again))

    early, late = Store(), Store()
    assert early.put(CONFIG_MAP, made) == early.remove(CONFIG_MAP, deleted) == {Key(namespace, "job")}
    late.remove(CONFIG_MAP, deleted)
    assert late.put(CONFIG_MAP, made) == set()
    late.put(CONFIG_MAP, again)
    late.remove(CONFIG_MAP, deleted)
    assert late.get(CONFIG_MAP, Key(namespace, "a"))


@in_loop
async def test_fields_that_the_api_server_does_not_know_are_told_or_refused(cluster, namespace) -> None:
    container = {"name": "c", "image": "i"}
    template: Manifest = {"spec": {"containers": [container], "nodeselector": {"a": "b"}}}
    head: Manifest = {"namespace": namespace, "name": "a"}
    ray: Manifest = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": head}
    labels = {"app": "a"}
    servers: Manifest = {"selector": {"matchLabels": labels}, "template": template | {"metadata": {"labels": labels}}}
    told: list[str] = []
    async with kube_in(cluster) as kube:
        groups: Manifest = {"headGroupSpec": {"rayStartParams": {}, "template": template}}
        made = await kube.create(ray | {"spec": groups}, told.append)
        await kube.delete(Ref.of(made))
        with pytest.raises(Invalid, match=r"\.spec\.template\.spec\.nodeselector: field not declared in schema"):
            await kube.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": head, "spec": servers})
    assert told == ['unknown field "spec.headGroupSpec.template.spec.nodeselector"']


TEXTS = ("😀", "a\u0085b", "\x7f\x9f", "\u2028\u2029", "\ufeff", "\ufffe\uffff", "\\ud83d\\ude00", "\t\n\"'", "é: #")


@in_loop
async def test_whatever_text_is_in_an_object_is_applied_as_it_is(cluster, namespace):
    """Server-side apply reads YAML, which knows less escapes than JSON and takes fewer characters."""
    data = {f"{number}": text for number, text in enumerate(TEXTS)}
    async with kube_in(cluster) as kube:
        await kube.apply(config_map(namespace, data=data))
        assert (await kube.get(Ref(CONFIG_MAP, namespace, "a")))["data"] == data
