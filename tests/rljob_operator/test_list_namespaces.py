"""What lists make of the store where some of the namespaces may not be read."""

import asyncio
from typing import cast

import pytest

from rljob_operator.kube.client import Kube, Listing
from rljob_operator.kube.errors import Forbidden, KubeError, NotFound, Unavailable
from rljob_operator.kube.kinds import OF_KUEUE, OPTIONAL, POD, POD_GROUPS, RLJOB, WATCHED, WORKLOAD, Key, Kind, Manifest
from rljob_operator.names import JOB_LABEL, QUEUE_LABEL
from rljob_operator.runtime.lists import list_all
from rljob_operator.runtime.store import Store
from tests.rljob_operator.loops import in_loop

A, B = Key("a", "job"), Key("b", "job")
BOTH = ("a", "b")


class Lists:
    """A job and its pod in each of two namespaces. refusals: what lists raise, by kind and namespace.

    asked: which kinds were listed, in that order.
    """

    def __init__(self) -> None:
        self.version = 100
        self.asked: list[Kind] = []
        self.kinds: dict[Kind, list[Manifest]] = {
            RLJOB: [_object(key, "5") for key in (A, B)],
            POD: [_object(key, "6", **{JOB_LABEL: "job"}) for key in (A, B)],
        }
        self.refusals: dict[tuple[Kind, str | None], KubeError] = {}

    async def list(self, kind: Kind, namespace: str | None, _selector: str | None) -> Listing:
        self.version += 1
        self.asked.append(kind)
        await asyncio.sleep(0)
        if error := self.refusals.get((kind, namespace)):
            raise error
        here = [each for each in self.kinds.get(kind, ()) if namespace in (None, Key.of(each).namespace)]
        return Listing(here, str(self.version))

    async def told_to(self, store: Store, *namespaces: str) -> set[Key]:
        new = set[Key]()
        await list_all(cast(Kube, self), store, new, namespaces)
        return new


def _object(key: Key, version: str, **labels: str) -> Manifest:
    return {"metadata": {"namespace": key.namespace, "name": key.name, "resourceVersion": version, "labels": labels}}


def denied(status: int = 403) -> Forbidden:
    return Forbidden("it is forbidden", status=status, reason="Forbidden")


@in_loop
async def test_one_stays_unreadable_until_lists_of_all_namespaces_have_worked() -> None:
    """Whoever names its jobs is not heard where a later list fails."""
    lists, store = Lists(), Store()
    lists.refusals[RLJOB, "a"] = denied()
    await lists.told_to(store, *BOTH)
    lists.refusals = {(POD, "b"): Unavailable("nobody there")}
    with pytest.raises(Unavailable):
        await lists.told_to(store, *BOTH)
    assert store.unreadable == {"a"}
    lists.refusals.clear()
    assert await lists.told_to(store, *BOTH) == {A}


@in_loop
async def test_jobs_are_listed_before_their_children() -> None:
    lists = Lists()
    await lists.told_to(Store())
    assert lists.asked[0] == RLJOB
    assert sorted(lists.asked, key=str) == sorted(WATCHED, key=str)


@in_loop
async def test_where_none_may_be_read_it_says_so_and_asks_for_no_right_to_read_all() -> None:
    lists, store = Lists(), Store()
    await lists.told_to(store, *BOTH)
    lists.refusals = {(RLJOB, "a"): denied(), (RLJOB, "b"): denied()}
    with pytest.raises(Forbidden, match="none of the namespaces a, b is readable: it is forbidden"):
        await lists.told_to(store, *BOTH)
    assert store.unreadable == {"a", "b"}
    lists.refusals.clear()
    assert await lists.told_to(store, *BOTH) == {A, B}


@pytest.mark.parametrize("error", [NotFound("no such kind", status=404), Forbidden("forbidden", status=403)])
@in_loop
async def test_without_kueue_the_rest_is_listed_and_jobs_with_a_queue_hear_when_it_comes(error: KubeError) -> None:
    lists, store = Lists(), Store()
    lists.kinds[RLJOB][0]["metadata"]["labels"] = {QUEUE_LABEL: "lab"}
    lists.refusals = {(kind, None): error for kind in OF_KUEUE}
    assert await lists.told_to(store) == {A, B}
    assert (store.missing.everywhere, store.lacks_kinds) == (frozenset(OF_KUEUE), True)
    lists.refusals.clear()
    assert await lists.told_to(store) == {A}
    assert (store.missing.everywhere, store.lacks_kinds) == (frozenset(), False)
    lists.kinds[WORKLOAD] = [_object(B, "999", **{JOB_LABEL: "job"})]
    assert await lists.told_to(store) == {B}
    lists.refusals = {(WORKLOAD, None): error}
    assert await lists.told_to(store) == {A, B}
    assert store.children(WORKLOAD, B) == [], "it went with its kind"


@in_loop
async def test_jobs_with_a_gang_hear_when_their_scheduler_comes() -> None:
    lists, store = Lists(), Store()
    lists.kinds[RLJOB][0]["spec"] = {"gang": {"scheduler": "volcano"}}
    lists.refusals = {(kind, None): NotFound("no such kind", status=404) for kind in OPTIONAL}
    await lists.told_to(store)
    assert (store.missing.everywhere, store.lacks_kinds) == (frozenset(OPTIONAL), True)
    lists.refusals = {(POD_GROUPS["volcano"], None): NotFound("no such kind", status=404)}
    assert await lists.told_to(store) == set(), "it is not theirs that came"
    lists.refusals.clear()
    assert await lists.told_to(store) == {A}
    assert not store.lacks_kinds


@in_loop
async def test_a_kind_that_one_namespace_refuses_is_missing_there_alone() -> None:
    lists, store = Lists(), Store()
    for each in lists.kinds[RLJOB]:
        each["metadata"]["labels"] = {QUEUE_LABEL: "lab"}
    lists.kinds[WORKLOAD] = [_object(key, "7", **{JOB_LABEL: "job"}) for key in (A, B)]
    await lists.told_to(store, *BOTH)
    lists.refusals = {(WORKLOAD, "b"): denied()}
    assert await lists.told_to(store, *BOTH) == {B}
    assert (store.missing.there("a"), store.missing.there("b")) == (frozenset(), {WORKLOAD})
    assert not store.missing.everywhere, "the other namespace is still watched"
    assert [len(store.children(WORKLOAD, key)) for key in (A, B)] == [1, 0]
    lists.refusals = {(WORKLOAD, "b"): denied(), (RLJOB, "a"): denied()}
    assert await lists.told_to(store, *BOTH) == set(), "what is known of an unreadable namespace stays"
    lists.refusals.clear()
    assert await lists.told_to(store, *BOTH) == {A, B}
    assert [len(store.children(WORKLOAD, key)) for key in (A, B)] == [1, 1], "it has not changed meanwhile"


@pytest.mark.parametrize(("namespaces", "status"), [(BOTH, 401), ((), 403), ((), 401)])
@in_loop
async def test_a_refusal_of_us_is_not_about_a_namespace(namespaces: tuple[str, ...], status: int) -> None:
    lists, store = Lists(), Store()
    await lists.told_to(store, *namespaces)
    lists.refusals = {(RLJOB, each): denied(status) for each in namespaces or (None,)}
    with pytest.raises(Forbidden, match=r"^it is forbidden$"):
        await lists.told_to(store, *namespaces)
    assert set(store.all(RLJOB)) == {A, B}
    assert not store.unreadable
