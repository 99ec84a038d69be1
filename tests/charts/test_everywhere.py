"""A release that looks after all namespaces: jobs of two live side by side, and its roles are what that takes."""

import pytest

from e2e.cluster.fixtures import new_namespace
from e2e.cluster.rights import Right, calls, granted, missing, unused
from tests.charts.release import installed
from tests.charts.test_rights import live_a_whole_life, of_gangs, of_kueue
from tests.e2e.jobs import Jobs
from tests.e2e.operator_process import running_operator
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_driver import train
from tests.rljob_operator.played_head import PlayedHeads

pytestmark = pytest.mark.slow


def test_one_release_looks_after_jobs_of_all_namespaces(helm, plane, tmp_path):
    """On a control plane of its own: it would look after the jobs of all other tests."""
    with (
        plane.access.client() as client,
        installed(helm, plane.access) as release,
        new_namespace(client) as other,
        PlayedHeads() as heads,
    ):
        release.install(namespaces=[])
        operator = release.as_operator(tmp_path / "kubeconfig")
        beside = Jobs(client, other)
        heads.add(other, "job", script=train(4, seconds=0.2))
        with running_operator(operator, None, heads.template, tmp_path, release.name):
            beside.create()
            live_a_whole_life(Jobs(client, release.jobs), heads)
            beside.reaches("Succeeded")
            beside.delete()
            eventually(lambda: not beside.exists())
            eventually(lambda: release.children("job") == ["persistentvolumeclaim/job-checkpoints"])

        asked = calls(plane.layout.audit_log, f"system:serviceaccount:{release.name}:{release.full_name}")
        rights = granted(release.manifests(), release.full_name)
    assert [call for call in missing(rights, asked) if not (of_kueue(call) or of_gangs(call))] == []
    assert unused(rights, asked) == [Right("update", "rljobs.rljob.dev/finalizers", "", "")]
