"""The preflight of an attempt: Ray workers at the places of the ranks, and the record on the volume."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from rljob_api.preflight import PreflightRecord
from rljob_trainer.attempt.claim import exit_record, read_exit
from rljob_trainer.errors import FabricSlow, InfrastructureError
from rljob_trainer.preflight import attempt
from rljob_trainer.preflight.attempt import check_fabric
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume, read_json
from rljob_trainer.workers.context import WorkerContext
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.placement import Placement
from rljob_trainer.workers.roster import Roster
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.ray_support import own_ray
from tests.rljob_trainer.run_support import machine, write_job
from tests.rljob_trainer.test_preflight import SMALL

TOO_FAST = 1e6


@pytest.fixture(scope="module")
def own() -> Iterator[None]:
    with own_ray("preflight"):
        yield


def check(folder: Path, monkeypatch: pytest.MonkeyPatch, **preflight: Any) -> PreflightRecord | None:
    """The record; raises what the attempt would."""
    monkeypatch.setattr(attempt, "CPU_LIMITS", SMALL)
    volume, heartbeats = Volume(folder), Heartbeats(60.0)
    context = WorkerContext(
        make_spec(ranks=2, preflight=preflight), "cpu", 1, Roster(7, 60.0, heartbeats, lambda: None), heartbeats,
        Placement(),
    )  # fmt: skip
    try:
        with ProgressReporter(volume) as progress:
            check_fabric(context, volume, 7, progress)
    finally:
        heartbeats.close()
    return recorded(volume, 7)


def recorded(volume: Volume, number: int) -> PreflightRecord | None:
    found = read_json(volume.preflight_record(number))
    return PreflightRecord.model_validate(found) if found else None


def test_a_fabric_that_passes_is_recorded_with_its_slowest_pairs(own: None, tmp_path: Path, monkeypatch) -> None:
    record = check(tmp_path, monkeypatch, fabric={})
    assert record is not None
    assert (record.passed, record.reason, record.bad_nodes) == (True, None, [])
    assert [(pair.ranks, pair.wrong_elements) for pair in record.pairs] == [([0, 1], 0)]
    assert "all_reduce" in Volume(tmp_path).preflight_table(7).read_text()


def test_a_slow_pair_ends_the_attempt_and_names_the_nodes(own: None, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(FabricSlow) as raised:
        check(tmp_path, monkeypatch, fabric={"minBusBandwidthGBps": TOO_FAST})
    ended, record = exit_record(raised.value), recorded(Volume(tmp_path), 7)
    assert record is not None
    assert (ended.code, ended.reason, ended.message) == (75, record.reason, record.message)
    assert [pair.ranks for pair in record.pairs] == [[0, 1]]
    assert all(0 < (pair.bus_bandwidth or 0) < TOO_FAST for pair in record.pairs)
    assert [node.host for node in record.bad_nodes] == [record.pairs[0].hosts[0]]


def test_nothing_is_measured_beside_workers_of_an_earlier_attempt(own: None, tmp_path: Path, monkeypatch) -> None:
    actor: Any = ray.remote(num_cpus=0)(list)
    living = actor.options(name="engine-0", lifetime="detached").remote()
    try:
        assert check(tmp_path, monkeypatch, fabric={"minBusBandwidthGBps": TOO_FAST}) is None
    finally:
        ray.kill(living)


def test_nothing_is_measured_without_the_field(tmp_path: Path, monkeypatch) -> None:
    assert check(tmp_path, monkeypatch) is None


def test_a_process_that_fails_is_an_infrastructure_error(own: None, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "SMALL", replace(SMALL, largest=-4, pair=-4))  # no buffer can be that small
    with pytest.raises(InfrastructureError, match="rank"):
        check(tmp_path, monkeypatch, fabric={})


@pytest.mark.slow
@pytest.mark.parametrize("minimum", [None, TOO_FAST], ids=["passes", "is slow"])
def test_a_run_measures_before_it_loads_a_model(tmp_path: Path, minimum: float | None) -> None:
    fabric = {"minBusBandwidthGBps": minimum} if minimum else {}
    file = write_job(tmp_path, preflight={"fabric": fabric}, recovery={"maxRestarts": 0})
    with machine() as place:
        done = place.rljob("run", file, "--dir", tmp_path / "run", "--ranks", 2)
    volume = Volume(tmp_path / "run")
    record, ended = recorded(volume, 1), read_exit(volume, 1)
    assert record is not None
    assert ended is not None
    assert (done.code, record.passed, ended.reason) == ((75, False, "FabricSlow") if minimum else (0, True, "Done"))
    log = volume.log(1).read_text()
    assert "fabric_measured" in log.partition("model_loaded")[0]
    assert ("model_loaded" in log) is record.passed
