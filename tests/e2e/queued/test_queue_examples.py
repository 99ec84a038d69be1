"""examples/kueue as its page says: queues and a job that are applied, and a quota for one such job."""

import yaml

from tests.e2e.queued.queues import KUEUE, Queues
from tests.e2e.waiting import eventually
from tests.rljob_api.example_files import EXAMPLES

FOLDER = EXAMPLES / "kueue"


def test_the_queues_of_the_example_take_its_job(cluster, namespace, queues: Queues) -> None:
    here = ("apply", f"--namespace={namespace}")
    cluster.kubectl(*here, f"--filename={FOLDER / 'queues.yaml'}")
    queues.made += [
        ("resourceflavors", "any-node"), ("workloadpriorityclasses", "experiment"),
        ("workloadpriorityclasses", "urgent"), ("clusterqueues", "research"),
    ]  # fmt: skip
    job = yaml.safe_load((FOLDER / "rljob.yaml").read_text())
    labels = job["metadata"]["labels"]
    queue = labels["kueue.x-k8s.io/queue-name"]
    assert ("workloadpriorityclasses", labels["kueue.x-k8s.io/priority-class"]) in queues.made
    cluster.kubectl(*here, f"--filename={FOLDER / 'rljob.yaml'}")

    def is_active() -> bool:
        found = queues.api.get_namespaced_custom_object(**KUEUE, plural="localqueues", namespace=namespace, name=queue)
        conditions = found.get("status", {}).get("conditions", [])
        return any((each["type"], each["status"]) == ("Active", "True") for each in conditions)

    eventually(is_active)
