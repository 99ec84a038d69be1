"""The policy of recovery: rows of (failure, history) -> decision, and what holds for all of them."""

import re
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest
import yaml

from rljob_api.contract import ExitCode
from rljob_api.recovery import (
    DRIVER_LEVELS,
    LOCAL_LEVELS,
    OPERATOR_LEVELS,
    Action,
    Component,
    Decision,
    Failure,
    History,
    Level,
    decide_recovery,
)
from rljob_api.v1alpha1 import Recovery

DOCUMENT = Path(__file__).parents[2] / "docs/recovery.md"
POLICY = Recovery()
TERMINAL = (64, 65, 66, 78, 79)
OUTCOMES = (0, 76, 77)
CODES = (None, *range(-31, 256))


def driver(code: int | None, **fields) -> Failure:
    return Failure(Component.DRIVER, **{"reason": "Infrastructure", "code": code} | fields)


def decide(failure, history=None, policy=POLICY, levels=OPERATOR_LEVELS) -> Decision:
    return decide_recovery(failure, history or History(), policy, levels)


def with_rules(*rules: dict, **fields) -> Recovery:
    return Recovery.model_validate({"rules": list(rules), **fields})


def course(failures, policy=POLICY, levels=OPERATOR_LEVELS) -> list[Decision]:
    """The decisions of a supervisor that lives through `failures`."""
    history, decisions = History(), []
    for failure in failures:
        decisions.append(decide(failure, history, policy, levels))
        history = history.after(failure, decisions[-1])
    return decisions


def actions(*args, **kwargs) -> list[str]:
    return [decision.action.value for decision in course(*args, **kwargs)]


@dataclass(frozen=True)
class Row:
    name: str
    failure: Failure
    action: Action
    charged: bool = False
    delay: float = 0.0
    levels: frozenset[Level] = OPERATOR_LEVELS
    history: History = field(default_factory=History)
    policy: Recovery = POLICY


LONG_AGO = History(durable_step=40, charged=5, bugs=1, cures={Level.DRIVER: 2, Level.PODS: 2, Level.CLUSTER: 1})

ROWS = (
    Row("done", driver(0), Action.ACCEPT),
    Row("stopped on request", driver(76), Action.ACCEPT),
    Row("fenced", driver(77), Action.ACCEPT),
    Row("a wrong job", driver(64), Action.GIVE_UP),
    Row("wrong data", driver(65), Action.GIVE_UP),
    Row("wrong reward code", driver(66), Action.GIVE_UP),
    Row("no usable checkpoint", driver(78), Action.GIVE_UP),
    Row("storage full", driver(79), Action.GIVE_UP),
    Row("infrastructure", driver(75), Action.RESTART_DRIVER, charged=True),
    Row("a signal as Python counts", driver(-9), Action.RESTART_DRIVER, charged=True),
    Row("a signal as Kubernetes counts", driver(137), Action.RESTART_DRIVER, charged=True),
    Row("a slow link", driver(75, reason="FabricSlow"), Action.REBUILD_CLUSTER, charged=True),
    Row("a wrong link", driver(75, reason="FabricWrong"), Action.REBUILD_CLUSTER, True, levels=LOCAL_LEVELS),
    Row("no record", driver(None), Action.RESTART_DRIVER, charged=True),
    Row("an unknown code", driver(3), Action.RESTART_DRIVER, charged=True),
    Row("a first bug", driver(70), Action.RESTART_DRIVER, charged=True),
    Row("a second bug", driver(70), Action.GIVE_UP, history=History(0, 1, 1, {Level.DRIVER: 1})),
    Row(
        "a bug after another failure",
        driver(70),
        Action.RESTART_DRIVER,
        charged=True,
        delay=1.0,
        history=History(0, 1, 0, {Level.DRIVER: 1}),
    ),
    Row("a bug after progress", driver(70, durable_step=50), Action.RESTART_DRIVER, charged=True, history=LONG_AGO),
    Row("the budget is spent", driver(75, durable_step=40), Action.GIVE_UP, history=LONG_AGO),
    Row("a new checkpoint renews it", driver(75, durable_step=50), Action.RESTART_DRIVER, True, history=LONG_AGO),
    Row("an older checkpoint does not", driver(75, durable_step=30), Action.GIVE_UP, history=LONG_AGO),
    Row("no restarts allowed", driver(75), Action.GIVE_UP, policy=Recovery(max_restarts=0)),
    Row("Ray locally", Failure(Component.RAY, "RayLost"), Action.REBUILD_CLUSTER, True, levels=LOCAL_LEVELS),
    Row("Ray ends by itself", Failure(Component.RAY, "RayLost", code=0), Action.REBUILD_CLUSTER, True),
    Row("Ray's own code 64", Failure(Component.RAY, "RayLost", code=64), Action.REBUILD_CLUSTER, True),
    Row("an engine", Failure(Component.ENGINE, "EngineLost"), Action.REPLACE_ENGINE, levels=DRIVER_LEVELS),
    Row("again", Failure(Component.ENGINE, "EngineLost", times=2), Action.REPLACE_ENGINE, levels=DRIVER_LEVELS),
    Row("and again", Failure(Component.ENGINE, "EngineLost", times=3), Action.GIVE_UP, levels=DRIVER_LEVELS),
    Row("a reward", Failure(Component.REWARD, "RewardLost", times=2), Action.RETRY_SAMPLE, levels=DRIVER_LEVELS),
    Row("no engine helps it", Failure(Component.REWARD, "RewardLost", times=3), Action.GIVE_UP, levels=DRIVER_LEVELS),
    Row("an engine above the driver", Failure(Component.ENGINE, "EngineLost"), Action.RESTART_DRIVER, True),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_failure_meets_its_decision(row):
    decision = decide(row.failure, row.history, row.policy, row.levels)
    assert (decision.action, decision.charged, decision.delay) == (row.action, row.charged, row.delay)


def test_a_cure_in_vain_gives_way_to_the_next_level():
    lost = [driver(-9)] * 10
    assert actions(lost, Recovery(max_restarts=9)) == [
        *["restart_driver"] * 2, *["replace_pods"] * 2, *["rebuild_cluster"] * 5, "give_up"
    ]  # fmt: skip
    assert actions(lost[:6], levels=LOCAL_LEVELS) == [*["restart_driver"] * 2, *["rebuild_cluster"] * 3, "give_up"]
    assert actions(lost[:6], levels={Level.DRIVER}) == [*["restart_driver"] * 5, "give_up"]


def test_a_level_tried_for_one_component_is_tried_for_another():
    """After Ray's two rebuilds the driver has its own two tries, and then what has not been tried yet."""
    failures = [Failure(Component.RAY, "RayLost")] * 2 + [driver(75)] * 3
    assert actions(failures) == ["rebuild_cluster"] * 2 + ["restart_driver"] * 2 + ["replace_pods"]
    assert actions(failures, levels=LOCAL_LEVELS)[-1] == "rebuild_cluster"


def test_waits_grow_from_none_to_the_longest_and_start_anew_after_a_checkpoint():
    failures = [driver(75, durable_step=40)] * 8 + [driver(75, durable_step=50)] * 2
    policy = Recovery.model_validate({"maxRestarts": 9, "backoff": {"initial": "2s", "factor": 3, "max": "1m"}})
    assert [decision.delay for decision in course(failures, policy)] == [0, 2, 6, 18, 54, 60, 60, 60, 0, 2]


def test_a_wait_that_no_float_holds_is_the_longest():
    policy = with_rules({"onExitCodes": [75], "action": "restart_uncharged"})
    assert decide(driver(75), History(cures={Level.CLUSTER: 10**6}), policy).delay == 60.0


def test_a_job_that_makes_progress_never_dies_of_old_age():
    failures = [driver(code, durable_step=step) for step in range(1, 101) for code in (-9, 70, 75)]
    assert Action.GIVE_UP not in actions(failures)


def test_the_first_rule_that_matches_decides():
    policy = with_rules(
        {"onExitCodes": [137], "onReasons": ["OomKilled"], "action": "give_up"},
        {"onExitCodes": [79, 137], "action": "restart"},
        {"onReasons": ["NodeDrained"], "action": "restart_uncharged"},
        {"onReasons": ["NodeDrained", "RankLost"], "action": "give_up"},
    )
    expected = {
        (-9, "OomKilled"): (Action.GIVE_UP, False),
        (-9, "DriverLost"): (Action.RESTART_DRIVER, True),
        (75, "OomKilled"): (Action.RESTART_DRIVER, True),
        (79, "StorageFull"): (Action.RESTART_DRIVER, True),
        (64, "NodeDrained"): (Action.RESTART_DRIVER, False),
        (None, "RankLost"): (Action.GIVE_UP, False),
        (65, "Data"): (Action.GIVE_UP, False),
    }
    decisions = {key: decide(driver(key[0], reason=key[1]), policy=policy) for key in expected}
    assert {key: (one.action, one.charged) for key, one in decisions.items()} == expected
    assert decisions[-9, "OomKilled"].message.startswith("spec.recovery.rules[0] says give_up: ")


def test_a_rule_lifts_the_limit_on_bugs_but_not_the_budget():
    policy = with_rules({"onExitCodes": [70], "action": "restart"})
    assert actions([driver(70)] * 6, policy, {Level.DRIVER}) == ["restart_driver"] * 5 + ["give_up"]


def test_uncharged_restarts_climb_and_wait_but_never_end():
    policy = with_rules({"onExitCodes": [75], "action": "restart_uncharged"}, maxRestarts=0)
    decisions = course([driver(75)] * 20, policy)
    assert [one.action for one in decisions[1:3]] == [Action.RESTART_DRIVER, Action.REPLACE_PODS]
    assert (decisions[-1].action, decisions[-1].delay, decisions[-1].charged) == (Action.REBUILD_CLUSTER, 60.0, False)


def test_a_rule_holds_within_the_driver_too():
    lost = Failure(Component.ENGINE, "EngineLost")
    policy = with_rules({"onReasons": ["EngineLost"], "action": "give_up"})
    assert decide(lost, policy=policy, levels=DRIVER_LEVELS).action is Action.GIVE_UP


@pytest.mark.parametrize("action", ["restart", "restart_uncharged", "give_up"])
def test_no_rule_makes_an_outcome_a_failure(action):
    policy = with_rules({"onExitCodes": [1], "onReasons": [], "action": action}, {"onReasons": ["A"], "action": action})
    for code in OUTCOMES:
        assert decide(driver(code, reason="A"), policy=policy).action is Action.ACCEPT


def test_messages_say_what_is_done_and_why():
    lost = Failure(Component.DRIVER, "DriverLost", "it left no record", code=-9, durable_step=40)
    spent = History(40, 5, 0, {Level.DRIVER: 2, Level.CLUSTER: 3})
    assert decide(lost, History(40, 1, 0, {Level.DRIVER: 1})).message == (
        "restarting the driver in 1 s, restart 2 of 5 since the checkpoint of step 40:"
        " driver ended by SIGKILL (DriverLost): it left no record"
    )
    given_up = decide(lost, spent)
    assert given_up.reason == "RestartsExhausted"
    assert given_up.message == (
        "gave up after 5 restarts since the checkpoint of step 40; remove the cause, or raise"
        " spec.recovery.maxRestarts, and start the job again (in a cluster as another RLJob on its volume):"
        " driver ended by SIGKILL (DriverLost): it left no record"
    )
    wrong = decide(driver(64, reason="Job", message="spec.data.train[0]: no such file"))
    assert wrong.reason == "Job"
    assert wrong.message == (
        "a restart would end the same way: driver exited with code 64 (Job): spec.data.train[0]: no such file"
    )
    bug = decide(driver(70, reason="Bug"), History(0, 1, 1, {Level.DRIVER: 1}))
    assert bug.reason == "BugRepeated"
    assert bug.message.startswith("a second bug without a checkpoint; report it with the driver's log: driver exited")


OWNED = {
    Level.SAMPLE: Action.RETRY_SAMPLE,
    Level.ENGINE: Action.REPLACE_ENGINE,
    Level.DRIVER: Action.RESTART_DRIVER,
    Level.PODS: Action.REPLACE_PODS,
    Level.CLUSTER: Action.REBUILD_CLUSTER,
}
LEVELS = (DRIVER_LEVELS, LOCAL_LEVELS, OPERATOR_LEVELS, frozenset(Level), frozenset[Level](), {Level.CLUSTER})
HISTORIES = (
    History(),
    LONG_AGO,
    History(40, 4, 1, {Level.DRIVER: 9}),
    History(0, 0, 0, dict.fromkeys(Level, 2)),
    History(100, 10_000, 10_000, dict.fromkeys(Level, 10_000)),
)


@pytest.mark.parametrize("component", Component)
def test_every_answer_is_the_caller_s_to_give(component):
    for code, levels, history, times in product(CODES, LEVELS, HISTORIES, (1, 4)):
        failure = Failure(component, "Lost", code=code, times=times, durable_step=40)
        decision = decide(failure, history, levels=levels)
        case = (failure, levels, history)
        assert decision.action in {Action.ACCEPT, Action.GIVE_UP, *(OWNED[level] for level in levels)}, case
        assert 0 <= decision.delay <= 60, case
        assert not decision.charged or history.at(40).charged < POLICY.max_restarts, case
        assert (decision.action is Action.ACCEPT) == (component is Component.DRIVER and code in OUTCOMES), case
        if component is Component.DRIVER and code in TERMINAL:
            assert decision.action is Action.GIVE_UP, case
        if decision.action in {Action.ACCEPT, Action.GIVE_UP, Action.RETRY_SAMPLE, Action.REPLACE_ENGINE}:
            assert history.after(failure, decision) == history.at(40), case


@pytest.mark.parametrize("levels", [LOCAL_LEVELS, OPERATOR_LEVELS])
def test_without_progress_every_course_ends_within_the_budget(levels):
    for code in CODES:
        ends = [action in {"accept", "give_up"} for action in actions([driver(code)] * 6, levels=levels)]
        assert ends.index(True) == (0 if code in OUTCOMES + TERMINAL else 1 if code == ExitCode.BUG else 5), code


def test_both_ways_to_count_a_signal_are_one():
    policy = with_rules({"onExitCodes": [143], "action": "give_up"})
    for code in (-15, 143):
        assert decide(driver(code), policy=policy).action is Action.GIVE_UP
        assert str(driver(code)) == "driver ended by SIGTERM (Infrastructure)"
    assert str(driver(255)) == "driver exited with code 255 (Infrastructure)"
    assert str(driver(None)) == "driver failed (Infrastructure)"


def test_a_history_forgets_only_at_a_newer_checkpoint():
    lost = driver(75, durable_step=40)
    history = History().after(lost, decide(lost))
    assert history == History(40, 1, 0, {Level.DRIVER: 1})
    assert history.at(40) == history
    assert history.at(41) == History(41)


def test_a_lower_step_is_no_progress_but_what_comes_after_it_is():
    """Newer checkpoints were lost, or the run began anew: the budget goes on from there."""
    history = History(40, 3, 1, {Level.DRIVER: 2}).at(10)
    assert history == History(10, 3, 1, {Level.DRIVER: 2})
    assert history.at(20) == History(20)


def test_a_failure_that_never_happened_is_refused():
    with pytest.raises(ValueError, match="at least 1; got 0"):
        driver(75, times=0)


def test_the_document_says_what_follows_each_exit_code():
    row = r"(?m)^\| (\d+) \|[^|]+\| (nothing|gives up|restarts|one restart)"
    rows = dict(re.findall(row, DOCUMENT.read_text()))
    words = {Action.ACCEPT: "nothing", Action.GIVE_UP: "gives up", Action.RESTART_DRIVER: "restarts"}
    assert rows == {str(int(code)): words[decide(driver(code)).action] for code in ExitCode} | {"70": "one restart"}


def test_the_document_s_example_is_a_policy():
    (example,) = re.findall(r"(?s)```yaml\n(.*?)```", DOCUMENT.read_text())
    policy = Recovery.model_validate(yaml.safe_load(example)["recovery"], strict=True, by_alias=True, by_name=False)
    decisions = [
        decide(driver(79, reason="StorageFull"), policy=policy),
        decide(driver(-9), policy=policy),
        decide(driver(75, reason="RankLost"), policy=policy),
    ]
    expected = [(Action.RESTART_DRIVER, True), (Action.RESTART_DRIVER, False), (Action.GIVE_UP, False)]
    assert [(one.action, one.charged) for one in decisions] == expected


def test_the_document_s_default_waits_are_the_policy_s():
    assert "by default 0, 1, 2, 4 and 8 s" in DOCUMENT.read_text()
    assert [one.delay for one in course([driver(75)] * 5)] == [0, 1, 2, 4, 8]
