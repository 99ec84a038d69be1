"""What the rollout host journals, finds again and forgets; without Ray. With it: test_rollouts.py."""

import errno
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rljob_api.v1alpha1 import Rewards
from rljob_api.v1alpha1.model import Tokenizer
from rljob_api.v1alpha1.teacher import Teacher
from rljob_trainer.attempt.claim import claim
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.errors import FencedError, InfrastructureError
from rljob_trainer.journal import Journal, JournalWriter
from rljob_trainer.journal.summary import summarise
from rljob_trainer.rollouts import rollout_host
from rljob_trainer.rollouts.calls import GroupRef, Order, PolicyName
from rljob_trainer.rollouts.rollout_host import RolloutProcess, RolloutSettings
from rljob_trainer.types import Episode, Group, Sampling, Task
from rljob_trainer.volume import Volume
from tests.rljob_trainer.journal_support import FINGERPRINT, assert_same_episode, task, used_by
from tests.rljob_trainer.played_server import played
from tests.rljob_trainer.rollouts_support import AnsweringEngine

POLICY = PolicyName(7, "policy 7")
ORDER = Order("training", POLICY, [task(number) for number in range(3)], 2, Sampling(8))
REWARDS = Rewards.model_validate({"functions": [{"name": "exact", "builtin": "exact_match"}]})


class FakeScorer:
    """Drops task 1, as rewards.onError: drop_group does."""

    def __init__(self, *_: Any, **_settings: Any) -> None: ...

    async def score(self, task: Task, episodes: Sequence[Episode]) -> Group:
        drop = task.id == "0/1/0"
        rewards = [float("nan") if drop else float(each.sample) for each in episodes]
        scored = [replace(each, reward=reward) for each, reward in zip(episodes, rewards, strict=True)]
        return Group(task, tuple(scored), "returned nan" if drop else None)

    def close(self) -> None: ...


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


@pytest.fixture
def hosts(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RolloutProcess]]:
    """Makes hosts, each with an engine that answers at once."""
    monkeypatch.setattr(rollout_host, "Scorer", FakeScorer)
    monkeypatch.setattr("ray.put", lambda value: value)
    made = []

    def make(attempt: int = 1, from_version: int = 0, **more: Any) -> RolloutProcess:
        root = str(volume.root)
        me: Any = None
        settings = RolloutSettings(REWARDS, root, root, {}, "log", root, FINGERPRINT, 0, False, 256, **more)
        made.append(RolloutProcess(settings, me))
        made[-1].start(attempt, from_version)
        return made[-1]

    claim(volume, 1)
    yield make
    for host in made:
        host.close()


def order_of(policy: PolicyName = POLICY, **changes: Any) -> Order:
    return replace(ORDER, policy=policy, **changes)


def attach(host: RolloutProcess, policy: PolicyName = POLICY) -> AnsweringEngine:
    engine: Any = AnsweringEngine(f"for {policy.digest}")
    engine.deliver, engine.version = host.deliver, policy.version
    host.attach([engine], policy)
    return engine


def collected(host: RolloutProcess, order: Order) -> list[GroupRef]:
    """In the order of the tasks."""
    number = host.begin(order)
    groups: dict[str, GroupRef] = {}
    while len(groups) < len(order.tasks):
        news = host.news(number, len(groups), 10)
        assert news.groups
        groups |= {each.summary.task_id: each for each in news.groups}
    return [groups[each.id] for each in order.tasks]


def digests(groups: Sequence[GroupRef]) -> list[str]:
    return [each.summary.digest for each in groups]


def test_a_group_is_in_the_journal_before_it_is_reported_and_no_validation_is(hosts, volume):
    host = hosts()
    attach(host)
    collected(host, order_of(purpose="validation"))
    assert len(Journal(volume, 1, 0)) == 0
    groups = collected(host, ORDER)
    journal = Journal(volume, 1, 0)
    assert len(journal) == 6
    for ref, each in zip(groups, ORDER.tasks, strict=True):
        made: Any = ref.bundle
        for episode in made[ref.index].episodes:
            found = journal.find(each, episode.sample, FINGERPRINT, {7: "policy 7"})
            assert found is not None
            assert found.error == ("returned nan" if each.id == "0/1/0" else None)
            assert_same_episode(found.episode, episode)


@pytest.mark.parametrize("lost", [False, True], ids=["the same host", "another host"])
def test_a_greedy_answer_is_scored_journaled_and_found_again_as_the_baseline(hosts, volume, lost):
    order = order_of(baseline=True, sampling=Sampling(8, temperature=0.7, top_p=0.9))
    host = hosts()
    engine = attach(host)
    groups = collected(host, order)
    assert (
        sorted((each.sampling.temperature, len(each.seeds)) for each in engine.requests)
        == [(0, 1)] * 3 + [(0.7, 2)] * 3
    )
    assert [each.summary.baseline for each in groups[::2]] == [2.0, 2.0]
    assert [each.summary.rewards.tolist() for each in groups[::2]] == [[0.0, 1.0]] * 2
    assert len(Journal(volume, 1, 0)) == 9
    made: Any = groups[0].bundle
    group: Group = made[groups[0].index]
    assert group.baseline is not None
    changed = replace(group, baseline=replace(group.baseline, reward=0.5))
    assert summarise(pickle.loads(pickle.dumps(group))).digest == groups[0].summary.digest != summarise(changed).digest
    if lost:
        host = hosts()
    assert digests(host.find(order)) == digests(groups)
    assert digests(host.find(replace(order, baseline=False))) != digests(groups)


def test_what_the_teachers_server_said_is_journaled_and_never_asked_again(hosts, volume):
    """This one never says the same again."""
    build_tokenizer(Tokenizer(kind="byte"), []).save_pretrained(volume.root)
    asked = []

    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        if body["path"] == "/tokenize":
            return 404, ""
        asked.append(body["prompt"])
        rows = [{str(token): {"logprob": -number / 7}} for token in body["prompt"]]
        return 200, {"choices": [{"prompt_logprobs": rows}]}

    with played(answer) as url:
        server = Teacher.model_validate({"server": {"url": url, "model": "m"}})
        host = hosts(teacher=server, episode_tokens=16)
        attach(host)
        collected(host, order_of(purpose="validation"))
        assert asked == []
        groups = collected(host, ORDER)
    assert len(asked) == 4, "and nothing of the group that is dropped"
    made: Any = groups[0].bundle
    said = [part.taught.log_probs for part in made[groups[0].index].trajectories]
    assert all(values.shape == (2,) and values.dtype == np.float32 and (values < 0).all() for values in said)
    again = hosts(teacher=server, episode_tokens=16).find(ORDER)  # the server is gone
    assert digests(again) == digests(groups)
    found: Any = again[0].bundle
    assert [part.taught.log_probs.tolist() for part in found[0].trajectories] == [each.tolist() for each in said]


@pytest.mark.parametrize("lost", [False, True], ids=["the same host", "another host"])
def test_the_response_of_a_row_is_the_best_of_its_group_and_not_journaled(hosts, volume, lost):
    tasks = [replace(task, response=np.array([8, 9, 1], np.int32)) for task in ORDER.tasks]
    order, host = order_of(tasks=tasks), hosts()
    attach(host)
    groups = collected(host, order)
    assert len(Journal(volume, 1, 0)) == 6
    made: Any = groups[0].bundle
    sampled, *_, given = made[groups[0].index].episodes
    (turn,) = given.trajectories[0].turns
    assert (given.sample, given.reward, turn.temperature) == (2, 1.0, sampled.trajectories[0].turns[0].temperature)
    assert given.trajectories[0].token_ids[given.trajectories[0].in_loss].tolist() == [8, 9, 1]
    assert (groups[0].summary.sampled, groups[0].summary.made, groups[0].summary.oldest_version) == (2, 2, 7)
    if lost:
        host = hosts()
    assert digests(host.find(order)) == digests(groups)
    if lost:
        other = [replace(task, response=np.array([8, 1], np.int32)) for task in ORDER.tasks]
        assert not {*digests(hosts().find(order_of(tasks=other)))} & {*digests(groups)}


@pytest.mark.parametrize("lost", [False, True], ids=["the same host", "another host"])
def test_groups_are_found_again_for_the_same_policy_and_by_no_other(hosts, lost):
    host = hosts()
    attach(host)
    groups = collected(host, ORDER)
    if lost:
        host = hosts()
    engine = attach(host)
    more = replace(ORDER, tasks=[*ORDER.tasks, task(3)])
    again = collected(host, more)
    assert digests(again[:3]) == digests(groups) == digests(host.find(ORDER))
    assert [each.journaled for each in again] == [True, True, True, False]
    assert np.isnan(again[1].summary.rewards).all()
    assert again[1].summary.error == "returned nan"
    assert len(engine.requests) == 1
    other = PolicyName(7, "another lineage")
    assert host.begin(ORDER) == host.begin(ORDER)
    attach(host, other)
    assert not any(each.journaled for each in collected(host, order_of(other)))


def test_what_a_policy_is_to_answer_waits_for_engines_that_hold_it(hosts):
    host, later = hosts(), PolicyName(8, "policy 8")
    old = attach(host)
    number = host.begin(order_of(later))
    assert host.news(number, 0, 0.05).groups == []
    assert old.requests == []
    new = attach(host, later)
    assert len(collected(host, order_of(later))) == 3
    assert len(new.requests) == 3
    assert host.find(ORDER) == [], "groups of another policy are none of this order"


class RecordingWriter(JournalWriter):
    log: ClassVar[list[str]]

    def append(self, records: Sequence[bytes], attempt: int, version: int) -> None:
        kinds = "used" if b'"kind": "used"' in records[0] else "made"
        self.log.append(f"{kinds} a{attempt} v{version}")
        super().append(records, attempt, version)

    def sync(self) -> None:
        super().sync()
        self.log.append("sync")


def test_what_an_update_uses_is_durable_behind_the_groups_that_it_names(hosts, monkeypatch):
    log: list[str] = []
    monkeypatch.setattr(rollout_host, "JournalWriter", RecordingWriter)
    monkeypatch.setattr(RecordingWriter, "log", log, raising=False)
    host = hosts()
    attach(host)
    collected(host, ORDER)
    assert set(log) == {"made a1 v7"}
    log.clear()
    used = used_by([])
    host.use(used)
    assert log == ["sync", "used a1 v7", "sync"]
    assert host.step_used("policy 7", "step settings") is None, "as of its start"
    host.start(1, 0)
    assert host.step_used("policy 7", "step settings") == used


def test_a_driver_that_was_superseded_records_nothing(hosts, volume):
    host = hosts()
    claim(volume, 2)
    with pytest.raises(FencedError):
        host.use(used_by([]))
    assert Journal(volume, 1, 0).used("policy 7", "step settings") is None


def test_a_journal_that_failed_for_one_driver_is_opened_again_for_the_next(hosts, volume, monkeypatch):
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    host = hosts()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(InfrastructureError, match=r"rollout journal .* cannot be written"):
            host.use(used_by([]))
    claim(volume, 2)
    host.start(2, 0)
    attach(host)
    collected(host, ORDER)
    host.use(used_by([]))
    journal = Journal(volume, 2, 0)
    assert journal.used("policy 7", "step settings") is not None
    assert len(journal) == 6


def test_it_says_what_its_journal_lacks(hosts, volume):
    host = hosts()
    attach(host)
    collected(host, ORDER)
    with volume.journal(1, 7).open("ab") as file:
        file.write(b"torn")
    info = host.start(1, 0)
    assert (info.made, info.damaged) == (6, ("journal/a1/version-7.journal",))
    assert host.start(1, from_version=8).made == 0


def test_a_new_driver_ends_validations_and_engines_get_nothing_until_it_attaches_them(hosts):
    """Before that it lets them sleep and updates them."""
    host = hosts()
    engine = attach(host)
    engine.holds = True
    orders = ORDER, order_of(purpose="validation")
    training, validation = (host.begin(order) for order in orders)
    assert all(engine.asked.acquire(timeout=10) for _ in orders)
    host.detach()
    with pytest.raises(InfrastructureError, match="was ended"):
        host.news(validation, 0, 0)
    assert host.begin(ORDER) == training
    later = order_of(tasks=[task(5)])
    number = host.begin(later)
    engine.answer()
    assert len(collected(host, ORDER)) == 3, "engines finish the requests that they have"
    assert host.news(number, 0, 0.05).groups == []
    attach(host)
    assert len(collected(host, later)) == 1


def test_engines_of_another_policy_answer_no_order_that_was_begun_before(hosts):
    """A driver that goes back to a checkpoint may validate before it comes to the step that was under way."""
    host, older = hosts(), PolicyName(5, "policy 5")
    training = host.begin(ORDER)
    validation = order_of(older, purpose="validation")
    host.begin(validation)
    assert len(attach(host, older).requests) == len(collected(host, validation)) == 3
    assert host.begin(ORDER) != training


def test_completions_for_another_host_are_ignored(hosts):
    host = hosts()
    engine = attach(host)
    engine.deliver = lambda delivery: host.deliver(replace(delivery, incarnation="another"))
    number = host.begin(ORDER)
    assert engine.asked.acquire(timeout=10)
    assert host.news(number, 0, 0.05).groups == []


def test_an_episode_is_found_although_its_group_never_was(hosts):
    first = hosts()
    attach(first)
    (group, *_), other = [each.bundle[each.index] for each in collected(first, ORDER)], task(9)
    played = replace(group.episodes[1], task_id=other.id, reward=float("nan"))
    first.keep_played(ORDER, other, played)
    first.keep_played(ORDER, other, replace(played, sample=0, trajectories=()))
    second = hosts()
    assert_same_episode(second.find_played(ORDER, other, 1), played)
    assert second.find_played(ORDER, other, 0) is None, "one that failed is played again"
    assert second.find_played(order_of(PolicyName(7, "another")), other, 1) is None
    assert second.find(order_of(tasks=[other])) == [], "it has no reward yet"
