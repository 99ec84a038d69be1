"""The store against every order in which watches, lists and own writes may tell of the same history."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.kube.kinds import DISRUPTION_BUDGET, POD, RAY_CLUSTER, Key, Manifest, Ref
from rljob_operator.names import JOB_LABEL
from rljob_operator.observe.snapshot import is_deleting
from rljob_operator.runtime.store import Store

A, B = Key("ns", "job-a"), Key("ns", "job-b")


def pod(version: int, name: str = "p", job: str | None = "job-a", **metadata: Any) -> Manifest:
    labels = {JOB_LABEL: job} if job else {}
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version), "labels": labels} | metadata}


def names(store: Store, job: Key = A) -> list[str]:
    return sorted(child["metadata"]["name"] for child in store.children(POD, job))


def test_children_are_those_of_the_job_in_its_namespace() -> None:
    store = Store()
    assert store.put(POD, pod(1, "mine")) == {A}
    assert store.put(POD, pod(2, "others", "job-b")) == {B}
    assert store.put(POD, pod(3, "nobodys", None)) == set()
    assert store.put(POD, pod(4, "elsewhere", namespace="other")) == {Key("other", "job-a")}
    assert (names(store), names(store, B)) == (["mine"], ["others"])
    assert len(store.all(POD)) == 4


def test_what_we_have_deleted_goes_though_no_watch_has_told() -> None:
    store, when = Store(), datetime(2026, 11, 27, tzinfo=UTC)
    for kind in (RAY_CLUSTER, POD):
        store.put(kind, pod(5, uid="u"))
        store.goes(Ref(kind, "ns", "p", "another's"), when)
        store.goes(Ref(kind, "ns", "gone", "u"), when)
    (held,) = store.children(RAY_CLUSTER, A)
    assert not is_deleting(held)
    for kind in (RAY_CLUSTER, POD):
        store.goes(Ref(kind, "ns", "p", "u"), when)
    assert [is_deleting(store.children(kind, A)[0]) for kind in (RAY_CLUSTER, POD)] == [True, False]
    assert store.put(RAY_CLUSTER, pod(5, uid="u")) == set(), "a list from before"
    assert is_deleting(store.children(RAY_CLUSTER, A)[0])
    assert store.remove(RAY_CLUSTER, pod(6, uid="u")) == {A}


def test_a_list_of_one_namespace_says_nothing_of_the_others() -> None:
    store, there = Store(), Key("other", "job-a")
    store.put(POD, pod(1, "vanished"))
    store.put(POD, pod(2, "stays", namespace="other"))
    store.remove(POD, pod(12, "ended", namespace="other"))
    assert store.replace_all(POD, [], "20", "ns") == {A}
    assert (names(store), names(store, there)) == ([], ["stays"])
    assert store.put(POD, pod(9, "slow")) == store.put(POD, pod(9, "ended", namespace="other")) == set()
    assert store.put(POD, pod(9, "unheard", namespace="other")) == {there}
    assert store.replace_all(POD, [], "30", "other") == {there}
    assert store.replace_all(POD, [], "25") == set()
    assert store.put(POD, pod(28, "slow", namespace="other")) == set()
    assert store.put(POD, pod(28)) == {A}


def test_a_status_that_nobody_reads_is_no_news_and_everything_else_is() -> None:
    store, budget = Store(), pod(1)
    assert store.put(DISRUPTION_BUDGET, budget) == {A}
    assert store.put(DISRUPTION_BUDGET, pod(2, managedFields=[{}]) | {"status": {"currentHealthy": 1}}) == set()
    assert store.get(DISRUPTION_BUDGET, Key.of(budget)) == pod(2), "nor are managedFields kept"
    assert store.put(DISRUPTION_BUDGET, pod(3) | {"spec": {"minAvailable": 1}}) == {A}
    assert store.put(DISRUPTION_BUDGET, pod(4, job="job-b") | {"spec": {"minAvailable": 1}}) == {A, B}
    assert store.put(POD, pod(1)) == {A}
    assert store.put(POD, pod(2) | {"status": {"phase": "Running"}}) == {A}


Told = tuple[str, tuple[Any, ...]]
"""A method of the store and its arguments after the kind."""


@dataclass
class History:
    """One kind in an API server: what a watch says of each write, and what a list would say after it."""

    events: list[Told] = field(default_factory=list)
    lists: list[Told] = field(default_factory=list)
    now: dict[str, Manifest] = field(default_factory=dict)

    def write(self, name: str, job: str | None, delete: bool) -> None:
        version = 95 + len(self.events)  # so that versions pass from two to three digits
        left = pod(version, name, job, uid=f"{name}-{version}")
        if delete and self.now.pop(name, None) is None:
            return
        if not delete:
            self.now[name] = left
        self.events.append(("remove" if delete else "put", (left,)))
        self.lists.append(("replace_all", (list(self.now.values()), str(version))))


def tell(store: Store, told: Told) -> set[Key]:
    method, arguments = told
    changed: set[Key] = getattr(store, method)(POD, *arguments)
    return changed


def uids(manifests: Iterable[Manifest]) -> set[str]:
    return {manifest["metadata"]["uid"] for manifest in manifests}


def some_of(told: list[Told]) -> st.SearchStrategy[list[Told]]:
    return st.lists(st.sampled_from(told), max_size=6) if told else st.just([])


WRITES = st.lists(
    st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["job-a", "job-b", None]), st.booleans()), max_size=12
)


@settings(deadline=None)
@given(writes=WRITES, data=st.data())
def test_whatever_the_order_the_store_ends_where_the_server_is(writes: list[Any], data: st.DataObject) -> None:
    history, store = History(), Store()
    for write in writes:
        history.write(*write)
    again, lists = data.draw(some_of(history.events)), data.draw(some_of(history.lists))

    for told in data.draw(st.permutations([*history.events, *again, *lists])):
        tell(store, told)

    assert uids(store.all(POD).values()) == uids(history.now.values())
    for job in (A, B):
        here = [held for held in history.now.values() if held["metadata"]["labels"].get(JOB_LABEL) == job.name]
        assert uids(store.children(POD, job)) == uids(here)


@settings(deadline=None)
@given(writes=WRITES, data=st.data())
def test_a_list_repairs_what_the_watch_lost_and_names_every_job_it_changes(writes: list[Any], data: Any) -> None:
    history, store = History(), Store()
    for write in writes:
        history.write(*write)
        if history.events and data.draw(st.booleans()):
            tell(store, history.events[-1])
    before = {job: uids(store.children(POD, job)) for job in (A, B)}

    changed = tell(store, history.lists[-1]) if history.lists else set()

    assert uids(store.all(POD).values()) == uids(history.now.values())
    assert changed == {job for job in (A, B) if before[job] != uids(store.children(POD, job))}
