"""What is left of a deleted job, as chaos in a cluster looks for it."""

import json

from e2e.cluster.access import Access
from e2e.cluster_chaos.leftovers import left_by, volumes_of
from e2e.scenarios.job import Job


def persistent_volume(name, namespace, policy="Delete"):
    claim = {"claimRef": {"namespace": namespace, "name": "reverse-text-checkpoints"}} if namespace else {}
    spec = claim | {"persistentVolumeReclaimPolicy": policy}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Released"}}


def test_volumes_are_left_whose_class_said_that_they_go_with_their_claim():
    volumes = [
        persistent_volume("ours", "mine"),
        persistent_volume("kept", "mine", "Retain"),
        persistent_volume("another's", "other"),
        persistent_volume("free", None),
    ]
    assert volumes_of("mine", volumes) == ["persistentvolume/ours (Released)"]


def test_everything_in_the_namespace_is_left_but_for_what_kubernetes_makes_there():
    answers = {
        "api-resources": "pods\nevents\nrayclusters.ray.io\nevents.events.k8s.io\n",
        "get pods,rayclusters.ray.io": "configmap/kube-root-ca.crt\nraycluster.ray.io/mine\n",
        "get persistentvolumes": json.dumps({"items": [persistent_volume("ours", "mine")]}),
    }

    class Kubectl(Job):
        def kubectl(self, *arguments, objects=""):
            return next(answer for words, answer in answers.items() if " ".join(arguments).startswith(words))

    assert left_by(Kubectl(Access(), "mine")) == ["raycluster.ray.io/mine", "persistentvolume/ours (Released)"]
