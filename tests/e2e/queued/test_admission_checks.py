"""Jobs of a queue with an admission check, whose controller the test plays."""

from typing import Any

import pytest

from rljob_operator import names
from tests.e2e.queued.queued_jobs import QUOTA, QueuedJobs
from tests.e2e.queued.queues import KUEUE
from tests.e2e.waiting import eventually

CHECK = "capacity"


@pytest.fixture
def jobs(operator, client, namespace, queues) -> QueuedJobs:
    jobs = QueuedJobs(client, namespace, queues)
    jobs.begin()
    queues.create_check(CHECK)
    checks = [{"name": queues.full_name(CHECK)}]
    queues.create(QUOTA, "checked", admissionChecksStrategy={"admissionChecks": checks})
    return jobs


def passes(jobs: QueuedJobs, **update: Any) -> None:
    """The check, with an update of the worker pods."""
    eventually(lambda: (jobs.workload() or {}).get("status", {}).get("admissionChecks"))
    found = jobs.workload()
    (check,) = found["status"]["admissionChecks"]
    made = check | {"state": "Ready", "message": "", "podSetUpdates": [{"name": names.TRAINER_GROUP, **update}]}
    where = {**KUEUE, "plural": "workloads", "namespace": jobs.namespace, "name": found["metadata"]["name"]}
    jobs.queues.api.patch_namespaced_custom_object_status(**where, body={"status": {"admissionChecks": [made]}})


def in_zone(zone: str) -> dict[str, Any]:
    template = {"spec": {"nodeSelector": {"zone": zone}}}
    return {"cluster": {"nodes": 2, "gpusPerNode": 4, "worker": {"template": template}}}


def test_a_priority_is_followed_before_a_check_passes_and_a_template_that_it_contradicts_starts_no_pod(heads, jobs):
    heads.add(jobs.namespace, "job")
    jobs.queue(priority="low", queue="checked", **in_zone("a"))
    eventually(lambda: jobs.workload_is("QuotaReserved"))
    jobs.label(**{names.PRIORITY_LABEL: jobs.queues.full_name("high")})
    eventually(lambda: jobs.workload()["spec"]["priority"] == 10)

    passes(jobs, nodeSelector={"zone": "b"})
    eventually(lambda: jobs.conditions()["Ready"][1] == "AdmissionConflict")
    message = jobs.conditions()["Ready"][2]
    assert f"{jobs.queues.full_name(CHECK)} sets nodeSelector zone=b" in message
    eventually(lambda: jobs.workload_is("Finished"))
    assert (jobs.clusters(), jobs.pods()) == ([], [])

    jobs.patch(suspend=True)
    jobs.reaches("Suspended")
    eventually(lambda: jobs.workload() is None)
    jobs.patch(suspend=False, **in_zone("b"))
    passes(jobs, nodeSelector={"zone": "b"})
    (cluster,) = eventually(jobs.clusters)
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert group["template"]["spec"]["nodeSelector"] == {"zone": "b"}
