"""The preflight over gloo, in real processes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from rljob_trainer.preflight import pattern
from rljob_trainer.preflight.bandwidth import COLLECTIVES
from rljob_trainer.preflight.check import CPU_LIMITS, Limits, measure
from rljob_trainer.preflight.health import disk_bandwidth
from rljob_trainer.preflight.local import LocalMembers
from rljob_trainer.preflight.measured import Measured, MemberFailed, Place, Unanswered
from rljob_trainer.preflight.rounds import Shape
from rljob_trainer.preflight.verdict import judge
from tests.rljob_trainer.cli_support import rljob
from tests.rljob_trainer.preflight_members import Flips

KIB = 1 << 10
SMALL = Limits(64 * KIB, 128 * KIB, 256 * KIB, 60.0)
SECONDS = 120.0


def measured(shape: Shape, limits: Limits = SMALL, make=None, kind: type[LocalMembers] = LocalMembers) -> Measured:
    with kind(shape, [], None, max(limits.largest, limits.pair), make) as members:
        return measure(members, shape, limits, SECONDS)


def test_two_ranks_measure_each_operation_at_each_size_and_find_no_wrong_element(tmp_path: Path) -> None:
    found = measured(Shape(1, 2), replace(SMALL, folder=str(tmp_path)))
    assert [(row.operation, row.nbytes) for row in found.rows] == [
        (operation, size) for size in (64 * KIB, 128 * KIB) for operation in COLLECTIVES
    ]
    assert all(row.out_of_place.bus > 0 for row in found.rows)
    assert [row.in_place is None for row in found.rows] == [False, False, False, True] * 2
    assert judge(found, Shape(1, 2), 0.0).passed
    assert [each.disk_write is not None for each in found.health] == [True, False]  # once a node
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("operation", "ranks", "timed"),
    [
        ("exchange", (0, 1), True),
        pytest.param("all_reduce", (1, 1), False, marks=pytest.mark.slow),
        pytest.param("reduce_scatter", (1, 1), False, marks=pytest.mark.slow),
        pytest.param("all_gather", (1, 1), False, marks=pytest.mark.slow),  # the last part is its own
    ],
)
def test_one_wrong_bit_is_found(operation: str, ranks: tuple[int, int], timed: bool) -> None:
    shape = Shape(2, 1)
    verdict = judge(measured(shape, make=partial(Flips, operation)), shape, 0.0)
    assert verdict.wrong
    assert ranks in [fault.ranks for fault in verdict.faults]
    assert any(fault.bus is not None for fault in verdict.faults) is timed


def test_a_pattern_finds_blocks_that_moved_and_values_that_are_none() -> None:
    expected, buffer = pattern.of_rank(3, 8), torch.zeros(1 << 16)
    expected.fill(buffer, 17)
    assert expected.wrong(buffer, 17) == 0
    assert expected.wrong(buffer.roll(1 << 10), 17) == buffer.numel()
    buffer[5] = torch.nan
    assert expected.wrong(buffer, 17) == 1


@pytest.mark.parametrize("ranks", [2, 8, 1000, 160_000])
def test_sums_are_exact_in_float32(ranks: int) -> None:
    largest = pattern.of_sum(ranks)
    assert largest.scale * (largest.period - 1) + largest.offset < 1 << 24
    if ranks <= 8:
        parts = torch.zeros(ranks, 10_000)
        for rank in range(ranks):
            pattern.of_rank(rank, ranks).fill(parts[rank])
        assert largest.wrong(parts.sum(0)) == 0


@pytest.mark.parametrize(
    ("sent", "raised"),
    [(signal.SIGKILL, MemberFailed), pytest.param(signal.SIGSTOP, Unanswered, marks=pytest.mark.slow)],
    ids=["dies", "hangs"],
)
def test_a_process_that_is_lost_is_named(sent: signal.Signals, raised: type[Exception]) -> None:
    with LocalMembers(Shape(1, 2), [], None, KIB) as members:
        members.places(SECONDS)
        os.kill(members.processes[1].pid or 0, sent)
        with pytest.raises(raised) as error:
            members.health(None, 10.0 if sent is signal.SIGSTOP else SECONDS)
        assert getattr(error.value, "rank", None) == 1 or getattr(error.value, "ranks", None) == (1,)


def test_a_disk_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        disk_bandwidth(tmp_path / "missing")


@pytest.mark.slow
@pytest.mark.parametrize(("minimum", "code"), [(0, 0), (1e6, 75)], ids=["passes", "is slow"])
def test_the_command_prints_a_table_and_fails_below_the_minimum(minimum: float, code: int) -> None:
    done = rljob("preflight", "--cpu", "--ranks", 4, "--min-bus-bandwidth", minimum, "--seconds", 20)
    assert done.returncode == code
    assert [line.split()[0] for line in done.stdout.splitlines() if "sendrecv_ring" in line]
    assert ("rank 0" in done.stderr) is bool(code)


@pytest.mark.slow
def test_a_node_that_a_cpu_quota_slows_is_to_blame() -> None:
    shape, slow = Shape(4, 1), 2
    with cpu_quota(percent=5) as join:

        class Limited(LocalMembers):
            def places(self, seconds: float) -> list[Place]:
                found = super().places(seconds)
                join(self.processes[slow].pid or 0)
                return found

        found = measured(shape, replace(CPU_LIMITS, largest=CPU_LIMITS.smallest), kind=Limited)
    fast = min(pair.bus for pair in found.pairs if slow not in pair.ranks)
    assert all(pair.bus < fast for pair in found.pairs if slow in pair.ranks)
    verdict = judge(found, shape, fast)
    assert verdict.nodes == (slow,)
    assert not verdict.wrong


@contextmanager
def cpu_quota(percent: int) -> Iterator:
    """A group of processes with a share of one core; yields what moves a process into it. Skips without the rights."""
    newer = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    root = Path("/sys/fs/cgroup") if newer else Path("/sys/fs/cgroup/cpu")
    group = root / f"rljob-preflight-{os.getpid()}"
    try:
        group.mkdir()
        if newer:
            (group / "cpu.max").write_text(f"{percent * 1000} 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text(f"{percent * 1000}")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no CPU quota can be set here: {error}")
    try:
        yield lambda pid: (group / "cgroup.procs").write_text(str(pid))
    finally:
        group.rmdir()  # all its processes have ended
