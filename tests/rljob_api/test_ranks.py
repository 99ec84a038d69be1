"""`rljob run --ranks N`: the cluster's shape replaced, and everything that must divide validated again."""

import pytest

from rljob_api import resolve
from rljob_api.validation import InvalidRLJob, validate, with_ranks
from tests.rljob_api.job_files import JOB


def spec(*edits):
    text = JOB
    for old, new in edits:
        text = text.replace(old, new)
    (job,) = validate(text, "job.yaml").jobs
    return job.spec


@pytest.mark.parametrize(("ranks", "gpus"), [(1, False), (2, False), (4, True)])
def test_the_shape_is_one_node_of_so_many_ranks(ranks, gpus):
    local = with_ranks(spec(), ranks, gpus=gpus)
    assert (local.cluster.nodes, local.cluster.gpus_per_node) == (1, ranks if gpus else 0)
    assert resolve(local).ranks == ranks
    assert local.model_copy(update={"cluster": spec().cluster}) == spec()


def test_fields_that_no_longer_fit_are_reported():
    wide = spec(("engine: vllm", "tensorParallelSize: 2"))
    with pytest.raises(InvalidRLJob) as raised:
        with_ranks(wide, 3, gpus=True)
    assert [(problem.source, problem.field) for problem in raised.value.problems] == [
        ("--ranks 3", "spec.rollout.tensorParallelSize"),
        ("--ranks 3", "spec.rollout.tensorParallelSize"),
    ]


def test_more_ranks_than_samples_are_refused():
    small = spec(("promptsPerStep: 64", "promptsPerStep: 2"), ("miniBatchSize: 32", "miniBatchSize: 1"))
    with pytest.raises(InvalidRLJob, match=r"--ranks 16: spec\.data\.promptsPerStep: "):
        with_ranks(small, 16, gpus=False)


def test_more_ranks_than_a_node_holds_are_refused():
    with pytest.raises(InvalidRLJob, match=r"--ranks 17: spec\.cluster\.gpusPerNode: .* got 17"):
        with_ranks(spec(), 17, gpus=True)
