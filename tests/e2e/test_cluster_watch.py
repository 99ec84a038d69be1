"""What chaos sees of a job that runs: pods, clusters, drivers and Ray's heads that are there twice."""

from dataclasses import replace

import pytest

from e2e.cluster_chaos.cluster_watch import Driver, Running, attempt_of, is_in


def pod(role, cluster="first", phase="Running"):
    owners = [{"kind": "RayCluster", "uid": cluster}]
    return {"metadata": {"labels": {"rljob.dev/role": role}, "ownerReferences": owners}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("looks", "heads", "clusters"),
    [
        ([[pod("head"), pod("worker")], [pod("head", "second"), pod("worker", "second")]], 1, 1),  # one after the other
        ([[pod("head"), pod("head", "second", "Pending")]], 1, 1),
        ([[pod("head"), pod("head")], [pod("head")]], 2, 1),
        ([[pod("worker"), pod("head", "second")]], 1, 2),
        ([[]], 0, 0),
    ],
)
def test_what_runs_at_once_is_counted_in_each_look(looks, heads, clusters):
    running = Running()
    for pods in looks:
        running.add_pods(pods)
    assert (running.heads, running.clusters) == (heads, clusters)


def test_clusters_that_nobody_deleted_are_counted_in_each_look():
    running = Running()
    there, deleted = ({"metadata": more} for more in ({"uid": "1"}, {"uid": "2", "deletionTimestamp": "now"}))
    for clusters in ([there, deleted], [there]):
        running.add_clusters(clusters)
    assert running.asked == 1
    running.add_clusters([there, there])
    assert running.asked == 2


def test_drivers_side_by_side_are_timed_while_both_are_awake():
    running, first, second = Running(), Driver(1, awake=True), Driver(2, awake=True)
    for moment, both in enumerate([[first], [first, second], [first, second], [second], [first, second]]):
        running.add_drivers(both, moment)
    assert (running.driven, running.twice, running.awake.longest) == ({1, 2}, set(), 1.0)
    for at in (10.0, 20.0):
        running.add_drivers([replace(first, awake=False), second], at)
    assert running.awake.longest == 1.0, "a frozen one does nothing"
    running.add_drivers([first, replace(first, awake=False)], 21.0)
    assert running.twice == {1}


def test_ray_heads_side_by_side_are_timed():
    running = Running()
    for moment, count in enumerate([0, 1, 2, 2, 2, 1, 2]):
        running.add_ray_heads(count, moment)
    assert (running.head_seen, running.ray_heads.longest) == (True, 2.0)


def test_a_driver_is_known_by_its_command_line_and_its_pods_cgroup():
    words = ["/usr/bin/python", "/usr/bin/rljob", "driver", "--job", "/etc/job.json", "--attempt", "3"]
    assert attempt_of(words) == 3
    assert attempt_of(["sh", "-c", " ".join(words)]) is None
    assert attempt_of(["rljob", "agent", "--attempt", "3"]) is None
    assert is_in({"ab-1"}, "5:memory:/rlj/node-0/kubepods/burstable/podab-1/c0ffee\n0::/\n")
    assert not is_in({"ab-1"}, "0::/rlj/node-0/kubepods/burstable/podab-12/c0ffee\n")
