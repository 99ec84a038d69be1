"""The length of a run, on which schedules and the estimate of its end depend, and the time that its prompts see."""

from datetime import UTC, datetime

import pytest

from rljob_trainer.attempt.claim import root_claim
from rljob_trainer.attempt.origin import Origin
from rljob_trainer.checkpoint.manifest import CheckpointRef
from rljob_trainer.data.position import EpochOrder
from rljob_trainer.errors import JobError
from rljob_trainer.loop.stages import data_exhausted, known_length, learning_rate_of, stage_of, with_length
from rljob_trainer.rank.training_state import RankStates, TrainingState
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt, make_spec

LENGTHS = {
    "epochs alone": ({"epochs": 2}, 10, 5),
    "rounded up": ({"epochs": 1}, 9, 3),
    "less than the steps": ({"epochs": 1, "steps": 100}, 8, 2),
    "more than the steps": ({"epochs": 9, "steps": 3}, 8, 3),
    "steps alone": ({"steps": 7}, 1, 7),
}


def spec_of(training, **blocks):
    data = {"train": ["rows.jsonl"], "promptsPerStep": 4}
    actor = {"learningRate": 1.0, "lrSchedule": "linear"}
    return make_spec(data=data, actor=actor, training=training, **blocks)


@pytest.mark.parametrize(("training", "rows", "steps"), LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("blocks", [{}, {"sft": {"steps": 2}}, {"algorithm": {"preset": "sft"}, "rewards": {}}])
def test_schedules_end_with_the_data(training, rows, steps, blocks):
    spec = with_length(spec_of(training, **blocks), rows)
    before = 2 if "sft" in blocks else 0
    assert spec.total_steps == before + steps
    rates = [learning_rate_of(spec, step) for step in range(before + 1, spec.total_steps + 1)]
    assert rates == pytest.approx([1 - i / steps for i in range(steps)])
    assert stage_of(spec, spec.total_steps) == ("sft" if "algorithm" in blocks else "rl")


def test_a_run_in_which_only_the_critic_would_learn_is_refused():
    ppo = {"algorithm": {"preset": "ppo"}, "critic": {"warmupSteps": 5}}
    assert with_length(spec_of({"epochs": 3}, **ppo), 8).total_steps == 6
    with pytest.raises(JobError, match="5 steps, in which only the critic learns") as refused:
        with_length(spec_of({"epochs": 2}, **ppo), 10)
    assert refused.value.field == "spec.critic.warmupSteps"


@pytest.mark.parametrize(("rows", "epochs"), [(10, 2), (9, 1), (8, 1), (1, 3)])
def test_the_length_is_that_of_the_stream(rows, epochs):
    spec, order = spec_of({"epochs": epochs}), EpochOrder(rows, seed=0, fingerprint="f", epochs=epochs)
    steps = 0
    while not order.exhausted:
        order.take(4)
        steps += 1
        assert data_exhausted(spec, steps, {"prompts": order.state_dict()}) == order.exhausted
    assert known_length(spec, {"prompts": order.state_dict()}).total_steps == steps


# ---- the time of templates

BEGUN = datetime(2020, 1, 2, 23, 59, tzinfo=UTC)


def test_prompts_see_the_time_when_the_run_began(tmp_path):
    volume = Volume(tmp_path)
    for attempt in (1, 2):
        begin_attempt(volume, attempt).save(attempt)
    begun = volume.claim(1)
    for path in (begun, volume.claim_copy(1)):
        path.write_text(path.read_text().replace('"startTime": "20', '"startTime": "19'))
    root = root_claim(volume, 2)
    assert root is not None
    assert Origin(None, None).template_time(root).isoformat() == root.start_time
    assert Origin(None, None).template_time(root).year < 2000


@pytest.mark.parametrize("source", ["checkpoint", "ranks"])
def test_what_continues_keeps_its_time(tmp_path, source):
    """Also in another run, which has a beginning of its own."""
    volume = Volume(tmp_path)
    first = begin_attempt(volume, 1)
    saved: CheckpointRef = first.save(1)
    state = {"step": 1, "templateTime": BEGUN.isoformat()}
    (saved.path / "trainer.json").write_text(f'{{"step": 1, "templateTime": "{BEGUN.isoformat()}"}}')
    held = RankStates(TrainingState(1, "d", "rl", {}, state)) if source == "ranks" else None
    origin = Origin(held, saved if source == "checkpoint" else None)
    assert origin.template_time(root_claim(volume, 1)) == BEGUN
