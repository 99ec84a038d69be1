"""Which changes of a job that exists the CRD's rules let through."""

from typing import Any, get_args

import pytest

from rljob_api.v1alpha1 import Checkpoint, Rewards, RLJobSpec, Training
from rljob_api.v1alpha1.status import Phase
from rljob_api.v1alpha1.transitions import fixed_while_running
from tests.rljob_api import api_server
from tests.rljob_api.job_changes import AT_ANY_TIME, MODELS, NEVER, REORDERED, REPLACED, SPEC, WHILE_SUSPENDED, changed


def refused(old: Any, new: Any) -> list[str]:
    schema = api_server.root_schema()["properties"]["spec"]
    return api_server.refused_changes(schema, old, new)


COVERED = {path for path, _ in AT_ANY_TIME + WHILE_SUSPENDED + NEVER}


@pytest.mark.parametrize(("path", "value"), AT_ANY_TIME)
def test_what_a_running_job_takes_over_may_change_at_any_time(path: str, value: Any) -> None:
    assert refused(SPEC, changed(path, value)) == []


@pytest.mark.parametrize(("path", "value"), WHILE_SUSPENDED)
def test_what_a_running_job_cannot_take_over_changes_while_it_is_suspended(path: str, value: Any) -> None:
    running, suspended = changed(path, value), changed("suspend", True)
    (message,) = refused(SPEC, running)
    assert "suspend is true" in message
    assert refused(suspended, changed("suspend", True, running)) == []
    assert refused(suspended, running) == [], "it may resume with the change"


@pytest.mark.parametrize(
    ("scheduler", "replicas", "may"), [("native", 2, True), ("native", 1, False), ("volcano", 1, True)]
)
def test_a_native_gang_gets_no_smaller_while_it_runs(scheduler: str, replicas: int, may: bool) -> None:
    before = changed(
        "rewards.models", [{**each, "replicas": 2} for each in MODELS], changed("gang.scheduler", scheduler)
    )
    after = changed("rewards.models", [{**MODELS[1], "replicas": 3}, {**MODELS[0], "replicas": replicas}], before)
    assert bool(refused(before, after)) is not may
    assert refused(changed("suspend", True, before), after) == []


@pytest.mark.parametrize(("path", "value", "other"), REPLACED)
def test_another_key_in_place_of_one_is_a_change(path: str, value: Any, other: Any) -> None:
    before, after = changed(path, value), changed(path, other)
    (message,) = refused(before, after)
    assert "suspend is true" in message
    assert refused(changed("suspend", True, before), after) == []
    ended = {"status": {"phase": "Failed"}}
    (message,) = api_server.refused_changes(api_server.root_schema(), ended | {"spec": before}, ended | {"spec": after})
    assert "has ended" in message
    assert fixed_while_running(before) != fixed_while_running(after)


@pytest.mark.parametrize(("path", "value"), NEVER)
def test_what_a_run_is_built_on_never_changes(path: str, value: Any) -> None:
    (message,) = refused(changed("suspend", True), changed("suspend", True, changed(path, value)))
    assert "cannot change" in message


@pytest.mark.parametrize(("path", "value", "other"), REORDERED)
def test_another_order_of_what_has_none_is_no_change(path: str, value: Any, other: Any) -> None:
    assert fixed_while_running(changed(path, value)) == fixed_while_running(changed(path, other))


def test_every_field_of_the_spec_is_in_one_of_the_tables() -> None:
    blocks = {path.split(".")[0] for path in COVERED}
    assert blocks == {field.alias for field in RLJobSpec.model_fields.values()}
    for block, model in (("training", Training), ("checkpoint", Checkpoint), ("rewards", Rewards)):
        assert {f"{block}.{field.alias}" for field in model.model_fields.values()} == {
            path if path.count(".") < 2 else path.rsplit(".", 1)[0] for path in COVERED if path.startswith(block)
        }


@pytest.mark.parametrize("phase", [*get_args(Phase), None])
@pytest.mark.parametrize(("path", "value"), AT_ANY_TIME + WHILE_SUSPENDED + NEVER)
def test_of_a_job_that_has_ended_nothing_changes_but_how_long_it_stays(
    path: str, value: Any, phase: str | None
) -> None:
    before = {"spec": SPEC} | ({"status": {"phase": phase}} if phase else {})
    told = api_server.refused_changes(api_server.root_schema(), before, before | {"spec": changed(path, value)})
    if phase in ("Succeeded", "Failed") and path != "ttlAfterFinished":
        (message,) = told
        assert "has ended" in message
    else:
        assert told == []
