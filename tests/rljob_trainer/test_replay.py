"""A step that was begun before uses the same groups again, or its record is void; and which journals a save deletes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from rljob_trainer.errors import FencedError, InfrastructureError
from rljob_trainer.journal import Used
from rljob_trainer.loop import loop as loop_module
from rljob_trainer.loop.agreement import Agreement
from rljob_trainer.loop.loop import Loop
from rljob_trainer.loop.reinforced import Fingerprints, ReinforcedSteps
from rljob_trainer.rollouts.calls import GroupRef, Order, PolicyName
from rljob_trainer.types import Group, Task
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt, job_spec
from tests.rljob_trainer.journal_support import episode, group, group_ref, task, used_by, write

GROUPS = [group(5), group(3), group(4)]
USED = used_by(GROUPS)
SPEC = job_spec()


@dataclass
class Journaled:
    """Rollouts that have only what the journal has, and the state of a driver before step 8."""

    groups: Sequence[Group]
    records: Sequence[Used] = (USED,)
    step: int = 7
    policy_digest: str = "policy 7"
    asked: Order | None = None

    @property
    def prompts(self) -> Any:
        return self

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...

    def task(self, task_id: str) -> Task:
        return task(int(task_id.split("/")[1]))

    def step_used(self, digest: str, fingerprint: str) -> Used | None:
        fitting = (used for used in self.records if (used.digest, used.fingerprint) == (digest, fingerprint))
        return next(fitting, None)

    def find(self, order: Order) -> list[GroupRef]:
        self.asked = order
        wanted = {each.id for each in order.tasks}
        return [group_ref(each) for each in self.groups if each.task.id in wanted]

    def steps(self) -> ReinforcedSteps:
        me: Any = self
        return ReinforcedSteps(
            SPEC, Fingerprints("update settings", "step settings"),
            state=me, ranks=me, rollouts=me, validation=[], reporting=me, replaying=True, agreement=Agreement(0.1),
        )  # fmt: skip


def test_a_step_uses_the_groups_of_its_record_in_their_order():
    journaled = Journaled([group(1), *sorted(GROUPS, key=lambda group: group.task.id)])
    steps = journaled.steps()
    assert steps._next_used() == USED
    found = steps._groups_of(USED)
    assert found is not None
    assert [each.summary.digest for each in found] == [digest for _, digest in USED.groups]
    assert journaled.asked is not None
    assert (journaled.asked.policy, journaled.asked.samples) == (
        PolicyName(7, "policy 7"),
        SPEC.rollout.samples_per_prompt,
    )


@pytest.mark.parametrize(
    "groups",
    [GROUPS[:2], [], [*GROUPS[:2], group(4, length=5)]],
    ids=["a group is missing", "all are", "a group is another one"],
)
def test_a_record_without_one_of_its_groups_is_void(groups):
    with capture_logs() as logs:
        assert Journaled(groups).steps()._groups_of(USED) is None
    assert [each["event"] for each in logs] == ["used_record_void"]


@pytest.mark.parametrize("change", [{"digest": "policy 6"}, {"fingerprint": "other settings"}])
def test_no_record_of_another_policy_or_of_other_settings_is_replayed(change):
    steps = Journaled(GROUPS, [replace(USED, **change)]).steps()
    assert steps._next_used() is None
    assert not steps.replaying, "later steps are not looked for"


# ---- what a durable checkpoint makes needless


def loop_of(volume: Volume) -> Loop:
    loop = Loop.__new__(Loop)
    loop.volume, loop.reinforced = volume, None
    return loop


def test_a_driver_that_thaws_after_its_save_deletes_nothing_of_the_attempt_that_took_over(tmp_path):
    volume = Volume(tmp_path)
    first = begin_attempt(volume, 1)
    write(volume, episode(1), version=39)
    ref = first.save(40)
    begin_attempt(volume, 2, resume="never")
    for version in range(5):
        write(volume, episode(1), attempt=2, version=version)
    with pytest.raises(FencedError):
        loop_of(volume)._forget_needless(ref)
    assert len(list(volume.journals.rglob("*.journal"))) == 6


def test_a_durable_checkpoint_is_no_failure_if_the_journal_cannot_be_truncated(tmp_path, monkeypatch):
    """The next checkpoint tries again."""

    def refuse(*_: Any) -> None:
        raise InfrastructureError("cannot delete needless files")

    volume = Volume(tmp_path)
    first = begin_attempt(volume, 1)
    for version in (39, 40, 41):
        write(volume, episode(1), version=version)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(loop_module, "truncate", refuse)
        loop_of(volume)._forget_needless(first.save(40))
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["journal_not_truncated"]
    loop_of(volume)._forget_needless(first.save(41))
    assert [path.name for path in volume.journals.rglob("*.journal")] == ["version-41.journal"]
