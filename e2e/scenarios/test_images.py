"""The trainer's image: what jobs need is in it, and works, as a user without rights."""

import json
from pathlib import Path

import pytest

from e2e.nodes.images import TRAINER
from e2e.scenarios.job import Job
from rljob_operator.render.pods import RESTRICTED

pytestmark = pytest.mark.timeout(900)

PACKAGES = ["torch", "vllm", "ray", "transformers", "rljob_trainer"]

SMOKE = Path(__file__).parents[2] / "runtime_image/smoke.py"


@pytest.mark.usefixtures("layout")
def test_the_trainers_image_trains_one_step(job: Job) -> None:
    container = {
        "name": "smoke",
        "image": TRAINER,
        "command": ["python", "-c", SMOKE.read_text()],
        "securityContext": RESTRICTED,
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "smoke"}, "spec": spec}
    job.kubectl("apply", "--filename=-", objects=json.dumps(pod))
    job.eventually(lambda: phase(job) in ("Succeeded", "Failed"), "end of the smoke test")
    said = job.kubectl("logs", "smoke")
    assert phase(job) == "Succeeded", said
    imported = [line.split()[0] for line in said.splitlines()[: len(PACKAGES)]]
    assert imported == PACKAGES
    assert "trained, with step-1-a1" in said


def phase(job: Job) -> str:
    return job.kubectl("get", "pod", "smoke", "--output=jsonpath={.status.phase}")
