"""The life of jobs on a real control plane: KubeRay makes the pods, KWOK plays the nodes, heads are played."""

import json

from rljob_operator import names
from tests.e2e.jobs import runs
from tests.e2e.operator_process import running_operator
from tests.e2e.poisoned_operator import POISONED
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_driver import train
from tests.rljob_operator.snapshots import SPEC


def test_a_job_trains_to_its_end_and_gives_everything_back_but_its_volume(operator, heads, jobs, cluster):
    heads.add(jobs.namespace, "job", script=train(6, seconds=0.5, every=2))
    jobs.create()

    running = jobs.reaches("Running")
    assert running["cluster"]["readyWorkers"] == 2
    assert len(jobs.pods()) == 3
    cluster.kubectl("wait", "rljob/job", "--for=condition=Succeeded", f"--namespace={jobs.namespace}", "--timeout=240s")
    done = jobs.status()
    assert done["phase"] == "Succeeded"
    assert done["progress"]["step"] == 6
    assert done["checkpoint"]["step"] == 6
    assert (done["attempt"], done["restarts"]) == (1, 0)
    assert jobs.conditions()["Ready"][0] == "True"

    eventually(lambda: not jobs.clusters() and not jobs.pods())
    assert jobs.claims() == ["job-checkpoints"]
    assert [reason for reason, _ in jobs.events()] == [  # several come within a second
        "AllPodsReady", "AttemptStarting", "DriverRunning", "CheckpointSaved", "Completed",
    ]  # fmt: skip


def test_a_head_that_is_lost_means_another_cluster_and_attempt(operator, heads, jobs):
    head = heads.add(jobs.namespace, "job")
    jobs.create()
    runs(heads, jobs)
    (before,) = jobs.clusters()
    head.restart()
    jobs.kill_pods("head")

    runs(heads, jobs, attempt=2)
    (after,) = jobs.clusters()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert jobs.status()["restarts"] == 1
    assert [driver.beside for driver in head.drivers] == [(), ()]


def test_a_deleted_job_is_gone_when_its_pods_are(operator, heads, jobs):
    heads.add(jobs.namespace, "job")
    jobs.create(checkpoint={"volume": {"retain": False}})
    runs(heads, jobs)
    jobs.delete()

    eventually(lambda: not jobs.exists())
    assert jobs.clusters() == []
    assert jobs.pods() == []
    eventually(lambda: not jobs.claims())


def test_a_template_that_the_api_server_refuses_ends_its_job_and_names_the_field(operator, jobs):
    """Of the cluster itself, of a pod that KubeRay makes from it, and of a reward model's Deployment."""
    port = {"spec": {"containers": [{"name": "ray-worker", "ports": [{"containerPort": "http"}]}]}}
    unnamed = {"spec": {"containers": [{"name": "side"}]}}
    size = {"nodes": 2, "gpusPerNode": 4}
    model = {"name": "rm", "path": "m", "kind": "classifier", "template": unnamed}
    jobs.create("cluster", cluster={**size, "worker": {"template": port}})
    jobs.create("pod", cluster={**size, "worker": {"template": unnamed}})
    jobs.create("volume", volumes=[{"name": "data", "hostPath": {"path": "/a/../b"}}])
    jobs.create("server", rewards={"models": [model]})

    for name, field in (
        ("cluster", "spec.cluster.worker.template"),
        ("pod", "spec.cluster.worker.template"),
        ("volume", "hostPath.path: Invalid"),
        ("server", "spec.rewards.models[0].template"),
    ):
        jobs.reaches("Failed", name)
        _, reason, message = jobs.conditions(name)["Failed"]
        assert reason == "ObjectInvalid"
        assert field in message
    eventually(lambda: not jobs.clusters())


def test_an_object_of_somebody_else_is_left_alone_and_named(operator, heads, jobs, cluster):
    heads.add(jobs.namespace, "job", script=train(2, seconds=0.1, every=1))
    where = f"--namespace={jobs.namespace}"
    cluster.kubectl("create", "configmap", "job-job", "--from-literal=mine=1", where)
    jobs.create()
    eventually(lambda: jobs.conditions().get("Stalled", ("", "", ""))[:2] == ("True", "NameTaken"))
    assert "ConfigMap job-job" in jobs.conditions()["Ready"][2]
    assert cluster.kubectl("get", "configmap", "job-job", "--output=jsonpath={.data}", where) == '{"mine":"1"}'

    cluster.kubectl("delete", "configmap", "job-job", where)
    jobs.reaches("Succeeded")


def test_a_claim_that_an_earlier_job_has_left_in_another_shape_is_named_and_waited_for(operator, jobs, cluster):
    jobs.create(checkpoint={"volume": {"storageClassName": "slow"}})
    eventually(jobs.claims)
    jobs.delete()
    eventually(lambda: not jobs.exists())
    jobs.create(checkpoint={"volume": {"storageClassName": "fast", "accessMode": "ReadWriteOnce"}})
    eventually(lambda: jobs.conditions().get("Stalled", ("", "", ""))[:2] == ("True", "NameTaken"))
    for words in ("job-checkpoints", "spec is immutable", "spec.checkpoint.volume"):
        assert words in jobs.conditions()["Ready"][2]
    assert not jobs.clusters()

    cluster.kubectl("delete", "pvc", "job-checkpoints", f"--namespace={jobs.namespace}")
    eventually(lambda: jobs.clusters() and jobs.conditions()["Stalled"][0] == "False")
    assert jobs.claims() == ["job-checkpoints"]


def test_jobs_at_which_our_own_code_raises_do_not_stop_the_others(cluster, namespace, heads, jobs, tmp_path):
    poisoned = [f"{POISONED}-{number}" for number in range(3)]
    heads.add(namespace, "job", script=train(4, seconds=0.2, every=2))
    with running_operator(
        cluster, namespace, heads.template, tmp_path, module="tests.e2e.poisoned_operator"
    ) as operator:  # fmt: skip
        for name in (*poisoned, "job"):
            jobs.create(name)

        jobs.reaches("Succeeded")
        assert not operator.gone()
    for name in poisoned:
        stalled = jobs.conditions(name)["Stalled"]
        assert stalled[:2] == ("True", "OperatorError")
        assert "ZeroDivisionError" in stalled[2]
    told = [line for line in operator.log.read_text().splitlines() if "reconcile_failed" in line]
    assert all(any(name in line and "ZeroDivisionError" in line for line in told) for name in poisoned)


NESTED = (400, 1_200, 9_900)
"""Levels: Python reads no more than 1,000 by itself, and the API server takes 10,000."""


def test_jobs_that_are_nested_deeply_do_not_stop_the_others(operator, heads, jobs, cluster, tmp_path):
    """Whoever cannot read one of them cannot read what is listed with it either."""
    heads.add(jobs.namespace, "job", script=train(4, seconds=0.2, every=2))
    namespace = f"--namespace={jobs.namespace}"
    for depth in NESTED:
        file = tmp_path / f"{depth}.json"
        file.write_text(nested(f"nested-{depth}", depth))
        cluster.kubectl("create", f"--filename={file}", namespace)
    jobs.create()

    jobs.reaches("Succeeded")
    assert operator.end() == 0
    operator.start()
    jobs.create("later")
    jobs.reaches("Starting", name="later")
    cluster.kubectl("delete", *(f"rljob/nested-{depth}" for depth in NESTED), namespace, "--timeout=60s")
    assert not operator.gone()


def nested(name: str, depth: int) -> str:
    """As text: no test can write it otherwise."""
    affinity = '{"a":' * depth + "1" + "}" * depth
    cluster = json.dumps(SPEC["cluster"] | {"worker": {"template": {"spec": {"affinity": "here"}}}})
    spec = json.dumps({**SPEC, "cluster": "here"}).replace('"here"', cluster.replace('"here"', affinity))
    return f'{{"apiVersion":"rljob.dev/v1alpha1","kind":"RLJob","metadata":{{"name":"{name}"}},"spec":{spec}}}'


def test_a_killed_operator_leaves_its_keys_in_no_folder_but_its_own(cluster, namespace, heads, tmp_path, monkeypatch):
    """The Kubernetes client writes them to files, and removes those when a process ends by itself."""
    ours, own = tmp_path / "ours", tmp_path / "own"
    ours.mkdir()
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(ours))
    with running_operator(cluster, namespace, heads.template, own):
        pass

    assert list(ours.iterdir()) == []


def test_a_job_with_a_queue_does_not_start_without_kueue(operator, heads, jobs):
    labels = {names.QUEUE_LABEL: "lab"}
    document = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"labels": labels}, "spec": SPEC}
    jobs.create_from(document, "job")
    eventually(lambda: jobs.conditions().get("Stalled", ("",))[:2] == ("True", "KueueMissing"))
    assert jobs.status()["phase"] == "Pending"
    assert not jobs.clusters()
    jobs.label("job", **{names.QUEUE_LABEL: None})
    jobs.reaches("Starting")
