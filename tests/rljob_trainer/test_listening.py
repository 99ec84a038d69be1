"""What a local run listens on: other machines reach none of it."""

from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from tests.rljob_trainer.run_support import finish, machine, write_job


def _listening(processes: Iterable[psutil.Process]) -> set[tuple[str, str]]:
    """(process, address) of each TCP socket that accepts connections."""
    found = set()
    for process in processes:
        try:
            sockets = process.net_connections("tcp")
            found |= {(process.name(), each.laddr.ip) for each in sockets if each.status == psutil.CONN_LISTEN}
        except psutil.Error:
            continue
    return found


def _is_loopback(text: str) -> bool:
    address = ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_a_run_listens_on_loopback_alone(engine: str, tmp_path: Path) -> None:
    found: set[tuple[str, str]] = set()
    with machine() as place:
        process = place.start_run(
            write_job(tmp_path, rollout={"engine": engine}), "--dir", tmp_path / "run", "--ranks", 2
        )
        while process.poll() is None:
            found |= _listening(place.processes())
        assert finish(process).code == 0
    names = {name for name, _ in found}
    assert {"gcs_server", "raylet"} <= names
    assert any("RankHost" in name for name in names)
    assert [each for each in found if not _is_loopback(each[1])] == []
