"""What users get wrong: the job says so, in words of its own, and spends no GPU on it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import processes
from e2e.cluster.layout import Layout
from e2e.nodes.machine import machines
from e2e.scenarios.job import SFT_STEPS, Job

pytestmark = pytest.mark.timeout(1200)

SIGNATURE = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"


def reward(body: str) -> dict[str, object]:
    functions = [{"name": "own", "source": SIGNATURE + body, "weight": 1.0}]
    return {"functions": functions, "timeout": "3s", "processes": 1}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param("    return 1 / (len(solution_str) * 0)\n", "raised ZeroDivisionError: ", id="crashes"),
        pytest.param("    import os\n    os._exit(3)\n", "ended its process with exit code 3", id="ends its process"),
        pytest.param("    import time\n    time.sleep(60)\n", "did not return within 3 s", id="hangs"),
        pytest.param("    return float('nan')\n", "returned nan", id="returns NaN"),
    ],
)
def test_a_wrong_reward_function_ends_the_job_at_once(job: Job, body: str, says: str) -> None:
    job.apply(rewards=reward(body))
    failed = job.fails("Reward")
    assert (job.status["attempt"], job.status["restarts"]) == (1, 0)
    assert f"reward own {says}" in failed["message"]
    assert job.saved in (SFT_STEPS - 2, SFT_STEPS), "the last supervised step's may have been on its way"
    job.eventually(lambda: not job.pods(), "end of the pods", 120)


@pytest.fixture
def registry(layout: Layout, tmp_path: Path) -> Iterator[str]:
    """Of images, and empty: on every node's own loopback, where containerd asks without TLS."""
    command = [sys.executable, "-m", "http.server", "80", "--bind=127.0.0.1", f"--directory={tmp_path}"]
    nodes = machines(layout.folder)
    for node in nodes:
        node.start("registry", command)
    yield "localhost"
    running = processes.find(layout.folder)
    for process in [each for node in nodes for each in running.get(f"{node.name}/registry", ())]:
        processes.stop(process, 1)


def test_an_image_that_does_not_exist_is_named(job: Job, registry: str) -> None:
    image = f"{registry}/no-such-image:1"
    job.apply(cluster={"image": image})
    assert image in job.fails("ImageNotUsable", saved=False)["message"]
    assert job.status["attempt"] == 0
    job.eventually(lambda: not job.pods(), "end of the pods", 120)
