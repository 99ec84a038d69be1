"""How ranks share the work: dimensions, their meshes, and the same gradient whichever of them executes."""

from collections.abc import Iterator

import pytest
import torch

from rljob_trainer.errors import JobError
from rljob_trainer.rank import gathering
from rljob_trainer.rank.gathering import whole_weights
from rljob_trainer.rank.parallel import ParallelDims, engine_count, ranks_of_engine
from rljob_trainer.weights.saved_names import all_weights
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
    Ranks,
    alone,
    largest_difference,
    plans_of,
    random_trajectories,
    record_gradients,
    whole,
    write_model,
)

ROWS = random_trajectories(7)


def test_shards_are_what_the_other_dimensions_leave():
    assert ParallelDims.over(6) == ParallelDims(replicate=1, shard=6)
    dims = ParallelDims.over(6, replicate=2)
    assert (dims.shard, dims.world, dims.data, dims.loss) == (3, 6, 6, 6)


def test_dimensions_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(JobError, match=r"^spec\.actor\.parallel: replicate 4 .* does not divide the job's 6 ranks"):
        ParallelDims.over(6, replicate=4)


@pytest.mark.parametrize("name", ["context", "tensor", "expert"])
def test_a_dimension_that_is_not_executed_is_refused_by_name(name: str):
    with pytest.raises(JobError, match=rf"^spec\.actor\.parallel\.{name}: {name} parallelism is not supported yet"):
        ParallelDims(**{name: 2})
    with pytest.raises(JobError, match=rf"^spec\.actor\.parallel\.{name}: {name} is 0"):
        ParallelDims(**{name: 0})


def test_engines_of_one_gpu_have_places_side_by_side():
    two = make_spec(2, rollout={"enginesPerGpu": 2})
    assert [list(ranks_of_engine(two, place)) for place in range(engine_count(two))] == [[0], [0], [1], [1]]
    wide = make_spec(4, rollout={"engine": "vllm", "tensorParallelSize": 2})
    assert [list(ranks_of_engine(wide, place)) for place in range(engine_count(wide))] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("dims", [ParallelDims(replicate=2), ParallelDims(shard=2)])
def test_replicas_and_shards_have_the_gradient_of_one_rank(tmp_path, two_ranks, dims: ParallelDims):
    folder = write_model(tmp_path, "tied")
    (expected, alone_mesh) = alone(make_spec(1), gradient_and_mesh, folder)
    results = two_ranks.run(make_spec(2), gradient_and_mesh, folder, parallel=dims)
    assert alone_mesh == {"shard": 1}
    for ours, mesh in results:
        assert mesh == ({"replicate": 2, "shard": 1} if dims.replicate > 1 else {"shard": 2})
        assert largest_difference(ours, expected) < 2e-5


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks


def test_two_replicas_of_two_shards_train_and_save_as_one_rank_does(tmp_path, four_ranks):
    """Gradient, weights after AdamW, checkpoint; and a rank alone restores what four wrote."""
    folder, directories = write_model(tmp_path, "tied"), [tmp_path / "one", tmp_path / "four"]
    dims = ParallelDims.over(4, replicate=2)
    expected = alone(make_spec(1), train_and_save, folder, directories[0])
    results = four_ranks.run(make_spec(4), train_and_save, folder, directories[1], parallel=dims)
    for gradient, weights, shape in results:
        assert shape == (2, 2)
        assert largest_difference(gradient, expected[0]) < 2e-5
        assert largest_difference(weights, expected[1]) < 2e-5
    restored = alone(make_spec(1), restored_weights, folder, directories[1])
    assert largest_difference(results[0][1], restored) == 0
    assert sum(path.stat().st_size for path in directories[1].glob("*.distcp")) < 1.6 * sum(
        path.stat().st_size for path in directories[0].glob("*.distcp")
    ), "each shard is written once"


def restored_weights(worker, folder, directory):
    worker.load(folder)
    worker.begin_stage("sft")
    worker.restore(str(directory))
    return all_whole(worker)


def train_and_save(worker, folder, directory):
    gradient, _ = gradient_and_mesh(worker, folder)
    worker.begin_save(str(directory))
    worker.finish_save()
    return gradient, all_whole(worker), tuple(worker.mesh.shape)


def all_whole(worker):
    return {name: whole(parameter) for name, parameter in worker.policy.module.named_parameters()}


@pytest.mark.parametrize("dims", [ParallelDims(replicate=2), ParallelDims(shard=2)])
def test_weights_are_gathered_whole_whatever_their_rows(tmp_path, two_ranks, dims: ParallelDims):
    """97 rows of the embeddings on two ranks: one has a row less."""
    for wrong, sizes in two_ranks.run(make_spec(2), gathered, write_model(tmp_path, "tied"), parallel=dims):
        assert wrong == []
        assert max(sizes.values()) > 4096 > min(sizes.values()), "one of the first has a collective for itself"


def gathered(worker, folder):
    gathering.GROUP_BYTES = 4096
    worker.load(folder)
    ours = dict(whole_weights(all_weights(worker.policy.module.model), torch.device("cpu"), torch.bfloat16))
    theirs = {name: whole(weight).bfloat16() for name, weight in all_weights(worker.policy.module.model)}
    assert list(ours) == list(theirs)
    return [name for name in ours if not torch.equal(ours[name], theirs[name])], {n: t.nbytes for n, t in ours.items()}


def gradient_and_mesh(worker, folder):
    plans, totals = plans_of(ROWS, worker.settings.world, 40)
    worker.load(folder)
    worker.begin_stage("sft")
    gradients = record_gradients(worker)
    worker.supervised_step(plans[worker.settings.rank], totals, ROWS, 1e-3, MARK)
    names = worker.mesh.mesh_dim_names
    return gradients[0], dict(zip(names, worker.mesh.shape, strict=True))
