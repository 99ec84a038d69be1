"""Leader election on a clock that jumps, by candidates with clocks of their own."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.kube.client import Kube
from rljob_operator.kube.errors import Fenced
from rljob_operator.kube.kinds import POD, Manifest
from rljob_operator.runtime.lease import LeaderLease, Terms
from tests.rljob_operator.kube_server import KubeObjects, MemoryConnection
from tests.rljob_operator.loops import in_jumping_loop

PATH = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/operator"
TERMS = Terms(duration=15, renew_deadline=10, retry=2)


@dataclass
class Candidate:
    """A process that wants to lead. ahead: how far its clock is before the loop's."""

    objects: KubeObjects
    latency: float = 0.0
    ahead: float = 0.0
    lost_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = MemoryConnection(self.objects, self.latency)
        self.kube = Kube(self.connection)
        self.lease = LeaderLease(self.kube, "ns", "operator", terms=TERMS, clock=lambda: now() + self.ahead)
        self.guarded = replace(self.kube, fence=self.lease.fence)

    async def lead(self) -> None:
        """Until it is lost or released."""
        await self.lease.acquire()
        await self.lease.keep(lambda: self.lost_at.append(now()))

    @property
    def record(self) -> Manifest:
        return self.objects.objects[PATH]["spec"]


def now() -> float:
    return asyncio.get_running_loop().time()


def a_pod() -> Manifest:
    return POD.manifest({"namespace": "ns", "name": "a"})


@pytest.mark.parametrize("quicker", [0.01, 0.1, 0.25])
@pytest.mark.parametrize("tenths", range(21, 29))
@in_jumping_loop
async def test_a_release_that_crosses_a_renewal_is_final(tenths: int, quicker: float) -> None:
    objects = KubeObjects()
    leader = Candidate(objects)
    leading = asyncio.create_task(leader.lead())
    await asyncio.sleep(1)
    leader.connection.latency = 0.25  # the renewal asks from 2.0 to 2.5 and writes from 2.5 to 3.0
    await asyncio.sleep(tenths / 10 - now())
    leader.connection.latency = quicker
    releasing = asyncio.create_task(leader.lease.release())
    await asyncio.sleep(0)
    assert not leader.lease.held(), "it fences at once"
    await releasing
    await asyncio.sleep(20)
    sent = len(objects.requests)
    await asyncio.sleep(20)
    assert len(objects.requests) == sent
    assert "holderIdentity" not in leader.record
    assert leading.done()
    assert not leader.lost_at


@pytest.mark.parametrize("moment", [30.0, 30.3, 30.6, 30.9, 31.2])
@in_jumping_loop
async def test_a_frozen_leader_writes_nothing_when_it_thaws(moment: float) -> None:
    objects = KubeObjects()
    leader = Candidate(objects, latency=0.2)
    leading = asyncio.create_task(leader.lead())
    await asyncio.sleep(20)
    await leader.guarded.create(a_pod())
    await asyncio.sleep(moment - now())
    under_way = leader.connection.writing

    leader.ahead += 60  # its clock went on while it was stopped
    before = len(objects.writes)
    assert not leader.lease.held()
    with pytest.raises(Fenced, match="operator"):
        await leader.guarded.apply(a_pod())
    await leading
    assert leader.lost_at
    assert len(objects.writes) == before + under_way


@in_jumping_loop
async def test_a_renewal_counts_from_its_start_and_loss_comes_at_the_deadline() -> None:
    objects = KubeObjects()
    leader = Candidate(objects, latency=0.5)
    leading = asyncio.create_task(leader.lead())  # acquired from 0 to 2, renewed from 4 to 6
    await asyncio.sleep(7)
    leader.connection.reachable = False
    await leading
    assert leader.lost_at == [4 + TERMS.renew_deadline]
    assert not leader.lease.held()


@in_jumping_loop
async def test_a_renewal_is_one_call_so_that_a_slow_api_server_costs_no_lease() -> None:
    leader = Candidate(KubeObjects())
    leading = asyncio.create_task(leader.lead())
    await asyncio.sleep(3)
    leader.connection.latency = 1.9  # a call takes 3.8 s, and two of them with the pause as long as the deadline
    await asyncio.sleep(100)
    assert leader.lease.held()
    assert not leading.done()


@pytest.mark.parametrize("renewed", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
@pytest.mark.parametrize("duration", [15, 60])
@in_jumping_loop
async def test_anothers_record_counts_from_when_it_was_seen_and_for_as_long_as_it_says(
    renewed: str, duration: int
) -> None:
    objects = KubeObjects()
    record = {"holderIdentity": "dead", "leaseDurationSeconds": duration, "leaseTransitions": 3, "renewTime": renewed}
    objects.put(PATH, {"spec": record})
    candidate = Candidate(objects)
    await candidate.lease.acquire()
    assert duration <= now() <= duration + 2 * TERMS.retry
    assert candidate.record["leaseTransitions"] == 4


def test_terms_that_would_let_two_lead_are_refused() -> None:
    with pytest.raises(ValueError, match="duration > renew deadline > retry"):
        Terms(duration=10, renew_deadline=10)
    with pytest.raises(ValueError, match="retry"):
        Terms(retry=12)


@dataclass
class Processes:
    """Candidates that come back as new processes when they have lost or released."""

    candidates: list[Candidate]

    @property
    def leaders(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.lease.held()]

    async def live(self, place: int) -> None:
        while True:
            old = self.candidates[place]
            await old.lead()
            self.candidates[place] = Candidate(old.objects, old.latency, old.ahead)
            self.candidates[place].connection.reachable = old.connection.reachable

    async def watch(self) -> None:
        while True:
            assert len(self.leaders) <= 1
            await asyncio.sleep(0.25)

    async def strike(self, place: int, trouble: str) -> None:
        candidate = self.candidates[place]
        match trouble:
            case "release" if candidate in self.leaders:
                await candidate.lease.release()
            case "freeze" if candidate in self.leaders:  # a candidate's clock does not pass the others'
                candidate.ahead += 60
            case "cut" | "mend":
                candidate.connection.reachable = trouble == "mend"


TROUBLES = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["cut", "mend", "freeze", "release"]),
    st.integers(0, 200).map(lambda tenths: tenths / 10),  # seconds until the next
)


@settings(deadline=None, max_examples=15)
@given(
    latencies=st.lists(st.sampled_from([0.0, 0.1, 0.5]), min_size=3, max_size=3),
    clocks=st.lists(st.integers(-1_000_000, 1_000_000), min_size=3, max_size=3),
    troubles=st.lists(TROUBLES, max_size=25),
)
def test_never_do_two_lead_at_a_time_and_in_the_end_one_does(
    latencies: list[float], clocks: list[float], troubles: list[tuple[int, str, float]]
) -> None:
    @in_jumping_loop
    async def history() -> None:
        objects = KubeObjects()
        processes = Processes([Candidate(objects, *each) for each in zip(latencies, clocks, strict=True)])
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in (*map(processes.live, range(3)), processes.watch())]
            for place, trouble, seconds in [*troubles, (0, "mend", 0), (1, "mend", 0), (2, "mend", 60)]:
                await processes.strike(place, trouble)
                await asyncio.sleep(seconds)
            assert processes.leaders
            for task in tasks:
                task.cancel()

    history()
